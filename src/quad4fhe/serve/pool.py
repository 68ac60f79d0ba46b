"""The pool of workers: hands out jobs, ends what takes too long, and replaces what ended.

Decides what happens when a worker dies or a deadline passes, and how much of a request's time is kept for computing: a
job that would start too late is refused, because ending its worker would cost everybody a restart. How a worker is
started, asked and ended is left to `process` and `hired`; what a job is, to `worker`; who may queue, to `app`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import msgspec

from quad4fhe.errors import Quad4FHEError
from quad4fhe.serve.places import EvictedError, FairQueue, Place
from quad4fhe.serve.worker import Answer, Job, Setup

log = logging.getLogger("quad4fhe.serve")
_PAUSE = 1.0  # between two attempts to start a worker that does not start
_LEAST_SHARE, _LARGEST_SHARE = 0.1, 0.5  # of a request's seconds that are kept for computing
_USUAL_TIMES = 3.0  # as long as a job of its kind usually takes


class WorkerLostError(Quad4FHEError):
    """The worker ended in the middle of a job, or none was free in time; the same job may be given again."""


class NotGivenError(Quad4FHEError):
    """The worker had ended before it was given the job, which another one can do."""


class DeadlineError(Quad4FHEError):
    """The job took longer than its deadline, and its worker was ended."""


class Hand(Protocol):
    """One worker, as the pool sees it; what goes to and fro is JSON."""

    @property
    def name(self) -> str:
        """What a log calls it."""

    async def start(self, setup: bytes) -> None:
        """Wait until it is set up; raises InputError where it says what is wrong, WorkerLostError where it ended."""

    async def ask(self, job: bytes) -> bytes:
        """Give it a job and wait for the answer; raises WorkerLostError, or NotGivenError if it had ended before."""

    async def end(self) -> None:
        """End it whatever it is doing, also where `start` or `ask` did not come to their end."""


class Pool:
    """A fixed number of workers, each with one job at a time."""

    def __init__(self, setup: Setup, workers: int, hire: Callable[[], Hand]) -> None:
        self._setup = msgspec.json.encode(setup)
        self._count = workers
        self._hire = hire
        self._idle: FairQueue[Hand] = FairQueue()
        self._alive: set[Hand] = set()
        self._starting: set[asyncio.Task[Any]] = set()
        self._ending: set[asyncio.Task[Any]] = set()
        self._usual: dict[tuple[str, bool], float] = {}  # seconds of a job that went well, by plan and kind
        self.restarts = 0

    @property
    def alive(self) -> int:
        """How many workers are ready, busy or on their way."""
        return len(self._alive)

    async def start(self) -> None:
        """Start every worker; raises WorkerLostError if one does not come up, InputError if it says why."""
        try:
            for worker in await asyncio.gather(*(_task(self._spawn(), self._starting) for _ in range(self._count))):
                self._idle.put_nowait(worker)
        except BaseException:
            await self.close()
            raise

    def reserve(self, plan: str, evaluates: bool, seconds: float) -> float:
        """How many of a request's `seconds` are kept for computing; `evaluates` tells requests from uploaded keys."""
        # A worker that does not hold a client's keys reads and checks them before it evaluates.
        kinds = {(plan, False), (plan, evaluates)}
        usual = sum(self._usual.get(kind, 0.0) for kind in kinds)
        return min(_LARGEST_SHARE * seconds, max(_LEAST_SHARE * seconds, _USUAL_TIMES * usual))

    async def run(self, job: Job, place: Place, deadline: float, start_by: float | None = None) -> Answer:
        """Give a job to the next idle worker; `deadline` and `start_by` are times of the event loop's clock.

        Raises WorkerLostError where no worker is free at `start_by` (by default the deadline), EvictedError where the
        place is given to somebody else before.
        """
        line = msgspec.json.encode(job)
        while True:
            worker = await self._next(place, deadline if start_by is None else start_by)
            started = time.perf_counter()
            try:
                async with asyncio.timeout_at(deadline):
                    answer = msgspec.json.decode(await worker.ask(line), type=Answer)
            except NotGivenError:
                self._replace(worker)  # it died while nobody needed it
                continue
            except TimeoutError:
                self._replace(worker)
                raise DeadlineError("the request took longer than its deadline; its worker was ended") from None
            except msgspec.DecodeError:
                self._replace(worker)
                raise WorkerLostError("the worker ended before it answered; send the request again") from None
            except BaseException:
                self._replace(worker)
                raise
            self._idle.put_nowait(worker)
            if answer.error is None:  # a refusal comes early, and many of them would make the reserve too small
                self._learn(job, time.perf_counter() - started)
            return answer

    def _learn(self, job: Job, spent: float) -> None:
        kind = (job.plan, job.request is not None)
        before = self._usual.get(kind, spent)
        self._usual[kind] = before + 0.1 * (spent - before)

    async def _next(self, place: Place, start_by: float) -> Hand:
        worker: Hand | None = None
        try:
            async with place.waiting(start_by):
                worker = await self._idle.get(place.owner)
            # A worker that is idle is there at once, before a timeout of the past is noticed.
            if asyncio.get_running_loop().time() > start_by:
                raise TimeoutError
        except TimeoutError:
            if worker is not None:
                self._idle.put_nowait(worker)
            raise WorkerLostError("no worker was free in time to compute; send the request again later") from None
        except EvictedError:
            if worker is not None:  # both happened at once
                self._idle.put_nowait(worker)
            raise
        return worker

    async def close(self) -> None:
        """End every worker."""
        for task in list(self._starting):
            task.cancel()
        await asyncio.gather(*self._starting, *self._ending, return_exceptions=True)
        await asyncio.gather(*(worker.end() for worker in self._alive))
        self._alive.clear()

    async def _spawn(self) -> Hand:
        worker = self._hire()
        self._alive.add(worker)
        try:
            await worker.start(self._setup)
        except BaseException:
            self._alive.discard(worker)
            await worker.end()
            raise
        log.info("worker %s is ready", worker.name)
        return worker

    def _replace(self, worker: Hand) -> None:
        self._alive.discard(worker)
        self.restarts += 1
        log.warning("worker %s is replaced", worker.name)
        _task(self._renew(_task(worker.end(), self._ending)), self._starting)

    async def _renew(self, ending: asyncio.Task[Any]) -> None:
        await asyncio.wait([ending])  # a task of its own: a pool that closes stops starting, but ends to the end
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
