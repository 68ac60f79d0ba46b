"""What happens when something breaks: each case ends in a right answer or a clear error, and the next request works."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import msgspec
import pytest

from quad4fhe import Fit
from quad4fhe.he import message
from quad4fhe.he.session import Client
from quad4fhe.serve.admission import Place
from quad4fhe.serve.client import Remote, ServiceError
from quad4fhe.serve.pool import ServerPool
from quad4fhe.serve.worker import Setup, Task, TaskResult
from quad4fhe.workers.base import Answered, Deliver, WorkerLostError
from support.serving import RunningServer, Stuck, free_port, inside, until, works

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc to find the server's workers")

OCTETS = {"content-type": "application/octet-stream"}


WORDS = ("--precision", "fast", "--samples", "4", "--workers", "1", "--queue", "1")
DEADLINE = 8.0


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spool")


@pytest.fixture(scope="module")
def server(fitted: tuple[Path, Fit], spool: Path) -> Iterator[RunningServer]:
    """One worker, one place in the queue, and time enough for a worker that starts on a busy machine."""
    with RunningServer(fitted[0], *WORDS, "--deadline", "40", "--spool", spool) as running:
        yield running
        assert "Traceback" not in "\n".join(running.log)


@pytest.fixture(scope="module")
def hasty(fitted: tuple[Path, Fit]) -> Iterator[RunningServer]:
    """The same with a short deadline. Its first request took two seconds, so half of the deadline is the reserve."""
    with RunningServer(fitted[0], *WORDS, "--deadline", str(DEADLINE)) as running:
        url, data = body(running, fitted[1])
        with ThreadPoolExecutor() as threads:
            with Stuck(running):
                answer = threads.submit(httpx.post, url, content=data, headers=OCTETS, timeout=300)
                time.sleep(2)
            assert answer.result(timeout=300).status_code == 200
        yield running
        assert "Traceback" not in "\n".join(running.log)


def body(server: RunningServer, fit: Fit) -> tuple[str, bytes]:
    with Remote(server.url, model=fit.model_id, layout="batch") as remote:
        data = Client(remote.plan).encrypt(inside(fit, 1))
    return f"{server.url}/models/{fit.model_id}/evaluate", data


def test_a_worker_killed_before_it_began_costs_the_client_nothing(server, fitted) -> None:
    """Another worker takes the request. On a busy machine it may start after the deadline: then it is tried again."""
    url, data = body(server, fitted[1])
    for _ in range(5):
        with ThreadPoolExecutor() as threads, Stuck(server) as stuck:
            answer = threads.submit(httpx.post, url, content=data, headers=OCTETS, timeout=300)
            until(lambda: server.healthy()["busy"] == 1)
            time.sleep(0.3)
            os.kill(stuck.pid, signal.SIGKILL)
            response = answer.result(timeout=300)
        works(server, fitted[1])
        if response.status_code == 200:
            break
        assert "no worker" in response.json()["error"]
    assert response.status_code == 200


def at_work(pid: int, spool: Path) -> bool:
    """Whether a worker has a request open: it maps the file until its reply is written."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return any(str(spool) in line and not line.endswith(".safetensors") for line in maps)


def test_a_worker_killed_in_the_middle_of_a_request_is_a_clear_error_and_then_replaced(server, fitted, spool) -> None:
    """A request takes a few milliseconds, so several tries may be needed to stop a worker in the middle of one."""
    url, data = body(server, fitted[1])
    (pid,) = server.workers()
    assert not at_work(pid, spool)
    with ThreadPoolExecutor() as threads:
        for _ in range(500):
            answer = threads.submit(httpx.post, url, content=data, headers=OCTETS, timeout=300)
            while not (begun := at_work(pid, spool)) and not answer.done():
                pass
            os.kill(pid, signal.SIGSTOP)
            until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
            if begun and at_work(pid, spool):
                break
            os.kill(pid, signal.SIGCONT)
            assert answer.result(timeout=300).status_code == 200
        os.kill(pid, signal.SIGKILL)
        response = answer.result(timeout=300)
    works(server, fitted[1])
    assert response.status_code == 503
    assert "send the request again" in response.json()["error"]
    assert response.headers["retry-after"] == "1"


def test_the_client_itself_gets_over_a_killed_worker(server, fitted) -> None:
    with ThreadPoolExecutor() as threads, Stuck(server) as stuck:
        answer = threads.submit(works, server, fitted[1])
        until(lambda: server.healthy()["busy"] == 1)
        os.kill(stuck.pid, signal.SIGKILL)
        answer.result(timeout=300)


def test_an_idle_worker_that_dies_is_replaced(server, fitted) -> None:
    (pid,) = server.workers()
    os.kill(pid, signal.SIGKILL)
    works(server, fitted[1])
    assert server.workers() != [pid]


