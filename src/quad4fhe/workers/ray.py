"""Ray workers: actors on this machine or on a cluster.

This uses the Ray that the process has joined, else the cluster at RAY_ADDRESS, else a Ray that starts and stops with
the pool. Ray's own retries are off, because the pool retries.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any

from quad4fhe._threads import ONE_THREAD, usable_cores
from quad4fhe.errors import InputError, MissingExtraError
from quad4fhe.io.files import one_line
from quad4fhe.workers.base import LONGEST, Deliver, Launcher, ThreadedWorker, Worker, WorkerLostError, attempt, made
from quad4fhe.workers.codec import Answered, Failed, Lost, Outcome, decoded, encoded
from quad4fhe.workers.pool import Workers

# Ray reads these when it is imported or started: no usage reports, and the new behaviour that its warning announces.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

try:
    import ray
except ImportError:
    raise MissingExtraError("ray", "ray", "workers on Ray") from None

_START_SECONDS = 120.0


class RayWorkers(Workers):
    """Actors of Ray with one CPU each; by default as many as the Ray in use has CPUs."""

    name = "ray"

    def __init__(self, workers: int | None = None) -> None:
        self._asked = workers

    @property
    def workers(self) -> int:  # type: ignore[override]  # not known before Ray runs
        """The number of workers of a pool."""
        if self._asked is not None:
            return self._asked
        return _cpus() if ray.is_initialized() else usable_cores()

    @property
    def on_this_machine(self) -> bool:  # type: ignore[override]  # the same
        """Whether every worker is on this machine, and so can read its files."""
        if not ray.is_initialized():
            return _address() is None
        hosts = {node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}  # type: ignore[no-untyped-call, unused-ignore]
        return hosts == {socket.gethostname()}

    @contextlib.contextmanager
    def launch(self) -> Iterator[Launcher]:
        """Join or start Ray; see `Workers`."""
        started = not ray.is_initialized()
        if started:
            self._join()
        try:
            have = _cpus()
            wanted = self._asked or have
            if wanted > have:
                raise InputError(f"{wanted} workers wanted, but this Ray has {have} CPUs; ask for {have} or add nodes")
            yield _Launcher(wanted)
        finally:
            if started:
                ray.shutdown()

    def _join(self) -> None:
        quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
        address = _address()
        if address is not None:
            options: dict[str, Any] = {"address": address}
        else:
            options = {"address": "local", "num_cpus": self.workers, "include_dashboard": False}
        try:
            ray.init(**options, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = f"the cluster at RAY_ADDRESS={address}" if address else "Ray on this machine"
            raise InputError(f"can't use {where}: {one_line(error)}; check it, or take the pool 'local'") from None


def _address() -> str | None:
    """The cluster that the environment names; None to start a Ray here."""
    address = os.environ.get("RAY_ADDRESS")
    return None if address in (None, "", "local") else address


def _cpus() -> int:
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call, unused-ignore]
    return int(resources.get("CPU", 0))


class _Actor:
    """The code of an actor. Expected errors become outcomes, so Ray wraps no exception.

    Its answers are bytes, which Ray carries unchanged. A compromised actor can send other objects, and Ray unpickles
    those in the driver; see SECURITY.md.
    """

    def __init__(self, make: bytes, path: list[str]) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Append the driver's path, so that its modules are found but don't shadow those of this machine.
        sys.path += [place for place in path if place not in sys.path]
        self._work = made(make)

    def ready(self) -> bytes:
        if isinstance(self._work, Failed):
            return encoded(self._work)
        return encoded(Answered(f"{os.getpid()} on {socket.gethostname()}"))

    def do(self, task: Any, _probe: Any) -> bytes:
        assert isinstance(self._work, Answered)
        return encoded(attempt(self._work.value, task))


class _Launcher:
    def __init__(self, workers: int) -> None:
        self.workers = workers
        options: dict[str, Any] = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0}
        self._actor = ray.remote(**options, runtime_env={"env_vars": ONE_THREAD})(_Actor)
        self._stored: tuple[bytes, Any] = (b"", None)

    def start(self, make: bytes, deliver: Deliver, *, longest: int = LONGEST, probe: bool = False) -> Worker:
        """Start one actor; see `Launcher`. Ray does not limit the bytes of an outcome."""
        if self._stored[0] is not make:
            self._stored = make, ray.put(make)
        return _RayWorker(self._actor.remote(self._stored[1], sys.path), deliver, probe)


class _RayWorker(ThreadedWorker):
    def __init__(self, actor: Any, deliver: Deliver, probe: bool) -> None:
        super().__init__(deliver)
        self._actor, self._probe = actor, probe
        self.name = "of Ray (not started)"
        self._thread.start()

    def send(self, task: Any) -> None:
        """Send the task now, while the actor still does the previous one."""
        # Ray sends the task only after the probe has answered. Otherwise a task that kills its worker at once could
        # lose that answer, and the worker would seem to have died idle.
        probe = self._actor.ready.remote() if self._probe else None
        super().send((probe, self._actor.do.remote(task, probe)))

    def kill(self) -> None:
        with contextlib.suppress(Exception):  # Ray itself may be gone
            ray.kill(self._actor)

    def _set_up(self) -> Outcome:
        outcome = _outcome(self._actor.ready.remote(), _START_SECONDS)
        if isinstance(outcome, Answered):
            self.name = str(outcome.value)
        return outcome

    def _wait_for(self, sent: Any) -> Outcome:
        probe, answer = sent
        if probe is not None and isinstance(outcome := _outcome(probe), Lost):
            return Lost(outcome.why, idle=True)
        return _outcome(answer)

    def _clean_up(self) -> None:
        self.kill()


def _outcome(ref: Any, timeout: float | None = None) -> Outcome:
    try:
        answer = ray.get(ref, timeout=timeout)
    except ray.exceptions.GetTimeoutError:
        return Lost(f"Ray did not start a worker within {_START_SECONDS:.0f} s; are its CPUs in use?")
    except ray.exceptions.RayActorError as error:
        return Lost(_why(error))
    except ray.exceptions.RayError as error:  # a task or result that can't be sent, or was lost in transit
        return Failed(WorkerLostError(f"Ray could not deliver: {one_line(error)}"))
    if not isinstance(answer, bytes):
        return Failed(WorkerLostError("a worker did not answer in bytes"))
    return decoded(answer)


def _why(error: Exception) -> str:
    """The useful part of Ray's message: its first line, or for an error in the set-up the last, which names it."""
    text = str(error)
    if "creation task" in text:
        return f"Ray says: {one_line(RuntimeError(text.strip().rpartition(chr(10))[2]))}"
    memory = "; its machine ran low on memory" if "low on memory" in text or "OutOfMemory" in text else ""
    return f"Ray says: {one_line(RuntimeError(text.partition(chr(10))[0])).rstrip('.')}{memory}"
