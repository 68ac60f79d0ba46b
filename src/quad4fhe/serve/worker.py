"""A worker process: the only place where a stranger's payload is parsed and computed on; it can be killed at any time.

Reads one job per line on standard input, answers with one line on standard output; payloads are files that the server
spooled. Decides how many clients' keys it holds at once; how much memory that may take is left to `memory`, deadlines
and restarts to `pool`, and the SHA-256 of a payload to the server, which computes it meanwhile.
"""

from __future__ import annotations

import errno
import mmap
import os
import signal
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from quad4fhe.circuit.plan import Plan
from quad4fhe.errors import InputError
from quad4fhe.fitting.result import Fit
from quad4fhe.he import container
from quad4fhe.he.session import Server
from quad4fhe.he.warm import warm_up
from quad4fhe.serve.memory import limit_memory, need

KEYS_AT_ONCE = 16  # clients' evaluation keys in memory; more are read again from the spool
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ModelJob(msgspec.Struct, frozen=True):
    """A model to load: a fit file and its plans."""

    fit: str
    plans: list[dict[str, Any]]


class Setup(msgspec.Struct, frozen=True):
    """The first line a worker reads. `memory` is how many bytes it may use; without it, what its plans can need."""

    models: list[ModelJob]
    memory: int | None = None


class Job(msgspec.Struct, frozen=True):
    """One thing to do: check uploaded keys (no request), or answer a request."""

    plan: str
    keys: str | None = None
    key_id: str = ""
    request: str | None = None
    reply: str | None = None


class Answer(msgspec.Struct, frozen=True):
    """How it went; `error` is for the client, in one line.

    `keyless` where its keys gave way in the meantime, `full` where there was no memory or no room on the disk.
    """

    error: str | None = None
    keyless: bool = False
    full: bool = False


class Worker:
    """The servers of every plan, and the keys that were used last."""

    def __init__(self, setup: Setup) -> None:
        self._servers: dict[str, Server] = {}
        self._recent: OrderedDict[tuple[str, str], None] = OrderedDict()
        for model in setup.models:
            fit = Fit.load(model.fit)
            for fields in model.plans:
                plan = Plan.from_dict(fields)
                self._servers[plan.sha256.hex()] = server = Server(fit, plan)
                warm_up(server)
        limit_memory(setup.memory, sum(need(server.plan, KEYS_AT_ONCE) for server in self._servers.values()))

    def do(self, job: Job) -> Answer:
        """Carry out a job; what the client did wrong is an answer, anything else ends the process."""
        server = self._servers[job.plan]
        try:
            if job.keys is not None:
                try:
                    self._hold(server, job)
                except FileNotFoundError:
                    return Answer(error="the keys gave way to others; upload them again", keyless=True)
            if job.request is not None and job.reply is not None:
                self._evaluate(server, job.request, job.reply)
        except InputError as error:
            return Answer(error=" ".join(str(error).split()))
        except MemoryError:
            self._drop_keys()
            return Answer(error="the request needs more memory than a worker of this server has", full=True)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            return Answer(error="the server has no room for the reply", full=True)
        return Answer()

    def _drop_keys(self) -> None:
        for plan, key_id in self._recent:
            self._servers[plan].forget(bytes.fromhex(key_id))
        self._recent.clear()

    def _hold(self, server: Server, job: Job) -> None:
        assert job.keys is not None
        key_id = bytes.fromhex(job.key_id)
        place = (job.plan, job.key_id)
        if job.request is None:  # an upload: what is held under its name says nothing about the file
            server.forget(key_id)
            self._recent.pop(place, None)
        if not server.knows(key_id):
            while len(self._recent) >= KEYS_AT_ONCE:
                (plan, oldest), _ = self._recent.popitem(last=False)
                self._servers[plan].forget(bytes.fromhex(oldest))
            with Path(job.keys).open("rb") as file:
                named, keys = container.read_keys(server.plan, file)
            if named != key_id:
                raise InputError("the keys are named otherwise inside than outside; send them under their own name")
            server.register(key_id, keys)
        self._recent[place] = None
        self._recent.move_to_end(place)

    def _evaluate(self, server: Server, request: str, reply: str) -> None:
        with Path(request).open("rb") as file:
            view = container.View(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
        answer = server.evaluate(container.read_request(server.plan, view, hashed=True))
        with Path(reply).open("r+b") as out:  # the server made it: a worker that is too late leaves nothing behind
            for part in container.write_reply(server.plan, answer):
                out.write(part)


def _lines(out: BinaryIO) -> Callable[[Any], None]:
    def say(answer: Any) -> None:
        out.write(msgspec.json.encode(answer) + b"\n")
        out.flush()

    return say


def main() -> None:
    """Work until standard input ends, which it does when the server is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which lets accepted work finish
    # Answers go out on a channel of their own, so that a library that prints can't garble them.
    say = _lines(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)
    stdin = sys.stdin.buffer
    try:
        worker = Worker(msgspec.json.decode(stdin.readline(), type=Setup))
    except InputError as error:
        say(Answer(error=str(error)))
        return
    say(Answer())
    for line in stdin:
        say(worker.do(msgspec.json.decode(line, type=Job)))


if __name__ == "__main__":
    main()
