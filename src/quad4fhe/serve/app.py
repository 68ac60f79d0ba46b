"""The HTTP application: routes, limits, and the status code of each error.

`receive` spools request bodies, worker processes parse them, and this process computes their SHA-256.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import secrets
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from quad4fhe.errors import InputError, Quad4FHEError
from quad4fhe.he import backends, container
from quad4fhe.he.ahead import PER_OWNER, SPENT, PreparedReplies, SpentError, TakenError
from quad4fhe.he.container import Kind
from quad4fhe.he.key_cache import KeyCache
from quad4fhe.layouts import layout_of
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
from quad4fhe.serve.quota import Quota, told
from quad4fhe.serve.receive import OCTETS, UNKNOWN_PLAN, Upload, announced
from quad4fhe.serve.spool import Spool, taken
from quad4fhe.serve.worker import ModelFiles, Setup, Task, TaskResult
from quad4fhe.workers.base import WorkerLostError
from quad4fhe.workers.pool import Workers

log = logging.getLogger("quad4fhe.serve")
_BLOCK = 2**20
KEYLESS = {"Quad4FHE-Keys": "missing"}  # tells a 404 for missing keys from any other


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a server.

    The number of requests in progress (`workers`) and waiting (`queue`), the seconds for each, the number of clients
    whose keys are kept, the bytes of memory of each worker (None for what the plans can need, 0 for no limit), the
    number of open connections in total and per address, the numbers that a token is told of a model each day (None for
    no limit), and the number of prepared replies for each token or address (0: the server prepares none).
    """

    workers: int = 2
    queue: int = 8
    deadline: float = 60.0
    keys: int = 64
    memory: int | None = None
    connections: int = 512
    per_address: int = 64
    numbers_per_day: int | None = None
    prepared: int = PER_OWNER

    def __post_init__(self) -> None:
        # With one worker and no queue, a single upload would block everyone else.
        least = min(self.workers, self.queue, self.keys, self.connections, self.per_address)
        if least < 1 or self.prepared < 0 or not 0 < self.deadline < math.inf:
            raise InputError(
                f"limits out of range: {self}; wanted one or more workers, places in the queue, keys and connections, "
                "and a positive deadline"
            )


