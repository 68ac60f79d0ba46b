"""The page's headers, who may ask from disk, and the page as one file; no browser is needed."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from quad4fhe import Plan
from quad4fhe.errors import InputError
from quad4fhe.serve.metrics import Metrics
from quad4fhe.serve.middleware import Authentication
from quad4fhe.serve.page import FromDisk, one_file, routes

VECTORS = Path(__file__).parents[1] / "vectors" / "plans.json"
PLAN = Plan.from_dict(json.loads(VECTORS.read_text())["batch"]["plan"])
TOKEN = {"Authorization": "Bearer a-long-token"}


async def _answer(_: Request) -> Response:
    return JSONResponse({})


def _ask(method: str, path: str, headers: dict[str, str] | None = None, from_disk: bool = True) -> httpx.Response:
    middleware = [Middleware(FromDisk)] if from_disk else []
    middleware.append(Middleware(Authentication, tokens=("a-long-token",), metrics=Metrics()))
    paths = [Route(path, _answer) for path in ("/models", "/models/x/plan", "/metrics", "/modelsx")]
    app = Starlette(routes=[*paths, *routes()], middleware=middleware)

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(ask())


def test_the_worker_may_not_load_anything() -> None:
    policy = _ask("GET", "/page/worker.js").headers["content-security-policy"]
    assert policy == "default-src 'none'; script-src 'wasm-unsafe-eval'"


def test_the_page_is_served_without_a_token_and_with_its_policy() -> None:
    page = _ask("GET", "/page/")
    assert page.status_code == 200
    assert page.headers["cache-control"] == "no-cache"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["cross-origin-resource-policy"] == "same-origin"
    assert "unsafe" not in page.headers["content-security-policy"]
    assert _ask("GET", "/page").headers["location"] == "page/"
    assert _ask("GET", "/page/one.html", TOKEN).status_code == 404


@pytest.mark.parametrize("path", ["/models", "/models/x/plan"])
def test_pages_from_disk_may_read_models_and_errors(path: str) -> None:
    for headers, status in ((TOKEN, 200), ({}, 401)):
        found = _ask("GET", path, {"Origin": "null", **headers})
        assert found.status_code == status
        assert found.headers["access-control-allow-origin"] == "null"
        assert "Origin" in found.headers["vary"]
        assert "access-control-allow-credentials" not in found.headers
    asked = {"Origin": "null", "Access-Control-Request-Method": "POST"}
    assert _ask("OPTIONS", path, asked).status_code == 204  # a preflight has no token


@pytest.mark.parametrize(
    ("path", "origin", "from_disk"),
    [
        ("/models", "https://evil.example", True),
        ("/models", "null, https://evil.example", True),
        ("/metrics", "null", True),
        ("/modelsx", "null", True),
        ("/page/", "null", True),
        ("/models", "null", False),
    ],
)
def test_nobody_else_may_read_anything(path: str, origin: str, from_disk: bool) -> None:
    for method in ("GET", "OPTIONS"):
        found = _ask(method, path, {"Origin": origin, **TOKEN}, from_disk)
        assert not [name for name in found.headers if name.startswith("access-control")]
    if from_disk and path == "/models":
        assert "Origin" in found.headers["vary"]


def test_the_one_file_may_reach_its_server_and_nothing_else() -> None:
    text = one_file(PLAN, "https://example.org:8443/models-of/us/").decode()
    policy = re.search('http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert "; connect-src https://example.org:8443; " in policy[1]
    assert text.index("Content-Security-Policy") < text.index("<style") < text.index("<script")
    assert one_file(PLAN, "https://[::1]:8443") == one_file(PLAN, "https://[::1]:8443")
    assert "{{" not in text.replace(text[text.index('id="worker"') :], "")


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org; script-src *",
        "https://example.org;script-src",
        "https://user:secret@example.org",
        "https://example.org *",
        "https://*",
        'https://example.org"><script>',
        "https://example.org/?a=b",
        "https://example.org/#a",
        "https://",
        "example.org",
        "javascript:alert(1)",
        "https://example.org\n",
    ],
)
def test_an_address_that_could_change_the_policy_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="wanted its address"):
        one_file(PLAN, url)
