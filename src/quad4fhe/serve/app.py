"""The HTTP application: routes, limits, and the status code of each error.

`receive` spools request bodies, worker processes parse them, and this process computes their SHA-256.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import mmap
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from quad4fhe.errors import InputError, Quad4FHEError
from quad4fhe.he import message
from quad4fhe.planning.plan import Plan
from quad4fhe.serve.admission import EvictedError, Place, Places
from quad4fhe.serve.hosts import OwnNames
from quad4fhe.serve.metrics import Metrics
from quad4fhe.serve.middleware import Authentication, EarlyReply, error_reply
from quad4fhe.serve.models import HostedModel, catalogue
from quad4fhe.serve.openapi import describe_api
from quad4fhe.serve.page import FromDisk, check_features
from quad4fhe.serve.page import routes as page_routes
from quad4fhe.serve.pool import DeadlineError, ServerPool
from quad4fhe.serve.quota import Quota
from quad4fhe.serve.receive import OCTETS, UNKNOWN_PLAN, Upload, announced
from quad4fhe.serve.spool import Spool, taken
from quad4fhe.serve.worker import ModelFiles, Setup, Task, TaskResult
from quad4fhe.workers.base import WorkerLostError
from quad4fhe.workers.pool import Workers

log = logging.getLogger("quad4fhe.serve")
_BLOCK = 2**20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a server.

    The number of requests in progress (`workers`) and waiting (`queue`), the seconds for each, the bytes of memory of
    each worker (None for what the plans can need, 0 for no limit), the number of open connections in total and per
    address, and the numbers that a token is told of a model each day (None for no limit).
    """

    workers: int = 2
    queue: int = 8
    deadline: float = 60.0
    memory: int | None = None
    connections: int = 512
    per_address: int = 64
    numbers_per_day: int | None = None

    def __post_init__(self) -> None:
        # With one worker and no queue, a single upload would block everyone else.
        least = min(self.workers, self.queue, self.connections, self.per_address)
        if least < 1 or not 0 < self.deadline < math.inf:
            raise InputError(
                f"limits out of range: {self}; wanted one or more workers, places in the queue and connections, "
                "and a positive deadline"
            )


