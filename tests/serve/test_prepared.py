"""Prepared questions over HTTP: one answer for each seed, whoever asks, and a whole request where nothing is left."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from quad4fhe import Fit, plan
from quad4fhe.he import container, keys
from quad4fhe.he.container import HEADER_BYTES, Kind
from quad4fhe.he.keys import StoredKey
from quad4fhe.he.prepared import PreparedFolder, PreparedMemory
from quad4fhe.he.session import Client
from quad4fhe.serve.client import Answers, Remote
from quad4fhe.serve.http import HttpClient, ServiceError, _LaterError
from support.serving import RunningServer, Stuck, inside, small_fit, until

ONE, OTHER = "a" * 32, "b" * 32


@pytest.fixture(scope="module")
def fit() -> Fit:
    return small_fit(3, 8, 3, seed=1)


@pytest.fixture(scope="module")
def key(fit: Fit) -> StoredKey:
    return keys.generate(plan(fit, samples=1, layout="lift"))


@pytest.fixture(scope="module")
def arguments(fit: Fit, key: StoredKey, tmp_path_factory: pytest.TempPathFactory) -> list[str | Path]:
    folder = tmp_path_factory.mktemp("fits")
    fit.save(folder / "fit.safetensors")
    key.plan.save(folder / "plan.json")
    (folder / "tokens").write_text(f"{ONE}\n{OTHER}\n")
    (folder / "tokens").chmod(0o600)
    return [folder / "fit.safetensors", "--plan", folder / "plan.json", "--token-file", folder / "tokens"]


@pytest.fixture(scope="module")
def running(arguments: list[str | Path]) -> Iterator[RunningServer]:
    with RunningServer(*arguments, "--workers", "2") as server:
        yield server


def remote(server: RunningServer, key: StoredKey, prepared: PreparedMemory | PreparedFolder) -> Remote:
    return Remote(server.url, key=key, token=ONE, prepared=prepared, patience=300)


def written(client: Client, x: np.ndarray) -> bytes:
    (request,) = client.encrypt(x)
    return b"".join(container.write_request(client.plan, request))


def post(
    server: RunningServer, key: StoredKey, body: bytes, route: str = "evaluate", token: str = ONE
) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/octet-stream"}
    return httpx.post(f"{server.url}/models/{key.plan.model_id}/{route}", content=body, headers=headers, timeout=300)


def test_prepared_questions_are_answered_by_any_worker(
    running: RunningServer, fit: Fit, key: StoredKey, tmp_path: Path
) -> None:
    X, parts = inside(fit, 12), PreparedFolder(tmp_path / "parts", key)
    with remote(running, key, parts) as asked:
        made = asked.prepare(10)
        assert (made.parts, made.replies, made.reason) == (10, 10, "")
        found = asked.predict(X)  # ten short ones, two whole ones
    assert (found.decisions == fit.model.decide(X)).all()
    assert len(parts) == 0
    short, whole = container.size(key.plan, Kind.answers), container.size(key.plan, Kind.reply)
    assert found.download_bytes == 10 * short + 2 * whole
    assert short < 200


def test_a_query_prepares_for_the_next_one(running: RunningServer, fit: Fit, key: StoredKey) -> None:
    X, parts = inside(fit, 3), PreparedMemory()
    with remote(running, key, parts) as asked:
        first = asked.predict(X, prepare=3)
        second = asked.predict(X)
    assert first.prepared is not None
    assert first.prepared.replies == 3
    assert second.prepared is None
    assert (second.decisions == first.decisions).all()
    assert second.download_bytes == 3 * container.size(key.plan, Kind.answers) < first.download_bytes


def test_what_was_used_or_is_of_others_is_refused(running: RunningServer, fit: Fit, key: StoredKey) -> None:
    X, parts = inside(fit, 1), PreparedMemory()
    with remote(running, key, parts) as asked:
        asked.prepare(1)
    body = written(Client(key.plan, key, parts), X)
    other = body[:76] + bytes(16) + body[92:]  # another key's name; its digest is wrong, but that is not looked at
    assert body[76:92] == key.key_id
    assert [post(running, key, body, token=OTHER).status_code, post(running, key, other).status_code] == [410, 410]
    good = post(running, key, body)
    assert (good.status_code, len(good.content)) == (200, container.size(key.plan, Kind.answers))
    again = post(running, key, body)
    assert again.status_code == 410
    assert "encrypt the samples again and send a whole request" in again.json()["error"]
    # The same bytes as a whole request have another kind, and the digest says that they were changed.
    assert post(running, key, body[:10] + bytes([Kind.request]) + body[11:]).status_code == 400


def test_of_requests_at_once_with_one_seed_one_is_answered(running: RunningServer, fit: Fit, key: StoredKey) -> None:
    X, parts = inside(fit, 1), PreparedMemory()
    with remote(running, key, parts) as asked:
        asked.prepare(3)
    client = Client(key.plan, key, parts)
    for _ in range(3):
        body, start, found = written(client, X), threading.Barrier(2), list[int]()

        def ask(body: bytes = body, start: threading.Barrier = start, found: list[int] = found) -> None:
            start.wait()
            found.append(post(running, key, body).status_code)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == [200, 410]


def test_a_seed_is_sent_once(running: RunningServer, key: StoredKey) -> None:
    client = Client(key.plan, key)
    _, seed = client.make_part()
    body = b"".join(container.write_request(key.plan, seed))
    first, second = post(running, key, body, "prepare"), post(running, key, body, "prepare")
    assert (first.status_code, len(first.content)) == (200, container.size(key.plan, Kind.halves))
    assert second.status_code == 409
    assert "prepare another part" in second.json()["error"]
    damaged = b"".join(container.write_request(key.plan, client.make_part()[1]))
    damaged = damaged[:HEADER_BYTES] + bytes(32) + damaged[HEADER_BYTES + 32 :]
    assert post(running, key, damaged, "prepare").status_code == 400
    (request,) = client.encrypt(np.zeros((1, 3)))
    assert post(running, key, b"".join(container.write_request(key.plan, request)), "prepare").status_code in (400, 413)


def lossy(monkeypatch: pytest.MonkeyPatch, route: str) -> list[int]:
    """Lose the first reply to this route after the server has sent it; returns the lengths of all bodies sent."""
    once, sent = HttpClient._once, list[int]()

    def lose(self: HttpClient, method: str, path: str, body: object, size: int, longest: int) -> bytes:
        if not path.endswith(route):
            return once(self, method, path, body, size, longest)  # type: ignore[arg-type]
        sent.append(size)
        data = once(self, method, path, body, size, longest)  # type: ignore[arg-type]
        if len(sent) == 1:
            raise _LaterError("the connection was lost", 0.0)
        return data

    monkeypatch.setattr(HttpClient, "_once", lose)
    return sent


def test_a_lost_answer_is_asked_for_with_a_fresh_request(
    running: RunningServer, fit: Fit, key: StoredKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, parts = inside(fit, 3), PreparedMemory()
    with remote(running, key, parts) as asked:
        asked.prepare(3)
        seeds = [part.seed for part in parts._parts]
        sent = lossy(monkeypatch, "/evaluate")
        bodies: list[bytes] = []
        written_before = container.write_request

        def kept(made: object, request: container.Request) -> Iterator[bytes]:
            data = b"".join(written_before(made, request))  # type: ignore[arg-type]
            bodies.append(data)
            return iter([data])

        monkeypatch.setattr(container, "write_request", kept)
        found = asked.predict(X, concurrency=1)
    assert (found.decisions == fit.model.decide(X)).all()
    # The first is sent, and again with the same bytes; then it and all others go as whole requests of new seeds.
    assert len(sent) == 5
    assert [body[10] for body in bodies] == [Kind.prepared, Kind.request, Kind.request, Kind.request]
    used = [body[HEADER_BYTES : HEADER_BYTES + 32] for body in bodies]
    assert used[0] in seeds
    assert len({*used, *seeds}) == 6
    assert found.download_bytes == 3 * container.size(key.plan, Kind.reply)
    assert len(parts) == 2


def test_a_part_whose_second_halves_were_lost_is_not_used(
    running: RunningServer, key: StoredKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = PreparedMemory()
    with remote(running, key, parts) as asked:
        lossy(monkeypatch, "/prepare")
        made = asked.prepare(3)
    assert (made.parts, made.replies, len(parts)) == (2, 2, 2)
    assert "prepare another part" in made.reason


def test_after_a_restart_every_question_is_answered_once_and_counted_once(
    running: RunningServer, arguments: list[str | Path], fit: Fit, key: StoredKey
) -> None:
    """Six questions a day: three of parts that a server before prepared, two of its own, one more."""
    X, parts = inside(fit, 3), PreparedMemory()
    with remote(running, key, parts) as asked:
        asked.prepare(1)
    left = 86_400 - time.time() % 86_400  # until midnight, when everyone has new answers
    if left < 120:
        time.sleep(left + 1)
    with RunningServer(*arguments, "--workers", "1", "--numbers-per-day", "18") as restarted:
        with remote(restarted, key, parts) as asked:
            found = asked.predict(X)
            assert (found.decisions == fit.model.decide(X)).all()
            assert found.download_bytes == 3 * container.size(key.plan, Kind.reply)
            assert asked.prepare(4).replies == 4
            found = asked.predict(X[:1])
            assert found.download_bytes == container.size(key.plan, Kind.answers)
        body = written(Client(key.plan, key, parts), X[:1])
        assert [post(restarted, key, body).status_code for _ in range(3)] == [200, 410, 410]
        body = written(Client(key.plan, key, parts), X[:1])
        assert post(restarted, key, body[:-1] + bytes([body[-1] ^ 1])).status_code == 400  # no answer, not counted
        body = written(Client(key.plan, key, parts), X[:1])
        assert post(restarted, key, body).status_code == 200
        with Remote(restarted.url, key=key, token=ONE, patience=5) as asked, pytest.raises(ServiceError, match="a day"):
            asked.predict(X[:1])


def test_a_worker_that_dies_with_the_question_costs_the_part(
    arguments: list[str | Path], fit: Fit, key: StoredKey
) -> None:
    X, parts = inside(fit, 1), PreparedMemory()
    with RunningServer(*arguments, "--workers", "1") as server, remote(server, key, parts) as asked:
        asked.prepare(2)
        with Stuck(server) as stuck:
            found: list[Answers] = []
            thread = threading.Thread(target=lambda: found.append(asked.predict(X)))
            thread.start()
            until(lambda: server.healthy()["busy"] == 1)
            os.kill(stuck.pid, signal.SIGKILL)
            thread.join()
        assert (found[0].decisions == fit.model.decide(X)).all()
        assert len(parts) == 1
        # A new worker rounds the weights as the old one did, so what that one prepared is still good.
        again = asked.predict(X)
    assert again.download_bytes == container.size(key.plan, Kind.answers)
    assert (again.decisions == fit.model.decide(X)).all()


def test_a_server_can_be_told_to_prepare_nothing(arguments: list[str | Path], fit: Fit, key: StoredKey) -> None:
    X, parts = inside(fit, 3), PreparedMemory()
    with (
        RunningServer(*arguments, "--workers", "1", "--max-prepared", "0") as server,
        remote(server, key, parts) as asked,
    ):
        made = asked.prepare(2)
        assert (made.parts, made.replies, made.reason) == (2, 0, "the server prepares no replies")
        found = asked.predict(X)
    assert (found.decisions == fit.model.decide(X)).all()
    assert len(parts) == 0
    assert found.download_bytes == 3 * container.size(key.plan, Kind.reply)
