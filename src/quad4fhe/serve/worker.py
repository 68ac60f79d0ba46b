"""A worker of the server: the only process that parses clients' payloads and computes on them.

Payloads are files that the server spooled; the server computes their SHA-256 at the same time. The plan fixes the size
of every payload. If that fails because of a bug, the limit on the worker's memory makes it a MemoryError in one worker
before the machine runs out of memory.
"""

from __future__ import annotations

import errno
import mmap
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from quad4fhe.errors import InputError
from quad4fhe.fitting.result import Fit
from quad4fhe.he.session import Server
from quad4fhe.layouts import layout_of
from quad4fhe.planning.plan import Plan

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SPARE = 2**30  # bytes beyond what is counted: work space, compiled kernels, fragments
_STATUS = Path("/proc/self/status")


class ModelFiles(msgspec.Struct, frozen=True):
    """A model to load: a fit file and its plans."""

    fit: str
    plans: list[dict[str, Any]]


class Setup(msgspec.Struct, frozen=True):
    """What a worker needs: its models and its `memory` limit in bytes.

    A limit of None is what its plans can need, and 0 is no limit.
    """

    models: list[ModelFiles]
    memory: int | None = None


class Task(msgspec.Struct, frozen=True):
    """Answer the request in one file, into another one."""

    plan: str
    request: str
    reply: str


class TaskResult(msgspec.Struct, frozen=True):
    """The result of a task; `error` is one line for the client.

    `full` if memory or disk space ran out, `last` if the worker must be replaced.
    """

    error: str | None = None
    full: bool = False
    last: bool = False


def set_up(setup: Setup) -> Callable[[Task], bytes]:
    """Set up a worker, and return the function that does its tasks; results are JSON, which the server checks."""
    for model in setup.models:
        if not Path(model.fit).exists():
            raise InputError(
                f"a worker on {socket.gethostname()} does not see the server's folder {Path(model.fit).parent}; "
                "name one that all machines share with --spool"
            )
    do = Worker(setup).do
    return lambda task: msgspec.json.encode(do(task))


class Worker:
    """One `Server` for each plan."""

    def __init__(self, setup: Setup) -> None:
        self._servers: dict[str, Server] = {}
        plans = [[Plan.from_dict(fields) for fields in model.plans] for model in setup.models]
        every = [plan for own in plans for plan in own]
        for model, own in zip(setup.models, plans, strict=True):
            fit = Fit.load(model.fit)
            for plan in own:
                server = Server(fit, plan)
                self._servers[plan.sha256.hex()] = server
                server.warm_up()
        needed = sum(layout_of(plan).memory(plan) for plan in every)
        limit_memory(setup.memory, needed)
        self._out_of_memory: MemoryError | None = None

    def do(self, task: Task) -> TaskResult:
        """Do a task; a mistake of the client becomes a result, any other error ends this worker."""
        try:
            _answer(self._servers[task.plan], task.request, task.reply)
        except InputError as error:
            return TaskResult(error=" ".join(str(error).split()))
        except MemoryError as error:
            # An allocation that fails inside SEAL leaves a lock of its memory pool taken, so that SEAL's next use of
            # the pool, even to free an object, waits forever. The error keeps the objects of its frames alive.
            self._out_of_memory = error
            text = "the request needs more memory than a worker of this server has"
            return TaskResult(error=text, full=True, last=True)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            return TaskResult(error="the server has no room for the reply", full=True)
        return TaskResult()


def _answer(server: Server, source: str, reply: str) -> None:
    with Path(source).open("rb") as file:
        request = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    data = server.answer(request, hashed=True)
    with Path(reply).open("r+b") as out:  # the server made the file, so a late worker leaves nothing behind
        out.write(data)


def limit_memory(limit: int | None, needed: int) -> int | None:
    """Limit this process to `limit` bytes; None means its present memory plus `needed`, 0 means no limit.

    Counts private writable memory, so mapped payloads are free. Returns the limit, or None if none was set: only Linux
    both counts such memory and enforces the limit.
    """
    if limit == 0 or not _STATUS.exists():
        return None
    import resource  # not on every platform

    now = next(int(line.split()[1]) for line in _STATUS.read_text().splitlines() if line.startswith("VmData:")) * 1024
    if limit is not None and limit < now:
        raise InputError(
            f"a worker has {now / 2**20:.0f} MiB in use once its models are loaded, which is more than the "
            f"{limit / 2**20:.0f} MiB it may have; give it more"
        )
    chosen = now + needed + _SPARE if limit is None else limit
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most != resource.RLIM_INFINITY:
        chosen = min(chosen, most)
    resource.setrlimit(resource.RLIMIT_DATA, (chosen, most))
    return chosen
