"""Who gets which task, and what happens when a worker dies: the same for every engine.

Decides placement, back-pressure and how often a task is tried. A `Crew` starts processes and carries tasks to them and
outcomes back; it decides nothing.
"""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from quad4fhe.engines import codec
from quad4fhe.engines.base import Done, Team, Work, WorkerLostError

ATTEMPTS = 3  # of one task, if its worker dies each time
_FAILED_STARTS = 3  # in a row, before it is the machine's fault and not a task's


@dataclass(frozen=True, eq=False)
class Answered:
    """The work returned this."""

    value: Any


@dataclass(frozen=True, eq=False)
class Failed:
    """The work raised this."""

    error: Exception


@dataclass(frozen=True)
class Lost:
    """The worker ended before it answered; `started` where it had been ready before."""

    why: str
    started: bool


Outcome = Answered | Failed | Lost


class Crew(Protocol):
    """One worker at each of `size` places, which answers the tasks it is given in their order."""

    size: int

    def start(self, place: int) -> None:
        """Put a fresh worker there, and end the one before; does not wait for it."""

    def stop(self, place: int) -> None:
        """End the worker there and forget what it was given."""

    def give(self, place: int, task: Any) -> None:
        """Hand it a task; does not wait."""

    def ready(self, place: int) -> Outcome:
        """Wait until a fresh worker has set up."""

    def next(self) -> tuple[int, Outcome]:
        """Wait for the next outcome of any place; after Lost, nothing more comes from that worker.

        What was given before the crew was closed has an outcome, too.
        """

    def close(self) -> None:
        """End every worker and whatever else was started."""


def attempt(work: Work, task: Any) -> Answered | Failed:
    """Do a task inside a worker; what it raises becomes an outcome."""
    try:
        return Answered(work(task))
    except Exception as error:
        return Failed(traced(error))


def traced(error: Exception) -> Exception:
    """The error with the worker's traceback as a note."""
    error.add_note("in a worker:\n" + "".join(traceback.format_exception(error)).rstrip())
    return error


def encoded(outcome: Outcome) -> bytes:
    """What a worker sends; a result that can't be sent is an error of its task."""
    if isinstance(outcome, Answered):
        try:
            return codec.encode(["answered", outcome.value])
        except Exception as error:  # of many kinds: whatever a class raises when it is read
            outcome = Failed(traced(error))
    if isinstance(outcome, Failed):
        return codec.encode(["failed", outcome.error])
    return codec.encode(["lost", outcome.why, outcome.started])


def decoded(data: bytes) -> Outcome:
    """What a worker sent; anything else than an outcome is an error of its task."""
    try:
        match codec.decode(data):
            case ["answered", value]:
                return Answered(value)
            case ["failed", Exception() as error]:
                return Failed(error)
            case ["lost", str(why), bool(started)]:
                return Lost(why, started)
    except codec.WorkError as error:
        return Failed(error)
    return Failed(codec.WorkError("a worker said something that is no outcome of a task"))


@dataclass(eq=False)
class _Item:
    index: int
    task: Any
    lives: int


_Pick = Callable[[int], "_Item | None"]


