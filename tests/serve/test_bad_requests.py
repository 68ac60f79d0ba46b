"""Thousands of damaged and hostile requests against the real server: each is refused by its name, nothing worse."""

from __future__ import annotations

import gzip
import hashlib
import os
import random
import socket
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from quad4fhe import Fit
from quad4fhe.he import message
from quad4fhe.he.message import HEADER_BYTES
from quad4fhe.he.session import Client
from quad4fhe.layouts import layout_of
from quad4fhe.layouts.forms import Kind
from quad4fhe.planning.plan import Plan
from quad4fhe.serve.client import Remote
from support.serving import RunningServer, small_fit, works

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc to find the server's workers")

REQUESTS = int(os.environ.get("QUAD4FHE_HTTP_MUTATIONS", "1000"))
OCTETS = "application/octet-stream"
SILENT = -1
GONE = 0  # the server closed the connection without an answer: right only where the request itself never ended


@pytest.fixture(scope="module")
def fit(tmp_path_factory: pytest.TempPathFactory) -> Fit:
    made = small_fit(1, 2, 2, seed=1)
    made.save(tmp_path_factory.mktemp("fits") / "fit.safetensors")
    return made


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spool")


@pytest.fixture(scope="module")
def server(fit: Fit, spool: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    file = tmp_path_factory.mktemp("fits") / "fit.safetensors"
    fit.save(file)
    words = ("--precision", "fast", "--samples", "1", "--workers", "1", "--deadline", "20", "--spool", spool)
    with RunningServer(file, *words) as running:
        yield running
        assert "Traceback" not in "\n".join(running.log)


class Connection:
    """A bare HTTP/1.1 client that sends any bytes, keeps the connection where it may, and gives the status."""

    def __init__(self, url: str) -> None:
        parsed = httpx.URL(url)
        self._address = (parsed.host, parsed.port)
        self._socket: socket.socket | None = None
        self.body = b""

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def ask(self, data: bytes, *, ends: bool = False) -> int:
        """Send bytes (and with `ends` nothing more); the status, or GONE, or SILENT."""
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=15)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._socket.sendall(data)
            if ends:
                self._socket.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it was refused before it was sent: the answer is there
        try:
            return self._answer(self._socket)
        except (ConnectionResetError, TimeoutError) as error:
            self.close()
            return SILENT if isinstance(error, TimeoutError) else GONE

    def _answer(self, stream: socket.socket) -> int:
        got = b""
        while b"\r\n\r\n" not in got:
            part = stream.recv(2**16)
            if not part:
                self.close()
                return GONE
            got += part
        head, _, body = got.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        while len(body) < int(fields.get(b"content-length", b"0")):
            body += stream.recv(2**16)
        self.body = body
        if fields.get(b"connection") == b"close":
            self.close()
        return int(head.split()[1])


