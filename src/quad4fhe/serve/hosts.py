"""What a server without tokens on the loopback interface answers: only requests that name this machine.

A web page can let its own name point to 127.0.0.1 (DNS rebinding). A browser then takes the server for a part of that
page and shows it the answers. But such a request has the page's name as its Host, and a request of any other page has
that page as its Origin.
"""

from __future__ import annotations

import ipaddress
import re

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from quad4fhe.serve.middleware import error_response

_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9.-]+)(?::[0-9]{0,5})?")


class OwnNames:
    """ASGI middleware that refuses requests for other hosts, and from pages of other origins.

    `null_origin` admits pages opened from disk, whose origin is `null`.
    """

    def __init__(self, app: ASGIApp, null_origin: bool) -> None:
        self._app, self._null_origin = app, null_origin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or reply 421 or 403."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await error_response(*refusal)(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        named, origins = headers.getlist("host"), headers.getlist("origin")
        if len(named) != 1:
            return 421, f"a request needs one Host header, and this one has {len(named)}"
        host = named[0].strip(" \t").lower()
        target = scope["state"].get("authority", host)
        for name in (host, target):
            if not is_own(name):
                return 421, (
                    f"this server answers its own machine, not as {name[:80]!a}: ask for 127.0.0.1 or localhost, or "
                    "start it with --token-file to use another name"
                )
        if target != host:
            return 421, "the request's target and its Host header differ; name one host"
        own = {f"http://{host}", f"https://{host}"} | ({"null"} if self._null_origin else set())
        if any(origin.lower() not in own for origin in origins):
            return 403, f"this server answers no page from {origins[0][:80]!a}: use its own page, from serve --page"
        return None


def is_own(authority: str) -> bool:
    """Whether a Host names this machine, on any port: ports may be forwarded, and no name can stand for an address."""
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        return False
    try:
        return ipaddress.ip_address(found[1].strip("[]")).is_loopback
    except ValueError:
        return found[1] == "localhost"
