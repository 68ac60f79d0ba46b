"""Calibration by shards: the same fit to the last bit wherever it is made, within the memory that was stated."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from quad4fhe import MLP, CertificateError, Fit, InputError, Rows, fit, verify
from quad4fhe.cli import main
from quad4fhe.fitting import cascade, learning
from quad4fhe.io.rows import ArrayRows, FileRows, as_rows
from quad4fhe.io.samples import rows_of
from quad4fhe.workers import choose
from quad4fhe.workers.scratch import Staged
from quad4fhe.workers.shards import Shards
from support import footprint
from support.made_rows import Cubes

SIZE = 200  # rows of a shard here, so that small data has many
ROWS = 900


def problem(classes: int, n: int = ROWS, d: int = 4, clear: float = 0.0) -> tuple[MLP, NDArray[np.float32]]:
    """A random classifier, centred so that every class wins somewhere, and samples; `clear` is the least |score|."""
    rng = np.random.default_rng(3)
    m = 8
    W1, b1, W2 = rng.normal(size=(m, d)), rng.normal(size=m), rng.normal(size=(1 if classes == 2 else classes, m))
    X = rng.normal(size=(4 * n, d)).astype(np.float32)
    mlp = MLP(W1, b1, W2, -np.median(np.maximum(X @ W1.T + b1, 0) @ W2.T, axis=0))
    return mlp, X[np.abs(mlp.logits(X)).max(axis=1) >= clear][:n]


def lossless(n: int = ROWS) -> tuple[MLP, NDArray[np.float32]]:
    """Units that are never negative: a line replaces their ReLU exactly."""
    rng = np.random.default_rng(5)
    X = rng.uniform(0.5, 1.5, size=(n, 4)).astype(np.float32)
    W1, W2 = rng.uniform(size=(8, 4)), rng.normal(size=(3, 8))
    return MLP(W1, np.zeros(8), W2, -np.median(X @ W1.T @ W2.T, axis=0)), X


PROBLEMS: dict[str, tuple[Callable[[], tuple[MLP, NDArray[np.float32]]], dict[str, Any], str]] = {
    "plane": (lambda: problem(2, clear=0.5), {"regime": "soft"}, "soft"),
    "reduced": (lambda: problem(2, clear=0.5), {"regime": "rch"}, "rch"),
    "free threshold": (lambda: problem(2, clear=0.5), {"threshold": "free", "regime": "soft"}, "soft"),
    "pairs": (lambda: problem(4), {"family": "shared"}, "soft"),
    "lossless": (lossless, {}, "hard"),
}


def everything(found: Fit) -> tuple[Any, ...]:
    """All that a fit says, but for the seconds it took."""
    document = found.to_dict()
    del document["diagnostics"]["seconds"]
    document.pop("feature_names", None)  # a table has them, an array does not
    arrays = (found.S, found.T, found.c, found.box, found.margins)
    return (document, *(array.tobytes() for array in arrays))


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cascade, "shard_rows", lambda classes, degree=2: SIZE)


@pytest.fixture(params=["local", "ray"])
def pool_name(request: pytest.FixtureRequest) -> str:
    if request.param == "ray":
        request.getfixturevalue("ray_session")
    name: str = request.param
    return name


@pytest.fixture
def expected(small_shards: None) -> dict[str, Fit]:
    """Every problem's fit in this process."""
    found = {}
    for name, (make, options, regime) in PROBLEMS.items():
        mlp, X = make()
        found[name] = fit(mlp, X, **options)
        assert found[name].regime.kind == regime
    return found


@pytest.mark.parametrize(
    ("pool_name", "workers"), [("local", 1), ("local", 2), ("local", 4), ("ray", 2)], indirect=["pool_name"]
)
def test_every_regime_is_the_same_to_the_last_bit_in_any_pool_with_any_number_of_workers(
    expected: dict[str, Fit], pool_name: str, workers: int
) -> None:
    for name in PROBLEMS if pool_name == "local" and workers == 2 else ("reduced", "pairs"):
        make, options, _ = PROBLEMS[name]
        mlp, X = make()
        assert everything(fit(mlp, X, **options, pool=pool_name, workers=workers)) == everything(expected[name])


