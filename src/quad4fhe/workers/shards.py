"""A data set cut into shards, and functions of a shard run on a pool of workers.

The cuts are always at the same rows, and results come back in the order of the shards, so no result depends on the
number of workers. Without workers, everything runs in this process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from itertools import pairwise
from typing import Any, Protocol

from quad4fhe._arrays import Array, row_chunks
from quad4fhe.errors import InputError, Quad4FHEError
from quad4fhe.io.rows import Rows
from quad4fhe.workers.pool import Workers
from quad4fhe.workers.registry import DEFAULT, choose
from quad4fhe.workers.scratch import Arrays, Staged, Store

Report = Callable[[int, int], None]
SHARD_ROWS = 65_536
"""The largest number of rows of a shard; `lift.shard_rows` takes fewer if the statistics of a row are large."""
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{unit}I": 2 ** (10 * k) for k, unit in enumerate("KMGT", start=1)}


class Shard:
    """Rows `first` to `stop` of the data set, in a worker; `subject` is the object that tasks use (an MLP)."""

    def __init__(self, worker: ShardWorker, index: int) -> None:
        self.index, self.subject, self.name = index, worker.subject, worker.name
        self.first = index * worker.size
        self.stop = min(self.first + worker.size, worker.rows.shape[0])
        self._worker = worker
        # keep(name, make): arrays of this shard, computed by `make` once. Bound here, because solvers call it often.
        self.keep: Callable[[Hashable, Callable[[], Arrays]], Arrays] = partial(worker.store.keep, index)

    @property
    def samples(self) -> int:
        """The number of rows."""
        return self.stop - self.first

    def chunks(self, row_bytes: int) -> Iterator[tuple[slice, Array]]:
        """Yield (rows within the shard, finite float64 chunk), always cut at the same rows.

        The first complete pass checks that all numbers are finite; later passes read the same numbers.
        """
        span, known = slice(self.first, self.stop), self._worker.finite
        yield from row_chunks(self.name, self._worker.rows, row_bytes, span, check=self.index not in known)
        known.add(self.index)


@dataclass(frozen=True)
class ShardTask:
    """Compute function(shard, *args) for the shards first to last; `merge` combines the results into one."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    first: int
    last: int
    merge: Callable[[Any, Any], Any] | None


@dataclass(frozen=True)
class _Rejected:
    """The first shard for which a task failed on the user's data, and the error."""

    index: int
    error: Quad4FHEError


class ShardWorker:
    """The state of one worker: the rows it reads, the arrays it keeps, and which shards it found finite."""

    def __init__(self, rows: Rows, size: int, subject: Any, name: str, memory: int | None) -> None:
        self.rows, self.size, self.subject, self.name = rows, size, subject, name
        self.store = Store(memory)
        self.finite: set[int] = set()

    def __call__(self, task: ShardTask) -> list[Any] | _Rejected:
        """Run a task. An error about the data is returned, so that the driver can raise that of the lowest shard."""
        results: list[Any] = []
        for index in range(task.first, task.last):
            try:
                result = task.function(Shard(self, index), *task.args)
            except Quad4FHEError as error:
                return _Rejected(index, error)
            if task.merge is not None and results:
                results[0] = task.merge(results[0], result)
            else:
                results.append(result)
        return results


class _Pool(Protocol):
    def gather(self, tasks: list[ShardTask]) -> list[Any]: ...

    def close(self) -> None: ...


class _SerialPool:
    """One worker in this process."""

    def __init__(self, worker: ShardWorker) -> None:
        self._worker = worker

    def gather(self, tasks: list[ShardTask]) -> list[Any]:
        return [self._worker(task) for task in tasks]

    def close(self) -> None:
        self._worker.store.close()


