"""The pool of worker processes: hands out jobs, ends what takes too long, and replaces what ended.

Decides what happens when a worker dies or a deadline passes. What a job is, is left to `worker`; who may queue, to
`app`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys

import msgspec

from quad4fhe.errors import InputError, Quad4FHEError
from quad4fhe.serve.worker import Answer, Job, Setup

log = logging.getLogger("quad4fhe.serve")
_START_SECONDS = 120.0
_PAUSE = 1.0  # between two attempts to start a worker that does not start


class WorkerLostError(Quad4FHEError):
    """The worker ended in the middle of a job, or none was free in time; the same job may be given again."""


class DeadlineError(Quad4FHEError):
    """The job took longer than its deadline, and its worker was ended."""


class _Worker:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def ask(self, line: bytes) -> Answer:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(line + b"\n")
            await stdin.drain()
            return msgspec.json.decode(await stdout.readline(), type=Answer)
        except (OSError, msgspec.DecodeError):
            raise WorkerLostError("the worker ended before it answered; send the request again") from None

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


class Pool:
    """A fixed number of workers, each with one job at a time."""

    def __init__(self, setup: Setup, workers: int) -> None:
        self._setup = msgspec.json.encode(setup)
        self._count = workers
        self._idle: asyncio.Queue[_Worker] = asyncio.Queue()
        self._alive: set[_Worker] = set()
        self._starting: set[asyncio.Task[None]] = set()
        self.restarts = 0

    @property
    def alive(self) -> int:
        """How many workers are ready or busy."""
        return len(self._alive)

    @property
    def pids(self) -> list[int]:
        """The workers' process ids."""
        return sorted(worker.process.pid for worker in self._alive)

    async def start(self) -> None:
        """Start every worker; raises WorkerLostError if one does not come up, InputError if it says why."""
        try:
            for worker in await asyncio.gather(*(self._spawn() for _ in range(self._count))):
                self._idle.put_nowait(worker)
        except BaseException:
            await self.close()
            raise

    async def run(self, job: Job, deadline: float) -> Answer:
        """Give a job to the next idle worker; `deadline` is a time of the event loop's clock."""
        try:
            async with asyncio.timeout_at(deadline):
                worker = await self._next()
        except TimeoutError:
            raise WorkerLostError("no worker was free within the deadline; send the request again later") from None
        try:
            async with asyncio.timeout_at(deadline):
                answer = await worker.ask(msgspec.json.encode(job))
        except TimeoutError:
            self._replace(worker)
            raise DeadlineError("the request took longer than its deadline; its worker was ended") from None
        except BaseException:
            self._replace(worker)
            raise
        self._idle.put_nowait(worker)
        return answer

    async def close(self) -> None:
        """End every worker."""
        for task in list(self._starting):
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*(worker.end() for worker in self._alive))
        self._alive.clear()

    async def _next(self) -> _Worker:
        while True:
            worker = await self._idle.get()
            if worker.process.returncode is None:
                return worker
            self._replace(worker)  # it died while nobody needed it

    async def _spawn(self) -> _Worker:
        # One thread each: parallelism is between workers, and strangers can't make one take every core.
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "quad4fhe.serve.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        worker = _Worker(process)
        self._alive.add(worker)
        try:
            async with asyncio.timeout(_START_SECONDS):
                answer = await worker.ask(self._setup)
            if answer.error is not None:
                raise InputError(answer.error)
        except BaseException:
            self._alive.discard(worker)
            await worker.end()
            raise
        return worker

    def _replace(self, worker: _Worker) -> None:
        self._alive.discard(worker)
        self.restarts += 1
        log.warning("worker %d is replaced", worker.process.pid)
        task = asyncio.create_task(self._renew(worker))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _renew(self, old: _Worker) -> None:
        await old.end()
        while True:
            try:
                self._idle.put_nowait(await self._spawn())
            except (Quad4FHEError, OSError, TimeoutError) as error:
                log.error("a worker does not start: %s", error)
                await asyncio.sleep(_PAUSE)
            else:
                return
