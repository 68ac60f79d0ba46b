"""`quad4fhe reproduce`: killed and continued, damaged and mended, and its results the same bytes every time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from quad4fhe import fit, plan
from quad4fhe.cli import main
from quad4fhe.he.predict import predict_encrypted
from quad4fhe_reproduce import runner
from quad4fhe_reproduce.ciphertexts import REPLIES
from quad4fhe_reproduce.prepare import prepare
from quad4fhe_reproduce.records import PoolResult, Record, Task
from quad4fhe_reproduce.results import results, write_results
from quad4fhe_reproduce.schedule import ALL_SETS, TABLES, tasks
from quad4fhe_reproduce.store import Store, read_record
from quad4fhe_reproduce.train import train
from support.inline import InlineWorkers

HERE = Path(__file__).parents[2]
COMMITTED = HERE / "results"
PROGRAM = [
    sys.executable,
    "-c",
    "from quad4fhe.cli import entry_point; entry_point()",
    "reproduce",
    "--quick",
    "--json",
]


@dataclass(frozen=True)
class Trial:
    """A quick reproduction that was killed in the middle and given again."""

    out: Path
    data: Path
    before: dict[str, tuple[int, bytes]]
    answer: dict[str, object]

    def record(self, name: str, kind: str) -> Record:
        found = [r for r in Store(self.out).records() if (r.task.name, r.task.kind) == (name, kind)]
        assert len(found) == 1
        return found[0]


def _finished(out: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in out.glob("runs/*.json")}


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """Of the set that comes with scikit-learn alone: the other small one takes longer than all of its runs."""
    pytest.importorskip("torch", reason="training needs torch: pip install 'quad4fhe[torch]'")
    pytest.importorskip("matplotlib", reason="pictures need matplotlib: pip install 'quad4fhe[report]'")
    out = tmp_path_factory.mktemp("reproduced")
    data = tmp_path_factory.mktemp("data")
    command = [*PROGRAM, "--out", str(out), "--data", str(data), "--download", "--skip-missing"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    first = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 600
    while not _finished(out) and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    workers = _descendants(first.pid)
    first.send_signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL, "the first command ended before it could be killed"
    _wait_until_gone(workers)
    before = _finished(out)
    second = subprocess.run(
        [*command, "--workers=1"], env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert second.returncode == 0, second.stderr
    return Trial(out, data, before, json.loads(second.stdout))


def _processes() -> dict[int, tuple[int, str]]:
    """The parent and the state of every process."""
    held = subprocess.run(["ps", "-eo", "pid=,ppid=,stat="], capture_output=True, text=True, check=True).stdout
    lines = (line.split() for line in held.splitlines())
    return {int(pid): (int(parent), state) for pid, parent, state in lines}


def _descendants(pid: int) -> set[int]:
    every, found = _processes(), {pid}
    while more := {child for child, (parent, _) in every.items() if parent in found} - found:
        found |= more
    return found - {pid}


def _wait_until_gone(pids: set[int]) -> None:
    """Workers see within a second that their parent is gone, on a busy machine later."""
    deadline = time.monotonic() + 120
    while any(pid in pids and state[0] != "Z" for pid, (_, state) in _processes().items()):
        assert time.monotonic() < deadline, "a worker outlived the command"
        time.sleep(0.1)


def test_a_killed_command_goes_on_where_it_stopped(trial: Trial) -> None:
    after = _finished(trial.out)
    assert 1 <= len(trial.before) < len(after)
    assert {name: after[name] for name in trial.before} == trial.before  # neither lost nor done twice
    assert trial.answer["found"] == len(trial.before)
    assert trial.answer["done"] == len(after) - len(trial.before)
    assert trial.answer["failed"] == []


def test_no_half_written_file_is_left_behind(trial: Trial) -> None:
    assert all(read_record(path) is not None for path in (trial.out / "runs").iterdir())


def test_the_regime_of_the_small_set_is_the_papers(trial: Trial) -> None:
    fits = {fit.name: fit for fit in trial.record("breast_cancer", "plain").fits}
    assert fits["paper"].regime == "hard"
    assert fits["paper"].lossless
    assert fits["paper"].measured.mismatches_cal == 0


def test_encrypted_decisions_of_the_small_set_are_those_in_the_clear(trial: Trial) -> None:
    rows = trial.record("breast_cancer", "families").encrypted
    assert {(row.layout, row.precision) for row in rows} == {
        (layout, precision) for layout in ("batch", "lift") for precision in ("fast", "strict")
    }
    task = trial.record("breast_cancer", "families").task
    parts = prepare(task.recipe, trial.data, task.seed, pool=False)
    mlp, _ = train(parts, task.recipe.training, task.width, task.seed)
    families = {"paper": "shared", "unitwise": "unitwise", "head": "head"}
    assert {row.fit for row in rows} <= set(families)
    made = {name: fit(mlp, parts.X_cal, family=families[name], seed=task.seed) for name in {row.fit for row in rows}}
    for row in rows:
        chosen = plan(
            made[row.fit],
            samples=row.samples,
            layout=row.layout,
            precision=row.precision,
            replies=REPLIES[row.layout],
            X=parts.X_cal,
        )
        X = np.clip(parts.X_test[: row.tried], *made[row.fit].box)
        within = int((np.abs(made[row.fit].model.logits(X)) <= chosen.error.bound).sum())
        # Only what lies nearer to the threshold than the bound of the plan may change; the calibration set may not.
        assert row.changed <= within <= 2
        if (row.layout, row.precision) == ("batch", "strict"):
            bill = predict_encrypted(made[row.fit], chosen, parts.X_cal).bill
            assert bill is not None
            assert bill.changed == 0


def test_the_document_is_made_of_the_runs_alone(trial: Trial) -> None:
    path = trial.out / "RESULTS.md"
    pictures = {file.name: file.read_bytes() for file in (trial.out / "figures").iterdir()}
    first = path.read_bytes()
    path.unlink()
    assert write_results(trial.out) == path
    assert path.read_bytes() == first
    assert {file.name: file.read_bytes() for file in (trial.out / "figures").iterdir()} == pictures
    assert set(pictures) == {"planes.svg", "pools.svg", "cost.svg", "sweep.svg"}


def test_a_damaged_run_is_done_again(trial: Trial, capsys: pytest.CaptureFixture[str]) -> None:
    record = trial.record("breast_cancer", "pool")
    path = Store(trial.out).path(record.task, record.key)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    code = main(
        ["reproduce", "smallpool", "--quick", "--json", "--workers=1", f"--out={trial.out}", f"--data={trial.data}"]
    )
    assert code == 0
    assert json.loads(capsys.readouterr().out)["done"] == 1
    again = read_record(path)
    assert again is not None
    assert [_figures(pool) for pool in again.pools] == [_figures(pool) for pool in record.pools]


def _figures(pool: PoolResult) -> object:
    """Everything but the time it took."""
    return pool.rows, [(fit.name, fit.regime, fit.alpha, fit.measured) for fit in pool.fits], pool.baselines


def test_two_commands_do_not_share_a_folder(trial: Trial, capsys: pytest.CaptureFixture[str]) -> None:
    with Store(trial.out).alone():
        code = main(["reproduce", "--quick", "--skip-missing", "--out", str(trial.out), "--data", str(trial.data)])
    assert code == 2
    assert "another run is writing to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nosuch"], "no table is called 'nosuch'; wanted one of mlp, binary"),
        (["--quick", "--data", "nowhere"], "nowhere/breast_cancer.npz is missing (SHA-256 766ff4dd"),
        (["--quick", "--skip-missing", "--data", "nowhere"], "nowhere holds none of the data sets"),
        (["--render"], "holds no finished run; run quad4fhe reproduce first"),
        (["--workers", "0"], "Invalid value for '--workers'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib: pip install 'quad4fhe[report]'")
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *arguments]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert said in lines[0]


def test_a_run_is_named_by_everything_that_goes_into_it() -> None:
    base = Task(kind="plain", name="otto", width=256, seed=2026)
    others = [
        Task(kind="seed", name="otto", width=256, seed=2026),
        Task(kind="plain", name="shuttle", width=256, seed=2026),
        Task(kind="plain", name="otto", width=64, seed=2026),
        Task(kind="plain", name="otto", width=256, seed=2027),
    ]
    keys = {base.key("a"), base.key("b"), *(other.key("a") for other in others)}
    assert len(keys) == 6
    assert base.key("a") == Task(kind="plain", name="otto", width=256, seed=2026).key("a")


def test_all_tables_together_are_every_run_once_and_the_most_important_come_first() -> None:
    every = tasks()
    assert len(set(every)) == len(every)
    assert {task.name for task in every[: len(ALL_SETS)]} == set(ALL_SETS)
    assert all((task.kind, task.width, task.seed) == ("plain", 256, 2026) for task in every[: len(ALL_SETS)])
    assert set(every) == {task for name in TABLES for task in tasks([name])}
    assert all(tasks([name]) for name in TABLES)


def test_a_run_whose_worker_dies_is_named_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "pending", lambda wanted, data, store: list(wanted))
    monkeypatch.setattr(runner, "require_packages", lambda: None)
    monkeypatch.setattr(runner, "run_one", _nothing)
    wanted = tasks(["mlp"])[:4]
    done = runner.reproduce(wanted, tmp_path, tmp_path / "out", pool=InlineWorkers(2, deadly=tuple(wanted[::2])))
    assert (done.done, len(done.failed)) == (2, 2)
    assert done.failed[0] == f"{wanted[0].label}: its worker ended in each of 3 attempts: it was killed"


def _nothing(task: Task, data: Path, out: Path) -> str:
    return ""


def test_a_failed_run_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from quad4fhe_reproduce.data.fetch import fetch
    from quad4fhe_reproduce.data.sets import data_set

    def run(task: Task, data: Path, store: Store) -> None:
        if task.kind == "pool":
            raise ZeroDivisionError("division\nby zero")

    fetch(data_set("breast_cancer"), tmp_path)
    monkeypatch.setattr(runner, "run", run)
    monkeypatch.setattr(runner, "require_packages", lambda: None)
    wanted = [Task(kind=kind, name="breast_cancer", width=64, seed=1) for kind in ("plain", "pool", "families")]
    done = runner.reproduce(wanted, tmp_path, tmp_path / "out", workers=1)
    assert (done.found, done.done) == (0, 2)
    assert done.failed == ("breast_cancer pool, width 64, seed 1: ZeroDivisionError: division by zero",)
    kept = (tmp_path / "out" / "failed" / "breast_cancer-pool-64-1.txt").read_text()
    assert "Traceback" in kept


committed = pytest.mark.skipif(not (COMMITTED / "RESULTS.md").exists(), reason="no committed results")


@committed
def test_the_committed_document_is_that_of_the_committed_runs() -> None:
    assert results(Store(COMMITTED).records()) == (COMMITTED / "RESULTS.md").read_text(encoding="utf-8")


@committed
def test_the_committed_runs_have_the_papers_regimes_at_full_train() -> None:
    records = [record for record in Store(COMMITTED).records() if record.task.kind == "plain"]
    assert {record.task.name for record in records if record.task.width == 256} == set(ALL_SETS)
    for record in records:
        paper = next(fit for fit in record.fits if fit.name == "paper")
        kind = {"breast_cancer": "hard", "diabetes": "rch"}.get(record.task.name, "soft")
        assert paper.regime.split("(")[0] == kind, record.task