class Service:
    """One server: its models, workers and metrics.

    Calls `ready` once it takes requests; if it can't start, it stores the `failure` and calls `stop`.
    """

    def __init__(
        self,
        models: list[HostedModel],
        limits: Limits,
        workers: Workers,
        tokens: tuple[str, ...] = (),
        folder: Path | None = None,
        ready: Callable[[], None] = lambda: None,
        stop: Callable[[], None] = lambda: None,
        page: bool = False,
        page_from_disk: bool = False,
        onnxruntime: bytes | None = None,
        own_names: bool = False,
    ) -> None:
        self.models = catalogue(models)
        self.limits = limits
        self._tokens = tokens
        self._folder = folder
        self._ready = ready
        self._stop = stop
        self._page = page
        self._own_names = own_names
        self._page_from_disk = page_from_disk
        self._onnxruntime = onnxruntime
        self._workers = workers
        self.failure: InputError | None = None
        self._places = Places(limits.workers + limits.queue)
        self.metrics = Metrics()
        check_features(any(one.fit.mlp.feature_part for one in models), page, page_from_disk, onnxruntime)
        if limits.numbers_per_day is not None and not tokens:
            raise InputError("numbers per day are counted by token: give the clients tokens (--token-file)")
        most = max((plan.told for one in models for plan in one.plans), default=0)
        if limits.numbers_per_day is not None and limits.numbers_per_day < most:
            raise InputError(
                f"--numbers-per-day {limits.numbers_per_day} allows no request: one reply tells up to {most} numbers "
                f"(rows times outputs); give {most} or more, or offer single rows alone with --layout lift"
            )
        self._quota = Quota(limits.numbers_per_day)
        self.spool: Spool
        self.pool: ServerPool

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/health", self._health, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
            Route("/openapi.json", self._openapi, methods=["GET"]),
            Route("/models", self._models, methods=["GET"]),
            Route("/models/{model_id}/plan", self._plan, methods=["GET"]),
            Route("/models/{model_id}/features", self._features, methods=["GET"]),
            Route("/models/{model_id}/evaluate", self._evaluate, methods=["POST"]),
        ]
        if self._page:
            routes += page_routes(self._onnxruntime)
        app = Starlette(routes=routes, lifespan=self._lifespan, exception_handlers={HTTPException: error_reply})
        app.router.redirect_slashes = False  # a redirect would go to the Host header of the request, which is untrusted
        if self._own_names:
            app.add_middleware(OwnNames, null_origin=self._page_from_disk)
        app.add_middleware(Authentication, tokens=self._tokens, metrics=self.metrics)
        app.add_middleware(EarlyReply)
        if self._page_from_disk:
            app.add_middleware(FromDisk)
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
        with _own_sigterm():
            # Launch here, not around the server: uvicorn ends the process with the signal that stopped it.
            launcher = stack.enter_context(self._workers.launch())
        self.spool = Spool(self._folder)
        stack.callback(self.spool.close)
        models = []
        for one in self.models.values():
            file = self.spool.folder / f"{one.model_id}.safetensors"
            file.write_bytes(one.fit.to_bytes())  # a copy: the file the user gave may change while we serve
            models.append(ModelFiles(str(file), [plan.to_dict() for plan in one.plans]))
        self.pool = ServerPool(Setup(models, self.limits.memory), launcher)
        stack.push_async_callback(self.pool.close)
        await self.pool.start()
        log.info("ready; models: %d, workers: %d", len(models), launcher.workers)

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
        return JSONResponse(plan.to_dict(), headers={"Quad4FHE-Plan": plan.sha256.hex()})

    async def _features(self, request: Request) -> Response:
        part = self._hosted(request).fit.mlp.feature_part
        if part is None:
            raise HTTPException(404, "this model has no feature part; encrypt its inputs as they are")
        return Response(part.graph, media_type="application/octet-stream")

    async def _evaluate(self, request: Request) -> Response:
        upload = await announced(request, self._hosted(request))
        async with self._place(request) as (place, deadline):
            with contextlib.ExitStack() as unanswered:
                self._count((request.state.owner, upload.plan.model_id), upload.plan.told, unanswered)
                response = await self._reply(upload, place, deadline)
                unanswered.pop_all()
                return response

    def _count(self, owner: Hashable, numbers: int, unanswered: contextlib.ExitStack) -> None:
        """Count numbers, unless they are not told; reject the request if its sender may be told no more."""
        wait = self._quota.take(owner, numbers)
        if wait is not None:
            most = self.limits.numbers_per_day
            why = f"this token is told {most} numbers of this model a day; come back tomorrow (UTC)"
            raise HTTPException(429, why, {"Retry-After": str(wait)})
        unanswered.callback(self._quota.give_back, owner, numbers, self._quota.day)

    async def _reply(self, upload: Upload, place: Place, deadline: float) -> Response:
        """Have a worker reply to a body."""
        plan = upload.plan
        start_by = self._start_by(deadline, plan)
        with self.spool.slot() as source:
            await upload.spool(source, place, start_by)
            self.metrics.bytes_in.inc(upload.length)
            reply = self.spool.new()
            try:
                reply.touch(0o600)
                task = Task(plan.sha256.hex(), str(source), str(reply))
                await self._checked(source, self._run(task, place, deadline, start_by))
                file = taken(reply)
                size = os.fstat(file.fileno()).st_size  # of the open file: a shared folder may report an old size
                self.metrics.bytes_out.inc(size)
                headers = {"content-length": str(size)}
                return StreamingResponse(_blocks(file), media_type=OCTETS, headers=headers)
            finally:
                reply.unlink(missing_ok=True)

    def _hosted(self, request: Request) -> HostedModel:
        found = self.models.get(request.path_params["model_id"])
        if found is None:
            raise HTTPException(404, "no model of this id; GET /models lists them", UNKNOWN_PLAN)
        return found

    @contextlib.asynccontextmanager
    async def _place(self, request: Request) -> AsyncIterator[tuple[Place, float]]:
        """Take a place in the queue; yields it and the request's deadline."""
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

    def _start_by(self, deadline: float, plan: Plan) -> float:
        """The time by which the upload must be complete and a worker free, so that enough time is left to compute."""
        return deadline - self.pool.reserve(plan.sha256.hex(), self.limits.deadline)

    def _full(self, why: str) -> HTTPException:
        wait = max(1, math.ceil(self.metrics.usual_seconds))  # includes the time in the queue
        return HTTPException(429, why, {"Retry-After": str(wait)})

    async def _checked(self, body: Path, evaluating: Coroutine[Any, Any, TaskResult]) -> TaskResult:
        """Check the SHA-256 of a body here while a worker evaluates it; no reply leaves before both are done."""
        damage = asyncio.create_task(asyncio.to_thread(_damage, body))
        try:
            result = await evaluating
        finally:
            await asyncio.wait([damage])  # afterwards another request may reuse the file
        if (said := damage.result()) is not None:
            raise HTTPException(400, said)
        return result

    async def _run(self, task: Task, place: Place, deadline: float, start_by: float) -> TaskResult:
        try:
            with self.metrics.task():
                result = await self.pool.run(task, place, deadline, start_by)
        except WorkerLostError as error:
            raise HTTPException(503, str(error), {"Retry-After": "1"}) from None
        except DeadlineError as error:
            raise HTTPException(504, str(error)) from None
        if result.full:
            raise HTTPException(503, result.error, {"Retry-After": "10"})
        if result.error is not None:
            raise HTTPException(400, result.error)
        return result


def _damage(body: Path) -> str | None:
    """Error text if the digest differs, else None."""
    with body.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            message.check_digest(memoryview(data))
        except InputError as error:
            return str(error)
    return None


@contextlib.contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep uvicorn's handler for SIGTERM: Ray installs its own, which would end the server at once."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


async def _blocks(file: BinaryIO) -> AsyncIterator[bytes]:
    with file:
        while block := file.read(_BLOCK):
            yield block