def test_a_request_past_its_deadline_is_ended_with_its_worker(hasty, fitted) -> None:
    url, data = body(hasty, fitted[1])
    with Stuck(hasty) as stuck:
        started = time.monotonic()
        response = httpx.post(url, content=data, headers=OCTETS, timeout=300)  # it would wait forever
        assert response.status_code == 504
        assert time.monotonic() - started > DEADLINE - 0.1
        until(lambda: not Path(f"/proc/{stuck.pid}").exists())
    works(hasty, fitted[1])


def restarts(server: RunningServer) -> str:
    return next(
        line for line in httpx.get(f"{server.url}/metrics", timeout=300).text.splitlines() if "restarts " in line
    )


def test_an_upload_that_ends_just_before_the_deadline_costs_no_worker(hasty, fitted) -> None:
    """A worker that gets a job too late is ended in the middle of it, and everybody waits for the next one."""
    url, data = body(hasty, fitted[1])
    parsed, before = httpx.URL(url), restarts(hasty)
    head = f"POST {parsed.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
    with socket.create_connection((parsed.host, parsed.port), timeout=300) as connection:
        connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data[:-1])
        until(lambda: hasty.healthy()["busy"] == 1)
        time.sleep(0.6 * DEADLINE)  # half of the deadline is kept for the worker
        with contextlib.suppress(OSError):  # it may have been closed already
            connection.sendall(data[-1:])
        assert b" 408 " in connection.recv(4096)
    assert restarts(hasty) == before


def test_a_request_that_would_start_too_late_is_503_and_costs_no_worker(hasty, fitted) -> None:
    """The second is refused at half of its deadline, when the first one, a little older, has nearly half of its own."""
    url, data = body(hasty, fitted[1])
    before = restarts(hasty)
    with ThreadPoolExecutor() as threads:
        with Stuck(hasty):
            first = threads.submit(httpx.post, url, content=data, headers=OCTETS, timeout=300)
            until(lambda: hasty.healthy()["busy"] == 1)
            second = httpx.post(url, content=data, headers=OCTETS, timeout=300)
        assert (second.status_code, "in time to compute" in second.json()["error"]) == (503, True)
        assert first.result(timeout=300).status_code == 200
    assert restarts(hasty) == before


class Slow:
    """A launcher of workers that take 0.2 seconds for a task."""

    name, workers = "slow", 1

    def start(self, make: bytes, deliver: Deliver, **_: object) -> Slow:
        self._deliver, self.sent = deliver, list[Task]()
        deliver(Answered(None))
        return self

    def send(self, task: Task) -> None:
        self.sent.append(task)
        result = TaskResult(error="no" if task.request == "refused" else None)
        threading.Timer(0.2, self._deliver, (Answered(msgspec.json.encode(result)),)).start()

    def kill(self) -> None: ...

    def join(self) -> None: ...


def test_the_reserve_follows_what_tasks_of_that_kind_take() -> None:
    async def story() -> None:
        pool = ServerPool(Setup([]), Slow())
        await pool.start()
        now = asyncio.get_running_loop().time
        assert pool.reserve("plan", 4.0) == pytest.approx(0.4)
        await pool.run(Task("plan", "refused", "out"), Place("x"), now() + 60)
        assert pool.reserve("plan", 4.0) == pytest.approx(0.4)
        started = time.perf_counter()
        await pool.run(Task("plan", "in", "out"), Place("x"), now() + 60)
        spent = time.perf_counter() - started
        assert spent > 0.2
        assert 0.59 < pool.reserve("plan", 4.0) <= min(2.0, 3 * spent)  # three times what it took
        assert pool.reserve("other", 4.0) == pytest.approx(0.4)
        assert pool.reserve("plan", 0.5) == pytest.approx(0.25)  # never more than half
        with pytest.raises(WorkerLostError, match="in time to compute"):
            await pool.run(Task("plan", "in", "out"), Place("x"), now() + 0.1, now() - 0.1)
        assert (await pool.run(Task("plan", "in", "out"), Place("x"), now() + 60)).error is None
        assert pool.restarts == 0
        await pool.close()

    asyncio.run(story())


def test_overflow_is_told_to_come_back_and_what_was_accepted_is_answered(server, fitted) -> None:
    url, data = body(server, fitted[1])
    with ThreadPoolExecutor(12) as threads:
        with Stuck(server):
            waiting = [threads.submit(httpx.post, url, content=data, headers=OCTETS, timeout=300) for _ in range(2)]
            until(lambda: server.healthy()["busy"] == 2)
            refused = [threads.submit(httpx.post, url, content=data, headers=OCTETS, timeout=300) for _ in range(8)]
            answers = [one.result(timeout=300) for one in refused]
        assert [answer.status_code for answer in answers] == [429] * 8
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers)
        accepted = [one.result(timeout=300) for one in waiting]
    assert [answer.status_code for answer in accepted] == [200, 200]


