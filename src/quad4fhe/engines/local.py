"""The local engine: one process a worker on this machine, spoken to over its standard input and output.

Decides how a process is started, framed and ended. Tasks are pickled; what a worker says is not, see `codec`. Each is
a fresh interpreter: nothing is forked, and a caller's script is not run again, so it needs no `if __name__ ==
"__main__"`. It ends by itself when the driver is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from quad4fhe._files import one_line
from quad4fhe._threads import ONE_THREAD
from quad4fhe.engines.base import Team, Work, cores
from quad4fhe.engines.team import ATTEMPTS, Answered, CrewTeam, Failed, Lost, Outcome, attempt, decoded, encoded, traced
from quad4fhe.errors import InputError

# The search path travels first, so that the worker finds what the driver found.
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.stdin.buffer.readline()); "
    "from quad4fhe.engines.local import main; main()"
)
_LENGTH = struct.Struct("<Q")
_LONGEST = 2**34  # bytes of one frame: what a worker claims is not believed beyond that
_LOOK = 0.5  # seconds between a worker's looks at whether its driver is still there
_GRACE = 2.0  # seconds for a process that closed its pipes to end by itself, so that its exit code can be told


class LocalEngine:
    """Worker processes on this machine; one for each core unless `workers` says otherwise.

    A task whose workers die is tried `attempts` times.
    """

    name = "local"
    here = True

    def __init__(self, workers: int | None = None, *, attempts: int = ATTEMPTS) -> None:
        self.workers = cores() if workers is None else workers
        self._attempts = attempts

    def open(self, make: Callable[[], Work]) -> Team:
        """Start the workers; see `Engine.open`."""
        return CrewTeam(_Processes(pickled(make), self.workers), self._attempts)


def pickled(make: Callable[[], Work]) -> bytes:
    """`make` as a worker gets it."""
    try:
        return pickle.dumps(make)
    except Exception as error:  # of many kinds: whatever a class raises that can not be pickled
        raise InputError(
            f"what workers set up can't be pickled ({one_line(error)}); use functions of a module"
        ) from None


class _Processes:
    """The crew of the local engine."""

    def __init__(self, make: bytes, size: int) -> None:
        self.size = size
        self._make = make
        self._outcomes: queue.SimpleQueue[tuple[_Process, Outcome]] = queue.SimpleQueue()
        self._at: list[_Process | None] = [None] * size

    def start(self, place: int) -> None:
        self.stop(place)
        self._at[place] = _Process(place, self._make, self._outcomes)

    def stop(self, place: int) -> None:
        process = self._at[place]
        if process is not None:
            process.end()
            self._at[place] = None

    def give(self, place: int, task: Any) -> None:
        process = self._at[place]
        assert process is not None
        process.tasks.put(task)

    def ready(self, place: int) -> Outcome:
        process = self._at[place]
        assert process is not None
        return process.ready()

    def next(self) -> tuple[int, Outcome]:
        while True:
            process, outcome = self._outcomes.get()
            if self._at[process.place] is process:  # otherwise it was stopped, and nobody asks any more
                return process.place, outcome

    def close(self) -> None:
        processes = [process for process in self._at if process is not None]
        for process in processes:
            process.kill()
        for process in processes:  # each stays in its place, so that `next` still takes what it has to say
            process.end()


class _Process:
    """One process and the thread that speaks with it, task by task."""

    def __init__(self, place: int, make: bytes, outcomes: queue.SimpleQueue[tuple[_Process, Outcome]]) -> None:
        self.place = place
        self.tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._outcomes = outcomes
        self._setup: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | ONE_THREAD,
            start_new_session=True,  # Ctrl-C is for the driver
        )
        self._thread = threading.Thread(target=self._speak, args=(make,), daemon=True)
        self._thread.start()

    def ready(self) -> Outcome:
        return self._setup.get()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def end(self) -> None:
        self.kill()
        self.tasks.put(_End)
        self._thread.join()

    def _speak(self, make: bytes) -> None:
        try:
            first = self._exchange(json.dumps(sys.path).encode() + b"\n" + _LENGTH.pack(len(make)) + make)
            self._setup.put(first)
            started = isinstance(first, Answered)
            while (task := self.tasks.get()) is not _End:
                if isinstance(first, Failed):
                    outcome: Outcome = Lost(f"its set-up failed ({one_line(first.error)})", started)
                elif isinstance(first, Lost):
                    outcome = first
                else:
                    outcome = self._ask(task, started)
                self._outcomes.put((self, outcome))
                if isinstance(outcome, Lost):
                    return
        finally:
            self.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                with contextlib.suppress(OSError):
                    pipe.close()

    def _ask(self, task: Any, started: bool) -> Outcome:
        try:
            data = pickle.dumps(task, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # the same of a task
            return Failed(traced(error))
        return self._exchange(_LENGTH.pack(len(data)), data, started=started)

    def _exchange(self, *parts: bytes, started: bool = False) -> Outcome:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            for part in parts:
                stdin.write(part)
            stdin.flush()
            data = _read(stdout)
        except (OSError, MemoryError):
            data = None
        if data is None:
            try:
                code = self._process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                self.kill()
                code = self._process.wait()
            return Lost(_how_it_ended(code), started)
        return decoded(data)


class _End:
    """Put into a queue of tasks to say that no more come."""


def _how_it_ended(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"ended by {signal.Signals(-code).name}"
        return f"ended by signal {-code}"
    return f"it ended with exit code {code}"


def _read(stream: BinaryIO | Any) -> bytes | None:
    """One frame; None at the end, also in its middle."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > _LONGEST:
        return None
    data: bytes = stream.read(length)
    return data if len(data) == length else None


def _end_with(driver: int) -> None:
    """End this process, also in the middle of a long task, when the driver is gone, however it went."""
    while os.getppid() == driver:
        time.sleep(_LOOK)
    os._exit(1)


def main() -> None:
    """What a worker process runs: set up, then one task after the other until the driver is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    # Answers go out on a channel of their own, so that a library that prints can't garble them.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    stdin = sys.stdin.buffer

    def say(outcome: Answered | Failed) -> None:
        data = encoded(outcome)
        out.write(_LENGTH.pack(len(data)))
        out.write(data)
        out.flush()

    setup = _read(stdin)
    if setup is None:
        return None
    made = attempt(lambda data: pickle.loads(data)(), setup)
    try:
        if isinstance(made, Failed):
            return say(made)
        say(Answered(None))
        while (data := _read(stdin)) is not None:
            say(attempt(lambda frame: made.value(pickle.loads(frame)), data))
    except BrokenPipeError:
        os._exit(1)  # the driver is gone; an ordinary end would try to flush to it once more
    return None
