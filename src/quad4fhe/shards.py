"""A data set cut into shards, and functions of a shard carried to where it is: the waist of everything streamed.

Decides the cuts (always the same rows together, whoever works on them), who works on which, and that answers come back
in the order of the shards. So no result depends on the number of workers, or on whether there are any. What is asked of
a shard is left to `lift`, `certificate` and `fit`; where workers run to `engines`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from itertools import pairwise
from types import TracebackType
from typing import Any, Protocol

from quad4fhe._arrays import Array, row_chunks
from quad4fhe._rows import Rows
from quad4fhe._staged import Staged
from quad4fhe._store import Arrays, Store
from quad4fhe.engines import Engine, engine
from quad4fhe.errors import InputError, Quad4FHEError

Report = Callable[[int, int], None]
SHARD_ROWS = 65_536
"""Rows of a shard at most; fewer where much is kept of each (`lift.shard_rows`)."""
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{unit}I": 2 ** (10 * k) for k, unit in enumerate("KMGT", start=1)}


class Shard:
    """Rows first to stop of the data set, as a worker sees them; `subject` is what the work is about."""

    def __init__(self, desk: Desk, index: int) -> None:
        self.index, self.subject, self.name = index, desk.subject, desk.name
        self.first = index * desk.size
        self.stop = min(self.first + desk.size, desk.rows.shape[0])
        self._desk = desk

    @property
    def samples(self) -> int:
        """How many rows there are."""
        return self.stop - self.first

    def chunks(self, row_bytes: int) -> Iterator[tuple[slice, Array]]:
        """Yield (rows within the shard, finite float64 chunk), always cut at the same rows."""
        return row_chunks(self.name, _Part(self._desk.rows, self.first, self.stop), row_bytes, self.first)

    def keep(self, key: Hashable, make: Callable[[], Arrays]) -> Arrays:
        """Arrays of this shard, made once and remembered."""
        return self._desk.store.keep((self.index, key), make)


class _Part:
    """Some rows of a source, with indices of their own."""

    def __init__(self, rows: Rows, first: int, stop: int) -> None:
        self._rows, self._first = rows, first
        self.shape = (stop - first, rows.shape[1])

    def __getitem__(self, rows: slice) -> Any:
        return self._rows.part(self._first + rows.start, self._first + rows.stop)


@dataclass(frozen=True)
class Errand:
    """function(shard, *args) on the shards first to last; answers in order, or merged into one if `merge` is given."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    first: int
    last: int
    merge: Callable[[Any, Any], Any] | None


@dataclass(frozen=True)
class _Refused:
    """The first shard on which an errand could not be done, and why."""

    index: int
    error: Quad4FHEError


class Desk:
    """One worker's place: the source it reads from and what it remembers."""

    def __init__(self, rows: Rows, size: int, subject: Any, name: str, memory: int | None) -> None:
        self.rows, self.size, self.subject, self.name = rows, size, subject, name
        self.store = Store(memory)

    def __call__(self, errand: Errand) -> list[Any] | _Refused:
        """Run an errand. What a user's data does wrong is an answer, so that the lowest shard's is the one told."""
        answers: list[Any] = []
        for index in range(errand.first, errand.last):
            try:
                answer = errand.function(Shard(self, index), *errand.args)
            except Quad4FHEError as error:
                return _Refused(index, error)
            if errand.merge is not None and answers:
                answers[0] = errand.merge(answers[0], answer)
            else:
                answers.append(answer)
        return answers


class _Team(Protocol):
    def gather(self, tasks: list[Errand]) -> list[Any]: ...

    def close(self) -> None: ...