def test_more_clients_than_places_are_all_answered_in_the_end(server, fitted) -> None:
    with ThreadPoolExecutor(6) as threads:
        for answer in [threads.submit(works, server, fitted[1]) for _ in range(6)]:
            answer.result(timeout=300)


def test_a_client_gone_in_the_middle_of_an_upload_frees_its_place(server, fitted) -> None:
    url, data = body(server, fitted[1])
    parsed = httpx.URL(url)
    head = f"POST {parsed.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
    for _ in range(5):
        with socket.create_connection((parsed.host, parsed.port), timeout=300) as connection:
            connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data[: len(data) // 2])
            until(lambda: server.healthy()["busy"] == 1)
        until(lambda: server.healthy()["busy"] == 0)
    works(server, fitted[1])


def test_an_upload_that_trickles_is_ended_at_its_deadline(hasty, fitted) -> None:
    url, data = body(hasty, fitted[1])
    parsed = httpx.URL(url)
    head = f"POST {parsed.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
    with socket.create_connection((parsed.host, parsed.port), timeout=300) as connection:
        connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data[:500])
        assert b" 408 " in connection.recv(4096)
    until(lambda: hasty.healthy()["busy"] == 0)


def test_a_restarted_server_is_found_again(fitted) -> None:
    file, fit = fitted
    port = free_port()
    words = (file, "--precision", "fast", "--samples", "4", "--workers", "1", "--port", str(port))
    X = inside(fit, 2)
    with RunningServer(*words) as first:
        remote = Remote(first.url, model=fit.model_id, layout="lift", patience=300)
        remote.predict(X)
    with remote, ThreadPoolExecutor() as threads:
        answer = threads.submit(remote.predict, X)  # nobody is there yet
        time.sleep(0.5)
        with RunningServer(*words):
            found = answer.result(timeout=300)
    assert (found.decisions == fit.model.decide(X)).all()


def test_a_server_stopped_under_load_finishes_what_it_accepted(fitted) -> None:
    file, fit = fitted
    words = (file, "--precision", "fast", "--samples", "4", "--layout", "batch", "--workers", "1")
    with RunningServer(*words) as running:
        url, data = body(running, fit)
        with ThreadPoolExecutor(4) as threads:
            with Stuck(running):
                waiting = [threads.submit(httpx.post, url, content=data, headers=OCTETS, timeout=300) for _ in range(4)]
                until(lambda: running.healthy()["busy"] == 4)
                time.sleep(0.3)
                running.process.send_signal(signal.SIGTERM)
                time.sleep(0.5)
            assert [one.result(timeout=300).status_code for one in waiting] == [200] * 4


def test_tokens_keep_strangers_out(fitted, tmp_path: Path) -> None:
    file, fit = fitted
    tokens = tmp_path / "tokens"
    tokens.write_text("# team a\n" + "a" * 32 + "\n" + "b" * 32 + "\n")
    words = (file, "--precision", "fast", "--layout", "batch", "--workers", "1", "--token-file", tokens)
    with RunningServer(*words) as running:
        assert running.healthy()["workers"] == 1
        for headers in ({}, {"authorization": "Bearer " + "c" * 32}, {"authorization": "Basic " + "a" * 32}):
            for path in ("/models", "/metrics", f"/models/{fit.model_id}/plan", "/openapi.json"):
                answer = httpx.get(running.url + path, headers=headers)
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"] == "Bearer"
        with pytest.raises(ServiceError, match="wants a token"):
            Remote(running.url, model=fit.model_id)
        X = inside(fit, 2)
        with Remote(running.url, token="b" * 32) as remote:
            assert (remote.predict(X).decisions == fit.model.decide(X)).all()


def test_damaged_bodies_leave_the_workers_alive(server, fitted) -> None:
    url, data = body(server, fitted[1])
    rng = random.Random(7)
    before = server.workers()
    seen = set()
    with httpx.Client(headers=OCTETS, timeout=300) as client:
        for _ in range(150):
            damaged = bytearray(data)
            place = rng.choice([rng.randrange(message.HEADER_BYTES), rng.randrange(len(data))])
            damaged[place] ^= 1 << rng.randrange(8)
            cut = rng.choice([len(data), rng.randrange(len(data))])
            seen.add(client.post(url, content=bytes(damaged[:cut])).status_code)
    assert seen <= {400, 413}
    assert server.workers() == before
    works(server, fitted[1])
    works(server, fitted[1], "lift")


def test_many_requests_leave_no_thread_file_or_place_behind(server, fitted) -> None:
    url, data = body(server, fitted[1])
    descriptors = Path(f"/proc/{server.process.pid}/fd")
    with httpx.Client(headers=OCTETS, timeout=300) as client:
        client.post(url, content=data)
        before = len(list(descriptors.iterdir()))
        for _ in range(100):
            assert client.post(url, content=data).status_code == 200
        after = len(list(descriptors.iterdir()))
    assert after <= before + 2
    assert server.healthy()["busy"] == 0
    assert threading.active_count() < 50
