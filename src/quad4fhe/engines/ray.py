"""The Ray engine: one actor a worker, on this machine or on a cluster.

Decides which Ray is used (the one this process has joined; else the cluster that RAY_ADDRESS names; else one started
here and stopped with the team, or with the block of `singly`) and that Ray itself retries nothing: that is `team`'s
to decide.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from quad4fhe._files import one_line
from quad4fhe._threads import ONE_THREAD
from quad4fhe.engines.base import Team, Work, WorkerLostError, cores
from quad4fhe.engines.local import pickled
from quad4fhe.engines.team import ATTEMPTS, Answered, CrewTeam, Failed, Lost, Outcome, attempt, decoded, encoded
from quad4fhe.errors import InputError, MissingExtraError

# Read by Ray when it is imported or started: no reports to its makers, and the behaviour it warns it will have.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

try:
    import ray
except ImportError:
    raise MissingExtraError("ray", "ray", "the engine 'ray'") from None

_START_SECONDS = 120.0


class RayEngine:
    """Actors of Ray, one CPU each; by default as many as the Ray in use has CPUs.

    `store_bytes` is the size of the object store of a Ray that is started here; what is in flight has to fit. A task
    whose workers die is tried `attempts` times.
    """

    name = "ray"

    def __init__(self, workers: int | None = None, *, store_bytes: int | None = None, attempts: int = ATTEMPTS) -> None:
        self._asked = workers
        self._store_bytes = store_bytes
        self._attempts = attempts

    @property
    def workers(self) -> int:
        """How many workers a team has."""
        if self._asked is not None:
            return self._asked
        return _cpus() if ray.is_initialized() else cores()

    @property
    def here(self) -> bool:
        """Whether every worker is on this machine, and so reaches its files."""
        if not ray.is_initialized():
            return not _address()
        hosts = {node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}  # type: ignore[no-untyped-call, unused-ignore]
        return hosts == {socket.gethostname()}

    def open(self, make: Callable[[], Work]) -> Team:
        """Start the workers; see `Engine.open`."""
        data = pickled(make)
        started = not ray.is_initialized()
        if started:
            _join(self._asked, self._store_bytes)
        try:
            return CrewTeam(_Actors(data, self._places(), stop_ray=started), self._attempts)
        except BaseException:
            if started:
                ray.shutdown()
            raise

    @contextlib.contextmanager
    def singly(self) -> Iterator[RayEngine]:
        """Join or start Ray once, for as many teams of one worker as this engine has; see `single_workers`."""
        started = not ray.is_initialized()
        if started:
            _join(self._asked, self._store_bytes)
        try:
            self._places()
            yield RayEngine(1, attempts=1)
        finally:
            if started:
                ray.shutdown()

    def _places(self) -> int:
        have = _cpus()
        wanted = self._asked or have
        if wanted > have:
            raise InputError(f"{wanted} workers wanted, but this Ray has {have} CPUs; ask for {have} or add nodes")
        return wanted


def _join(workers: int | None, store_bytes: int | None) -> None:
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    address = _address()
    try:
        if address:
            ray.init(address=address, **quiet)
        else:
            count = cores() if workers is None else workers
            ray.init(address="local", num_cpus=count, include_dashboard=False, object_store_memory=store_bytes, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = f"the cluster at RAY_ADDRESS={address}" if address else "Ray on this machine"
        raise InputError(f"can't use {where}: {one_line(error)}") from None


def _address() -> str | None:
    """The cluster that the environment names, None for a Ray of our own."""
    address = os.environ.get("RAY_ADDRESS")
    return None if address in (None, "", "local") else address


def _cpus() -> int:
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call, unused-ignore]
    return int(resources.get("CPU", 0))


class _Worker:
    """What an actor is; everything it raises on purpose is an outcome, so that Ray wraps nothing.

    It answers in bytes, which Ray carries as they are. An actor that was taken over can answer in other ways, and Ray
    unpickles those in the driver: SECURITY.md says what follows from that.
    """

    def __init__(self, make: bytes, path: list[str]) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # After this machine's own: the driver's modules are found, and none of this machine's is shadowed.
        sys.path += [place for place in path if place not in sys.path]
        self._made = attempt(lambda data: pickle.loads(data)(), make)

    def ready(self) -> bytes:
        return encoded(Answered(None) if isinstance(self._made, Answered) else self._made)

    def do(self, task: Any, _ready: bytes) -> bytes:
        if isinstance(self._made, Failed):
            return encoded(Lost(f"its set-up failed ({one_line(self._made.error)})", started=False))
        return encoded(attempt(self._made.value, task))


class _Actors:
    """The crew of the Ray engine."""

    def __init__(self, make: bytes, size: int, *, stop_ray: bool) -> None:
        self.size = size
        self._stop_ray = stop_ray
        self._make = ray.put(make)
        options: dict[str, Any] = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0}
        self._actor = ray.remote(**options, runtime_env={"env_vars": ONE_THREAD})(_Worker)
        self._at: list[Any] = [None] * size
        self._ready: list[Any] = [None] * size
        self._open: list[deque[Any]] = [deque() for _ in range(size)]

    def start(self, place: int) -> None:
        self.stop(place)
        self._at[place] = self._actor.remote(self._make, sys.path)
        self._ready[place] = self._at[place].ready.remote()

    def stop(self, place: int) -> None:
        self._open[place].clear()
        actor, self._at[place] = self._at[place], None
        if actor is not None:
            ray.kill(actor)

    def give(self, place: int, task: Any) -> None:
        # With what `ready` returned, so that Ray sends the task after that has arrived: a worker that a task kills at
        # once would otherwise look like one that never started.
        self._open[place].append(self._at[place].do.remote(task, self._ready[place]))

    def ready(self, place: int) -> Outcome:
        return self._fetch(place, self._ready[place], _START_SECONDS)

    def next(self) -> tuple[int, Outcome]:
        # An actor answers in order, so only the oldest question of each can be next.
        # Copies, as another thread may close the team meanwhile.
        first = {refs[0]: place for place, refs in enumerate(map(list, self._open)) if refs}
        if not first:
            raise WorkerLostError("the team was closed")
        (ref,), _ = ray.wait(list(first), num_returns=1)
        place = first[ref]
        outcome = self._fetch(place, ref, None)
        with contextlib.suppress(IndexError):  # closed meanwhile by another thread
            self._open[place].popleft()
        if isinstance(outcome, Lost):
            self.stop(place)
        return place, outcome

    def close(self) -> None:
        for place in range(self.size):
            with contextlib.suppress(Exception):  # Ray itself may be gone
                self.stop(place)
        if self._stop_ray:
            ray.shutdown()

    def _fetch(self, place: int, ref: Any, timeout: float | None) -> Outcome:
        try:
            answer = ray.get(ref, timeout=timeout)
        except ray.exceptions.GetTimeoutError:
            raise WorkerLostError(
                f"Ray did not start a worker within {_START_SECONDS:.0f} s; are its CPUs taken by others?"
            ) from None
        except ray.exceptions.RayActorError as error:
            return Lost(_why(error), self._was_ready(place))
        except ray.exceptions.RayError as error:  # a task or result that can't be carried, or was lost on the way
            return Failed(WorkerLostError(f"Ray could not deliver: {one_line(error)}"))
        return _outcome(answer)

    def _was_ready(self, place: int) -> bool:
        done, _ = ray.wait([self._ready[place]], timeout=0)
        if not done:
            return False
        try:
            return isinstance(_outcome(ray.get(self._ready[place])), Answered)
        except ray.exceptions.RayError:
            return False


def _outcome(answer: Any) -> Outcome:
    if not isinstance(answer, bytes):
        return Failed(WorkerLostError("a worker did not answer in bytes"))
    return decoded(answer)


def _why(error: Exception) -> str:
    """The first sentence of what Ray says, the rest is ids; of an error in setting up, the last line names it."""
    text = str(error)
    if "creation task" in text:
        return f"Ray says: {one_line(RuntimeError(text.strip().rpartition(chr(10))[2]))}"
    memory = ", its machine ran low on memory" if "low on memory" in text or "OutOfMemory" in text else ""
    return f"Ray says: {one_line(RuntimeError(text.partition(chr(10))[0])).rstrip('.')}{memory}"