class _Alone:
    """No workers: the errands are run here."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def gather(self, tasks: list[Errand]) -> list[Any]:
        return [self._desk(task) for task in tasks]

    def close(self) -> None:
        self._desk.store.close()


class Shards:
    """The shards of a data set; a context manager that ends its workers.

    `engine` is an Engine or None (this process). Each worker has a run of neighbouring shards, so that files are read
    from front to back, and remembers what it made of them in up to `memory` bytes (None: as much as it takes).
    """

    def __init__(
        self,
        rows: Rows,
        size: int,
        subject: Any = None,
        *,
        name: str = "X_cal",
        engine: Engine | None = None,
        memory: int | None = None,
    ) -> None:
        self.rows, self.size = rows, size
        self.samples = rows.shape[0]
        self.count = -(-self.samples // size)
        self._team: _Team
        self._staged: Staged | None = None
        if engine is None:
            self.workers = 1
            self._team = _Alone(Desk(rows, size, subject, name, memory))
            return
        self.workers = int(engine.workers)
        self._staged = Staged(rows, nameless=engine.name == "local")
        try:
            self._team = engine.open(partial(Desk, self._staged.rows, size, subject, name, memory))
        except BaseException:
            self._staged.close()
            raise

    def __enter__(self) -> Shards:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._team.close()
        finally:
            if self._staged is not None:
                self._staged.close()

    def span(self, index: int) -> slice:
        """The rows of a shard."""
        return slice(index * self.size, min((index + 1) * self.size, self.samples))

    def map(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """function(shard, *args) of every shard, in their order; it is a function of a module."""
        return [answer for _, answer in self.stream(function, *args, together=self.count)]

    def total(self, merge: Callable[[Any, Any], Any], function: Callable[..., Any], *args: Any) -> Any:
        """function(shard, *args) of every shard, merged pairwise; `merge` must not care how (sums of floats do)."""
        found = self._gather(function, args, 0, self.count, merge)
        return reduce(merge, (answer for answers in found for answer in answers))

    def stream(
        self, function: Callable[..., Any], *args: Any, together: int = 4, report: Report | None = None
    ) -> Iterator[tuple[int, Any]]:
        """(index, function(shard, *args)), `together` shards of each worker at a time, so that answers may be large."""
        most = max(last - first for first, last in self._runs())
        done = 0
        for start in range(0, most, together):
            found = self._gather(function, args, start, start + together, None)
            for (first, _), answers in zip(self._runs(), found, strict=True):
                for k, answer in enumerate(answers):
                    yield first + start + k, answer
                done += len(answers)
            if report is not None:
                report(done, self.count)

    def _runs(self) -> list[tuple[int, int]]:
        """The shards of each worker."""
        edges = [w * self.count // self.workers for w in range(self.workers + 1)]
        return list(pairwise(edges))

    def _gather(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        start: int,
        stop: int,
        merge: Callable[[Any, Any], Any] | None,
    ) -> list[list[Any]]:
        """The shards start to stop of each worker's run: one errand for each, and task w goes to worker w."""
        errands = [
            Errand(function, args, min(first + start, last), min(first + stop, last), merge)
            for first, last in self._runs()
        ]
        found = self._team.gather(errands)
        refused = _lowest(found)
        if refused is None:
            return found
        # A lower shard, that its worker has not come to, may be refused as well: who works on what must not be seen.
        before = [
            Errand(function, args, errand.last, max(errand.last, min(last, refused.index)), _either)
            for errand, (_, last) in zip(errands, self._runs(), strict=True)
        ]
        raise (_lowest(self._team.gather(before)) or refused).error


def _lowest(found: list[Any]) -> _Refused | None:
    refused = [answer for answer in found if isinstance(answer, _Refused)]
    return min(refused, key=lambda each: each.index, default=None)


def _either(answer: Any, other: Any) -> Any:
    """Merges answers that nobody wants."""
    return answer


def engine_for(spec: str | Engine | None, workers: int | None = None) -> Engine | None:
    """The engine that was asked for; None, which is this process alone, where neither engine nor workers were."""
    return None if spec is None and workers is None else engine(spec or "local", workers)


def memory_bytes(value: int | float | str | None) -> int | None:
    """A memory budget in bytes, from a number or from text such as 512MB or 2GiB."""
    if value is None:
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:E\+?\d{1,2})?)\s*([KMGT]?I?)B?\s*", str(value).upper())
    if isinstance(value, bool) or found is None or found[2] not in _UNITS or float(found[1]) <= 0:
        raise InputError(f"memory is {value!r}, wanted a number of bytes such as 2000000000, 512MB or 2GiB")
    return int(float(found[1]) * _UNITS[found[2]])
