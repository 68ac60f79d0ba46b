"""A worker of the server: the only process that parses clients' payloads and computes on them.

Payloads are files that the server spooled; the server computes their SHA-256 at the same time. The plan fixes the size
of every payload. If that fails because of a bug, the limit on the worker's memory makes it a MemoryError in one worker
before the machine runs out of memory.
"""

from __future__ import annotations

import errno
import mmap
import os
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from quad4fhe.errors import InputError
from quad4fhe.fitting.result import Fit
from quad4fhe.he import backends, container
from quad4fhe.he.ahead import SpentError
from quad4fhe.he.container import Kind
from quad4fhe.he.session import Server, key_cache
from quad4fhe.layouts import layout_of
from quad4fhe.planning.plan import Plan

KEYS_AT_ONCE = 16  # clients' evaluation keys in memory; further ones are read again from the spool
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SPARE = 2**30  # bytes beyond what is counted: work space, compiled kernels, fragments
_STATUS = Path("/proc/self/status")


class ModelFiles(msgspec.Struct, frozen=True):
    """A model to load: a fit file and its plans."""

    fit: str
    plans: list[dict[str, Any]]


class Setup(msgspec.Struct, frozen=True):
    """What a worker needs: its models, its `memory` limit in bytes, and the name of its backend.

    A limit of None is what its plans can need, and 0 is no limit. With the same `rounding`, workers round weights
    alike, so one can answer what another prepared.
    """

    models: list[ModelFiles]
    memory: int | None = None
    backend: str = backends.DEFAULT
    rounding: bytes | None = None


class Task(msgspec.Struct, frozen=True):
    """Check uploaded keys (no request), or answer a request of this `kind`; `kept` is what was prepared for it."""

    plan: str
    keys: str | None = None
    key_id: str = ""
    request: str | None = None
    reply: str | None = None
    kind: int = Kind.request
    kept: bytes | None = None


class TaskResult(msgspec.Struct, frozen=True):
    """The result of a task; `error` is one line for the client.

    `keyless` if the client's keys were evicted in the meantime, `full` if memory or disk space ran out, `last` if the
    worker must be replaced, `spent` if nothing was prepared for the request. `kept` is what the answer to a seed's
    request will need.
    """

    error: str | None = None
    keyless: bool = False
    full: bool = False
    last: bool = False
    spent: bool = False
    kept: bytes | None = None


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
    """One `Server` for each plan, and a cache of evaluation keys."""

    def __init__(self, setup: Setup) -> None:
        self._servers: dict[str, Server] = {}
        plans = [[Plan.from_dict(fields) for fields in model.plans] for model in setup.models]
        every = [plan for own in plans for plan in own]
        self._keys = key_cache(every, KEYS_AT_ONCE)
        for model, own in zip(setup.models, plans, strict=True):
            fit = Fit.load(model.fit)
            for plan in own:
                options: dict[str, Any] = {"backend": setup.backend, "rounding": setup.rounding}
                self._servers[plan.sha256.hex()] = server = Server(fit, plan, keys=self._keys, **options)
                server.warm_up()
        needed = sum(layout_of(plan).memory(plan, KEYS_AT_ONCE) for plan in every)
        limit_memory(setup.memory, needed)
        self._out_of_memory: MemoryError | None = None
        self._lock, self._idle = threading.Lock(), threading.Event()
        threading.Thread(target=self._work_ahead, daemon=True).start()

    def do(self, task: Task) -> TaskResult:
        """Do a task; a mistake of the client becomes a result, any other error ends this worker."""
        self._idle.clear()
        try:
            with self._lock:
                return self._do(task)
        finally:
            if self._out_of_memory is None:
                self._idle.set()

    def _work_ahead(self) -> None:
        """Prepare for later requests between tasks, a few milliseconds at a time."""
        while self._idle.wait():
            with self._lock:
                try:
                    more = any(server.work_ahead() for server in self._servers.values())
                except MemoryError:  # see `_do`; the pool notices and starts another worker
                    os._exit(1)
            if not more:
                self._idle.clear()

    def _do(self, task: Task) -> TaskResult:
        server = self._servers[task.plan]
        try:
            if task.keys is not None:
                key_id = bytes.fromhex(task.key_id)
                if task.request is None:  # an upload: check the new file even if keys of its name are loaded
                    server.forget(key_id)
                try:
                    server.load_keys(key_id, partial(open, task.keys, "rb"))
                except FileNotFoundError:
                    return TaskResult(error="the evaluation keys were evicted; upload them again", keyless=True)
            if task.request is not None and task.reply is not None:
                return TaskResult(kept=_evaluate(server, task, task.request, task.reply))
        except SpentError as error:
            return TaskResult(error=str(error), spent=True)
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


def _evaluate(server: Server, task: Task, source: str, reply: str) -> bytes | None:
    """Write the reply to a request; returns what the answer to a seed's request will need, None for other requests."""
    with Path(source).open("rb") as file:
        view = container.View(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    request, kept = container.read_request(server.plan, view, Kind(task.kind), hashed=True), None
    if request.kind is Kind.seed:
        answer, kept = server.prepare_reply(request)
    elif task.kept is not None:
        answer = server.answer(request, task.kept)
    else:
        answer = server.evaluate(request)
    with Path(reply).open("r+b") as out:  # the server made the file, so a late worker leaves nothing behind
        for part in container.write_reply(server.plan, answer):
            out.write(part)
    return kept


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
