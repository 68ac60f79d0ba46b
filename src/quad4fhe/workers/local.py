"""Local workers: processes on this machine that communicate over standard input and output.

Each is a fresh interpreter. Nothing is forked, and the caller's script does not run again, so it needs no
`if __name__ == "__main__"`. A worker ends when the driver is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

from quad4fhe._threads import ONE_THREAD, usable_cores
from quad4fhe.workers.base import LONGEST, Deliver, Launcher, ThreadedWorker, Worker, attempt, made
from quad4fhe.workers.codec import Answered, Failed, Lost, Outcome, decoded, encoded, traced
from quad4fhe.workers.pool import Workers

# The search path travels first, so that the worker finds the driver's modules.
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.stdin.buffer.readline()); "
    "from quad4fhe.workers.local import main; main()"
)
_LENGTH = struct.Struct("<Q")
_TAKEN = b"\x01"  # sent by a worker that has read a task: if it ends after this, the task may be the cause
_LOOK = 0.5  # seconds between a worker's checks that its driver is still there
_GRACE = 2.0  # seconds in which a process that has closed its pipes may end by itself, with an exit code


class LocalWorkers(Workers):
    """Worker processes on this machine; one for each usable core unless `workers` is given."""

    name = "local"
    on_this_machine = True

    def __init__(self, workers: int | None = None) -> None:
        self.workers = usable_cores() if workers is None else workers

    @contextlib.contextmanager
    def launch(self) -> Iterator[Launcher]:
        """Local processes need no preparation; see `Workers`."""
        yield self

    def start(self, make: bytes, deliver: Deliver, *, longest: int = LONGEST, probe: bool = False) -> Worker:
        """Start one process; see `Launcher`. It confirms each task, so `Lost.idle` is always exact."""
        return _Process(make, deliver, longest)


class _Process(ThreadedWorker):
    def __init__(self, make: bytes, deliver: Deliver, longest: int) -> None:
        super().__init__(deliver)
        self._make, self._longest = make, longest
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | ONE_THREAD,
            start_new_session=True,  # Ctrl-C is for the driver
        )
        self.name = str(self._process.pid)
        self._thread.start()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def _set_up(self) -> Outcome:
        path = json.dumps(sys.path).encode() + b"\n"
        return self._exchange(path, _LENGTH.pack(len(self._make)), self._make)

    def _wait_for(self, sent: Any) -> Outcome:
        try:
            data = pickle.dumps(sent, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # classes that can't be pickled raise anything
            return Failed(traced(error))
        return self._exchange(_LENGTH.pack(len(data)), data)

    def _exchange(self, *parts: bytes) -> Outcome:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        taken, data = False, None
        with contextlib.suppress(OSError, MemoryError):
            for part in parts:
                stdin.write(part)
            stdin.flush()
            taken = stdout.read(1) == _TAKEN
            data = _read(stdout, self._longest) if taken else None
        if data is not None:
            return decoded(data)
        try:
            code = self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.wait()
        return Lost(_how_it_ended(code), idle=not taken)

    def _clean_up(self) -> None:
        self.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()


def _how_it_ended(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"ended by {signal.Signals(-code).name}"
        return f"ended by signal {-code}"
    return f"it ended with exit code {code}"


def _read(stream: BinaryIO | Any, longest: int = LONGEST) -> bytes | None:
    """Read one frame; None at the end of the stream, or if the frame is cut short or too long."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > longest:
        return None
    data: bytes = stream.read(length)
    return data if len(data) == length else None


def _end_with(driver: int) -> None:
    """End this process when the driver is gone, even in the middle of a long task."""
    while os.getppid() == driver:
        time.sleep(_LOOK)
    os._exit(1)


def main() -> None:
    """Run a worker process: set up, then do one task after the other until the driver is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    # Outcomes have their own channel, so that prints of a library can't garble them.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    stdin = sys.stdin.buffer

    def take() -> bytes | None:
        data = _read(stdin)
        if data is not None:
            out.write(_TAKEN)
            out.flush()
        return data

    def say(outcome: Answered | Failed) -> None:
        data = encoded(outcome)
        out.write(_LENGTH.pack(len(data)))
        out.write(data)
        out.flush()

    try:
        make = take()
        if make is None:
            return None
        work = made(make)
        if isinstance(work, Failed):
            return say(work)
        say(Answered(None))
        while (data := take()) is not None:
            say(attempt(lambda frame: work.value(pickle.loads(frame)), data))
    except BrokenPipeError:
        os._exit(1)  # the driver is gone; a normal exit would try to flush to it
    return None
