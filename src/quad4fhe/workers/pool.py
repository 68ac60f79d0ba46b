"""A synchronous pool of workers: assigns tasks to workers of any kind, and replaces workers that die.

The HTTP server has an asynchronous pool, in `serve.pool`.
"""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from quad4fhe.io.files import one_line
from quad4fhe.workers.base import Launcher, Work, Worker, WorkerLostError, pickled
from quad4fhe.workers.codec import Answered, Failed, Lost, Outcome

_ATTEMPTS = 3  # for a task whose worker dies each time
_FAILED_STARTS = 3  # in a row: then the machine is at fault, not a task


@dataclass(frozen=True, eq=False)
class Done:
    """A finished task with its `result`, or with an `error`: raised by the task, or because its workers died."""

    index: int
    task: Any
    result: Any = None
    error: Exception | None = None


class Workers(ABC):
    """Workers that can be started: their kind and number. Each kind is one subclass, listed in `registry`.

    `name` is the name of the kind; `on_this_machine` is true if every worker can read this machine's files.
    """

    name: str
    workers: int
    on_this_machine: bool

    @abstractmethod
    def __init__(self, workers: int | None = None) -> None: ...

    @abstractmethod
    def launch(self) -> AbstractContextManager[Launcher]:
        """Acquire what workers of this kind need; every worker has ended when the block ends."""

    def open(self, make: Callable[[], Work]) -> Pool:
        """Start a pool. Every worker calls `make` once and passes each of its tasks to the function it returns.

        `make` is pickled: use a function of a module, or a `functools.partial` of one. An exception in `make` is raised
        here.
        """
        return Pool(self.launch(), make)


@dataclass(eq=False)
class _Item:
    index: int
    task: Any
    attempts: int = _ATTEMPTS  # that are left


@dataclass(eq=False)
class _Slot:
    """One worker's place in the pool, and the tasks it was given; they are sent once the worker is ready."""

    worker: Worker | None = None
    generation: int = 0  # tells the outcomes of this worker from those of the workers before it
    ready: bool = False
    items: deque[_Item] = field(default_factory=deque)


_Pick = Callable[[_Slot], "_Item | None"]
_PutBack = Callable[[_Slot, list[_Item]], None]


