"""ASGI middleware: bearer tokens, metrics and log lines, and early replies to long uploads.

The log has the method, the route and the status of each request, and no other text from it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Hashable

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quad4fhe.serve.admission import network
from quad4fhe.serve.metrics import Metrics

log = logging.getLogger("quad4fhe.serve")
_METHODS = ("GET", "HEAD", "POST")
SHORT_BYTES = 2**20  # up to this length, the server reads an unwanted body and keeps the connection
CLOSE_SECONDS = 0.5  # between an early reply and the end of the connection


class Authentication:
    """Accepts only requests with one of the tokens, if there are any; counts and logs every request.

    `/health` and the page are always open.
    """

    def __init__(self, app: ASGIApp, tokens: tuple[str, ...], metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics
        self._tokens = [hashlib.sha256(token.encode()).digest() for token in tokens]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or reply 401."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        route = _route(scope["path"])

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests.labels(route, str(message["status"])).inc()
                method = request.method if request.method in _METHODS else "other"
                log.info("%s %s %d", method, route, message["status"])
            await send(message)

        owner = self._owner(request)
        if route not in ("/health", "/page") and owner is None:
            headers = {"WWW-Authenticate": "Bearer"}
            given = "authorization" in request.headers
            wrong = "the server does not know this token" if given else "a token is needed"
            reply = error_response(401, f"{wrong}: Authorization: Bearer TOKEN", headers)
            await reply(scope, receive, counted)
            return
        request.state.owner = owner
        await self._app(scope, receive, counted)

    def _owner(self, request: Request) -> Hashable | None:
        """Return the request's owner: the index of its token, or its address if there are no tokens; None for 401.

        Takes the same time however much of a token is right.
        """
        if not self._tokens:
            return network(request.client.host) if request.client is not None else ""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        found = hashlib.sha256(token.encode("utf-8", "replace")).digest()
        fits = [hmac.compare_digest(found, own) for own in self._tokens]
        return fits.index(True) if any(fits) and scheme.lower() == "bearer" else None


class EarlyReply:
    """Closes the connection after a reply that precedes the end of a long body; the outermost middleware.

    The rest of the body is not read, except a little: if the connection closes too early, the client may not see the
    reply.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything on; close the connection if the reply comes early."""
        if scope["type"] != "http" or not _long(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        complete = closing = False

        async def watched() -> Message:
            nonlocal complete
            message = await receive()
            complete = complete or message["type"] != "http.request" or not message.get("more_body", False)
            return message

        async def answer(message: Message) -> None:
            nonlocal closing
            if message["type"] == "http.response.start" and not complete:
                closing = True
                message = {**message, "headers": [*message.get("headers", []), (b"connection", b"close")]}
            elif closing and message["type"] == "http.response.body" and not message.get("more_body", False):
                await send({**message, "more_body": True})
                await _linger(watched)
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        await self._app(scope, watched, answer)


def _long(headers: Headers) -> bool:
    if "transfer-encoding" in headers:
        return True
    length = headers.get("content-length", "0")
    return not length.isdecimal() or int(length[:20]) > SHORT_BYTES


async def _linger(receive: Receive) -> None:
    seen = 0
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            while seen <= SHORT_BYTES:
                message = await receive()
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
                seen += len(message.get("body", b""))
            await asyncio.sleep(CLOSE_SECONDS)
    except TimeoutError:
        pass


async def error_reply(_: Request, error: Exception) -> Response:
    """Return an HTTPException as one line of JSON."""
    assert isinstance(error, HTTPException)
    return error_response(error.status_code, error.detail, dict(error.headers or {}))


def error_response(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """Return one line of JSON."""
    return JSONResponse({"error": message}, status_code=status, headers=headers)


def _route(path: str) -> str:
    parts = path.split("/")
    if len(parts) == 4 and parts[1] == "models" and parts[3] in ("plan", "evaluate", "features"):
        return f"/models/{{id}}/{parts[3]}"
    if path == "/page" or path.startswith("/page/"):
        return "/page"
    return path if path in ("/health", "/metrics", "/models", "/openapi.json") else "other"
