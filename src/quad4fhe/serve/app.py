"""The HTTP server: routes, limits, and what each failure is called.

Decides how much may wait and for how long. Bodies are received by `receive` and parsed in a worker process, while their
SHA-256 is computed here. Who is let in is left to `gate`, what a worker is to whoever gives `hire`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from quad4fhe.circuit.plan import Plan
from quad4fhe.errors import InputError, Quad4FHEError
from quad4fhe.he import container
from quad4fhe.he.container import Kind
from quad4fhe.serve.gate import Gate, refusal
from quad4fhe.serve.hosted import Hosted, catalogue
from quad4fhe.serve.linger import Linger
from quad4fhe.serve.metrics import Metrics
from quad4fhe.serve.openapi import describe_api
from quad4fhe.serve.places import EvictedError, Place, Places
from quad4fhe.serve.pool import DeadlineError, Hand, Pool, WorkerLostError
from quad4fhe.serve.process import Process
from quad4fhe.serve.receive import OCTETS, announced
from quad4fhe.serve.spool import KeyStore, Spool, taken
from quad4fhe.serve.worker import Job, ModelJob, Setup

log = logging.getLogger("quad4fhe.serve")
_BLOCK = 2**20
KEYLESS = {"Quad4FHE-Keys": "missing"}  # what tells a client that its keys are wanted from other reasons for a 404


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much a server takes on.

    Requests at once and waiting, seconds for each, clients whose keys are kept, bytes of memory for each worker (see
    `memory`; None is what the plans can need, 0 no limit), and open connections in all and of one address.
    """

    workers: int = 2
    queue: int = 8
    deadline: float = 60.0
    keys: int = 64
    memory: int | None = None
    connections: int = 512
    per_address: int = 64

    def __post_init__(self) -> None:
        # With a worker and no queue, the upload that has the only place would keep everybody else out.
        least = min(self.workers, self.queue, self.keys, self.connections, self.per_address)
        if least < 1 or not 0 < self.deadline < math.inf:
            raise InputError(
                f"limits out of range: {self}; wanted one or more workers, places in the queue, keys and connections, "
                "and a positive deadline"
            )


