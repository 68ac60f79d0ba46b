"""The server's pool of workers: assigns tasks, ends workers that take too long, and replaces workers that ended.

Part of each request's time is reserved for computing. A task that would start too late is rejected, because ending its
worker at the deadline would cost every client a restart. `workers` starts and ends workers; `worker` defines the tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any

import msgspec

from quad4fhe.errors import Quad4FHEError
from quad4fhe.io.files import one_line
from quad4fhe.serve.admission import EvictedError, FairQueue, Place
from quad4fhe.serve.worker import Setup, Task, TaskResult, set_up
from quad4fhe.workers.base import Launcher, WorkerLostError, pickled
from quad4fhe.workers.codec import Answered, Failed, Lost, Outcome

log = logging.getLogger("quad4fhe.serve")
_START_SECONDS = 120.0
_PAUSE = 1.0  # between two attempts to start a worker that does not start
_RESULT_BYTES = 2**22  # far more than a TaskResult has
_LEAST_SHARE, _LARGEST_SHARE = 0.1, 0.5  # of a request's seconds, reserved for computing
_USUAL_TIMES = 3.0  # the reserve in units of the usual time of such a task
_AGAIN = "the worker ended before it answered; send the request again"


class DeadlineError(Quad4FHEError):
    """The task took longer than its deadline, and its worker was ended."""


class _IdleLostError(Quad4FHEError):
    """The worker ended before it got the task, so another worker can do it."""


class _AsyncWorker:
    """One worker with an async interface; it does one task at a time."""

    def __init__(self, launcher: Launcher, make: bytes) -> None:
        self._loop = asyncio.get_running_loop()
        self._outcome: asyncio.Future[Outcome] = self._loop.create_future()
        self._worker = launcher.start(make, self._deliver, longest=_RESULT_BYTES, probe=True)

    @property
    def name(self) -> str:
        return self._worker.name

    async def ready(self) -> None:
        """Wait for the set-up; raises InputError if it says what is wrong, otherwise WorkerLostError."""
        try:
            async with asyncio.timeout(_START_SECONDS):
                outcome = await self._outcome
        except TimeoutError:
            raise WorkerLostError(f"a worker was not ready within {_START_SECONDS:.0f} s") from None
        if isinstance(outcome, Lost):
            raise WorkerLostError(f"a worker did not start: {outcome.why}")
        if isinstance(outcome, Failed):
            if isinstance(outcome.error, Quad4FHEError):
                raise outcome.error
            raise WorkerLostError(f"a worker did not start: {one_line(outcome.error)}")

    async def do(self, task: Task) -> TaskResult:
        """Do a task; raises WorkerLostError, or _IdleLostError if the worker had ended before."""
        self._outcome = self._loop.create_future()
        self._worker.send(task)
        outcome = await self._outcome
        if isinstance(outcome, Lost) and outcome.idle:
            raise _IdleLostError(outcome.why)
        if isinstance(outcome, Answered) and isinstance(outcome.value, bytes):
            with contextlib.suppress(msgspec.DecodeError):
                return msgspec.json.decode(outcome.value, type=TaskResult)
        # The worker ended, raised an unexpected error, or was taken over and sent something else.
        why = outcome.why if isinstance(outcome, Lost) else one_line(getattr(outcome, "error", ValueError("no result")))
        log.error("worker %s: %s", self.name, why)
        raise WorkerLostError(_AGAIN)

    async def end(self) -> None:
        """End the worker, even in the middle of a task."""
        self._worker.kill()
        await asyncio.to_thread(self._worker.join)

    def _deliver(self, outcome: Outcome) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._arrived, outcome)

    def _arrived(self, outcome: Outcome) -> None:
        if not self._outcome.done():  # it is done if the deadline has passed
            self._outcome.set_result(outcome)


class ServerPool:
    """A fixed number of workers, each with one task at a time."""

    def __init__(self, setup: Setup, launcher: Launcher) -> None:
        self._make = pickled(partial(set_up, setup))
        self._launcher = launcher
        self._idle: FairQueue[_AsyncWorker] = FairQueue()
        self._alive: set[_AsyncWorker] = set()
        self._starting: set[asyncio.Task[Any]] = set()
        self._ending: set[asyncio.Task[Any]] = set()
        self._usual: dict[str, float] = {}  # seconds of a task that succeeded, by plan
        self.restarts = 0

    @property
    def alive(self) -> int:
        """The number of workers that are ready, busy or starting."""
        return len(self._alive)

    async def start(self) -> None:
        """Start every worker; raises WorkerLostError if one does not start, InputError if it says why."""
        try:
            starting = [_task(self._spawn(), self._starting) for _ in range(self._launcher.workers)]
            for worker in await asyncio.gather(*starting):
                self._idle.put_nowait(worker)
        except BaseException:
            await self.close()
            raise

    def reserve(self, plan: str, seconds: float) -> float:
        """How many of a request's `seconds` are reserved for computing."""
        usual = self._usual.get(plan, 0.0)
        return min(_LARGEST_SHARE * seconds, max(_LEAST_SHARE * seconds, _USUAL_TIMES * usual))

    async def run(self, task: Task, place: Place, deadline: float, start_by: float | None = None) -> TaskResult:
        """Give a task to the next idle worker; `deadline` and `start_by` are times of the event loop's clock.

        Raises WorkerLostError if no worker is free at `start_by` (by default the deadline), EvictedError if the place
        is given to another sender before.
        """
        while True:
            worker = await self._next(place, deadline if start_by is None else start_by)
            started = time.perf_counter()
            try:
                async with asyncio.timeout_at(deadline):
                    result = await worker.do(task)
            except _IdleLostError:
                self._replace(worker)
                continue
            except TimeoutError:
                self._replace(worker)
                raise DeadlineError("the request took longer than its deadline; its worker was ended") from None
            except BaseException:
                self._replace(worker)
                raise
            if result.last:
                self._replace(worker)
            else:
                self._idle.put_nowait(worker)
            if result.error is None:  # rejections are quick, and counting them would make the reserve too small
                self._learn(task, time.perf_counter() - started)
            return result

    def _learn(self, task: Task, spent: float) -> None:
        before = self._usual.get(task.plan, spent)
        self._usual[task.plan] = before + 0.1 * (spent - before)

    async def _next(self, place: Place, start_by: float) -> _AsyncWorker:
        worker: _AsyncWorker | None = None
        try:
            async with place.waiting(start_by):
                worker = await self._idle.get(place.owner)
            # If a worker is idle, `get` returns at once and does not notice a timeout in the past.
            if asyncio.get_running_loop().time() > start_by:
                raise TimeoutError
        except (TimeoutError, EvictedError) as error:
            if worker is not None:  # both happened at once
                self._idle.put_nowait(worker)
            if isinstance(error, EvictedError):
                raise
            raise WorkerLostError("no worker was free in time to compute; send the request again later") from None
        return worker

    async def close(self) -> None:
        """End every worker."""
        for task in list(self._starting):
            task.cancel()
        await asyncio.gather(*self._starting, *self._ending, return_exceptions=True)
        await asyncio.gather(*(worker.end() for worker in self._alive))
        self._alive.clear()

    async def _spawn(self) -> _AsyncWorker:
        worker = _AsyncWorker(self._launcher, self._make)
        self._alive.add(worker)
        try:
            await worker.ready()
        except BaseException:
            self._alive.discard(worker)
            await worker.end()
            raise
        log.info("worker %s is ready", worker.name)
        return worker

    def _replace(self, worker: _AsyncWorker) -> None:
        self._alive.discard(worker)
        self.restarts += 1
        log.warning("worker %s is replaced", worker.name)
        _task(self._renew(_task(worker.end(), self._ending)), self._starting)

    async def _renew(self, ending: asyncio.Task[Any]) -> None:
        await asyncio.wait([ending])  # a separate task: closing the pool cancels starting workers, not ending them
        while True:
            try:
                self._idle.put_nowait(await self._spawn())
            except (Quad4FHEError, OSError) as error:
                log.error("a worker does not start: %s", error)
                await asyncio.sleep(_PAUSE)
            else:
                return


def _task(work: Coroutine[Any, Any, Any], kept: set[asyncio.Task[Any]]) -> asyncio.Task[Any]:
    task = asyncio.create_task(work)
    kept.add(task)
    task.add_done_callback(kept.discard)
    return task
