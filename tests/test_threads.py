"""Threads of the BLAS: one by default, the user's own number where there is one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import quad4fhe
from quad4fhe import _threads
from quad4fhe.layouts.batch import layout as batch
from support.cases import PAIRS, PAIRS_X


def blas_threads() -> set[int]:
    return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A machine of two cores whose libraries have as many threads, as if nobody had chosen anything."""
    for name in _threads._CHOICES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(_threads, "_affinity", lambda: 2)
    with threadpool_limits(2, user_api="blas"):
        assert blas_threads() == {2}
        yield


@pytest.fixture
def inside_plan(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """The numbers of threads while plans are made."""
    seen: list[set[int]] = []
    search = batch.search_batch

    def watched(*words: Any, **options: Any) -> Any:
        seen.append(blas_threads())
        return search(*words, **options)

    monkeypatch.setattr(batch, "search_batch", watched)
    return seen


@pytest.mark.usefixtures("untouched")
def test_planning_takes_one_thread_and_gives_the_others_back(inside_plan: list[set[int]]) -> None:
    quad4fhe.plan(PAIRS, samples=10, layout="batch")
    assert inside_plan
    assert all(threads == {1} for threads in inside_plan)
    assert blas_threads() == {2}


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("name", ["OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_a_number_in_the_environment_is_respected(
    name: str, inside_plan: list[set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "2")
    quad4fhe.plan(PAIRS, samples=10, layout="batch")
    assert all(threads == {2} for threads in inside_plan)


@pytest.mark.usefixtures("untouched")
def test_a_limit_by_threadpoolctl_is_respected(inside_plan: list[set[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(_threads, "_affinity", lambda: 8)
    quad4fhe.plan(PAIRS, samples=10, layout="batch")  # the fixture's own two threads of eight cores are a choice
    assert all(threads == {2} for threads in inside_plan)


@pytest.mark.usefixtures("untouched")
def test_a_fit_takes_one_thread_whatever_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    seen = []
    found = quad4fhe.fit(
        PAIRS.mlp, PAIRS_X, progress=lambda what, *_: seen.append((what, blas_threads())), family="shared"
    )
    assert [threads for what, threads in seen if what != "lift"]
    assert all(threads == {1} for what, threads in seen if what != "lift")
    assert found.model.sha256 == PAIRS.model.sha256
    assert blas_threads() == {2}


@pytest.mark.parametrize(
    ("threads", "cores", "api", "free"),
    [
        (8, 8, "openblas", True),
        (64, 96, "openblas", True),
        (4, 8, "openblas", False),
        (64, 32, "openblas", False),
        (1, 8, "openblas", False),
        (4, 8, "mkl", True),
        (3, 8, "mkl", False),
    ],
)
def test_what_libraries_start_with_is_nobodys_choice(
    threads: int, cores: int, api: str, free: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(_threads, "_affinity", lambda: cores)
    assert _threads._untouched({"num_threads": threads, "internal_api": api}) is free


@pytest.mark.usefixtures("untouched")
def test_the_limit_holds_until_the_last_thread_is_done() -> None:
    entered, leave = threading.Event(), threading.Event()

    def first() -> None:
        with _threads.one_thread():
            entered.set()
            leave.wait(30)

    one = threading.Thread(target=first)
    one.start()
    assert entered.wait(30)
    with _threads.one_thread():
        leave.set()
        one.join(30)
        assert blas_threads() == {1}
    assert blas_threads() == {2}


@pytest.mark.parametrize(
    ("given", "wanted"), [({}, "1"), ({"OPENBLAS_NUM_THREADS": "2"}, "2"), ({"OMP_NUM_THREADS": "2"}, None)]
)
def test_the_command_line_starts_with_one_thread_unless_told_otherwise(
    given: dict[str, str], wanted: str | None
) -> None:
    program = (
        "import os, sys; from quad4fhe.cli import app; "
        "app.main = lambda: print(os.environ.get('OPENBLAS_NUM_THREADS')) or 0; app.entry_point()"
    )
    environment = {name: value for name, value in os.environ.items() if name not in _threads._CHOICES} | given
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.strip() == str(wanted)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 1),
        ({"cpu.max": "300000 100000\n"}, 3),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"cpu.max": "1000 100000\n"}, 1),
        ({}, 8),
    ],
)
def test_a_containers_quota_limits_the_cores(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(_threads, "_CGROUP", tmp_path)
    monkeypatch.setattr(_threads, "_affinity", lambda: 8)
    assert _threads.usable_cores() == cores