class Service:
    """One server: its models, workers, keys and counters.

    Calls `ready` once it takes requests; where it can't, it keeps the `failure` and calls `stop`. `hire` makes a
    worker that is still to be started; `dismiss` is called when the last one has ended.
    """

    def __init__(
        self,
        hosted: list[Hosted],
        limits: Limits,
        tokens: tuple[str, ...] = (),
        folder: Path | None = None,
        ready: Callable[[], None] = lambda: None,
        stop: Callable[[], None] = lambda: None,
        hire: Callable[[], Hand] = Process,
        dismiss: Callable[[], None] = lambda: None,
    ) -> None:
        self.models = catalogue(hosted)
        self.limits = limits
        self._tokens = tokens
        self._folder = folder
        self._ready = ready
        self._stop = stop
        self._hire = hire
        self._dismiss = dismiss
        self.failure: InputError | None = None
        self._places = Places(limits.workers + limits.queue)
        self._uploading: set[tuple[bytes, bytes]] = set()
        self.metrics = Metrics()
        self.spool: Spool
        self.pool: Pool
        self.keys = KeyStore(limits.keys)

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/health", self._health, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
            Route("/openapi.json", self._openapi, methods=["GET"]),
            Route("/models", self._models, methods=["GET"]),
            Route("/models/{model_id}/plan", self._plan, methods=["GET"]),
            Route("/models/{model_id}/evaluate", self._evaluate, methods=["POST"]),
            Route("/models/{model_id}/keys/{key_id}", self._keys, methods=["GET", "PUT"]),
        ]
        app = Starlette(routes=routes, lifespan=self._lifespan, exception_handlers={HTTPException: refusal})
        app.router.redirect_slashes = False  # the address it would name is the Host that a stranger wrote
        app.add_middleware(Gate, tokens=self._tokens, metrics=self.metrics)
        app.add_middleware(Linger)
        return app

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            try:
                await self._open(stack)
            except (Quad4FHEError, OSError) as error:
                self.failure = InputError(f"the server can't start: {error}")
                self._stop()
            else:
                self._ready()
            yield

    async def _open(self, stack: contextlib.AsyncExitStack) -> None:
        stack.callback(self._dismiss)
        self.spool = Spool(self._folder)
        stack.callback(self.spool.close)
        models = []
        for one in self.models.values():
            file = self.spool.folder / f"{one.model_id}.safetensors"
            file.write_bytes(one.fit.to_bytes())  # a copy: the file the user gave may change while we serve
            models.append(ModelJob(str(file), [plan.to_dict() for plan in one.plans]))
        self.pool = Pool(Setup(models, self.limits.memory), self.limits.workers, self._hire)
        stack.push_async_callback(self.pool.close)
        await self.pool.start()
        log.info("serving %d models with %d workers", len(models), self.limits.workers)

    async def _health(self, _: Request) -> Response:
        alive = self.pool.alive
        return JSONResponse({"workers": alive, "busy": self._places.busy}, status_code=200 if alive else 503)

    async def _metrics(self, _: Request) -> Response:
        text, kind = self.metrics.text(busy=self._places.busy, alive=self.pool.alive, restarts=self.pool.restarts)
        return Response(text, headers={"content-type": kind})

    async def _openapi(self, _: Request) -> Response:
        return JSONResponse(describe_api(bool(self._tokens)))

    async def _models(self, _: Request) -> Response:
        return JSONResponse({"models": [one.to_dict() for one in self.models.values()]})

    async def _plan(self, request: Request) -> Response:
        layout = request.query_params.get("layout")
        plan = self._hosted(request).by_layout(layout)
        if plan is None:
            raise HTTPException(404, "this model is not served in that layout; ask for one that GET /models names")
        return JSONResponse(plan.to_dict())

    async def _evaluate(self, request: Request) -> Response:
        upload = await announced(request, self._hosted(request), Kind.request)
        plan, key_id = upload.plan, upload.claim.key
        keys = self.keys.find(plan.sha256, key_id) if plan.layout == "packed" else None
        if plan.layout == "packed" and keys is None:
            raise HTTPException(404, "no evaluation keys of this name: PUT them, then ask again", KEYLESS)
        async with self._place(request) as (place, deadline):
            start_by = self._start_by(deadline, plan, evaluates=True)
            with self.spool.slot() as source:
                await upload.spool(source, place, start_by)
                self.metrics.bytes_in.inc(upload.length)
                answer = self.spool.new()
                try:
                    answer.touch(0o600)
                    job = Job(plan.sha256.hex(), _name(keys), key_id.hex(), str(source), str(answer))
                    await self._checked(source, self._run(job, place, deadline, start_by))
                    file = taken(answer)
                    size = os.fstat(file.fileno()).st_size  # of the open file: a shared folder may tell an old one
                    self.metrics.bytes_out.inc(size)
                    return StreamingResponse(_blocks(file), media_type=OCTETS, headers={"content-length": str(size)})
                finally:
                    answer.unlink(missing_ok=True)

    async def _keys(self, request: Request) -> Response:
        hosted = self._hosted(request)
        plan = hosted.by_layout("packed")
        try:
            key_id = bytes.fromhex(request.path_params["key_id"])
        except ValueError:
            key_id = b""
        if len(key_id) != 16 or request.path_params["key_id"] != key_id.hex():
            raise HTTPException(404, "a key's name is 32 lower-case hexadecimal digits")
        if plan is None:
            raise HTTPException(404, "this model is not served in layout packed, and no other needs keys")
        if request.method != "PUT":
            if self.keys.find(plan.sha256, key_id) is None:
                raise HTTPException(404, "no evaluation keys of this name: PUT them", KEYLESS)
            return Response(status_code=204)
        upload = await announced(request, hosted, Kind.keys)
        if upload.claim.key != key_id:
            raise HTTPException(400, "the keys are named otherwise inside; PUT them under their own name")
        name = (plan.sha256, key_id)
        if self.keys.find(*name) is not None or name in self._uploading:
            raise HTTPException(409, "keys of this name are here already, and are not replaced")
        async with self._place(request) as (place, deadline):
            start_by = self._start_by(deadline, plan, evaluates=False)
            file = self.spool.new()
            self._uploading.add(name)
            try:
                await upload.spool(file, place, start_by)
                self.metrics.bytes_in.inc(upload.length)
                await self._run(Job(plan.sha256.hex(), str(file), key_id.hex()), place, deadline, start_by)
                kept = file.with_suffix(".keys")
                file.rename(kept)
                self.keys.keep(*name, kept, request.state.owner)
            finally:
                self._uploading.discard(name)
                file.unlink(missing_ok=True)
        return Response(status_code=204)

    def _hosted(self, request: Request) -> Hosted:
        found = self.models.get(request.path_params["model_id"])
        if found is None:
            raise HTTPException(404, "no model of this id; GET /models lists them")
        return found

    @contextlib.asynccontextmanager
    async def _place(self, request: Request) -> AsyncIterator[tuple[Place, float]]:
        """A place among the requests that are worked on or wait, and the deadline."""
        deadline = asyncio.get_running_loop().time() + self.limits.deadline
        place = self._places.take(request.state.owner)
        if place is None:
            raise self._full("the queue is full; send the request again later")
        request.state.placed = True
        try:
            yield place, deadline
        except EvictedError as error:
            raise self._full(str(error)) from None
        except OSError as error:
            log.error("can't spool a request: %s", error.strerror)
            raise HTTPException(503, "the server has no room for the request", {"Retry-After": "10"}) from None
        finally:
            self._places.release(place)

    def _start_by(self, deadline: float, plan: Plan, *, evaluates: bool) -> float:
        """When an upload has to be complete and a worker free, so that there is time left to compute."""
        return deadline - self.pool.reserve(plan.sha256.hex(), evaluates, self.limits.deadline)

    def _full(self, why: str) -> HTTPException:
        wait = max(1, math.ceil(self.metrics.usual_seconds))  # from queue to answer, so the queue is in it
        return HTTPException(429, why, {"Retry-After": str(wait)})

    async def _checked(self, body: Path, answering: Coroutine[Any, Any, None]) -> None:
        """Compute the SHA-256 of a body here while a worker answers; no answer leaves before both are done."""
        damage = asyncio.create_task(asyncio.to_thread(_damage, body))
        try:
            await answering
        finally:
            await asyncio.wait([damage])  # after this the file is another request's
        if (said := damage.result()) is not None:
            raise HTTPException(400, said)

    async def _run(self, job: Job, place: Place, deadline: float, start_by: float) -> None:
        try:
            with self.metrics.job():
                answer = await self.pool.run(job, place, deadline, start_by)
        except WorkerLostError as error:
            raise HTTPException(503, str(error), {"Retry-After": "1"}) from None
        except DeadlineError as error:
            raise HTTPException(504, str(error)) from None
        if answer.full:
            raise HTTPException(503, answer.error, {"Retry-After": "10"})
        if answer.error is not None:
            raise HTTPException(404, answer.error, KEYLESS) if answer.keyless else HTTPException(400, answer.error)


def _damage(body: Path) -> str | None:
    """What a container's SHA-256 says against it."""
    with body.open("rb", buffering=0) as file:
        try:
            container.check_digest(file, body.stat().st_size)
        except InputError as error:
            return str(error)
    return None


def _name(file: Path | None) -> str | None:
    return None if file is None else str(file)


async def _blocks(file: BinaryIO) -> AsyncIterator[bytes]:
    with file:
        while block := file.read(_BLOCK):
            yield block