class Pool:
    """Workers that are ready. Use it in a `with` block, which ends them; one `stream` or `gather` at a time.

    `workers` is the number of workers, `lost` the number of those that have died so far.
    """

    def __init__(self, launch: AbstractContextManager[Launcher], make: Callable[[], Work]) -> None:
        self._make = pickled(make)
        self._messages: queue.SimpleQueue[tuple[_Slot, int, Outcome]] = queue.SimpleQueue()
        self._lock = threading.Lock()  # another thread may close the pool
        self._busy = self._closed = False
        self.lost = 0
        with ExitStack() as stack:
            self._launcher = stack.enter_context(launch)
            self.workers = self._launcher.workers
            self._slots = [_Slot() for _ in range(self.workers)]
            stack.callback(self._end, self._slots)
            for slot in self._slots:
                self._start(slot)
            while not all(slot.ready for slot in self._slots):
                slot, outcome = self._next()
                if isinstance(outcome, Failed):
                    raise outcome.error
                if isinstance(outcome, Lost):
                    raise WorkerLostError(f"a worker did not start: {outcome.why}")
                slot.ready = True
            self._stack = stack.pop_all()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every worker, even in the middle of a task; a thread that waits for one gets a WorkerLostError."""
        with self._lock:
            self._closed = True
        self._stack.close()

    def stream(self, tasks: Iterable[Any], *, ahead: int = 0) -> Iterator[Done]:
        """Yield results as they finish; any worker may get any task.

        At most (1 + `ahead`) tasks per worker are in flight, and tasks are taken from the iterable only when there is
        room; `ahead` hides the time it takes to make and send a task. A task whose worker died goes to a fresh one a
        few times; after that, or if the task itself raised, its `error` is set.
        """
        source = enumerate(tasks)
        again: deque[_Item] = deque()

        def pick(slot: _Slot) -> _Item | None:
            if again:
                return again.popleft()
            found = next(source, None)
            return None if found is None else _Item(*found)

        return self._run(pick, lambda slot, items: again.extend(items), 1 + ahead)

    def gather(self, tasks: Sequence[Any]) -> list[Any]:
        """Return one result per task, in order; task i goes to worker i % workers. Raises the first error."""
        queues: dict[_Slot, deque[_Item]] = {slot: deque() for slot in self._slots}
        for index, task in enumerate(tasks):
            queues[self._slots[index % self.workers]].append(_Item(index, task))

        def pick(slot: _Slot) -> _Item | None:
            return queues[slot].popleft() if queues[slot] else None

        def put_back(slot: _Slot, items: list[_Item]) -> None:
            queues[slot].extendleft(reversed(items))

        out: list[Any] = [None] * len(tasks)
        for done in self._run(pick, put_back, 2):
            if done.error is not None:
                raise done.error
            out[done.index] = done.result
        return out

    def _run(self, pick: _Pick, put_back: _PutBack, depth: int) -> Iterator[Done]:
        if self._busy:
            raise RuntimeError("a pool does one stream or gather at a time; finish or close the previous one")
        self._busy = True
        failed_starts = 0
        try:
            while True:
                self._fill(pick, depth)
                if not any(slot.items for slot in self._slots):
                    return
                slot, outcome = self._next()
                if slot.ready:
                    done = self._finish(slot, outcome, put_back)
                    if done is not None:
                        yield done
                elif isinstance(outcome, Answered):
                    failed_starts = 0
                    self._set_ready(slot)
                else:
                    failed_starts += 1
                    put_back(slot, self._bury(slot))
                    if failed_starts >= _FAILED_STARTS:
                        why = outcome.why if isinstance(outcome, Lost) else f"set-up failed: {one_line(outcome.error)}"
                        raise WorkerLostError(f"no worker can be started any more: {why}")
        finally:
            # After an error, or if the caller left early, nobody waits for these tasks any more.
            self._stop([slot for slot in self._slots if slot.items])
            self._busy = False

    def _finish(self, slot: _Slot, outcome: Outcome, put_back: _PutBack) -> Done | None:
        """Return the slot's first task as done; None if its worker died and the task will be tried again."""
        if isinstance(outcome, Lost):
            item, *rest = self._bury(slot)
            item.attempts -= 1
            put_back(slot, [item, *rest] if item.attempts else rest)
            if item.attempts:
                return None
            why = f"its worker ended in each of {_ATTEMPTS} attempts: {outcome.why}"
            return Done(item.index, item.task, error=WorkerLostError(why))
        item = slot.items.popleft()
        if isinstance(outcome, Failed):
            return Done(item.index, item.task, error=outcome.error)
        return Done(item.index, item.task, result=outcome.value)

    def _fill(self, pick: _Pick, depth: int) -> None:
        """Assign tasks in rounds, so that every worker has one task before any has two."""
        for level in range(1, depth + 1):
            for slot in self._slots:
                if len(slot.items) >= level or (item := pick(slot)) is None:
                    continue
                with self._lock:
                    self._require_open()
                    slot.items.append(item)
                    if slot.worker is None:
                        self._start(slot)
                    elif slot.ready:
                        slot.worker.send(item.task)

    def _set_ready(self, slot: _Slot) -> None:
        with self._lock:
            self._require_open()
            assert slot.worker is not None
            slot.ready = True
            for item in slot.items:
                slot.worker.send(item.task)

    def _require_open(self) -> None:
        if self._closed:
            raise WorkerLostError("the pool was closed; open a new one")

    def _next(self) -> tuple[_Slot, Outcome]:
        while True:
            slot, generation, outcome = self._messages.get()
            if generation == slot.generation:  # otherwise this worker was stopped, and nobody waits for it
                return slot, outcome

    def _start(self, slot: _Slot) -> None:
        generation = slot.generation

        def deliver(outcome: Outcome) -> None:
            self._messages.put((slot, generation, outcome))

        slot.worker, slot.ready = self._launcher.start(self._make, deliver), False

    def _bury(self, slot: _Slot) -> list[_Item]:
        """Remove a worker that has ended, and return the tasks it was given."""
        self.lost += 1
        items = list(slot.items)
        self._stop([slot])
        return items

    def _stop(self, slots: list[_Slot]) -> None:
        """End workers and forget their tasks; the next task starts fresh ones."""
        self._end(slots)
        for slot in slots:
            slot.items.clear()
            slot.generation += 1
            slot.worker = None

    def _end(self, slots: list[_Slot]) -> None:
        workers = [slot.worker for slot in slots if slot.worker is not None]
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.join()


def each(workers: Workers, function: Work, tasks: Iterable[Any]) -> Iterator[Done]:
    """Apply `function` to every task, without a set-up; see `Pool.stream`."""
    with workers.open(partial(_unchanged, function)) as pool:
        yield from pool.stream(tasks)


def _unchanged(function: Work) -> Work:
    return function
