"""The interface between a pool and every kind of worker, and the thread that talks to one worker.

Tasks are pickled, because workers trust the driver. Outcomes are not: see `codec`.
"""

from __future__ import annotations

import os
import pickle
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from quad4fhe.errors import InputError, Quad4FHEError
from quad4fhe.io.files import one_line
from quad4fhe.workers.codec import Answered, Failed, Lost, Outcome, traced

Work = Callable[[Any], Any]
LONGEST = 2**34  # bytes of one outcome; a worker that announces more counts as lost


class WorkerLostError(Quad4FHEError):
    """A worker ended before it answered, in every attempt; the task itself may be fine."""


Deliver = Callable[[Outcome], None]


class Worker(Protocol):
    """One running worker: it sets up, then does its tasks in order.

    It delivers the outcome of the set-up first, then one outcome per task, from a separate thread. After a Lost, or if
    the outcome of the set-up is not Answered, it delivers nothing more.
    """

    @property
    def name(self) -> str:
        """The process id, and the machine if it may be another one; for logs."""

    def send(self, task: Any) -> None:
        """Give it a task; does not wait."""

    def kill(self) -> None:
        """End it, even in the middle of a task; does not wait."""

    def join(self) -> None:
        """Wait until it is gone; call `kill` first."""


class Launcher(Protocol):
    """Starts workers; `workers` is how many a pool should have."""

    @property
    def workers(self) -> int:
        """The number of workers to start."""

    def start(self, make: bytes, deliver: Deliver, *, longest: int = LONGEST, probe: bool = False) -> Worker:
        """Start a worker that calls the pickled function `make` once and passes its tasks to the result.

        `longest` limits the bytes of an outcome, if the kind of worker can do that. With `probe`, `Lost.idle` is exact
        even if that takes another message.
        """


class ThreadedWorker(ABC):
    """A worker with a thread that sets it up and then waits for one outcome after the other."""

    name: str

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._sent: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._talk, daemon=True)

    def send(self, task: Any) -> None:
        """Give it a task; see `Worker`."""
        self._sent.put(task)

    def join(self) -> None:
        """Wait for the thread, which cleans up; see `Worker`."""
        self._sent.put(_END)
        self._thread.join()

    def _talk(self) -> None:
        try:
            outcome = self._set_up()
            self._deliver(outcome)
            if not isinstance(outcome, Answered):
                return
            while not isinstance(outcome, Lost) and (sent := self._sent.get()) is not _END:
                outcome = self._wait_for(sent)
                self._deliver(outcome)
        finally:
            self._clean_up()

    @abstractmethod
    def _set_up(self) -> Outcome:
        """Wait until the worker has set up."""

    @abstractmethod
    def _wait_for(self, sent: Any) -> Outcome:
        """Wait for the outcome of what `send` queued."""

    @abstractmethod
    def _clean_up(self) -> None:
        """Release everything, and end the worker if it still runs."""


_END = object()
_out_of_memory: list[MemoryError] = []


def pickled(make: Callable[[], Work]) -> bytes:
    """Pickle the function that workers call to set up."""
    try:
        return pickle.dumps(make)
    except Exception as error:  # classes that can't be pickled raise anything
        raise InputError(
            f"the workers' set-up can't be pickled ({one_line(error)}); use top-level functions of a module"
        ) from None


def attempt(work: Work, task: Any) -> Answered | Failed:
    """Do a task inside a worker and catch what it raises.

    A worker that ran out of memory does no other task: it ends, and the pool starts another one. If it was SEAL that
    ran out of memory, to use SEAL again may hang, and so may freeing the objects of the error's frames.
    """
    if _out_of_memory:
        os._exit(1)
    try:
        return Answered(work(task))
    except MemoryError as error:
        _out_of_memory.append(error)
        return Failed(traced(error))
    except Exception as error:
        return Failed(traced(error))


def made(make: bytes) -> Answered | Failed:
    """Set up inside a worker: unpickle `make` and call it."""
    return attempt(lambda data: pickle.loads(data)(), make)
