"""How an answer reaches a client that is still sending.

Decides that a long body nobody wants is not read to its end: the answer goes out at once and says that the connection
closes; a little more is read, because a client that finds the connection closed too early may not see the answer; then
it is closed. Short bodies are left to the HTTP server, which passes over them and keeps the connection.
"""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SHORT = 2**20  # bytes that are read to nowhere rather than to close a connection
SECONDS = 0.5  # between the answer and the end of the connection; who waits is told to come back later anyway


class Linger:
    """ASGI middleware, the outermost one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything on, and end the connection where the answer comes before the end of a long body."""
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
    return not length.isdecimal() or int(length[:20]) > SHORT


async def _linger(receive: Receive) -> None:
    seen = 0
    try:
        async with asyncio.timeout(SECONDS):
            while seen <= SHORT:
                message = await receive()
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
                seen += len(message.get("body", b""))
            await asyncio.sleep(SECONDS)
    except TimeoutError:
        pass