class Mutations:
    """Requests that are wrong in one way each, with the answers that are right for it."""

    def __init__(self, fit: Fit, plans: dict[str, Plan], seed: int) -> None:
        self.random = random.Random(seed)
        self.plan = plans["batch"]
        self.path = f"/models/{fit.model_id}/evaluate"
        self.data = _request(fit, plans["batch"])
        self.largest = max(message.size(plan, Kind.request) for plan in plans.values())
        self.bombs = {
            "gzip": gzip.compress(bytes(2**25)),
            "deflate": zlib.compress(bytes(2**25)),
            "br": b"\x00" * 64,
            "zstd": b"\x28\xb5\x2f\xfd" + bytes(64),
        }

    def post(self, body: bytes, *lines: str, length: int | str | None = None, path: str | None = None) -> bytes:
        length = len(body) if length is None else length
        head = [f"POST {path or self.path} HTTP/1.1", "Host: localhost", f"Content-Length: {length}", *lines]
        if not any(line.lower().startswith("content-type") for line in lines):
            head.append(f"Content-Type: {OCTETS}")
        return "\r\n".join([*head, "", ""]).encode("latin-1") + body

    def flipped(self, data: bytes, start: int, stop: int) -> bytes:
        out = bytearray(data)
        out[self.random.randrange(start, stop)] ^= 1 << self.random.randrange(8)
        return bytes(out)

    def hashed(self, data: bytes) -> bytes:
        """With a SHA-256 that fits, so that only what is inside is wrong."""
        return data[:-32] + hashlib.sha256(data[:-32]).digest()

    def bit_in_header(self) -> tuple[bytes, set[int]]:
        return self.post(self.flipped(self.data, 0, HEADER_BYTES)), {400, 413}  # a bit may name the other kind

    def bit_in_header_rehashed(self) -> tuple[bytes, set[int]]:
        return self.post(self.hashed(self.flipped(self.data, 0, HEADER_BYTES))), {400, 413}

    def bit_in_payload(self) -> tuple[bytes, set[int]]:
        return self.post(self.flipped(self.data, HEADER_BYTES, len(self.data))), {400}

    def wrong_hash(self) -> tuple[bytes, set[int]]:
        return self.post(self.data[:-32] + self.random.randbytes(32)), {400}

    def residue_not_below_its_prime(self) -> tuple[bytes, set[int]]:
        seed, form = layout_of(self.plan).form(self.plan, Kind.request).parts
        place, index = self.random.randrange(len(form.primes)), 0
        for size, at in zip(form.shape, [self.random.randrange(size) for size in form.shape], strict=True):
            index = index * size + (place if size == len(form.primes) else at)
        place = index // form.shape[-1] % len(form.primes)
        value = self.random.choice([form.primes[place], 2**32 - 1, self.random.randrange(form.primes[place], 2**32)])
        out = bytearray(self.data)
        struct.pack_into("<I", out, HEADER_BYTES + seed.payload + 4 * index, value)
        return self.post(self.hashed(bytes(out))), {400}

    def truncated(self) -> tuple[bytes, set[int]]:
        return self.post(self.data[: self.random.randrange(len(self.data))]), {400}

    def oversized(self) -> tuple[bytes, set[int]]:
        more = self.random.choice([1, 32, self.random.randrange(1, 2**16)])
        return self.post(self.data + self.random.randbytes(more)), {413}

    def oversized_by_its_own_word(self) -> tuple[bytes, set[int]]:
        length = self.largest + self.random.choice([2**20, 2**31, 2**40, 2**62])
        return self.post(self.data, length=length), {413}

    def another_plan(self) -> tuple[bytes, set[int]]:
        return self.post(self.hashed(self.data[:12] + self.random.randbytes(32) + self.data[44:])), {400}

    def another_path(self) -> tuple[bytes, set[int]]:
        path = self.random.choice(
            [
                f"/models/{self.random.randbytes(32).hex()}/evaluate",
                "/models/../evaluate",
                f"{self.path}/x",
                "//",
                "/%00",
            ]
        )
        return self.post(self.data, path=path), {404}

    def noise(self) -> tuple[bytes, set[int]]:
        return self.post(self.random.randbytes(self.random.randrange(4096))), {400}

    def bomb(self) -> tuple[bytes, set[int]]:
        name = self.random.choice(list(self.bombs))
        return self.post(self.bombs[name], f"Content-Encoding: {name}"), {415}

    def bomb_that_says_nothing(self) -> tuple[bytes, set[int]]:
        return self.post(self.bombs["gzip"]), {400, 413}

    def wrong_type(self) -> tuple[bytes, set[int]]:
        kind = self.random.choice(["text/plain", "application/json", "multipart/form-data; boundary=x", "", "\xff"])
        return self.post(self.data, f"Content-Type: {kind}"), {415}

    def wrong_method(self) -> tuple[bytes, set[int]]:
        method = self.random.choice([b"PUT", b"DELETE", b"PATCH", b"GET", b"OPTIONS"])
        return method + self.post(self.data).removeprefix(b"POST"), {405}

    def wrong_length(self) -> tuple[bytes, set[int]]:
        length = self.random.choice(["-1", "abc", "", "1e3", "0x10", "99999999999999999999999", "1, 2", "+5"])
        return self.post(self.data[:200], length=length) + b"\r\n", {400}

    def two_lengths(self) -> tuple[bytes, set[int]]:
        return self.post(self.data[:200], f"Content-Length: {self.random.randrange(1, 9)}"), {400}

    def length_and_chunks(self) -> tuple[bytes, set[int]]:
        return self.post(self.data[:200], "Transfer-Encoding: chunked"), {400}

    def chunks(self, body: bytes) -> bytes:
        out = []
        while body:
            size = self.random.randrange(1, 2**15)
            part, body = body[:size], body[size:]
            out.append(b"%x\r\n%s\r\n" % (len(part), part))
        head = f"POST {self.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {OCTETS}\r\n"
        head += "Transfer-Encoding: chunked\r\n\r\n"
        return head.encode() + b"".join(out) + b"0\r\n\r\n"

    def chunked_damage(self) -> tuple[bytes, set[int]]:
        return self.chunks(self.flipped(self.data, HEADER_BYTES, len(self.data))), {411}

    def chunked_garbage(self) -> tuple[bytes, set[int]]:
        good = self.chunks(self.data)
        head, _, body = good.partition(b"\r\n\r\n")
        garbage = self.random.choice(
            [b"-5\r\n", b"zz\r\n", b"f" * 20 + b"\r\n", b"\x00\xff\r\n", b"5 5\r\nhello\r\n", b"\r\n"]
        )
        return head + b"\r\n\r\n" + garbage + body, {400, 411}

    MANY = (
        (bit_in_header, 10),
        (bit_in_header_rehashed, 10),
        (bit_in_payload, 10),
        (wrong_hash, 5),
        (residue_not_below_its_prime, 10),
        (truncated, 10),
        (oversized, 5),
        (oversized_by_its_own_word, 3),
        (another_plan, 5),
        (another_path, 3),
        (noise, 8),
        (bomb, 3),
        (bomb_that_says_nothing, 1),
        (wrong_type, 3),
        (wrong_method, 3),
        (wrong_length, 4),
        (two_lengths, 3),
        (length_and_chunks, 3),
        (chunked_damage, 5),
        (chunked_garbage, 6),
    )