def test_shards_of_the_real_size_give_the_same_fit_and_statistics_may_go_to_a_scratch_file() -> None:
    mlp, X = problem(3, n=70_000)
    expected = fit(mlp, X, polish=False, family="shared")
    assert everything(fit(mlp, X, polish=False, workers=2, family="shared")) == everything(expected)
    assert everything(fit(mlp, X, polish=False, memory="40MB", family="shared")) == everything(expected)


@pytest.mark.usefixtures("small_shards")
def test_rows_are_the_same_rows_wherever_they_come_from(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'quad4fhe[parquet]'")
    import pyarrow.parquet as pq

    mlp, X = problem(3)
    np.save(tmp_path / "whole.npy", X)
    np.save(tmp_path / "columns.npy", np.asfortranarray(X))
    np.save(tmp_path / "first.npy", X[:300])
    np.save(tmp_path / "other.npy", X[300:].astype(np.float64))
    np.savez(tmp_path / "whole.npz", X=X)
    table = pa.table({f"f{k}": X[:, k] for k in range(4)} | {"y": mlp.decide(X)})
    pq.write_table(table, tmp_path / "table.parquet", row_group_size=330)
    with_labels = str(tmp_path / "table.parquet")
    plain, labelled = (everything(fit(mlp, X, y, family="shared")) for y in (None, mlp.decide(X)))
    given: list[Any] = [
        np.load(tmp_path / "whole.npy", mmap_mode="r"),
        np.load(tmp_path / "whole.npy", mmap_mode="r")[:],
        *(tmp_path / name for name in ("whole.npy", "columns.npy", "whole.npz")),
        with_labels,
        [tmp_path / "first.npy", str(tmp_path / "other.npy")],
    ]
    for each in given:
        assert everything(fit(mlp, each, family="shared")) == (labelled if each is with_labels else plain)
    with_workers = {"workers": 3, "memory": "120MB", "family": "shared"}
    for each in given[-2:]:
        assert everything(fit(mlp, each, **with_workers)) == (labelled if each is with_labels else plain)
        verify(fit(mlp, each, family="shared"), mlp, each, workers=2)
    made = Cubes(ROWS)
    assert everything(fit(mlp, made, workers=2, family="shared")) == everything(
        fit(mlp, made.read(0, ROWS), family="shared")
    )


def test_a_fit_on_a_file_four_times_the_budget_stays_inside_it(tmp_path: Path) -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak of a process is read from Linux's /proc")
    budget, n, d = 64_000_000, 125_000, 512
    rng = np.random.default_rng(0)
    W1, b1, W2 = rng.normal(size=(16, d)) / 16, rng.normal(size=16), rng.normal(size=(3, 16))
    few = rng.normal(size=(300, d))
    b2 = -np.median(np.maximum(few @ W1.T + b1, 0) @ W2.T, axis=0)
    np.savez(tmp_path / "mlp.npz", W1=W1, b1=b1, W2=W2, b2=b2, few=few)
    part = rng.normal(size=(5_000, d)).astype(np.float32)
    with (tmp_path / "x.npy").open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (n, d)}
        np.lib.format.write_array_header_1_0(file, header)
        for k in range(n // 5_000):
            np.roll(part, k, axis=1).tofile(file)
    assert (tmp_path / "x.npy").stat().st_size >= 4 * budget
    for options, processes in (({"polish": False}, 1), ({"pool": "local", "workers": 2}, 3)):
        asked = {
            "fit": {"memory": budget, **options},
            "path": str(tmp_path / "x.npy"),
            "mlp": str(tmp_path / "mlp.npz"),
        }
        done = subprocess.run(
            [sys.executable, footprint.__file__, json.dumps(asked)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"},
            capture_output=True,
            check=True,
        )
        told = json.loads(done.stdout)
        assert told["samples"] == n
        assert told["processes"] == processes
        assert told["above"] <= budget


@pytest.mark.usefixtures("small_shards")
def test_a_worker_killed_in_the_middle_costs_time_and_nothing_else() -> None:
    mlp, X = problem(4)
    expected = everything(fit(mlp, X, family="shared"))
    killed: list[int] = []
    others = set(footprint.children())  # a Ray of other tests, say

    def kill_one(what: str, done: int, total: int) -> None:
        if what == "polish" and not killed:
            worker = min(set(footprint.children()) - others)
            os.kill(worker, signal.SIGKILL)
            killed.append(worker)

    assert everything(fit(mlp, X, workers=2, progress=kill_one, family="shared")) == expected
    assert killed


@pytest.mark.usefixtures("small_shards")
def test_nothing_is_left_behind_when_a_fit_ends_or_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mlp, X = problem(3)
    before = set(footprint.children())
    fit(mlp, X, workers=2, family="shared")
    X[634, 2] = np.nan
    with pytest.raises(InputError, match=r"X_cal has 1 NaN .* the first at \[634, 2\]"):
        fit(mlp, X, workers=2, family="shared")
    assert not list(tmp_path.iterdir())
    assert set(footprint.children()) == before


def test_bad_rows_are_named_by_their_place_in_the_whole_set_whoever_finds_them(small_shards: None) -> None:
    mlp, X = problem(3)
    X[850, 0] = X[350, 1] = 3e38
    big = MLP(mlp.W1 * 1e300, mlp.b1, mlp.W2, mlp.b2)
    for options in ({}, {"workers": 3}):
        with pytest.raises(InputError, match="X_cal row"):
            fit(big, X, **options)
    messages = set()
    for options in ({}, {"workers": 2}, {"workers": 3}):
        with pytest.raises(InputError) as caught:
            fit(big, X, **options)
        messages.add(str(caught.value))
    assert len(messages) == 1


def test_the_lowest_bad_row_is_named_however_many_work(small_shards: None) -> None:
    mlp, X = problem(3, n=3_000)  # shards 0 to 14
    X[1_250, 0] = X[1_700, 1] = X[2_999, 0] = np.nan  # of two workers, the second meets its own first
    for options in ({}, {"workers": 2}, {"workers": 4}):
        with pytest.raises(InputError, match=r"the first at \[1250, 0\]"):
            fit(mlp, X, **options)


def test_one_class_over_all_shards_is_refused_and_one_in_some_is_not(small_shards: None) -> None:
    mlp, X = problem(3)
    ordered = X[np.argsort(mlp.decide(X), kind="stable")]  # most shards have one class
    assert everything(fit(mlp, ordered, workers=2, family="shared")) == everything(fit(mlp, ordered, family="shared"))
    with pytest.raises(InputError, match="decides class 1 for all 40 rows"):
        fit(mlp, X[mlp.decide(X) == 1][:40], workers=2, family="shared")


def test_other_families_learn_from_a_sample_of_many_rows_and_are_measured_on_all(
    small_shards: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlp, X = problem(3, n=1_200)
    whole = fit(mlp, X, family="unitwise")
    assert everything(fit(mlp, X, family="unitwise", workers=2)) == everything(whole)
    monkeypatch.setattr(learning, "MOST", 600)
    some = fit(mlp, X, family="unitwise", workers=2)
    assert some.margins.size == 1_200
    assert any("of 1200 rows, and measured on all" in note for note in some.diagnostics.notes)
    verify(some, mlp, X)
    assert everything(fit(mlp, X, family="unitwise", memory="100MB")) == everything(some)
    with pytest.raises(InputError, match=r"families other than shared keep .* use family='shared'"):
        fit(*problem(3, n=600, d=4_000), family="head", memory="36MB")


@pytest.mark.usefixtures("small_shards")
def test_verification_by_shards_finds_what_was_changed() -> None:
    mlp, X = problem(3)
    found = fit(mlp, X, workers=2, family="shared")
    verified = verify(found, mlp, X, pool=choose("local", 2))
    assert verified == verify(found, mlp, X)
    X[700, 1] += 1
    with pytest.raises(CertificateError, match="the calibration data"):
        verify(found, mlp, X, workers=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": "lots"}, "memory is 'lots', wanted a number of bytes"),
        ({"memory": -5}, "memory is -5"),
        ({"memory": "1e999"}, "memory is '1e999', wanted a number of bytes"),
        ({"memory": "1e6"}, r"memory is 1 MB, but 900 rows"),
        ({"memory": "1.5e3 kB"}, r"memory is 1.5 MB, but 900 rows"),
        ({"memory": "1MB"}, r"memory is 1 MB, but 900 rows, 3 classes and 1 worker take at least \d+ MB; allow that"),
        ({"memory": "60MB", "workers": 4}, r"4 workers take at least .* or use fewer workers"),
        ({"pool": "cluster"}, "the pool is 'cluster', wanted 'local' or 'ray'"),
        ({"workers": 0}, "workers is 0"),
        ({"workers": 1.5}, "workers is 1.5, wanted a whole number, at least 1"),
        ({"workers": True}, "workers is True, wanted a whole number"),
        ({"workers": "2"}, "workers is '2', wanted a whole number"),
    ],
)
def test_what_can_not_be_done_is_said_in_one_line(options: dict[str, Any], message: str) -> None:
    mlp, X = problem(3)
    with pytest.raises(InputError, match=message) as caught:
        fit(mlp, X, **options)
    assert "\n" not in str(caught.value)


def test_files_that_can_not_be_used_are_named(tmp_path: Path) -> None:
    mlp, X = problem(3)
    np.save(tmp_path / "narrow.npy", X[:, :3])
    np.save(tmp_path / "words.npy", np.array([["a", "b"]]))
    np.savez(tmp_path / "large.npz", X=np.zeros((30_000, 4)))
    np.save(tmp_path / "short.npy", X)
    with pytest.raises(InputError, match=r"narrow.npy has 3 columns, but the model takes 4"):
        fit(mlp, [tmp_path / "short.npy", tmp_path / "narrow.npy"], family="shared")
    with pytest.raises(InputError, match=r"words.npy: X has dtype <U1"):
        fit(mlp, tmp_path / "words.npy", family="shared")
    with pytest.raises(
        InputError, match=r"large.npz: 0.96 MB that can't be read in parts, with 1.5 MB of memory; save"
    ):
        fit(mlp, tmp_path / "large.npz", memory="1.5MB", family="shared")
    with pytest.raises(InputError, match=r"no such file"):
        fit(mlp, tmp_path / "none.parquet", family="shared")
    whole = (tmp_path / "short.npy").read_bytes()
    mapped = np.load(tmp_path / "short.npy", mmap_mode="r")
    (tmp_path / "short.npy").write_bytes(whole[:-400])
    with pytest.raises(InputError, match=r"short.npy: ends before row 900"):
        fit(mlp, mapped, family="shared")


def test_files_that_are_read_whole_count_together_against_the_memory(tmp_path: Path) -> None:
    wide = MLP(np.zeros((2, 1_000)), np.zeros(2), np.ones((3, 2)), np.zeros(3))
    paths = [tmp_path / f"{k}.npz" for k in range(4)]
    for path in paths:
        np.savez(path, X=np.zeros((900, 1_000)))  # 7.2 MB
    with pytest.raises(InputError, match=r"0.npz and 3 more: 28.8 MB that can't be read in parts, with 50 MB"):
        fit(wide, paths, memory="50MB", family="shared")
    with pytest.raises(InputError, match=r"take at least (\d+) MB") as alone:
        fit(wide, np.zeros((3_600, 1_000)), memory="20MB", family="shared")
    with pytest.raises(InputError, match=r"take at least (\d+) MB") as held:
        fit(wide, paths[:1], memory="20MB", X_test=paths[1:2], family="shared")
    least = [int(str(each.value).split("at least ")[1].split()[0]) for each in (alone, held)]
    assert 13 <= least[1] - least[0] <= 15  # two files of 7.2 MB


@pytest.mark.usefixtures("small_shards")
def test_several_files_read_whole_reach_the_workers_through_one_file(tmp_path: Path) -> None:
    mlp, X = problem(3)
    np.savez(tmp_path / "a.npz", X=X[:250])
    np.save(tmp_path / "b.npy", X[250:500])
    np.savez(tmp_path / "c.npz", X=X[500:].astype(">f8"))
    given = [tmp_path / name for name in ("a.npz", "b.npy", "c.npz")]
    for nameless in (True, False):
        staged = Staged(rows_of("X_cal", given, 4), nameless=nameless)
        assert len(pickle.dumps(staged.rows)) < 3_000  # 900 rows take 14,400 bytes
        assert np.array_equal(staged.rows.read(0, ROWS), X)
        staged.close()
        with pytest.raises(InputError, match="cannot be read"):
            staged.rows.read(0, ROWS)
    assert everything(fit(mlp, given, workers=2, family="shared")) == everything(fit(mlp, X, family="shared"))


@pytest.mark.skipif(sys.platform != "linux", reason="a file without a name can be shared on Linux only")
@pytest.mark.usefixtures("small_shards")
def test_the_copy_for_local_workers_has_no_name_so_that_a_killed_driver_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mlp, X = problem(3)
    seen: list[Path] = []
    told: list[str] = []

    def look(what: str, done: int, total: int) -> None:
        told.append(what)
        seen.extend(tmp_path.iterdir())

    fit(mlp, X, workers=2, progress=look, family="shared")
    assert told
    assert not seen


def test_the_copy_for_workers_is_removed_even_if_they_can_not_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    class Stuck:
        workers, on_this_machine = 1, False

        def open(self, make: Any) -> Any:
            return self

        def close(self) -> None:
            raise OSError("stuck")

    with pytest.raises(OSError, match="stuck"), Shards(ArrayRows(np.ones((5, 2))), 2, pool=cast("Any", Stuck())):
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with pytest.raises(InputError, match="set TMPDIR to a folder with room"):
        Staged(ArrayRows(np.ones((5, 2))), nameless=True)


def test_a_file_that_changes_during_a_fit_or_a_check_is_noticed(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'quad4fhe[parquet]'")
    import pyarrow.parquet as pq

    mlp, X = problem(3)
    table = pa.table({f"f{k}": X[:, k] for k in range(4)})
    writers: dict[str, Callable[[Path], None]] = {
        "rows.npy": lambda path: np.save(path, X),
        "columns.npy": lambda path: np.save(path, np.asfortranarray(X)),
        "table.parquet": lambda path: pq.write_table(table, path),
    }
    found = fit(mlp, X, family="shared")
    for name, write in writers.items():
        path = tmp_path / name
        write(path)

        def replace(what: str, done: int, total: int, path: Path = path) -> None:
            (tmp_path / "new").write_bytes(path.read_bytes())
            (tmp_path / "new").replace(path)

        def cut(what: str, done: int, total: int, path: Path = path) -> None:
            os.truncate(path, 200)

        message = f"{name}: changed while it was being read; run again without changing it"
        for change in (replace, cut):
            for work in (fit, verify):
                write(path)
                args = (mlp, [path]) if work is fit else (found, mlp, [path])
                with pytest.raises(InputError, match=message):
                    work(*args, progress=change)
        write(path)
        with pytest.raises(InputError, match=message):
            fit(mlp, X, X_test=path, progress=replace, family="shared")


def test_a_file_written_by_columns_that_is_cut_or_gone_is_named(tmp_path: Path) -> None:
    path = tmp_path / "columns.npy"
    X = problem(3)[1]
    np.save(path, np.asfortranarray(X))
    rows = rows_of("X_cal", path, 4)
    assert np.array_equal(rows.read(300, 500), X[300:500])
    os.truncate(path, path.stat().st_size - 4)
    with pytest.raises(InputError, match=r"columns.npy: ends before row 900"):
        rows.read(800, 900)
    path.unlink()
    with pytest.raises(InputError, match=r"columns.npy: cannot be read \(No such file"):
        rows.read(0, 1)


def test_a_map_is_read_from_its_file_unless_it_is_copy_on_write(tmp_path: Path) -> None:
    mlp, X = problem(3)
    np.save(tmp_path / "x.npy", X)
    for mode in ("r", "r+"):
        assert isinstance(as_rows("X", np.load(tmp_path / "x.npy", mmap_mode=mode), 4), FileRows)
    own = np.load(tmp_path / "x.npy", mmap_mode="c")
    own[:] = X[::-1]
    assert np.array_equal(as_rows("X", own, 4).read(0, ROWS), X[::-1])
    written = np.load(tmp_path / "x.npy", mmap_mode="r+")
    written[:] = X[::-1]
    assert everything(fit(mlp, written, workers=2, family="shared")) == everything(fit(mlp, X[::-1], family="shared"))


class NoRead(Rows):
    shape = (40, 4)


class Given(Rows):
    def __init__(self, value: Any) -> None:
        self.shape, self._value = (40, 4), value

    def read(self, start: int, stop: int) -> Any:
        return self._value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.ones((39, 4)), r"the result of Given.read\(0, 40\) has shape \(39, 4\), wanted \(40, 4\)"),
        (np.ones((40, 3)), r"the result of Given.read\(0, 40\) has 3 columns"),
        (np.ones(160), r"\) has shape \(160,\)"),
        (np.full((40, 4), "1"), r"\) has dtype <U1, wanted real numbers"),
        (np.ones((40, 4), dtype=complex), r"\) has dtype complex128, wanted real numbers"),
        (None, r"\) has dtype object, wanted real numbers"),
    ],
)
def test_what_a_source_of_ones_own_gives_is_checked(value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fit(problem(3)[0], Given(value), family="shared")


def test_a_source_that_workers_can_not_have_is_refused() -> None:
    mlp, X = problem(3)
    source = Cubes(100)
    source.read = lambda start, stop: X[start:stop]  # type: ignore[method-assign]
    with pytest.raises(InputError, match="can't be pickled"):
        fit(mlp, source, workers=2, family="shared")
    with pytest.raises(NotImplementedError, match="has no method read"):
        fit(mlp, NoRead(), family="shared")


def test_the_command_line_fits_and_verifies_with_workers_and_a_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mlp, X = problem(3)
    np.savez(tmp_path / "model.npz", W1=mlp.W1, b1=mlp.b1, W2=mlp.W2, b2=mlp.b2)
    np.save(tmp_path / "calib.npy", X)
    model, calib, out = (str(tmp_path / name) for name in ("model.npz", "calib.npy", "fit.safetensors"))
    spread = ["--pool", "local", "--workers", "2"]
    assert main(["fit", model, calib, "-o", out, *spread, "--memory", "120MB", "--family", "shared", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["diagnostics"]["samples"] == ROWS
    assert everything(Fit.load(out)) == everything(fit(mlp, X, family="shared"))
    assert main(["verify", out, calib, *spread, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == ROWS
    assert main(["fit", model, calib, "-o", out, "--memory", "2MB"]) == 2
    assert "take at least" in capsys.readouterr().err
