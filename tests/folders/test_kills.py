"""Workers and drivers killed in the middle of a scoring run: nothing is lost, nothing is done twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quad4fhe import Fit
from quad4fhe import plan as make_plan
from quad4fhe.folders import score, write_requests
from quad4fhe.he import message
from support.inline import InlineWorkers
from support.serving import PROGRAM, small_fit

COPIES = 60


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Fit, Path, bytes]:
    """A fit, a folder of many copies of one request, and the digest that every reply must name."""
    fit = small_fit(16, 24, 3, seed=1)
    place = tmp_path_factory.mktemp("kills")
    fit.save(place / "fit.safetensors")
    plan = make_plan(fit, samples=2048, layout="batch", precision="fast")
    folder = place / "requests"
    write_requests(plan, np.clip(np.zeros((1, 16)), *fit.box), folder)
    for i in range(1, COPIES):
        shutil.copy(folder / "00000000.request", folder / f"{i:08d}.request")
    return fit, folder, message.digest((folder / "00000000.request").read_bytes())


def _parents() -> dict[int, int]:
    """Every process of this machine and its parent."""
    out = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            out[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return out


def _ray_workers() -> list[int]:
    """The actors of this process's own Ray; other Rays on the machine are left alone."""
    parents = _parents()
    found = []
    for pid in parents:
        ancestor = pid
        while ancestor not in (0, 1, os.getpid()):
            ancestor = parents.get(ancestor, 0)
        try:
            named = Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::_Actor")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if named and ancestor == os.getpid():
            found.append(pid)
    return found


def _children(pid: int) -> list[int]:
    return [child for child, parent in _parents().items() if parent == pid]


def _check(replies: Path, reply: bytes) -> None:
    """One right reply for each request, and one line in the manifest."""
    files = sorted(path.name for path in replies.iterdir() if path.name[0] != ".")
    assert files == [*(f"{i:08d}.reply" for i in range(COPIES)), "manifest.jsonl"]
    for path in replies.glob("*.reply"):
        data = path.read_bytes()
        message.check_digest(data)
        assert message.peek(data).answers == reply
    lines = [json.loads(line) for line in (replies / "manifest.jsonl").read_text().splitlines()[1:]]
    assert sorted(line["request"] for line in lines) == [f"{i:08d}.request" for i in range(COPIES)]
    assert not list(replies.glob(".*.part"))


@pytest.mark.parametrize(("pool", "payload"), [("local", "files"), ("ray", "bytes")])
def test_killing_a_worker_loses_and_duplicates_nothing(
    made: tuple[Fit, Path, bytes], tmp_path: Path, request: pytest.FixtureRequest, pool: str, payload: Any
) -> None:
    fit, folder, reply = made
    if pool == "ray":
        request.getfixturevalue("ray_session")
    others = {*_children(os.getpid()), *_ray_workers()}  # pools of other tests, some of which may be ending
    killed = []

    def kill_one(what: str, done: int, total: int) -> None:
        if done == COPIES // 4 and not killed:
            own = _ray_workers() if pool == "ray" else _children(os.getpid())
            victims = sorted(set(own) - others)
            os.kill(victims[-1], signal.SIGKILL)
            killed.append(victims[-1])

    found = score(fit, folder, tmp_path / "replies", pool=pool, workers=2, payload=payload, progress=kill_one)
    assert len(killed) == 1
    assert (found.answered, found.complete, found.workers_lost) == (COPIES, True, 1)
    _check(tmp_path / "replies", reply)


def _recorded(replies: Path) -> int:
    """How many replies the journal lists; its first line describes the run."""
    journal = replies / "manifest.jsonl"
    return len(journal.read_text().splitlines()) - 1 if journal.exists() else -1


@pytest.mark.parametrize("pool", ["local", "ray"])
def test_killing_the_driver_and_running_again_loses_and_duplicates_nothing(
    made: tuple[Fit, Path, bytes], tmp_path: Path, pool: str
) -> None:
    if pool == "ray":
        pytest.importorskip("ray", reason="ray is not installed: pip install 'quad4fhe[ray]'")
    _, folder, reply = made
    replies = tmp_path / "replies"
    words = ["score", str(folder.parent / "fit.safetensors"), str(folder), str(replies), "--workers", "2", "--json"]
    command = [sys.executable, "-c", PROGRAM, *words, "--pool", pool]
    for _ in range(5):
        driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 300
        # The journal, not the replies: with Ray it can lag several replies behind.
        while _recorded(replies) < COPIES // 4 - 2 and driver.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        driver.kill()
        driver.wait()
        recorded = _recorded(replies)
        assert recorded >= COPIES // 4 - 2
        if recorded < COPIES:
            break
        shutil.rmtree(replies)  # this process slept too long, and killed the run too late
    assert recorded < COPIES
    times = {path.name: path.stat().st_mtime_ns for path in replies.glob("*.reply")}

    again = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words, "--pool", "local"], capture_output=True, text=True, check=True
    )
    found = json.loads(again.stdout)
    assert (found["answered"] + found["answered_before"], found["complete"]) == (COPIES, True)
    assert found["answered_before"] in (recorded, recorded - 1)  # the last line may not have been finished
    _check(replies, reply)
    kept = sum(path.stat().st_mtime_ns == times.get(path.name) for path in replies.glob("*.reply"))
    assert kept >= found["answered_before"]


def test_interrupting_a_run_keeps_what_is_done(made: tuple[Fit, Path, bytes], tmp_path: Path) -> None:
    fit, folder, reply = made

    def interrupt(what: str, done: int, total: int) -> None:
        if done == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score(fit, folder, tmp_path / "replies", pool=InlineWorkers(), progress=interrupt)
    found = score(fit, folder, tmp_path / "replies", pool=InlineWorkers())
    assert (found.answered_before, found.answered) == (10, COPIES - 10)
    _check(tmp_path / "replies", reply)