def _request(fit: Fit, plan: Plan) -> bytes:
    return Client(plan).encrypt(np.mean(fit.box, axis=0)[None])


def memory(pid: int) -> int:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return 1024 * int(fields["VmRSS"].split()[0])


@pytest.fixture(scope="module")
def plans(server: RunningServer, fit: Fit) -> dict[str, Plan]:
    out = {}
    for layout in ("batch", "lift"):
        with Remote(server.url, layout=layout) as remote:
            out[layout] = remote.plan
    return out


def held(server: RunningServer, spool: Path) -> dict[str, int]:
    """What a leak would make more of."""
    folder = next(spool.iterdir())
    return {
        "descriptors": len(list(Path(f"/proc/{server.process.pid}/fd").iterdir())),
        "threads": len(list(Path(f"/proc/{server.process.pid}/task").iterdir())),
        "files": len(list(folder.iterdir())),
        "bytes": sum(file.stat().st_size for file in folder.iterdir()),
    }


def test_thousands_of_bad_requests_are_refused_by_name_and_leave_nothing(server, fit, plans, spool: Path) -> None:
    works(server, fit, "batch", "lift")
    mutations = Mutations(fit, plans, seed=11)
    connection = Connection(server.url)
    names, weights = zip(*Mutations.MANY, strict=True)
    kinds: list[Callable[[Mutations], tuple[bytes, set[int]]]] = mutations.random.choices(names, weights, k=REQUESTS)
    workers = server.workers()
    seen: Counter[tuple[str, int]] = Counter()
    before: dict[str, int] = {}
    used = 0
    for number, kind in enumerate(kinds):
        if number == len(kinds) // 10:  # caches and pools have the size they keep
            before = held(server, spool)
            used = sum(map(memory, (server.process.pid, *workers)))
        data, right = kind(mutations)
        status = connection.ask(data)
        assert status in right, f"{kind.__name__}: {status} {connection.body[:200]!r}, wanted {right}"
        seen[kind.__name__, status] += 1
    connection.close()
    assert sum(seen.values()) == REQUESTS
    assert server.workers() == workers
    assert server.healthy() == {"workers": 1, "busy": 0}
    after = held(server, spool)
    assert all(after[name] <= before[name] + 2 for name in ("descriptors", "threads", "files")), (before, after)
    assert after["bytes"] <= before["bytes"] + 2 * mutations.largest
    assert sum(map(memory, (server.process.pid, *workers))) <= used + 64 * 2**20
    works(server, fit, "batch", "lift")


def test_requests_that_never_end_are_given_up(server, fit, plans) -> None:
    mutations = Mutations(fit, plans, seed=12)
    workers = server.workers()
    for number in range(200):
        connection = Connection(server.url)
        cut = mutations.random.randrange(1, len(mutations.data))
        whole = mutations.post(mutations.data) if number % 2 else mutations.chunks(mutations.data)
        assert connection.ask(whole[:-cut], ends=True) in {GONE, 400, 411}
        connection.close()
    assert server.workers() == workers
    assert server.healthy() == {"workers": 1, "busy": 0}
    works(server, fit, "batch", "lift")


def test_bytes_that_are_no_http_are_refused(server, fit, plans) -> None:
    chance = random.Random(14)
    workers = server.workers()
    for _ in range(200):
        connection = Connection(server.url)
        noise = chance.randbytes(chance.randrange(1, 3000))
        assert connection.ask(noise + b"\r\n\r\n", ends=True) in {GONE, 400}
        connection.close()
    for head in (b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"a" * 2**20, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 10**5):
        connection = Connection(server.url)
        assert connection.ask(head, ends=True) in {GONE, 400, 404, 431}
        connection.close()
    assert server.workers() == workers
    works(server, fit, "batch", "lift")