class Shards:
    """The shards of a data set; a context manager that ends its workers.

    Each worker has a run of neighbouring shards, so that it reads files from front to back.

    Parameters
    ----------
    rows
        The samples.
    size
        Rows of a shard.
    subject
        The object that tasks use, as `Shard.subject`.
    name
        The name of the data in error messages.
    pool
        Where workers run; None computes in this process.
    memory
        Bytes of kept arrays that each worker holds in memory; further arrays go to a scratch file. None: no limit.
    """

    def __init__(
        self,
        rows: Rows,
        size: int,
        subject: Any = None,
        *,
        name: str = "X_cal",
        pool: Workers | None = None,
        memory: int | None = None,
    ) -> None:
        self.rows, self.size, self.name = rows, size, name
        self.samples = rows.shape[0]
        self.count = -(-self.samples // size)
        self.in_memory = pool is None and memory is None  # then every array that is kept stays in this process
        self._pool: _Pool
        self._staged: Staged | None = None
        if pool is None:
            self.workers = 1
            self._pool = _SerialPool(ShardWorker(rows, size, subject, name, memory))
            return
        self.workers = int(pool.workers)
        self._staged = Staged(rows, nameless=pool.on_this_machine)
        try:
            self._pool = pool.open(partial(ShardWorker, self._staged.rows, size, subject, name, memory))
        except BaseException:
            self._staged.close()
            raise

    def __enter__(self) -> Shards:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._pool.close()
        finally:
            if self._staged is not None:
                self._staged.close()

    def span(self, index: int) -> slice:
        """The rows of a shard."""
        return slice(index * self.size, min((index + 1) * self.size, self.samples))

    def map(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """function(shard, *args) for every shard, in order; `function` must be defined at the top of a module."""
        return [result for _, result in self.stream(function, *args, together=self.count)]

    def total(self, merge: Callable[[Any, Any], Any], function: Callable[..., Any], *args: Any) -> Any:
        """function(shard, *args) for every shard, merged pairwise in any order (so not for sums of floats)."""
        answers = self._gather(function, args, 0, self.count, merge)
        return reduce(merge, (result for results in answers for result in results))

    def stream(
        self, function: Callable[..., Any], *args: Any, together: int = 4, report: Report | None = None
    ) -> Iterator[tuple[int, Any]]:
        """Yield (index, function(shard, *args)), `together` shards of each worker at a time to bound the memory."""
        most = max(last - first for first, last in self._runs())
        done = 0
        for start in range(0, most, together):
            answers = self._gather(function, args, start, start + together, None)
            for (first, _), results in zip(self._runs(), answers, strict=True):
                for k, result in enumerate(results):
                    yield first + start + k, result
                done += len(results)
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
        """The shards start to stop of each worker's run: one task for each worker, and task w goes to worker w."""
        tasks = [
            ShardTask(function, args, min(first + start, last), min(first + stop, last), merge)
            for first, last in self._runs()
        ]
        results = self._pool.gather(tasks)
        rejected = _lowest(results)
        if rejected is None:
            return results
        # The error must not depend on scheduling: a lower shard that its worker has not reached may fail as well.
        before = [
            ShardTask(function, args, task.last, max(task.last, min(last, rejected.index)), _either)
            for task, (_, last) in zip(tasks, self._runs(), strict=True)
        ]
        raise (_lowest(self._pool.gather(before)) or rejected).error


def _lowest(results: list[Any]) -> _Rejected | None:
    rejected = [result for result in results if isinstance(result, _Rejected)]
    return min(rejected, key=lambda each: each.index, default=None)


def _either(result: Any, other: Any) -> Any:
    """Merge results that are not used."""
    return result


def pool_for(pool: str | Workers | None, workers: int | None = None) -> Workers | None:
    """The workers for these options; None (compute in this process) if neither pool nor workers are given."""
    return None if pool is None and workers is None else choose(pool or DEFAULT, workers)


def memory_bytes(value: int | float | str | None) -> int | None:
    """A memory budget in bytes, from a number or from text such as 512MB or 2GiB."""
    if value is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:E\+?\d{1,2})?)\s*([KMGT]?I?)B?\s*", str(value).upper())
    if isinstance(value, bool) or match is None or match[2] not in _UNITS or float(match[1]) <= 0:
        raise InputError(f"memory is {value!r}, wanted a number of bytes such as 2000000000, 512MB or 2GiB")
    return int(float(match[1]) * _UNITS[match[2]])
