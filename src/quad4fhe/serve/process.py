"""A worker that is a process of the server's own: the default.

Decides how it is started and spoken to: lines of JSON over its standard input and output, so that nothing a worker says
is ever unpickled here. What it does with a line is left to `worker`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

import msgspec

from quad4fhe._threads import ONE_THREAD
from quad4fhe.errors import InputError
from quad4fhe.serve.pool import NotGivenError, WorkerLostError
from quad4fhe.serve.worker import Answer

_START_SECONDS = 120.0


class Process:
    """One process."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    @property
    def name(self) -> str:
        """Its process id."""
        return "(not started)" if self._process is None else str(self._process.pid)

    async def start(self, setup: bytes) -> None:
        """Start it and let it set up; see `Hand`."""
        # One thread each: parallelism is between workers, and strangers can't make one take every core.
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "quad4fhe.serve.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | ONE_THREAD,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(_START_SECONDS):
                answer = msgspec.json.decode(await self._exchange(setup), type=Answer)
        except msgspec.DecodeError:
            raise WorkerLostError("a worker ended before it was set up") from None
        except TimeoutError:
            raise WorkerLostError(f"a worker was not ready within {_START_SECONDS:.0f} s") from None
        if answer.error is not None:
            raise InputError(answer.error)

    async def ask(self, job: bytes) -> bytes:
        """One line out, one line back; see `Hand`."""
        assert self._process is not None
        if self._process.returncode is not None:
            raise NotGivenError("the worker had ended")
        return await self._exchange(job)

    async def end(self) -> None:
        """Kill it; see `Hand`."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def _exchange(self, line: bytes) -> bytes:
        assert self._process is not None
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(line + b"\n")
            await stdin.drain()
            return await stdout.readline()
        except OSError:
            raise WorkerLostError("the worker ended before it answered; send the request again") from None
