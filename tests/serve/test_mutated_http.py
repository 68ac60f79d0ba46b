"""Mutated HTTP messages on raw sockets: no crash, no 500, no hang, the worker alive, memory flat.

    QUAD4FHE_RAW_MUTATIONS=50000 QUAD4FHE_RAW_SEED=7 pytest tests/serve/test_mutated_http.py

The messages are good ones (every route, every header the server looks at) in which bytes, lines, lengths and chunks are
changed, repeated, cut, joined, or sent in pieces.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import select
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from quad4fhe import Fit
from quad4fhe.he.session import Client
from quad4fhe.serve.client import Remote
from support.serving import RunningServer, small_fit, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc to find the server's workers")

MESSAGES = int(os.environ.get("QUAD4FHE_RAW_MUTATIONS", "800"))  # twice
SEED = int(os.environ.get("QUAD4FHE_RAW_SEED", "1"))
TOKEN = "t" * 32
HANG = "hang"
THREADS = 8
# What the service and its parser may say; 500 is not among them, and 503 neither: nothing here loses a worker.
RIGHT = {"100", "200", "204", "400", "401", "404", "405", "408", "409", "411", "413", "415", "429", "431", "gone"}


@pytest.fixture(scope="module")
def fit() -> Fit:
    return small_fit(1, 2, 2, seed=1)


@pytest.fixture(scope="module")
def server(fit: Fit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("fits")
    fit.save(folder / "fit.safetensors")
    (folder / "tokens").write_text(TOKEN)
    words = ("--precision", "fast", "--samples", "1", "--workers", "1", "--deadline", "20", "--token-file")
    with RunningServer(folder / "fit.safetensors", *words, folder / "tokens") as running:
        yield running
        log = "\n".join(running.log)
        assert "Traceback" not in log, log[log.find("Traceback") - 300 :][:6000]


class Messages:
    """Good messages and what can be done to them."""

    def __init__(self, server: RunningServer, fit: Fit, seed: int) -> None:
        self.random = random.Random(seed)
        base = f"/models/{fit.model_id}"
        x = np.mean(fit.box, axis=0)[None]
        self.good = [self.message("GET", path, b"") for path in ("/health", "/metrics", "/models", f"{base}/plan")]
        for layout in ("batch", "lift"):
            with Remote(server.url, layout=layout, token=TOKEN) as remote:
                body = Client(remote.plan).encrypt(x)
                self.good.append(self.message("POST", f"{base}/evaluate", body))
                self.good.append(self.message("POST", f"{base}/evaluate", body, chunked=True))

    def message(self, method: str, path: str, body: bytes, *, chunked: bool = False) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {TOKEN}"]
        if body:
            lines += ["Content-Type: application/octet-stream"]
            lines += ["Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"]
        if chunked:
            half = len(body) // 2
            body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:half], body[half:], b""))
        return "\r\n".join([*lines, "", ""]).encode() + body

    def some(self) -> bytes:
        """A message with one or more changes."""
        data = self.random.choice(self.good)
        for _ in range(self.random.choice([1, 1, 1, 2, 3, 8])):
            data = self.random.choice(self.CHANGES)(self, data)
        return data

    def place(self, data: bytes) -> int:
        """Mostly in the head, where a parser is at work."""
        head = data.find(b"\r\n\r\n") + 4
        return self.random.randrange(max(1, head if self.random.random() < 0.8 and head > 3 else len(data)))

    def flip(self, data: bytes) -> bytes:
        at = self.place(data)
        return data[:at] + bytes([data[at] ^ 1 << self.random.randrange(8)]) + data[at + 1 :] if data else data

    def insert(self, data: bytes) -> bytes:
        at = self.place(data)
        extra = [b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b"%00", b"\xff", b"\x1b[31m", b"../", b"?", b"#"]
        return data[:at] + self.random.choice(extra) * self.random.choice([1, 1, 2, 50]) + data[at:]

    def delete(self, data: bytes) -> bytes:
        at = self.place(data)
        return data[:at] + data[at + self.random.choice([1, 2, 10, 100]) :]

    def cut(self, data: bytes) -> bytes:
        return data[: self.place(data)]

    def line(self, data: bytes) -> bytes:
        head, mark, body = data.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        lines.insert(self.random.randrange(len(lines) + 1), self.random.choice(self.LINES))
        return b"\r\n".join(lines) + mark + body

    def repeat_line(self, data: bytes) -> bytes:
        head, mark, body = data.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        lines += [self.random.choice(lines)] * self.random.choice([1, 2, 99, 150])
        return b"\r\n".join(lines) + mark + body

    def number(self, data: bytes) -> bytes:
        head, mark, body = data.partition(b"\r\n\r\n")
        new = self.random.choice(
            [b"0", b"1", b"-1", b"132", b"4294967296", b"18446744073709551616", b"9" * 40, b"0x10"]
        )
        return re.sub(rb"(?<=Length: )\S*", new, head) + mark + body

    def version(self, data: bytes) -> bytes:
        new = [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.1.1", b"http/1.1", b"HTTP/1.", b"ICE/1.0", b""]
        return data.replace(b"HTTP/1.1", self.random.choice(new), 1)

    def method(self, data: bytes) -> bytes:
        new = [b"CONNECT", b"OPTIONS", b"PRI", b"TRACE", b"HEAD", b"DELETE", b"get", b"M-SEARCH", b"PATCH", b"POST"]
        return self.random.choice(new) + b" " + data.partition(b" ")[2]

    def target(self, data: bytes) -> bytes:
        new = [
            b"*",
            b"//",
            b"/models/",
            b"http://x/health",
            b"/%",
            b"/%ff",
            b"/health?" + b"a" * 999,
            b"x:443",
            b"/a b",
            b"/\xe9",
        ]
        first, _, rest = data.partition(b" ")
        return first + b" " + self.random.choice(new) + b" " + rest.partition(b" ")[2]

    def twice(self, data: bytes) -> bytes:
        return data + self.random.choice(self.good)

    def noise(self, data: bytes) -> bytes:
        return self.random.randbytes(self.random.randrange(1, 500))

    LINES = (
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: identity, chunked",
        b"transfer-encoding:\x0bchunked",
        b"Content-Length: 5",
        b"Content-Length: +5",
        b"Connection: close",
        b"Connection: keep-alive, upgrade",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13",
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c",
        b"Expect: 100-continue",
        b"Expect: something",
        b"Content-Encoding: gzip",
        b"Authorization: Bearer \xff\xfe",
        b"Authorization: " + b"A" * 9000,
        b"X: " + b"y" * 40_000,
        b": empty",
        b" folded",
        b"no colon",
        b"Host: a\r\nHost: b",
        b"X-\x00: \x01",
        b"Trailer: X",
        b"Accept-Encoding: \x80",
    )
    CHANGES: tuple[Callable[[Messages, bytes], bytes], ...] = (
        flip, flip, insert, insert, delete, cut, line, line, repeat_line, number, version, method, target, twice, noise,
    )  # fmt: skip


def statuses(server: RunningServer, data: bytes, chance: random.Random, wait: float = 0.2) -> list[str]:
    """Send a message, in one piece or in two, and nothing more; what the server says until it closes."""
    parsed = httpx.URL(server.url)
    got = b""
    with socket.create_connection((parsed.host, parsed.port), timeout=300) as one:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        at = chance.randrange(1, len(data)) if chance.random() < 0.2 and len(data) > 1 else len(data)
        with contextlib.suppress(OSError):  # refused before it was sent: the answer is there
            for part in (data[:at], data[at:]):
                one.sendall(part)
        # A server may take the end of what it reads for the end of the client, so it is given time to answer before.
        select.select([one], [], [], wait)
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_WR)
        try:
            while part := one.recv(2**16):
                got += part
        except ConnectionResetError:
            pass
        except TimeoutError:
            return [HANG]
    return [match.decode() for match in re.findall(rb"HTTP/1\.1 (\d{3}) ", got)] or ["gone"]


def memory(server: RunningServer) -> int:
    pids = (server.process.pid, *server.workers())
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def test_mutated_messages_crash_hang_and_leak_nothing(server: RunningServer, fit: Fit) -> None:
    workers = server.workers()

    def send(seed: int) -> Counter[str]:
        messages, seen = Messages(server, fit, seed), Counter[str]()
        for number in range(MESSAGES // THREADS):
            data = messages.some()
            found = statuses(server, data, messages.random)
            assert set(found) <= RIGHT, f"message {number} of seed {seed}: {found} for {data[:600]!r}"
            seen.update(found)
        return seen

    for good in Messages(server, fit, SEED).good:
        assert statuses(server, good, random.Random(0), wait=300.0)[0] in ("200", "404", "411")
    with ThreadPoolExecutor(THREADS) as threads:
        first = list(threads.map(send, range(SEED, SEED + THREADS)))
        used = memory(server)
        second = list(threads.map(send, range(SEED + THREADS, SEED + 2 * THREADS)))
    seen = sum(first + second, Counter())
    assert server.workers() == workers
    until(lambda: server.healthy() == {"workers": 1, "busy": 0})
    assert memory(server) <= used + 64 * 2**20
    assert {"200", "400", "401", "404", "405", "411", "415", "431"} <= set(seen), seen  # so it is not all nonsense
    until(lambda: len(list(Path(f"/proc/{server.process.pid}/fd").iterdir())) < 60)
