"""What strangers without a token can do to a server: use no memory, keep nobody out, and speak no old TLS."""

from __future__ import annotations

import select
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from quad4fhe import Fit
from quad4fhe.serve import protocol
from quad4fhe.serve.admission import Connections, network
from support.certificates import self_signed
from support.serving import RunningServer, until, works

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and uses all of 127.0.0.0/8")

TOKEN = "t" * 32
FOREVER = 3600  # strangers who wait are not ended while a test runs, so that nobody gets in because they were
HALF = b"POST /models HTTP/1.1\r\nHost: localhost\r\nX-Half: "


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(fitted: tuple[Path, Fit], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text(TOKEN)
    words = ("--precision", "fast", "--samples", "4", "--layout", "batch", "--workers", "1", "--token-file", tokens)
    with RunningServer(fitted[0], *words, waits=FOREVER) as running:
        yield running
        assert "Traceback" not in "\n".join(running.log)


@pytest.fixture(scope="module")
def secure(fitted: tuple[Path, Fit], tls: tuple[Path, Path]) -> Iterator[RunningServer]:
    words = ("--precision", "fast", "--layout", "batch", "--workers", "1", "--tls-cert", tls[0], "--tls-key", tls[1])
    with RunningServer(fitted[0], *words, waits=FOREVER) as running:
        yield running
        assert "Traceback" not in "\n".join(running.log)


def address(server: RunningServer) -> tuple[str, int]:
    parsed = httpx.URL(server.url)
    assert parsed.port is not None
    return parsed.host, parsed.port


def memory(server: RunningServer, field: str = "VmHWM") -> int:
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


def descriptors(server: RunningServer) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def flood(server: RunningServer, first: bytes, line: bytes, total: int) -> bytes:
    """Send `line` again and again until `total` bytes are sent or the server has had enough; what it answered."""
    block = line * (2**18 // len(line) + 1)
    with socket.create_connection(address(server), timeout=300) as connection:
        sent = 0
        try:
            connection.sendall(first)
            while sent < total:
                connection.sendall(block)
                sent += len(block)
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert sent < total, "the server read on and on"
        try:
            return connection.recv(4096)
        except ConnectionResetError:
            return b""


@pytest.mark.parametrize(
    ("first", "line"),
    [
        (b"GET /health HTTP/1.1\r\n", b"X-Some: thing\r\n"),
        (b"GET /health HTTP/1.1\r\nX-One: ", b"a" * 64),
        (b"GET /health HTTP/1.1\r\n", b"a" * 64),
        (b"GET /", b"a" * 64),
        (b"", b"\r\n"),
        (
            b"POST /models HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
            b"X-Trailer: thing\r\n",
        ),
        (b"POST /models HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Trailer: ", b"a" * 64),
        (b"POST /models HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"a" * 64),
        (b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    ],
    ids=["lines", "value", "name", "path", "newlines", "trailers", "trailer", "extension", "pipeline"],
)
def test_150_megabytes_of_headers_take_no_memory(server: RunningServer, first: bytes, line: bytes) -> None:
    server.healthy()  # what the first request loads is there
    before = memory(server)
    answer = flood(server, first, line, 150 * 2**20)
    assert answer == b"" or answer.split()[1] in (b"200", b"400", b"401", b"431")
    assert memory(server) <= before + 32 * 2**20
    assert server.healthy()["workers"] == 1


def test_what_is_over_a_limit_of_the_headers_is_431(server: RunningServer) -> None:
    lines = {f"x-{number}": "y" for number in range(protocol.HEAD_LINES)}
    assert httpx.get(f"{server.url}/health", headers=lines).status_code == 431
    assert httpx.get(f"{server.url}/health", headers={"x": "y" * protocol.HEAD_BYTES}).status_code == 431
    assert httpx.get(f"{server.url}/health", headers={"x": "y" * (protocol.HEAD_BYTES - 1000)}).status_code == 200
    few = dict(list(lines.items())[: protocol.HEAD_LINES - 10])
    assert httpx.get(f"{server.url}/health", headers=few).status_code == 200


@contextmanager
def sockets(server: RunningServer, count: int, say: bytes = b"", sources: int = 1) -> Iterator[list[socket.socket]]:
    """Connections that say something and then nothing, from one address or from many."""
    with ExitStack() as stack:
        found = []
        for number in range(count):
            source = (f"127.1.{number % sources // 250}.{number % sources % 250 + 1}", 0)
            one = stack.enter_context(socket.create_connection(address(server), timeout=300, source_address=source))
            one.sendall(say)
            found.append(one)
        yield found


@pytest.mark.parametrize("say", [b"", HALF, b"\r\n", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"])
@pytest.mark.parametrize(("count", "sources"), [(84, 1), (600, 1), (700, 700), (800, 20)])
def test_idle_sockets_and_half_sent_headers_keep_nobody_out(server, fitted, say, count, sources) -> None:
    before = descriptors(server)
    with sockets(server, count, say, sources):
        for _ in range(3):
            assert httpx.get(f"{server.url}/health", timeout=300).status_code == 200
        assert httpx.get(f"{server.url}/models", timeout=300).status_code == 401
        models = httpx.get(f"{server.url}/models", headers={"authorization": f"Bearer {TOKEN}"}, timeout=300)
        assert models.status_code == 200
        assert descriptors(server) <= before + 512 + 8
    until(lambda: descriptors(server) <= before + 2)


def test_bodies_that_never_begin_keep_nobody_out(server: RunningServer, fitted: tuple[Path, Fit]) -> None:
    path = f"/models/{fitted[1].model_id}/evaluate"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\nContent-Length: 999\r\n"
    )
    with sockets(server, 84, f"{head}Authorization: Bearer {TOKEN}\r\n\r\n".encode()):
        assert httpx.get(f"{server.url}/health", timeout=300).json() == {"workers": 1, "busy": 0}


@pytest.mark.parametrize(("count", "sources"), [(84, 1), (600, 100)])
def test_tls_handshakes_that_never_end_keep_nobody_out(secure, tls, count, sources) -> None:
    trust = ssl.create_default_context(cafile=str(tls[0]))
    before = descriptors(secure)
    with sockets(secure, count, b"\x16\x03\x01", sources):
        for _ in range(3):
            assert httpx.get(f"{secure.url}/health", verify=trust, timeout=300).status_code == 200
        assert descriptors(secure) <= before + 512 + 8
    until(lambda: descriptors(secure) <= before + 2)


def test_idle_tls_connections_keep_nobody_out(secure: RunningServer, tls: tuple[Path, Path]) -> None:
    trust = ssl.create_default_context(cafile=str(tls[0]))
    before = descriptors(secure)
    with ExitStack() as stack:
        for number in range(120):  # each is set up before the next one comes
            source = (f"127.2.0.{number % 2 + 1}", 0)
            one = stack.enter_context(socket.create_connection(address(secure), timeout=300, source_address=source))
            stack.enter_context(trust.wrap_socket(one, server_hostname="127.0.0.1"))
        for _ in range(3):
            assert httpx.get(f"{secure.url}/health", verify=trust, timeout=300).status_code == 200
    until(lambda: descriptors(secure) <= before + 2)


def until_ended(one: socket.socket) -> None:
    """Wait until the server ends a connection; without a limit it would be forever."""
    one.settimeout(300)
    try:
        while one.recv(4096):
            pass
    except ConnectionResetError:
        pass


def test_connections_that_wait_are_ended_after_their_time(fitted: tuple[Path, Fit], tls: tuple[Path, Path]) -> None:
    answered = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    words = ("--precision", "fast", "--layout", "batch", "--workers", "1")
    with ExitStack() as stack:
        server = stack.enter_context(RunningServer(fitted[0], *words, waits=2))
        over_tls = ("--tls-cert", tls[0], "--tls-key", tls[1])
        secure = stack.enter_context(RunningServer(fitted[0], *words, *over_tls, waits=2))
        waiting = []
        for each, say in ((server, b""), (server, HALF), (server, answered), (server, answered + HALF), (secure, b"")):
            one = stack.enter_context(socket.create_connection(address(each), timeout=300))
            one.sendall(say)
            waiting.append(one)
        slow = stack.enter_context(socket.create_connection(address(server), timeout=300))
        slow.sendall(HALF)
        with suppress(OSError):  # ended already
            for _ in range(6):  # a byte now and then is not a header
                time.sleep(0.2)
                slow.sendall(b"a")
        for one in (*waiting, slow):
            until_ended(one)
        assert server.healthy()["workers"] == 1


def test_a_request_at_work_is_not_closed_for_a_newcomer(server: RunningServer, fitted: tuple[Path, Fit]) -> None:
    from quad4fhe.serve.client import Remote
    from support.serving import inside

    fit = fitted[1]
    with Remote(server.url, token=TOKEN, layout="batch") as remote, sockets(server, 300):
        X = inside(fit, 3)
        assert (remote.predict(X).decisions == fit.model.decide(X)).all()


def test_a_limit_for_one_address_leaves_room_for_others(fitted: tuple[Path, Fit]) -> None:
    words = ("--precision", "fast", "--samples", "4", "--layout", "batch", "--workers", "1")
    with RunningServer(fitted[0], *words, "--per-address", "3", "--max-connections", "6") as running:
        idle = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        before = descriptors(running)
        with sockets(running, 3, idle) as kept:
            for one in kept:
                assert one.recv(4096).startswith(b"HTTP/1.1 200 ")
            with sockets(running, 50) as silent, sockets(running, 200, HALF, 50) as strangers:
                # What is closed can be read: all but the six that may stay.
                until(lambda: len(select.select([*kept, *silent, *strangers], [], [], 0)[0]) >= 253 - 6)
                assert descriptors(running) <= before + 6 + 2
        works(running, fitted[1])


class _Busy:
    """A protocol in the state a test wants."""

    def __init__(self, requests: int, placed: bool) -> None:
        self.requests, self.placed, self.transport, self.aborted = requests, placed, self, False

    def abort(self) -> None:
        self.aborted = True


def test_silent_connections_are_closed_before_idle_ones_and_placed_ones_never() -> None:
    table = Connections(total=10, per_address=3)
    kinds = [_Busy(1, True), _Busy(1, False), _Busy(0, False)]
    for kind in kinds:
        entry = table.admit("10.0.0.1")
        assert entry is not None
        entry.protocol = kind  # type: ignore[assignment]
    placed = [_Busy(1, True), _Busy(1, True)]
    for number, kind in enumerate(placed):
        entry = table.admit("10.0.0.1")
        assert entry is not None
        entry.protocol = kind  # type: ignore[assignment]
        assert [one.aborted for one in kinds] == [False, number == 1, True]
    assert table.admit("10.0.0.1") is None
    assert len(table) == 3
    assert table.admit("10.0.0.2") is not None


def test_one_network_of_ipv6_counts_as_one_address() -> None:
    assert network("2001:db8::1") == network("2001:db8::ffff:1") != network("2001:db8:0:1::1")
    assert network("::ffff:10.0.0.1") == network("10.0.0.1") != network("10.0.0.2")
    assert network("fe80::1%eth0") == network("fe80::2")


def handshake(server: RunningServer, tls: tuple[Path, Path], **changes: object) -> str | None:
    context = ssl.create_default_context(cafile=str(tls[0]))
    context.minimum_version = changes.get("least", ssl.TLSVersion.TLSv1_2)  # type: ignore[assignment]
    context.maximum_version = changes.get("most", ssl.TLSVersion.TLSv1_3)  # type: ignore[assignment]
    context.set_ciphers(str(changes.get("ciphers", "ALL:@SECLEVEL=0")))
    with (
        socket.create_connection(address(server), timeout=300) as one,
        context.wrap_socket(one, server_hostname="127.0.0.1") as secured,
    ):
        return secured.version()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_tls_is_1_2_or_newer_and_has_forward_secrecy(secure: RunningServer, tls: tuple[Path, Path]) -> None:
    old, new = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
    assert handshake(secure, tls) == "TLSv1.3"
    assert handshake(secure, tls, most=old) == "TLSv1.2"
    assert handshake(secure, tls, least=new) == "TLSv1.3"
    for refused in (
        {"least": ssl.TLSVersion.TLSv1, "most": ssl.TLSVersion.TLSv1_1},
        {"most": old, "ciphers": "ECDHE-ECDSA-AES128-SHA:ECDHE-ECDSA-AES256-SHA:@SECLEVEL=0"},
        {"most": old, "ciphers": "ECDHE-ECDSA-AES128-SHA256:@SECLEVEL=0"},
    ):
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            handshake(secure, tls, **refused)
