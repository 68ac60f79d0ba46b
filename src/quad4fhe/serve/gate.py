"""The gate: tokens before anything else, then one count and one line in the log for each request.

Decides who is let in and what is written down: the method, the route, the status, and nothing that a stranger wrote.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Hashable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quad4fhe.serve.connections import network
from quad4fhe.serve.metrics import Metrics

log = logging.getLogger("quad4fhe.serve")
_METHODS = ("GET", "HEAD", "POST", "PUT")


class Gate:
    """ASGI middleware; without tokens everybody is let in, and `/health` is open always."""

    def __init__(self, app: ASGIApp, tokens: tuple[str, ...], metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics
        self._tokens = [hashlib.sha256(token.encode()).digest() for token in tokens]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer 401."""
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
        if route != "/health" and owner is None:
            headers = {"WWW-Authenticate": "Bearer"}
            answer = _error(401, "a token is needed: Authorization: Bearer TOKEN", headers)
            await answer(scope, receive, counted)
            return
        request.state.owner = owner
        await self._app(scope, receive, counted)

    def _owner(self, request: Request) -> Hashable | None:
        """Who shares places in the queue: the token's number, or the address where there are no tokens; None: nobody.

        The time this takes does not depend on how much of a token fits.
        """
        if not self._tokens:
            return network(request.client.host) if request.client is not None else ""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        found = hashlib.sha256(token.encode("utf-8", "replace")).digest()
        fits = [hmac.compare_digest(found, own) for own in self._tokens]
        return fits.index(True) if any(fits) and scheme.lower() == "bearer" else None


async def refusal(_: Request, error: Exception) -> Response:
    """An HTTPException as one line of JSON."""
    assert isinstance(error, HTTPException)
    return _error(error.status_code, error.detail, dict(error.headers or {}))


def _error(status: int, message: str, headers: dict[str, str]) -> Response:
    return JSONResponse({"error": message}, status_code=status, headers=headers)


def _route(path: str) -> str:
    parts = path.split("/")
    if len(parts) in (4, 5) and parts[1] == "models" and parts[3] in ("plan", "evaluate", "keys"):
        return f"/models/{{id}}/{parts[3]}"
    return path if path in ("/health", "/metrics", "/models", "/openapi.json") else "other"
