"""What every engine offers: a team of worker processes that each set up once and then do tasks.

Decides the interface and how an engine is named. How workers are started is left to `local` and `ray`; who gets which
task, and what happens when a worker dies, is the same for both and left to `team`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from quad4fhe.errors import InputError, Quad4FHEError

Work = Callable[[Any], Any]


class WorkerLostError(Quad4FHEError):
    """Workers ended before they answered, as often as was tried; nothing is known about the task."""


@dataclass(frozen=True, eq=False)
class Done:
    """What became of one task: `result`, or the `error` that the work raised or that its workers' deaths left."""

    index: int
    task: Any
    result: Any = None
    error: Exception | None = None


class Team(Protocol):
    """Workers that are ready; one `stream` or `gather` at a time. Leaving its `with` block ends them."""

    @property
    def workers(self) -> int:
        """How many workers there are."""

    @property
    def lost(self) -> int:
        """How many workers have died so far."""

    def stream(self, tasks: Iterable[Any], *, ahead: int = 0) -> Iterator[Done]:
        """Results as they finish, any task on any worker; tasks are taken from the iterable only when there is room.

        At most (1 + `ahead`) tasks a worker are in flight; `ahead` hides the time it takes to make and send a task. A
        task whose worker died is given to a fresh one a few times; then, as where the work raised, its `error` is set.
        """

    def gather(self, tasks: Sequence[Any]) -> list[Any]:
        """One result a task, in order; task i goes to worker i % workers. Raises the first error there is."""

    def close(self) -> None:
        """End every worker, whatever it is doing."""

    def __enter__(self) -> Team: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


@runtime_checkable
class Engine(Protocol):
    """A way to run a team. One with an attribute `here` that is true says that its workers are on this machine."""

    @property
    def name(self) -> str:
        """`local` or `ray`."""

    @property
    def workers(self) -> int:
        """How many workers a team has."""

    def open(self, make: Callable[[], Work]) -> Team:
        """Start a team. Every worker calls `make` once and gives each of its tasks to what that returned.

        `make` is pickled: a function of a module, or a `functools.partial` of one. What it raises is raised here.
        """


def engine(spec: str | Engine, workers: int | None = None) -> Engine:
    """An engine by its name, `local` or `ray`; an Engine is returned as it is.

    Without `workers` there is one for each core this process may use; on a Ray cluster, one for each of its CPUs.
    """
    if workers is not None and (not _whole(workers) or workers < 1):
        raise InputError(f"workers is {workers!r}, wanted a whole number, at least 1")
    if not isinstance(spec, str):
        if not isinstance(spec, Engine):
            raise InputError(f"the engine is {type(spec).__name__}, wanted 'local', 'ray' or an Engine")
        if workers not in (None, spec.workers):
            raise InputError(f"workers is {workers}, but the engine that was given has {spec.workers}; leave it out")
        return spec
    if spec == "local":
        from quad4fhe.engines.local import LocalEngine

        return LocalEngine(workers)
    if spec == "ray":
        from quad4fhe.engines.ray import RayEngine

        return RayEngine(workers)
    raise InputError(f"the engine is {spec!r}, wanted 'local' or 'ray'")


def single_workers(name: str, workers: int) -> AbstractContextManager[Engine]:
    """An engine whose teams have one worker each, `workers` of which are open at a time, and try no task twice.

    For who gives tasks to each worker by itself and replaces those that die. What the engine needs (Ray) is started
    once, and stopped when the block ends.
    """
    engine(name, workers)  # says what is wrong with them
    if name == "ray":
        from quad4fhe.engines.ray import RayEngine

        return RayEngine(workers).singly()
    from quad4fhe.engines.local import LocalEngine

    return nullcontext(LocalEngine(1, attempts=1))


def each(chosen: Engine, function: Work, tasks: Iterable[Any]) -> Iterator[Done]:
    """Do `function` for every task, results as they finish: for work that needs no set-up. See `Team.stream`."""
    with chosen.open(partial(_as_it_is, function)) as team:
        yield from team.stream(tasks)


def _whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _as_it_is(function: Work) -> Work:
    return function


def cores() -> int:
    """How many cores this process may use."""
    try:
        return max(1, len(os.sched_getaffinity(0)))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1
