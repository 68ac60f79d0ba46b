"""No room on the disk, no memory for a worker, no place in the queue: one clear refusal each, then the next request."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from quad4fhe import Fit, InputError
from quad4fhe.he.session import Client
from quad4fhe.planning.plan import Plan
from quad4fhe.serve.client import Remote
from quad4fhe.serve.middleware import SHORT_BYTES
from support.serving import RunningServer, until, works

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits the server's processes by prlimit")

OCTETS = {"content-type": "application/octet-stream"}
SMALL = ("--precision", "fast", "--samples", "4", "--workers", "1")


@pytest.fixture(scope="module")
def server(fitted: tuple[Path, Fit]) -> Iterator[RunningServer]:
    with RunningServer(fitted[0], *SMALL, waits=3600) as running:
        yield running
        assert "Traceback" not in "\n".join(running.log)


def plan_of(server: RunningServer, layout: str) -> Plan:
    with Remote(server.url, layout=layout) as remote:
        return remote.plan


def evaluate(server: RunningServer, fit: Fit) -> httpx.Response:
    plan = plan_of(server, "batch")
    data = Client(plan).encrypt(np.mean(fit.box, axis=0)[None])
    return httpx.post(f"{server.url}/models/{fit.model_id}/evaluate", content=data, headers=OCTETS, timeout=300)


@contextlib.contextmanager
def limited(pid: int, what: int, most: int) -> Iterator[None]:
    old = resource.prlimit(pid, what, (most, resource.prlimit(pid, what)[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, what, old)


def test_a_body_the_disk_does_not_take_is_refused_and_the_next_one_works(server, fitted) -> None:
    with limited(server.process.pid, resource.RLIMIT_FSIZE, 2**16):
        answer = evaluate(server, fitted[1])
    assert answer.status_code == 503
    assert answer.json() == {"error": "the server has no room for the request"}
    assert answer.headers["retry-after"] == "10"
    until(lambda: "can't spool a request: File too large" in "\n".join(server.log))
    assert evaluate(server, fitted[1]).status_code == 200
    works(server, fitted[1], "batch", "lift")


def test_a_reply_the_disk_does_not_take_is_refused_and_the_worker_lives(server, fitted) -> None:
    workers = server.workers()
    with limited(workers[0], resource.RLIMIT_FSIZE, 2**16):
        answer = evaluate(server, fitted[1])
    assert answer.status_code == 503
    assert answer.json() == {"error": "the server has no room for the reply"}
    assert server.workers() == workers
    works(server, fitted[1], "batch", "lift")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of sixty-four megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("may not mount a small file system here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as out, contextlib.suppress(OSError):
        while True:
            out.write(bytes(2**16))


def test_a_full_disk_is_a_clear_refusal_until_there_is_room_again(fitted, small_disk: Path) -> None:
    file, fit = fitted
    with RunningServer(file, *SMALL, "--spool", small_disk) as running:
        filler = small_disk / "filler"
        fill(filler)
        answer = evaluate(running, fit)
        assert answer.status_code == 503
        assert answer.json() == {"error": "the server has no room for the request"}
        assert running.healthy() == {"workers": 1, "busy": 0}
        filler.unlink()
        assert evaluate(running, fit).status_code == 200
        until(lambda: "No space left on device" in "\n".join(running.log))
        works(running, fit, "batch", "lift")


def private_bytes(pid: int) -> int:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return 1024 * int(fields["VmData"].split()[0])


def test_a_worker_without_memory_refuses_and_is_replaced(server, fitted) -> None:
    works(server, fitted[1], "lift")
    (pid,) = server.workers()
    limit = resource.prlimit(pid, resource.RLIMIT_DATA, (private_bytes(pid), resource.RLIM_INFINITY))
    answer = evaluate(server, fitted[1])
    if answer.status_code == 503:
        assert "memory" in answer.json()["error"]
        until(lambda: server.workers() not in ([], [pid]))
    else:  # it had room enough among what it held
        resource.prlimit(pid, resource.RLIMIT_DATA, limit)
    works(server, fitted[1], "batch", "lift")


def test_workers_have_a_limit_from_the_start(server) -> None:
    (pid,) = server.workers()
    limit, _ = resource.prlimit(pid, resource.RLIMIT_DATA)
    used = private_bytes(pid)
    assert used + 2**29 < limit < used + 4 * 2**30


def test_asking_for_more_than_the_limit_is_a_memory_error_in_that_process_alone() -> None:
    program = """
from quad4fhe.serve.worker import limit_memory
limit = limit_memory(None, 2**20)
assert limit > 2**30
held = bytearray(2**28)
try:
    bytearray(limit)
except MemoryError:
    print("refused", end="")
"""
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"refused"


def test_a_limit_below_what_the_models_take_is_said_at_once(fitted) -> None:
    from quad4fhe.serve.worker import limit_memory

    with pytest.raises(InputError, match=r"MiB in use once its models are loaded.*give it more"):
        limit_memory(2**20, 0)
    assert limit_memory(0, 0) is None


def test_a_long_body_nobody_wants_is_not_read_and_the_client_sees_why(server, fitted) -> None:
    sent = 0
    length = 400 * 2**20

    def body() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(length // 2**20):
            sent += 2**20
            yield bytes(2**20)

    headers = OCTETS | {"content-length": str(length)}
    for path, status in ((f"/models/{fitted[1].model_id}/evaluate", 413), ("/models/nothing/evaluate", 404)):
        sent = 0
        answer = httpx.post(server.url + path, content=body(), headers=headers, timeout=300)
        assert answer.status_code == status
        assert answer.headers["connection"] == "close"
        assert sent < length
    assert server.healthy() == {"workers": 1, "busy": 0}


def test_a_refusal_does_not_wait_for_a_body_that_does_not_come(server) -> None:
    parsed = httpx.URL(server.url)
    head = "POST /models/nothing/evaluate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
    with socket.create_connection((parsed.host, parsed.port), timeout=300) as connection:
        connection.sendall(f"{head}Content-Length: {2**30}\r\n\r\n".encode())
        got = b""
        while part := connection.recv(4096):
            got += part
    assert got.startswith(b"HTTP/1.1 404 ")
    assert got.endswith(b'{"error":"no model of this id; GET /models lists them"}')


def test_a_short_body_nobody_wants_keeps_the_connection(server) -> None:
    with httpx.Client(headers=OCTETS) as client:
        for _ in range(3):
            answer = client.post(f"{server.url}/models/nothing/evaluate", content=bytes(SHORT_BYTES))
            assert answer.status_code == 404
            assert "connection" not in answer.headers
