"""Every kind of worker keeps the same promises: results, order, retries, back-pressure, and nothing left behind."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quad4fhe.errors import InputError, MissingExtraError
from quad4fhe.workers import choose
from quad4fhe.workers.base import WorkerLostError, pickled
from quad4fhe.workers.codec import Answered, Lost, Outcome
from quad4fhe.workers.pool import Pool, Workers, each
from quad4fhe.workers.registry import KINDS
from support import tasks
from support.inline import InlineWorkers


@pytest.fixture(params=KINDS.names(), scope="module")
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "ray":
        request.getfixturevalue("ray_session")
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def pool(name: str) -> Iterator[Pool]:
    with choose(name, 2).open(tasks.made) as opened:
        yield opened


def _gone(pid: int) -> bool:
    """Whether the process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def _wait_until(true: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_gather_answers_in_order(pool: Pool) -> None:
    assert pool.gather([("square", i) for i in range(11)]) == [i * i for i in range(11)]
    assert pool.gather([]) == []


def test_task_i_goes_to_worker_i_modulo_the_number_of_workers(pool: Pool) -> None:
    pids = pool.gather([("pid", 0.0)] * 7)
    assert pids == [pids[i % 2] for i in range(7)]
    assert len(set(pids)) == 2
    assert pool.gather([("pid", 0.0)] * 3) == [pids[0], pids[1], pids[0]]


def test_a_worker_keeps_what_it_made(pool: Pool) -> None:
    first = dict(pool.gather([("remember", "a"), ("remember", "b")]))
    second = dict(pool.gather([("remember", "c"), ("remember", "d")]))
    assert set(first) == set(second)
    assert sorted(memory[-2:] for memory in second.values()) == [["a", "c"], ["b", "d"]]


def test_every_worker_sets_up_once(name: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with choose(name, 2).open(partial(tasks.made, str(log))) as opened:
        pids = set(opened.gather([("pid", 0.0)] * 10))
        assert len(list(opened.stream([("pid", 0.0)] * 10))) == 10
    assert sorted(map(int, log.read_text().split())) == sorted(pids)


def test_stream_gives_every_task_once(pool: Pool) -> None:
    done = list(pool.stream((("square", i) for i in range(50)), ahead=1))
    assert sorted((one.index, one.result) for one in done) == [(i, i * i) for i in range(50)]
    assert all(one.error is None and one.task == ("square", one.index) for one in done)


def test_results_come_as_they_finish(pool: Pool, tmp_path: Path) -> None:
    order = []
    for one in pool.stream([("wait for", str(tmp_path / "flag")), ("pid", 0.0), ("pid", 0.0)]):
        order.append(one.index)
        if len(order) == 2:
            (tmp_path / "flag").touch()
    assert order == [1, 2, 0]


@pytest.mark.parametrize("ahead", [0, 1])
def test_tasks_are_taken_only_when_there_is_room(pool: Pool, ahead: int) -> None:
    taken = 0

    def tasks() -> Iterator[Any]:
        nonlocal taken
        for i in range(100):
            taken += 1
            yield ("square", i)

    for seen, _ in enumerate(pool.stream(tasks(), ahead=ahead), start=1):
        assert taken <= seen - 1 + 2 * (1 + ahead)
        if seen == 3:
            time.sleep(0.2)  # a slow consumer is not overtaken
    assert taken == 100


def test_one_poisoned_task_does_not_end_the_stream(pool: Pool) -> None:
    tasks = [("square", 2), ("raise", "not like this"), ("stubborn",), ("missing",), ("square", 3)]
    done = {one.index: one for one in pool.stream(tasks)}
    assert [done[i].result for i in (0, 4)] == [4, 9]
    assert isinstance(done[1].error, InputError)
    assert str(done[1].error) == "not like this"
    assert "in a worker" in "".join(done[1].error.__notes__)
    assert "Stubborn: stubborn 1 2" in str(done[2].error)
    assert "pip install 'quad4fhe[onnx]'" in str(done[3].error)


def test_a_worker_that_ran_out_of_memory_does_no_other_task() -> None:
    with choose("local", 1).open(tasks.made) as opened:
        (before,) = opened.gather([("pid", 0.0)])
        done = {one.index: one for one in opened.stream([("exhaust",), ("pid", 0.0), ("square", 3)])}
    assert "MemoryError: no room" in str(done[0].error)
    assert done[1].result != before
    assert done[2].result == 9


def test_what_can_not_be_sent_is_an_error_of_its_task() -> None:
    with choose("local", 1).open(tasks.made) as opened:
        done = {one.index: one for one in opened.stream([("lambda",), ("echo", threading.Lock()), ("square", 2)])}
    assert "a worker can't send a function" in str(done[0].error)
    assert "pickle" in str(done[1].error)
    assert done[2].result == 4


def test_a_task_that_kills_its_workers_is_given_up_and_named(pool: Pool) -> None:
    done = {one.index: one for one in pool.stream([("square", 2), ("die",), ("square", 3), ("square", 4)], ahead=1)}
    assert [done[i].result for i in (0, 2, 3)] == [4, 9, 16]
    assert isinstance(done[1].error, WorkerLostError)
    assert "each of 3 attempts" in str(done[1].error)


def test_a_task_whose_worker_died_once_is_repeated_on_a_fresh_one(pool: Pool, tmp_path: Path) -> None:
    before = set(pool.gather([("pid", 0.0)] * 2))
    tasks = [("die until", str(tmp_path / "flag")), *[("square", i) for i in range(6)]]
    done = {one.index: one for one in pool.stream(tasks, ahead=1)}
    assert all(one.error is None for one in done.values())
    assert len(done) == 7
    assert done[0].result not in before


def test_killing_a_worker_from_outside_loses_and_duplicates_nothing(pool: Pool) -> None:
    victim = pool.gather([("pid", 0.0)])[0]
    done = []
    for one in pool.stream((("pid", 0.05) for _ in range(30)), ahead=1):
        if one.result == victim and victim not in {each.result for each in done}:
            os.kill(victim, signal.SIGKILL)  # it is working on its next task
        done.append(one)
    assert sorted(one.index for one in done) == list(range(30))
    assert all(one.error is None for one in done)
    assert victim in {one.result for one in done}
    assert len({one.result for one in done}) == 3


def test_gather_rebuilds_a_dead_worker_and_keeps_the_others(pool: Pool) -> None:
    first, second = pool.gather([("pid", 0.0)] * 2)
    os.kill(first, signal.SIGKILL)
    assert _wait_until(lambda: _gone(first))
    fresh, same = pool.gather([("pid", 0.0)] * 2)
    assert same == second
    assert fresh not in (first, second)


def test_gather_raises_what_the_work_raised(pool: Pool) -> None:
    with pytest.raises(InputError, match="no such number"):
        pool.gather([("square", 1), ("raise", "no such number"), ("pid", 0.3), ("pid", 0.3)])
    assert pool.gather([("square", 5)]) == [25]


def test_a_stream_that_is_left_early_leaves_a_pool_that_works(pool: Pool) -> None:
    for one in pool.stream((("pid", 0.01) for _ in range(1000)), ahead=1):
        if one.index > 3:
            break
    assert pool.gather([("square", i) for i in range(4)]) == [0, 1, 4, 9]


def test_a_pool_does_one_thing_at_a_time(pool: Pool) -> None:
    stream = pool.stream([("square", 1), ("square", 2)])
    next(stream)
    with pytest.raises(RuntimeError, match="one stream or gather at a time"):
        pool.gather([("square", 1)])
    assert len(list(stream)) == 1


def test_what_set_up_raises_is_raised_when_the_pool_is_opened(name: str) -> None:
    with pytest.raises(InputError, match="nothing can be set up here"):
        choose(name, 2).open(tasks.refusing)


def test_workers_that_die_in_set_up_are_reported(name: str) -> None:
    with pytest.raises(WorkerLostError, match="did not start"):
        choose(name, 1).open(tasks.dying)


def test_set_up_that_can_not_be_sent_is_refused(name: str) -> None:
    lock = threading.Lock()
    with pytest.raises(InputError, match="use top-level functions of a module"):
        choose(name, 1).open(partial(tasks.made, lock))  # type: ignore[arg-type]


def test_workers_have_one_thread_and_leave_interrupts_to_the_driver(pool: Pool) -> None:
    threads, said = pool.gather([("threads",), ("sigint",)])
    assert set(threads.values()) == {"1"}
    assert said == "still here"


def test_bytes_go_both_ways_as_they_are(pool: Pool) -> None:
    data = bytes(range(256)) * 40_000
    assert pool.gather([("echo", data)] * 3) == [data] * 3


def test_what_the_work_prints_is_not_taken_for_an_answer(capfd: pytest.CaptureFixture[str]) -> None:
    with choose("local", 1).open(tasks.made) as opened:
        assert opened.gather([("print",), ("square", 3)]) == ["said", 9]
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("busy", [False, True])
def test_closing_leaves_no_process_behind(name: str, busy: bool) -> None:
    with choose(name, 2).open(tasks.made) as opened:
        pids = opened.gather([("pid", 0.0)] * 2)
        if busy:
            stream = opened.stream([("pid", 0.0), ("pid", 600.0)])
            next(stream)
    assert _wait_until(lambda: all(map(_gone, pids)))


_ORPHANS = """
import sys
from support import tasks
from quad4fhe.workers import choose
pool = choose("local", 2).open(tasks.made)
print(*pool.gather([("pid", 0.0)] * 2), flush=True)
pool.gather([("pid", 600.0)] * 2)
"""


class _Late:
    """A queue that delivers everything one second late."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def get(self) -> Any:
        got = self._source.get()
        time.sleep(1)
        return got

    def put(self, message: Any) -> None:
        self._source.put(message)


@pytest.mark.parametrize("late", [False, True])
def test_a_thread_that_waits_for_a_pool_gets_an_error_when_another_closes_it(name: str, late: bool) -> None:
    found: list[BaseException] = []

    def wait() -> None:
        try:
            opened.gather([("pid", 60.0)] * 3)
        except BaseException as error:  # the test checks which one it is
            found.append(error)

    opened: Any = choose(name, 2).open(tasks.made)
    if late and name == "local":  # the worker's end is noticed after everything is closed
        opened._messages = _Late(opened._messages)
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    time.sleep(0.5)
    opened.close()
    thread.join(30)
    assert not thread.is_alive(), "it waits for ever"
    assert [type(error) for error in found] == [WorkerLostError]


def test_a_pool_that_was_closed_takes_nothing_more(name: str) -> None:
    opened = choose(name, 2).open(tasks.made)
    opened.close()
    with pytest.raises(WorkerLostError, match="closed"):
        opened.gather([("square", 1)])
    with pytest.raises(WorkerLostError, match="closed"):
        list(opened.stream([("square", 1)]))


def test_local_workers_end_when_the_driver_is_killed_and_a_script_needs_no_guard() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    driver = subprocess.Popen([sys.executable, "-c", _ORPHANS], stdout=subprocess.PIPE, env=environment)
    assert driver.stdout is not None
    pids = [int(word) for word in driver.stdout.readline().split()]
    assert len(pids) == 2
    driver.kill()
    driver.wait()
    driver.stdout.close()
    assert _wait_until(lambda: all(map(_gone, pids)))


def test_a_function_is_applied_to_each_task(name: str) -> None:
    done = {one.task: one for one in each(choose(name, 2), tasks.half, iter([4, 5, 6]))}
    assert (done[4].result, done[6].result) == (2, 3)
    assert str(done[5].error) == "5 is odd"


def test_a_worker_that_says_too_much_is_lost_and_one_that_died_idle_is_known_by_it() -> None:
    outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    with choose("local", 1).launch() as launcher:
        for task, kill, idle in ((("echo", bytes(5000)), False, False), (("square", 1), True, True)):
            worker = launcher.start(pickled(tasks.made), outcomes.put, longest=1000)
            assert isinstance(outcomes.get(timeout=300), Answered)
            if kill:
                worker.kill()
            worker.send(task)
            lost = outcomes.get(timeout=300)
            assert isinstance(lost, Lost)
            assert lost.idle is idle
            worker.kill()
            worker.join()
    assert outcomes.empty()


def test_workers_are_chosen_by_name_or_passed_through() -> None:
    local = choose("local", 3)
    assert isinstance(local, Workers)
    assert (local.name, local.workers) == ("local", 3)
    assert choose(local) is local
    assert choose("local").workers >= 1
    with pytest.raises(InputError, match="the pool is 'spark', wanted 'local' or 'ray'"):
        choose("spark")
    with pytest.raises(InputError, match="at least 1"):
        choose("local", 0)
    with pytest.raises(InputError, match="leave out workers"):
        choose(local, 2)
    with pytest.raises(InputError, match="the pool is of type int, wanted a name such as 'local' or a Workers"):
        choose(5)  # type: ignore[arg-type]


def test_a_new_kind_of_worker_is_one_class_and_one_line() -> None:
    with KINDS.added("inline", InlineWorkers):
        assert "inline" in KINDS.names()
        made = choose("inline", 3)
        with made.open(tasks.made) as opened:
            assert opened.gather([("square", i) for i in range(5)]) == [0, 1, 4, 9, 16]
            assert sorted(one.result for one in opened.stream([("square", 2), ("square", 3)])) == [4, 9]


def test_more_workers_than_ray_has_is_one_line(ray_session: None) -> None:
    with pytest.raises(InputError, match="5 workers wanted, but this Ray has 4 CPUs"):
        choose("ray", 5).open(tasks.made)


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "quad4fhe.workers.ray", raising=False)
    monkeypatch.delitem(KINDS._loaded, "ray", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'quad4fhe\[ray\]'"):
        choose("ray", 1)