class Service:
    """One server: its models, workers, keys and metrics.

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
        backend: str = backends.DEFAULT,
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
        self._backend = backend
        backends.chosen(backend)  # before the workers start
        self.failure: InputError | None = None
        self._places = Places(limits.workers + limits.queue)
        self._uploading: set[tuple[bytes, bytes]] = set()
        self.metrics = Metrics()
        check_features(any(one.fit.mlp.feature_part for one in models), page, page_from_disk, onnxruntime)
        if limits.numbers_per_day is not None and not tokens:
            raise InputError("numbers per day are counted by token: give the clients tokens (--token-file)")
        most = max((told(plan) for one in models for plan in one.plans), default=0)
        if limits.numbers_per_day is not None and limits.numbers_per_day < most:
            raise InputError(
                f"--numbers-per-day {limits.numbers_per_day} allows no request: one reply tells up to {most} numbers "
                f"(rows times outputs); give {most} or more, or offer single rows alone with --layout lift"
            )
        self._quota = Quota(limits.numbers_per_day)
        self.spool: Spool
        self.pool: ServerPool
        self.keys: KeyCache[Path] = KeyCache(limits.keys, _remove)
        self._ahead = PreparedReplies(limits.prepared)

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
            Route("/models/{model_id}/prepare", self._prepare, methods=["POST"]),
            Route("/models/{model_id}/keys/{key_id}", self._keys, methods=["GET", "PUT"]),
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
        rounding = secrets.token_bytes(32)  # the same for all workers: one may answer what another prepared
        self.pool = ServerPool(Setup(models, self.limits.memory, self._backend, rounding), launcher)
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
        upload = await announced(request, self._hosted(request), Kind.request, Kind.prepared)
        owner, fresh = request.state.owner, upload.kind is Kind.request
        keys = self._keys_for(upload) if fresh else None
        if not fresh and not self._ahead.has(owner, upload.identity):
            raise HTTPException(410, SPENT)
        async with self._place(request) as (place, deadline):
            with contextlib.ExitStack() as unanswered:
                count = partial(self._count, (owner, upload.plan.model_id), told(upload.plan), unanswered)
                if fresh:
                    count()
                kept = partial(self._take, owner, upload.identity, count)
                response, _ = await self._reply(upload, keys, place, deadline, None if fresh else kept)
                unanswered.pop_all()
                return response

    async def _prepare(self, request: Request) -> Response:
        if not self.limits.prepared:
            raise HTTPException(404, "this server prepares no replies; send whole requests")
        upload = await announced(request, self._hosted(request), Kind.seed)
        keys = self._keys_for(upload)
        async with self._place(request) as (place, deadline):
            try:
                with self._ahead.making(request.state.owner, upload.identity) as keep:
                    response, result = await self._reply(upload, keys, place, deadline)
                    if result.kept is None:
                        raise HTTPException(503, "a worker prepared nothing; try again", {"Retry-After": "1"})
                    keep(result.kept)
                    return response
            except TakenError as error:
                raise HTTPException(409, str(error)) from None

    def _keys_for(self, upload: Upload) -> Path | None:
        """The file of the sender's evaluation keys, None if the layout has none."""
        plan = upload.plan
        if not layout_of(plan).has_keys(plan):
            return None
        keys = self.keys.get(plan.sha256, upload.identity.key)
        if keys is None:
            raise HTTPException(404, "no evaluation keys of this name: PUT them, then ask again", KEYLESS)
        return keys

    def _count(self, owner: Hashable, numbers: int, unanswered: contextlib.ExitStack) -> None:
        """Count numbers, unless they are not told; reject the request if its sender may be told no more."""
        wait = self._quota.take(owner, numbers)
        if wait is not None:
            most = self.limits.numbers_per_day
            why = f"this token is told {most} numbers of this model a day; come back tomorrow (UTC)"
            raise HTTPException(429, why, {"Retry-After": str(wait)})
        unanswered.callback(self._quota.give_back, owner, numbers, self._quota.day)

    def _take(self, owner: Hashable, identity: container.Identity, count: Callable[[], None]) -> bytes:
        """Take out what was prepared for a request, once a worker is free; of several requests one gets it."""
        if self._ahead.has(owner, identity):
            count()
        try:
            return self._ahead.take(owner, identity)
        except SpentError as error:
            raise HTTPException(410, str(error)) from None

    async def _reply(
        self,
        upload: Upload,
        keys: Path | None,
        place: Place,
        deadline: float,
        take: Callable[[], bytes] | None = None,
    ) -> tuple[Response, TaskResult]:
        """Have a worker reply to a body; `take` returns what was prepared for it, see `ServerPool.run`."""
        plan = upload.plan
        start_by = self._start_by(deadline, plan, evaluates=True)
        with self.spool.slot() as source:
            await upload.spool(source, place, start_by)
            self.metrics.bytes_in.inc(upload.length)
            reply = self.spool.new()
            try:
                reply.touch(0o600)
                task = Task(
                    plan.sha256.hex(),
                    None if keys is None else str(keys),
                    upload.identity.key.hex(),
                    str(source),
                    str(reply),
                    upload.kind,
                )
                result = await self._checked(source, self._run(task, place, deadline, start_by, take))
                file = taken(reply)
                size = os.fstat(file.fileno()).st_size  # of the open file: a shared folder may report an old size
                self.metrics.bytes_out.inc(size)
                headers = {"content-length": str(size)}
                return StreamingResponse(_blocks(file), media_type=OCTETS, headers=headers), result
            finally:
                reply.unlink(missing_ok=True)

    async def _keys(self, request: Request) -> Response:
        hosted = self._hosted(request)
        plans = hosted.with_keys()
        try:
            key_id = bytes.fromhex(request.path_params["key_id"])
        except ValueError:
            key_id = b""
        if len(key_id) != 16 or request.path_params["key_id"] != key_id.hex():
            raise HTTPException(404, "a key's name is 32 lower-case hexadecimal digits")
        if not plans:
            why = "this model is served in no layout that needs keys; send requests without"
            raise HTTPException(404, why, UNKNOWN_PLAN)
        if request.method != "PUT":
            if all(self.keys.get(plan.sha256, key_id) is None for plan in plans):
                raise HTTPException(404, "no evaluation keys of this name: PUT them", KEYLESS)
            return Response(status_code=204)
        upload = await announced(request, hosted, Kind.keys)
        if upload.identity.key != key_id:
            raise HTTPException(400, "the container holds keys of another name; PUT them under their own name")
        plan = upload.plan
        name = (plan.sha256, key_id)
        if self.keys.get(*name) is not None or name in self._uploading:
            raise HTTPException(409, "keys of this name are here already, and are not replaced")
        async with self._place(request) as (place, deadline):
            start_by = self._start_by(deadline, plan, evaluates=False)
            file = self.spool.new()
            self._uploading.add(name)
            try:
                await upload.spool(file, place, start_by)
                self.metrics.bytes_in.inc(upload.length)
                await self._run(Task(plan.sha256.hex(), str(file), key_id.hex()), place, deadline, start_by)
                kept = file.with_suffix(".keys")
                file.rename(kept)
                self.keys.put(*name, kept, size=1, owner=request.state.owner)
            finally:
                self._uploading.discard(name)
                file.unlink(missing_ok=True)
        return Response(status_code=204)

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

    def _start_by(self, deadline: float, plan: Plan, *, evaluates: bool) -> float:
        """The time by which the upload must be complete and a worker free, so that enough time is left to compute."""
        return deadline - self.pool.reserve(plan.sha256.hex(), evaluates, self.limits.deadline)

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

    async def _run(
        self, task: Task, place: Place, deadline: float, start_by: float, take: Callable[[], bytes] | None = None
    ) -> TaskResult:
        try:
            with self.metrics.task():
                result = await self.pool.run(task, place, deadline, start_by, take)
        except WorkerLostError as error:
            raise HTTPException(503, str(error), {"Retry-After": "1"}) from None
        except DeadlineError as error:
            raise HTTPException(504, str(error)) from None
        if result.full:
            raise HTTPException(503, result.error, {"Retry-After": "10"})
        if result.error is not None:
            if result.keyless:
                raise HTTPException(404, result.error, KEYLESS)
            raise HTTPException(410 if result.spent else 400, result.error)
        return result


def _damage(body: Path) -> str | None:
    """Error text if the digest differs, else None."""
    with body.open("rb", buffering=0) as file:
        try:
            container.check_digest(file, body.stat().st_size)
        except InputError as error:
            return str(error)
    return None


def _remove(file: Path) -> None:
    file.unlink(missing_ok=True)


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