class CrewTeam:
    """A team over a crew; a task whose workers die is tried `attempts` times."""

    def __init__(self, crew: Crew, attempts: int = ATTEMPTS) -> None:
        self._crew = crew
        self._attempts = attempts
        self._given: list[deque[_Item]] = [deque() for _ in range(crew.size)]
        self._alive = [False] * crew.size
        self._busy = False
        self._closed = False
        self._giving = threading.Lock()  # a team may be closed by another thread than the one that waits for it
        self.workers = crew.size
        self.lost = 0
        try:
            for place in range(crew.size):
                crew.start(place)
            for place in range(crew.size):
                outcome = crew.ready(place)
                if isinstance(outcome, Failed):
                    raise outcome.error
                if isinstance(outcome, Lost):
                    raise WorkerLostError(f"a worker did not start: {outcome.why}")
                self._alive[place] = True
        except BaseException:
            crew.close()
            raise

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every worker, whatever it is doing; who waits for one, in another thread, learns that it is lost."""
        with self._giving:
            self._closed = True
        self._crew.close()

    def stream(self, tasks: Iterable[Any], *, ahead: int = 0) -> Iterator[Done]:
        """Results as they finish; see `Team.stream`."""
        source = enumerate(tasks)
        again: deque[_Item] = deque()

        def pick(place: int) -> _Item | None:
            if again:
                return again.popleft()
            found = next(source, None)
            return None if found is None else _Item(*found, self._attempts)

        for item, outcome in self._run(pick, lambda place, items: again.extend(items), ahead):
            if isinstance(outcome, Answered):
                yield Done(item.index, item.task, result=outcome.value)
            elif isinstance(outcome, Failed):
                yield Done(item.index, item.task, error=outcome.error)
            else:
                yield Done(item.index, item.task, error=self._lost(outcome))

    def gather(self, tasks: Sequence[Any]) -> list[Any]:
        """One result a task, in order; see `Team.gather`."""
        size = self._crew.size
        queues: list[deque[_Item]] = [deque() for _ in range(size)]
        for index, task in enumerate(tasks):
            queues[index % size].append(_Item(index, task, self._attempts))
        out: list[Any] = [None] * len(tasks)

        def pick(place: int) -> _Item | None:
            return queues[place].popleft() if queues[place] else None

        def put_back(place: int, items: list[_Item]) -> None:
            queues[place].extendleft(reversed(items))

        for item, outcome in self._run(pick, put_back, 1):
            if isinstance(outcome, Failed):
                raise outcome.error
            if isinstance(outcome, Lost):
                raise self._lost(outcome)
            out[item.index] = outcome.value
        return out

    def _run(
        self, pick: _Pick, put_back: Callable[[int, list[_Item]], None], ahead: int
    ) -> Iterator[tuple[_Item, Outcome]]:
        if self._busy:
            raise RuntimeError("a team does one stream or gather at a time; finish or close the one before")
        self._busy = True
        crew, given = self._crew, self._given
        failed_starts = 0
        try:
            while True:
                self._fill(pick, 1 + ahead)
                if not any(given):
                    return
                place, outcome = crew.next()
                item = given[place].popleft()
                if isinstance(outcome, Lost):
                    rest = list(given[place])
                    given[place].clear()
                    self._alive[place] = False
                    self.lost += 1
                    failed_starts = 0 if outcome.started else failed_starts + 1
                    if failed_starts >= _FAILED_STARTS:
                        raise WorkerLostError(f"no worker can be started any more: {outcome.why}")
                    item.lives -= outcome.started
                    if item.lives > 0:
                        put_back(place, [item, *rest])
                        continue
                    put_back(place, rest)
                else:
                    failed_starts = 0
                yield item, outcome
        finally:
            # Left early, by an error or by a caller that has seen enough: nobody waits for these any more.
            for place, items in enumerate(given):
                if items:
                    items.clear()
                    crew.stop(place)
                    self._alive[place] = False
            self._busy = False

    def _fill(self, pick: _Pick, depth: int) -> None:
        """Give tasks round by round, so that every worker has a first one before any has a second."""
        for level in range(1, depth + 1):
            for place, items in enumerate(self._given):
                if len(items) >= level:
                    continue
                item = pick(place)
                if item is None:
                    continue
                with self._giving:
                    if self._closed:
                        raise WorkerLostError("the team was closed")
                    if not self._alive[place]:
                        self._crew.start(place)
                        self._alive[place] = True
                    items.append(item)
                    self._crew.give(place, item.task)

    def _lost(self, outcome: Lost) -> WorkerLostError:
        each = "" if self._attempts == 1 else f" in each of {self._attempts} attempts"
        return WorkerLostError(f"its worker ended{each}: {outcome.why}")
