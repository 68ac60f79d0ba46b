"""The server's pool: deadlines and replacements with local workers, and the same with workers on Ray."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from quad4fhe import Fit, plan
from quad4fhe.cli import main
from quad4fhe.errors import InputError
from quad4fhe.he.session import Client
from quad4fhe.serve.admission import Place
from quad4fhe.serve.client import Remote
from quad4fhe.serve.pool import DeadlineError, ServerPool
from quad4fhe.serve.worker import ModelFiles, Setup, Task, set_up
from quad4fhe.workers import choose
from quad4fhe.workers.base import Launcher, WorkerLostError
from quad4fhe.workers.registry import KINDS
from support.serving import RunningServer, inside, until, works

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc to find the server's workers")

OCTETS = {"content-type": "application/octet-stream"}


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spool")


@pytest.fixture(scope="module")
def server(fitted: tuple[Path, Fit], spool: Path) -> Iterator[RunningServer]:
    """One actor, on a Ray that the server starts for itself."""
    pytest.importorskip("ray", reason="ray is not installed: pip install 'quad4fhe[ray]'")
    words = ("--precision", "fast", "--samples", "4", "--workers", "1", "--deadline", "10", "--spool", spool)
    with RunningServer(fitted[0], *words, "--pool", "ray") as running:
        yield running
        stops_and_leaves_no_actor_no_ray_and_no_file(running, spool)  # here, so that the tests may come in any order
        assert "Traceback" not in "\n".join(running.log)


def actor(server: RunningServer) -> int:
    """The process id of the worker that was ready last."""
    said = [found for line in server.log if (found := re.search(r"worker (\d+) on \S+ is ready", line))]
    pid = int(said[-1][1])
    assert "ray" in Path(f"/proc/{pid}/cmdline").read_text()
    return pid


def stops_and_leaves_no_actor_no_ray_and_no_file(server: RunningServer, spool: Path) -> None:
    pid = actor(server)
    daemons = server.workers()
    assert len(list(spool.iterdir())) == 1
    assert daemons, "this Ray is a child of the server"
    assert server.stop(signal.SIGTERM) in (0, -signal.SIGTERM)
    until(lambda: all(map(gone, [pid, *daemons])))
    assert not list(spool.iterdir())


def gone(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def body(server: RunningServer, fit: Fit) -> tuple[str, Client, bytes]:
    """A request, and the client that reads the reply."""
    with Remote(server.url, model=fit.model_id, layout="batch") as remote:
        client = Client(remote.plan)
    return f"{server.url}/models/{fit.model_id}/evaluate", client, client.encrypt(inside(fit, 2))


def test_ray_workers_answer_as_this_process_does(server, fitted) -> None:
    url, client, data = body(server, fitted[1])
    answer = httpx.post(url, content=data, headers=OCTETS, timeout=300)
    assert answer.status_code == 200
    assert (client.decide(answer.content) == fitted[1].model.decide(inside(fitted[1], 2))).all()
    works(server, fitted[1], "lift")
    assert server.healthy() == {"workers": 1, "busy": 0}


def test_a_bad_request_is_the_clients_fault_and_leaves_the_actor_alive(server, fitted) -> None:
    url, _, data = body(server, fitted[1])
    before = actor(server)
    damaged = data[:-40] + b"\xff" * 8 + data[-32:]  # neither below its prime nor what was hashed
    answer = httpx.post(url, content=damaged, headers=OCTETS, timeout=300)
    assert answer.status_code == 400
    works(server, fitted[1])
    assert actor(server) == before


def test_an_actor_killed_during_a_request_is_a_clear_error_or_the_right_answer(server, fitted) -> None:
    url, client, data = body(server, fitted[1])
    pid = actor(server)
    with ThreadPoolExecutor() as threads:
        os.kill(pid, signal.SIGSTOP)
        answer = threads.submit(httpx.post, url, content=data, headers=OCTETS, timeout=300)
        until(lambda: server.healthy()["busy"] == 1)
        time.sleep(0.3)
        os.kill(pid, signal.SIGKILL)
        response = answer.result(timeout=300)
    if response.status_code == 200:  # it had not begun, and another one was there in time
        assert (client.decide(response.content) == fitted[1].model.decide(inside(fitted[1], 2))).all()
    elif response.status_code == 503:
        assert "send the request again" in response.json()["error"]
    else:  # another one began, but too late
        assert (response.status_code, "deadline" in response.json()["error"]) == (504, True)
    works(server, fitted[1])
    assert actor(server) != pid


def test_a_deadline_ends_the_job_and_its_actor(server, fitted) -> None:
    url, _, data = body(server, fitted[1])
    pid = actor(server)
    os.kill(pid, signal.SIGSTOP)
    response = httpx.post(url, content=data, headers=OCTETS, timeout=300)  # without a deadline it would be forever
    assert response.status_code == 504
    until(lambda: gone(pid))
    works(server, fitted[1])


def test_more_workers_than_ray_has_is_one_line(ray_session: None, fitted, capsys) -> None:
    words = ("--layout", "batch", "--precision", "fast", "--pool", "ray", "--workers", "9", "--port", "0")
    assert main(["serve", str(fitted[0]), *words]) == 2
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .endswith("9 workers wanted, but this Ray has 4 CPUs; ask for 4 or add nodes")
    )


def test_without_ray_the_error_says_what_to_install(fitted, capsys, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "quad4fhe.workers.ray", raising=False)
    monkeypatch.delitem(KINDS._loaded, "ray", raising=False)
    words = ("--layout", "batch", "--precision", "fast", "--pool", "ray", "--port", "0")
    assert main(["serve", str(fitted[0]), *words]) == 2
    assert "pip install 'quad4fhe[ray]'" in capsys.readouterr().err


def test_a_worker_that_does_not_see_the_spool_says_so(tmp_path: Path) -> None:
    setup = Setup([ModelFiles(str(tmp_path / "elsewhere" / "fit.safetensors"), [])])
    with pytest.raises(InputError, match=r"does not see the server's folder .*elsewhere; name one .* --spool"):
        set_up(setup)


def pool_of(launcher: Launcher, file: Path, fit: Fit, layout: str = "batch") -> tuple[ServerPool, str]:
    made = plan(fit, samples=4, layout=layout, precision="fast")
    setup = Setup([ModelFiles(str(file), [made.to_dict()])])
    return ServerPool(setup, launcher), made.sha256.hex()


def children() -> set[str]:
    return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())


def test_an_unforeseen_error_costs_a_worker_its_place(fitted, tmp_path: Path) -> None:
    def job(served: str) -> Task:
        return Task(served, str(tmp_path / "in"), str(tmp_path / "out"))

    async def story(launcher: Launcher) -> None:
        pool, served = pool_of(launcher, *fitted)
        await pool.start()
        (tmp_path / "in").write_bytes(b"no request")
        (tmp_path / "out").touch()
        try:
            later = asyncio.get_running_loop().time() + 60
            assert (await pool.run(job(served), Place("x"), later)).error is not None
            with pytest.raises(WorkerLostError, match="send the request again"):
                await pool.run(job("no such plan"), Place("x"), later)
            assert (await pool.run(job(served), Place("x"), later)).error is not None
            assert (pool.restarts, pool.alive) == (1, 1)
            (worker,) = pool._alive
            os.kill(int(worker.name.split()[0]), signal.SIGKILL)
            assert (await pool.run(job(served), Place("x"), later)).error is not None  # died idle: another one does it
            assert pool.restarts == 2
        finally:
            await pool.close()

    before = children()
    with choose("local", 1).launch() as launcher:
        asyncio.run(story(launcher))
    assert children() == before


def test_a_pool_closed_while_it_replaces_a_worker_leaves_nothing_behind(fitted) -> None:
    async def story(launcher: Launcher) -> None:
        pool, served = pool_of(launcher, *fitted)
        await pool.start()
        (worker,) = pool._alive
        os.kill(int(worker.name.split()[0]), signal.SIGSTOP)
        with pytest.raises(DeadlineError):
            await pool.run(Task(served, "in", "out"), Place("x"), asyncio.get_running_loop().time() + 0.3)
        await pool.close()
        assert pool.alive == 0

    before = children()
    with choose("local", 1).launch() as launcher:
        asyncio.run(story(launcher))
    assert children() == before
