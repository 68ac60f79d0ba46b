"""Places in the queue: taken when a request has shown what it is, and shared out fairly among tokens."""

from __future__ import annotations

import asyncio
import select
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from quad4fhe import Fit, InputError
from quad4fhe.he.message import HEADER_BYTES
from quad4fhe.he.session import Client
from quad4fhe.serve.admission import EvictedError, FairQueue, Place, Places
from quad4fhe.serve.app import Limits
from quad4fhe.serve.client import Remote
from support.serving import RunningServer, Stuck, inside, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc to find the server's workers")

A, B = "a" * 32, "b" * 32
PLACES = 10


@pytest.fixture(scope="module")
def server(fitted: tuple[Path, Fit], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text(f"{A}\n{B}\n")
    words = ("--precision", "fast", "--samples", "4", "--workers", "1", "--queue", str(PLACES - 1))
    with RunningServer(fitted[0], *words, "--token-file", tokens, waits=3600) as running:
        yield running
        assert "Traceback" not in "\n".join(running.log)


@pytest.fixture(scope="module")
def body(server: RunningServer, fitted: tuple[Path, Fit]) -> bytes:
    fit = fitted[1]
    with Remote(server.url, layout="batch", token=A) as remote:
        return Client(remote.plan).encrypt(inside(fit, 1))


def headers(token: str) -> dict[str, str]:
    return {"content-type": "application/octet-stream", "authorization": f"Bearer {token}"}


def url(server: RunningServer, fit: Fit) -> str:
    return f"{server.url}/models/{fit.model_id}/evaluate"


def begun(server: RunningServer, fit: Fit, body: bytes, sent: int, token: str = A) -> socket.socket:
    """An upload that stops after some bytes."""
    parsed = httpx.URL(url(server, fit))
    one = socket.create_connection((parsed.host, parsed.port), timeout=300)
    lines = [f"POST {parsed.path} HTTP/1.1", "host: localhost", *(f"{k}: {v}" for k, v in headers(token).items())]
    one.sendall("\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body[:sent])
    return one


def post(server: RunningServer, fit: Fit, body: bytes, token: str) -> httpx.Response:
    return httpx.post(url(server, fit), content=body, headers=headers(token), timeout=300)


def test_one_byte_uploads_take_no_place(server: RunningServer, fitted: tuple[Path, Fit], body: bytes) -> None:
    fit = fitted[1]
    with ExitStack() as stack:
        for sent in (0, 1, HEADER_BYTES - 1) * PLACES:
            stack.enter_context(begun(server, fit, body, sent))
        time.sleep(0.5)
        assert server.healthy()["busy"] == 0
        for token in (A, B):
            assert post(server, fit, body, token).status_code == 200
    until(lambda: server.healthy()["busy"] == 0)


def test_uploads_of_the_wrong_kind_or_length_take_no_place(server, fitted, body: bytes) -> None:
    fit = fitted[1]
    with ExitStack() as stack:
        for wrong in (body[:-1], b"x" * len(body), body[:10] + b"\x02" + body[11:], body[:20] + b"y" + body[21:]):
            one = stack.enter_context(begun(server, fit, wrong, HEADER_BYTES))
            assert one.recv(4096).split()[1] == b"400"
        assert server.healthy()["busy"] == 0


def test_slow_uploads_of_one_token_do_not_shut_another_out(server, fitted, body: bytes) -> None:
    """Nearly all bytes are there and right, so each has a place; who has none takes one of them."""
    fit = fitted[1]
    with ExitStack() as stack:
        slow = []
        for number in range(PLACES):  # the next begins when the one before has its place
            slow.append(stack.enter_context(begun(server, fit, body, len(body) - 1 - number)))
            until(lambda: server.healthy()["busy"] == len(slow))
        assert post(server, fit, body, A).status_code == 429  # has them all already
        assert post(server, fit, body, B).status_code == 200
        assert slow[-1].recv(4096).split()[1] == b"429"
        assert select.select(slow[:-1], [], [], 0)[0] == []  # the others still have theirs
        answers = [one.recv(4096).split()[1] for one in slow[:-1]]  # and none keeps its place for long
        assert answers == [b"408"] * (PLACES - 1)
    until(lambda: server.healthy()["busy"] == 0)


def test_requests_that_wait_make_room_and_tokens_take_turns(server, fitted, body: bytes) -> None:
    fit = fitted[1]
    with ThreadPoolExecutor(2 * PLACES) as threads:
        with Stuck(server):
            first = [threads.submit(post, server, fit, body, A) for _ in range(PLACES)]
            until(lambda: server.healthy()["busy"] == PLACES)
            time.sleep(0.3)
            second = [threads.submit(post, server, fit, body, B) for _ in range(PLACES)]
            until(lambda: sum(one.done() for one in second) == PLACES // 2)
        answers = [[one.result(timeout=300) for one in half] for half in (first, second)]
    for half in answers:
        statuses = [answer.status_code for answer in half]
        assert sorted(statuses) == [200] * (PLACES // 2) + [429] * (PLACES // 2)
    evicted = [answer for answer in answers[0] if answer.status_code == 429]
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in evicted)
    assert "fewer places" in evicted[0].json()["error"]
    until(lambda: server.healthy() == {"workers": 1, "busy": 0})


def test_an_owner_takes_from_who_has_more_and_never_back_and_forth() -> None:
    async def story() -> None:
        places = Places(4)
        waiting = asyncio.Event()
        ended: list[str] = []

        async def hold(place: Place) -> None:
            try:
                async with place.waiting(asyncio.get_running_loop().time() + 60):
                    await waiting.wait()
            except EvictedError:
                ended.append(str(place.owner))
            finally:
                places.release(place)

        async def take(owner: str) -> bool:
            place = places.take(owner)
            if place is not None:
                tasks.append(asyncio.create_task(hold(place)))
                await asyncio.sleep(0)
            return place is not None

        tasks: list[asyncio.Task[None]] = []
        assert [await take("a") for _ in range(5)] == [True] * 4 + [False]
        assert [await take("b") for _ in range(3)] == [True, True, False]
        assert not await take("a")
        assert await take("c")
        await asyncio.sleep(0.01)
        assert ended == ["a"] * 3
        assert places.busy == 4
        waiting.set()
        await asyncio.gather(*tasks)
        assert places.busy == 0

    asyncio.run(story())


def test_the_smallest_queue_has_a_place_for_who_has_none() -> None:
    with pytest.raises(InputError, match="places in the queue"):
        Limits(workers=1, queue=0)

    async def story() -> None:
        limits = Limits(workers=1, queue=1)
        places = Places(limits.workers + limits.queue)
        _, last = places.take("a"), places.take("a")
        assert last is not None

        async def upload() -> None:
            async with last.waiting(asyncio.get_running_loop().time() + 60):
                assert places.take("b") is not None
                await asyncio.sleep(60)

        with pytest.raises(EvictedError):
            await upload()

    asyncio.run(story())


def test_a_place_at_work_is_not_taken() -> None:
    places = Places(1)
    place = places.take("a")
    assert place is not None
    assert places.take("b") is None
    places.release(place)
    assert places.take("b") is not None


def test_a_queue_serves_owners_in_turn_and_loses_nothing_to_who_gave_up() -> None:
    async def story() -> None:
        queue: FairQueue[int] = FairQueue()
        order: list[str] = []

        async def get(owner: str) -> None:
            await queue.get(owner)
            order.append(owner)

        tasks = [asyncio.create_task(get(owner)) for owner in ("a", "a", "a", "b", "c", "b")]
        await asyncio.sleep(0)
        for item in range(6):
            queue.put_nowait(item)
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert order == ["a", "b", "c", "a", "b", "a"]
        left = asyncio.create_task(queue.get("a"))
        await asyncio.sleep(0)
        queue.put_nowait(7)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        assert await asyncio.wait_for(queue.get("b"), 1) == 7

    asyncio.run(story())
