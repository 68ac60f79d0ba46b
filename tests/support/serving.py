"""A real server in a process of its own, on a free port of the loopback interface, for the tests of the service."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import httpx
import numpy as np

from quad4fhe import MLP, Fit, fit
from quad4fhe.serve.client import Remote

PROGRAM = "from quad4fhe.cli import entry_point; entry_point()"
# The same with another time for everything that strangers may keep waiting: a test of anything else must not depend on
# how soon a busy machine gets round to it.
WAITING = (
    "from quad4fhe.serve import protocol, receive; "
    "protocol.HEAD_SECONDS = protocol.IDLE_SECONDS = protocol.HANDSHAKE_SECONDS = receive.FIRST_SECONDS = {}; "
)
START_SECONDS = 300


def small_fit(d: int, m: int, K: int, seed: int) -> Fit:
    """A fit of a random network on random samples."""
    rng = np.random.default_rng(seed)
    X = np.clip(rng.normal(size=(120, d)), -3, 3)
    W1, W2 = rng.normal(size=(m, d)) / np.sqrt(d), rng.normal(size=(K, m)) / np.sqrt(m)
    b2 = -np.median(np.maximum(X @ W1.T, 0) @ W2.T, axis=0)
    return fit(MLP(W1, np.zeros(m), W2, b2), X, family="shared")


def inside(fit: Fit, n: int) -> np.ndarray:
    """Samples that the fit's input box holds."""
    return np.random.default_rng(3).uniform(*fit.box, size=(n, fit.model.features))


def until(true: Callable[[], bool], seconds: float = 300.0) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def free_port() -> int:
    """A port to listen on later: none that the system hands out to other sockets meanwhile."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:  # not Linux: ports for others usually begin there
        first = 32768
    start = max(10_000, first - 12_000)
    choices = range(start, first)
    # Test processes that run side by side begin at different places.
    for offset in range(len(choices)):
        port = choices[(os.getpid() * 97 + offset) % len(choices)]
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError("no port is free")


class RunningServer:
    """`quad4fhe serve` on 127.0.0.1, until the `with` block ends; `waits` replaces its limits for idle connections."""

    def __init__(self, *arguments: str | Path, waits: int | None = None, plain: bool = True) -> None:
        words = ["serve", *map(str, arguments), "--json"]
        if plain and not {"--replies", "--plan", "lift"} & set(words):
            words += ["--replies", "plain"]  # so that requests need no public key, and layouts do not differ in that
        if "--port" not in words:
            words += ["--port", "0"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", ("" if waits is None else WAITING.format(waits)) + PROGRAM, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        )
        self.log: list[str] = []
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._read_log, self._read_out)]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> RunningServer:
        line = b""
        try:
            line = self._lines.get(timeout=START_SECONDS)
            self.document = json.loads(line)
            self.url = self.document["url"]
        except BaseException:
            self.stop(signal.SIGKILL)
            raise AssertionError("the server did not start:\n" + "\n".join([line.decode(), *self.log])) from None
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop(signal.SIGTERM)

    def stop(self, how: signal.Signals) -> int:
        """Signal the server and wait for its end."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            code = self.process.wait(timeout=300)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        for thread in self._threads:
            thread.join(timeout=300)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return code

    def workers(self) -> list[int]:
        """The process ids of its workers."""
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in found]

    def healthy(self) -> dict[str, int]:
        """What /health says."""
        document: dict[str, int] = httpx.get(f"{self.url}/health", timeout=300).json()
        return document

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.decode(errors="replace").rstrip())

    def _read_out(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)


class Stuck:
    """The server's worker, stopped: what it is given waits until it goes on or is killed."""

    def __init__(self, server: RunningServer) -> None:
        (self.pid,) = server.workers()

    def __enter__(self) -> Stuck:
        os.kill(self.pid, signal.SIGSTOP)
        return self

    def __exit__(self, *_: object) -> None:
        if Path(f"/proc/{self.pid}").exists():
            os.kill(self.pid, signal.SIGCONT)


def works(server: RunningServer, fit: Fit, *layouts: str) -> None:
    """The next request in each layout (batch unless told) gets its right answer."""
    X = inside(fit, 3)
    for layout in layouts or ("batch",):
        with Remote(server.url, model=fit.model_id, layout=layout, patience=300) as remote:
            assert (remote.predict(X).decisions == fit.model.decide(X)).all()
