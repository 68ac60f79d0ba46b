"""A worker that an engine runs, such as an actor of Ray: a team of one.

Decides how jobs reach it (as JSON, one at a time, from a thread of its own) and that it is replaced, not used again,
once anything unforeseen happened in it. Where it runs is left to the engine; it opens the server's spooled files by
their names, so it has to see the same folder.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec

from quad4fhe import engines
from quad4fhe._files import one_line
from quad4fhe.engines import Engine, Team, Work
from quad4fhe.errors import InputError, Quad4FHEError
from quad4fhe.serve.pool import NotGivenError, WorkerLostError
from quad4fhe.serve.worker import Job, Setup, Worker

log = logging.getLogger("quad4fhe.serve")
_WHO = b""  # the task that is no job: a worker says who it is, and so that it is there


def set_up(setup: bytes) -> Work:
    """What the engine's worker does once; returns what it does with each task."""
    wanted = msgspec.json.decode(setup, type=Setup)
    for model in wanted.models:
        if not Path(model.fit).exists():
            raise InputError(
                f"a worker on {socket.gethostname()} does not see the server's folder {Path(model.fit).parent}; "
                "name one that all machines share with --spool"
            )
    worker = Worker(wanted)

    def do(task: bytes) -> bytes:
        if task == _WHO:
            return f"{os.getpid()} on {socket.gethostname()}".encode()
        return msgspec.json.encode(worker.do(msgspec.json.decode(task, type=Job)))

    return do


class Hired:
    """One worker of an engine whose teams have one worker each and try nothing twice."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._team: Team | None = None
        self._thread = ThreadPoolExecutor(1)  # a team does one thing at a time, and blocks while it does
        self._last: asyncio.Future[bytes] | None = None
        self._ended = False
        self.name = f"of {engine.name} (not started)"

    async def start(self, setup: bytes) -> None:
        """Open the team; see `Hand`."""
        await self._in_thread(self._start, setup)

    async def ask(self, job: bytes) -> bytes:
        """Give it a job; see `Hand`."""
        return await self._in_thread(self._ask, job)

    async def end(self) -> None:
        """Kill the worker, and wait for the thread that asked it; see `Hand`."""
        self._ended = True
        if self._team is None and self._last is not None:
            await asyncio.wait([self._last])  # a team that opens can't be stopped, only what it opened
        if self._team is not None:
            await asyncio.to_thread(self._team.close)
        if self._last is not None:
            await asyncio.wait([self._last])
            self._last.exception()  # seen: what becomes of a job that nobody waits for is no news
        self._thread.shutdown(wait=False)

    async def _in_thread(self, function: Callable[[bytes], bytes], data: bytes) -> bytes:
        self._last = future = asyncio.get_running_loop().run_in_executor(self._thread, function, data)
        await asyncio.wait([future])  # which leaves it be where the waiting is cancelled: `end` still needs it
        return future.result()

    def _start(self, setup: bytes) -> bytes:
        try:
            self._team = self._engine.open(partial(set_up, setup))
        except engines.WorkerLostError as error:
            raise WorkerLostError(str(error)) from None
        except Quad4FHEError:
            raise
        except Exception as error:  # of many kinds, where an engine itself is in trouble
            raise WorkerLostError(f"the engine {self._engine.name} can't start a worker: {one_line(error)}") from None
        who = self._give(_WHO)
        self.name = who.decode()
        return who

    def _ask(self, job: bytes) -> bytes:
        try:
            self._give(_WHO)
        except WorkerLostError:
            raise NotGivenError("the worker had ended") from None
        return self._give(job)

    def _give(self, task: bytes) -> bytes:
        assert self._team is not None
        try:
            (answer,) = self._team.gather([task])
        except Exception as error:  # the worker's end, or an error that would have ended a process
            if not self._ended:
                log.error("worker %s: %s", self.name, one_line(error))
            raise WorkerLostError("the worker ended before it answered; send the request again") from None
        if not isinstance(answer, bytes):
            raise WorkerLostError("the worker did not answer in bytes; send the request again")
        return answer
