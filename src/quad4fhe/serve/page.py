"""The page that encrypts in the browser: its files, and the policy headers that keep its keys off the network.

The files in `web/` are built from `clients/web` by `make web` and shipped in the wheel.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quad4fhe.errors import InputError
from quad4fhe.io.files import opened
from quad4fhe.planning.plan import Plan

ROOT = "/page"
_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types quad4fhe"
)
# One worker holds the keys, another sees raw inputs, and neither has a network: the page fetches the WebAssembly
# modules and posts them. Not even 'self': an importScripts or a worker of its own would be a request, and could carry a
# key in its address.
_WORKER_POLICY = "default-src 'none'; script-src 'wasm-unsafe-eval'"
_TYPES = {"html": "text/html; charset=utf-8", "css": "text/css", "js": "text/javascript", "wasm": "application/wasm"}
_NAMES = ("index.html", "page.css", "page.js", "worker.js", "features.js", "seal.wasm")
_WORKERS = ("worker.js", "features.js")


def routes(onnxruntime: bytes | None = None) -> list[Route]:
    """The routes of the page; they need no token, because they reveal nothing about the model.

    `onnxruntime` is what `read_onnxruntime` returned, for models with a feature part.
    """
    own = [
        Route(ROOT, _to_folder, methods=["GET"]),
        Route(f"{ROOT}/", _file, methods=["GET"]),
        *(Route(f"{ROOT}/{name}", _file, methods=["GET"]) for name in _NAMES),
    ]
    if onnxruntime is not None:
        packed = gzip.compress(onnxruntime, compresslevel=6, mtime=0)
        # The name holds the hash, so that browsers may keep the 14 MB.
        forever = {"Cache-Control": "public, max-age=31536000, immutable"}

        async def module(request: Request) -> Response:
            return _answer(request, "onnxruntime.wasm", onnxruntime, packed, forever)

        own.append(Route(f"{ROOT}/onnxruntime-{_pinned()['sha256'][:16]}.wasm", module, methods=["GET"]))
    return own


@cache
def _pinned() -> dict[str, Any]:
    """The WebAssembly module that the page's code for feature parts was built for."""
    found: dict[str, Any] = json.loads(_built("onnxruntime.json"))
    return found


def check_features(has_part: bool, page: bool, from_disk: bool, onnxruntime: bytes | None) -> None:
    """Raise InputError if the page can't run the feature part of a served model."""
    if has_part and from_disk:
        raise InputError("the page as one file can't run a model's feature part; leave --page-from-disk out")
    if has_part and page and onnxruntime is None:
        raise InputError(
            f"the page runs a model's feature part with {_pinned()['package']}, which is not part of this package; get "
            f"it with: {_how_to_get_onnxruntime()}"
        )
    if onnxruntime is not None and not page:
        raise InputError("onnxruntime-web is for the page: add --page, or leave --onnxruntime out")


def _how_to_get_onnxruntime() -> str:
    """The commands that fetch the module, and the option that takes it."""
    pinned = _pinned()
    name, version, file = pinned["package"], pinned["version"], f"package/{pinned['file']}"
    return (
        f"npm pack {name}@{version} && tar xzf {name}-{version}.tgz {file}, and serve with --page --onnxruntime {file}"
    )


def read_onnxruntime(path: Path) -> bytes:
    """Read onnxruntime-web's WebAssembly module, which is not part of this package; takes only the pinned one."""
    pinned = _pinned()
    with opened(path) as file:
        data = file.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        if digest != pinned["sha256"]:
            raise InputError(
                f"its SHA-256 is {digest[:16]}, wanted {pinned['sha256'][:16]}, the module of {pinned['package']} "
                f"{pinned['version']}; get it with: {_how_to_get_onnxruntime()}"
            )
    return data


async def _to_folder(_: Request) -> Response:
    return RedirectResponse("page/")  # relative, because the Host header is untrusted


async def _file(request: Request) -> Response:
    name = request.url.path.rpartition("/")[2] or "index.html"
    return _answer(request, name, *_content(name), {"Cache-Control": "no-cache"})


def _answer(request: Request, name: str, plain: bytes, packed: bytes, more: dict[str, str]) -> Response:
    zipped = "gzip" in request.headers.get("accept-encoding", "")
    headers = {
        "Content-Security-Policy": _WORKER_POLICY if name in _WORKERS else _PAGE_POLICY,
        "Content-Type": _TYPES[name.rpartition(".")[2]],
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Vary": "Accept-Encoding",
        **more,
    }
    if zipped:
        headers["Content-Encoding"] = "gzip"
    return Response(packed if zipped else plain, headers=headers)


@cache
def _content(name: str) -> tuple[bytes, bytes]:
    plain = _built(name)
    return plain, gzip.compress(plain, mtime=0)


def _built(name: str) -> bytes:
    return files("quad4fhe.serve").joinpath("web", name).read_bytes()


def one_file(plan: Plan, url: str) -> bytes:
    """The page as one file to open from disk; it queries the server at `url` and accepts only this plan."""
    # The address becomes part of the page's policy, where a semicolon or a space would begin another rule.
    found = re.fullmatch(r"(https?://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?)(/[A-Za-z0-9._~/-]*)?", url)
    if found is None:
        raise InputError(f"the server is {url!r}, wanted its address, such as https://example.org:8443")
    config = {"url": url, "plan": plan.to_dict(), "sha256": plan.sha256.hex()}
    filled = {
        "{{server}}": found[1],
        "{{config}}": json.dumps(config, sort_keys=True).replace("<", "\\u003c"),  # can't end its script element
        "{{wasm}}": base64.b64encode(_built("seal.wasm")).decode(),
    }
    # In one pass: a name in the plan may look like a placeholder.
    text = _built("one.html").decode()
    return re.sub("|".join(map(re.escape, filled)), lambda match: filled[match[0]], text).encode()


class FromDisk:
    """ASGI middleware that allows requests under /models from pages opened from disk, whose origin is `null`.

    Preflights carry no token, so this comes before the check of tokens. Cookies are never allowed.
    """

    _ALLOWED = (
        (b"access-control-allow-origin", b"null"),
        (b"access-control-expose-headers", b"Quad4FHE-Plan, Quad4FHE-Keys, Retry-After"),
    )

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a preflight, or pass the request on and mark the answer as readable."""
        if scope["type"] != "http" or not (scope["path"] + "/").startswith("/models/"):
            await self._app(scope, receive, send)
            return
        from_disk = Headers(scope=scope).getlist("origin") == ["null"]
        if from_disk and scope["method"] == "OPTIONS":
            headers = {
                "Access-Control-Allow-Origin": "null",
                "Access-Control-Allow-Methods": "GET, POST, PUT",
                "Access-Control-Allow-Headers": "Authorization, Content-Type",
                "Vary": "Origin",
            }
            await Response(status_code=204, headers=headers)(scope, receive, send)
            return

        async def readable(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Vary also where the origin is another one: a cache must not give that answer to a page from disk.
                more = [(b"vary", b"Origin"), *(self._ALLOWED if from_disk else ())]
                message = {**message, "headers": [*message.get("headers", []), *more]}
            await send(message)

        await self._app(scope, receive, readable)
