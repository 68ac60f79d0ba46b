"""Drift: false alarms are as rare as stated, real shifts are found, summaries are not forged, clients are warned."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy.stats import kstest

from quad4fhe import CertificateError, Client, Fit, InputError, describe, fit, plan, verify
from quad4fhe.cli import main
from quad4fhe.he import keys
from quad4fhe.he.predict import predict_encrypted
from quad4fhe.planning.costs import REFERENCE
from quad4fhe.planning.plan import Plan
from quad4fhe.proof.drift import FALSE_ALARMS, WINDOW, Reference, Stream, Watch, edges_of, lies_inside, reference
from support.cases import PAIRS, PAIRS_X
from support.forging import changed, opened, sealed
from support.serving import RunningServer

pytestmark = pytest.mark.usefixtures("fixed_ties")

HELD = np.random.default_rng(12).normal(size=(2000, 3))
DATA = Path(os.environ.get("QUAD4FHE_DATA", Path(__file__).parents[3] / "shared" / "data"))


@cache
def made() -> Fit:
    return fit(PAIRS.mlp, PAIRS_X, holdout=HELD, fresh=True, reliable=0.9, family="shared")


def summary(found: Fit) -> Reference:
    assert found.guarantee is not None
    assert found.guarantee.reference is not None
    return found.guarantee.reference


def test_the_summary_counts_hold_out_rows_in_the_box() -> None:
    found, said = made(), summary(made())
    inside = HELD[((found.box[0] <= HELD) & (found.box[1] >= HELD)).all(axis=1)]
    ordered = np.sort(found.model.logits(inside), axis=1)
    gaps = ordered[:, -1] - ordered[:, -2]
    assert said.outside == len(HELD) - len(inside) > 0
    assert said.classes == np.bincount(found.predict(inside), minlength=4).tolist()
    cuts = [*np.sort(found.margins)[[len(PAIRS_X) * step // 32 for step in range(1, 32)]], np.inf]
    assert np.allclose(np.cumsum(said.margins), [np.sum(gaps < cut) for cut in cuts], atol=1)  # cuts are rounded up
    assert said.edges == sorted(said.edges)


def test_p_values_of_exchangeable_rows_are_uniform_and_independent() -> None:
    """Those of Stream, found by way of its cells, and those of their definition, row by row."""
    rng = np.random.default_rng(3)
    known = np.array([4, 0, 9, 2])
    rows = rng.choice(4, size=1500, p=[0.3, 0.05, 0.5, 0.15])
    draws = rng.random(len(rows))
    stream = Stream.empty(4)
    parts = [
        stream.observe(known, rows[at : at + 500], draws[at : at + 500], np.ones(500, dtype=bool))
        for at in range(0, 1500, 500)
    ]
    bag, found = np.repeat(np.arange(4), known).tolist(), []
    logs, cells = np.zeros(4), np.zeros(16)
    best = -np.inf
    for row, draw in zip(rows, draws, strict=True):
        bag.append(row)
        ranked = np.array(bag)
        p = (np.sum(ranked < row) + draw * np.sum(ranked == row)) / len(bag)
        for at, k in enumerate((2, 4, 8, 16)):
            same = cells.reshape(k, -1).sum(axis=1)[int(p * k)]
            logs[at] += np.log(k * (same + 1) / (cells.sum() + k))
        cells[int(p * 16)] += 1
        best = max(best, np.log(np.mean(np.exp(logs))))
        found.append(p)
    assert stream.cells == cells.astype(int).tolist()
    assert max(parts) == pytest.approx(best)
    assert stream.capital == pytest.approx(logs.tolist())
    uniform = []  # p-values of the sixth row after five known ones, in fresh draws
    for _ in range(4000):
        bag = rng.choice(4, size=6, p=[0.3, 0.05, 0.5, 0.15])
        uniform.append((np.sum(bag < bag[-1]) + rng.random() * np.sum(bag == bag[-1])) / 6)
    assert kstest(uniform, "uniform").pvalue > 0.001


def test_false_alarms_are_as_rare_as_stated_over_long_streams() -> None:
    """1,000 watches of 4,500 queries each, looked at after every one, with hold-outs of their own and past windows."""
    rng, watches, alarms = np.random.default_rng(1), 1000, 0
    box = np.array([[-2.0], [2.0]])
    edges = np.quantile(rng.exponential(size=5000), np.arange(1, 32) / 32).tolist()
    for _ in range(watches):
        X = rng.normal(size=(400 + 4500, 1))
        logits = np.column_stack([X[:, 0] ** 2, X[:, 0], np.full(len(X), 0.3)])
        inside = lies_inside(X[:400], box)
        ordered = np.sort(logits[:400], axis=1)
        counted = np.searchsorted(edges, (ordered[:, -1] - ordered[:, -2])[inside], side="right")
        known = Reference(
            edges=edges,
            margins=np.bincount(counted, minlength=32).tolist(),
            classes=np.bincount(np.argmax(logits[:400], axis=1)[inside], minlength=3).tolist(),
            outside=int(np.sum(~inside)),
        )
        watch = Watch(known, box, rng=rng)
        for start in range(400, len(X), 1500):
            watch.observe(logits[start : start + 1500], X[start : start + 1500], refused=False)
        assert watch.drift.queries == 4500
        alarms += watch.drift.alarm is not None
    assert [stream.window for stream in watch.state.streams] == [3, 3, 3]
    assert alarms / watches <= FALSE_ALARMS + 3 * (FALSE_ALARMS * (1 - FALSE_ALARMS) / watches) ** 0.5


@pytest.mark.parametrize("values", [[0.5, 1.0, 1.5, 2.5], [0.0, 0.7, 3.0], [1.25]])
def test_noise_on_margins_that_many_rows_share_is_no_drift(values: list[float]) -> None:
    """With a few distinct rows, quantiles are margins themselves, and noise would put queries on both sides."""
    rng, alarms = np.random.default_rng(3), 0
    for _ in range(60):
        calibration, held, asked = (rng.choice(values, size=size) for size in (2000, 1000, 1500))
        known = reference(calibration, held, np.zeros(1000, dtype=np.int64), np.ones(1000, dtype=np.bool_), 2)
        watch = Watch(known, np.zeros((2, 1)), rng=rng)
        watch.observe(-(asked + 1e-4 * rng.random(1500))[:, None])
        alarms += watch.drift.alarm is not None
        watch.observe(np.full((500, 1), -2 * max(values)))
        assert watch.drift.alarm is not None  # real drift is found still
    assert alarms <= 3


def test_edges_are_quantiles_where_no_margin_is_shared() -> None:
    margins = np.random.default_rng(0).exponential(size=4000)
    wanted = np.sort(margins)[[4000 * step // 32 for step in range(1, 32)]]
    np.testing.assert_allclose(edges_of(margins), wanted, rtol=2.0**-19)
    assert edges_of(np.array([1.0])) == [1.0] * 31


def queries_until_alarm(found: Fit, X: Any, *, refused: bool) -> float:
    watch = Watch(summary(found), found.box, rng=np.random.default_rng(0))
    for at in range(0, len(X), 10):
        seen = np.clip(X[at : at + 10], *found.box)
        watch.observe(found.model.logits(seen), X[at : at + 10], refused=refused)
        if watch.drift.alarm is not None:
            return at + 10
    return np.inf


@cache
def real(name: str) -> tuple[Fit, Any, Any]:
    """A fit with a hold-out of 1,000 rows (digits: 400), other unseen rows, and their classes."""
    if not DATA.is_dir():
        pytest.skip("the data sets are not here")
    if name == "otto":
        from quad4fhe import MLP

        with np.load(DATA / "models" / "otto.npz") as z:
            mlp, X_cal, X = MLP(z["W1"], z["b1"], z["W2"], z["b2"]), z["X_cal"][:4000], z["X_test"].astype(float)
        held = 1000
    else:
        network = pytest.importorskip("sklearn.neural_network")
        from quad4fhe import MLP

        with np.load(DATA / "digits.npz") as z:
            Z, y = z["X"] / 16.0, z["y"]
        order = np.random.default_rng(0).permutation(len(Z))
        Z, y = Z[order], y[order]
        mlp = MLP.from_sklearn(network.MLPClassifier((32,), max_iter=3000, random_state=0).fit(Z[:600], y[:600]))
        X_cal, X, held = Z[:600], Z[600:], 400
    found = fit(mlp, X_cal, holdout=X[:held], fresh=True, family="shared")
    return found, X[held:], found.predict(X[held:])


@pytest.mark.parametrize("name", ["otto", "digits"])
def test_unseen_rows_of_the_same_source_raise_no_alarm(name: str) -> None:
    found, X, _ = real(name)
    assert queries_until_alarm(found, X, refused=False) == np.inf
    order = np.argsort(found.predict(X))
    assert found.drift(X[order]).alarm is None  # sorted by class: the order within a call says nothing


@pytest.mark.parametrize(
    ("name", "kind", "most"),
    [
        ("otto", "scaled", 50),
        ("otto", "noised", 50),
        ("otto", "other mix", 50),
        ("otto", "scaled, refused", 300),
        ("digits", "scaled", 50),
        ("digits", "noised", 50),
        ("digits", "other mix", 50),
    ],
)
def test_shifted_inputs_are_found_within_so_many_queries(name: str, kind: str, most: int) -> None:
    found, X, label = real(name)
    rng = np.random.default_rng(5)
    shifted = {
        "scaled": lambda: X * 1.5,
        "noised": lambda: X + X.std(axis=0) * rng.normal(size=X.shape),
        "other mix": lambda: X[label < found.mlp.classes // 2],
        "scaled, refused": lambda: X * 0.5,  # stays in the box, so only margins and decisions tell
    }[kind]()
    assert queries_until_alarm(found, shifted[:600], refused="refused" in kind) <= most


def test_a_forged_summary_never_passes() -> None:
    manifest, tensors = opened(made().to_bytes())
    said = manifest["guarantee"]["reference"]
    moved = [said["margins"][0] + 1, said["margins"][1] - 1, *said["margins"][2:]]
    mixed = [said["classes"][0] + 1, said["classes"][1] - 1, *said["classes"][2:]]
    more = [said["classes"][0] + 1, *said["classes"][1:]]
    forged: list[tuple[tuple[str | int, ...], Any]] = [
        ((), None),
        (("margins",), moved),
        (("margins",), said["margins"][1:]),
        (("classes",), mixed),
        (("classes",), more),
        (("classes",), [*said["classes"], 0]),
        (("outside",), said["outside"] + 1),
        (("edges", 3), said["edges"][4]),
        (("edges",), said["edges"][1:]),
        (("box",), [[0.0] * 3, [1.0] * 3]),
    ]
    for place, value in forged:
        file = sealed(changed(manifest, ("guarantee", "reference", *place), value), tensors)
        with pytest.raises((CertificateError, InputError)):
            verify(Fit.from_bytes(file), None, PAIRS_X, X_holdout=HELD)
    assert verify(Fit.from_bytes(sealed(manifest, tensors)), None, PAIRS_X, X_holdout=HELD).guarantee is not None


def test_a_plan_carries_the_summary_and_its_hash_binds_it() -> None:
    found = made()
    same = plan(found, samples=64, layout="batch", machine=REFERENCE, box=found.box)
    wide = plan(found, samples=64, layout="batch", machine=REFERENCE, box=found.box * 1.5)
    narrow = plan(found, samples=64, layout="batch", machine=REFERENCE, box=found.box * 0.5)
    assert same.reference == summary(found)
    assert wide.reference == msgspec.structs.replace(summary(found), box=found.box.tolist())
    assert narrow.reference is None
    assert narrow.watch() is None
    assert "drift" in describe(same)
    fields = same.to_dict()
    assert Plan.from_dict(fields) == same
    fields["reference"]["outside"] += 1
    assert Plan.from_dict(fields).sha256 != same.sha256
    fields["reference"]["margins"][0] += 1
    with pytest.raises(InputError, match="contradicts itself"):
        Plan.from_dict(fields)
    without = plan(PAIRS, samples=64, layout="batch", machine=REFERENCE)
    old = {name: value for name, value in without.to_dict().items() if name != "reference"}
    assert Plan.from_dict(old).sha256 == without.sha256


def test_clients_and_predictions_tell_drift() -> None:
    found = made()
    planned = plan(found, samples=400, layout="batch", machine=REFERENCE, box=found.box * 4)
    assert Client(planned).drift is not None
    assert Client(plan(PAIRS, samples=4, layout="batch", machine=REFERENCE)).drift is None
    rng = np.random.default_rng(6)
    usual, other = (np.clip(rng.normal(size=(400, 3)) * s, *(found.box * 4)) for s in (1.0, 0.2))
    for X, alarm in ((usual, False), (other, True)):
        seen = predict_encrypted(found, planned, X).drift
        assert seen is not None
        assert (seen.alarm is not None) == alarm
        assert (found.drift(X).alarm is not None) == alarm
        assert (seen.sentence() is not None) == alarm
    with pytest.raises(InputError, match="no hold-out rows"):
        PAIRS.drift(usual)


def test_the_work_goes_on_in_the_same_way_after_an_alarm() -> None:
    watch = Watch(summary(made()), made().box, rng=np.random.default_rng(0))
    same = np.tile([3.0, 0.0, 0.0, 0.0], (100, 1))
    watch.observe(same)
    first = watch.drift.alarm
    assert first is not None
    before = watch.state.streams[0].counts
    watch.observe(made().model.logits(HELD[:100]))
    assert watch.drift.alarm == first
    assert sum(watch.state.streams[0].counts) == sum(before) + 100
    watch.observe(np.tile([3.0, 0.0, 0.0, 0.0], (5 * WINDOW, 1)))
    assert watch.drift.queries == 200 + WINDOW  # of one call, no more than a window is looked at


def test_the_command_goes_on_from_earlier_queries_of_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = made()
    found.save("fit.safetensors")
    np.savez("usual.npz", X=HELD[:30].clip(*found.box))
    np.savez("other.npz", X=HELD[:12] * 0.05)
    with RunningServer(tmp_path / "fit.safetensors", "--precision", "fast", "--samples", "4") as server:
        assert main(["keygen", "own.key", "--server", server.url, "--layout", "batch"]) == 0
        capsys.readouterr()

        def ask(data: str, *options: str) -> str:
            assert main(["query", server.url, data, "--key", "own.key", *options]) == 0
            return capsys.readouterr().out

        assert json.loads(ask("usual.npz", "--json"))["drift"] == {"queries": 30, "alarm": None, "false_alarms": 0.01}
        state = tmp_path / "own.key.drift"
        if os.name == "posix":
            assert state.stat().st_mode & 0o777 == 0o600
        state.unlink()
        for time in range(1, 9):
            shown = json.loads(ask("other.npz", "--json"))["drift"]
            assert shown["queries"] == 12 * time
        assert shown["alarm"] is not None
        warned = [line for line in ask("usual.npz").splitlines() if "made for other inputs" in line]
        assert len(warned) == 1
        assert warned[0].startswith("Warning: ")
        assert main(["query", server.url, "usual.npz", "--layout", "batch", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["drift"] is None  # not pinned: the summary is the server's word
        for content in (b"", b"{", b"[" * 100_000, state.read_bytes().replace(b'"seen"', b'"sene"')):
            state.write_bytes(content)
            assert json.loads(ask("usual.npz", "--json"))["drift"]["queries"] == 30
    stored = keys.load("own.key")
    other = keys.generate(stored.plan)
    watch = keys.resume_watch("own.key", other)  # the file belongs to another key
    assert watch is not None
    assert watch.drift.queries == 0
    keys.remember_watch(tmp_path / "missing" / "own.key", other, watch)  # nowhere to write: nothing is lost but this


def test_predict_warns_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made().save("fit.safetensors")
    np.savez("usual.npz", X=HELD[:300])
    np.savez("other.npz", X=HELD[:300] * 0.2)
    assert main(["predict", "fit.safetensors", "usual.npz"]) == 0
    assert "Warning" not in capsys.readouterr().out
    assert main(["predict", "fit.safetensors", "other.npz"]) == 0
    out = capsys.readouterr().out
    assert len([line for line in out.splitlines() if line.startswith("Warning: the promise")]) == 1
    assert main(["predict", "fit.safetensors", "other.npz", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["drift"]["alarm"] in ("margins", "decisions", "box")


def test_the_estimator_tells_drift() -> None:
    network = pytest.importorskip("sklearn.neural_network")
    from quad4fhe import QuadraticReplacement

    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 4))
    trained = network.MLPClassifier((12,), max_iter=2000, random_state=0).fit(X[:1000], X[:1000, 0] > 0.2)
    found = QuadraticReplacement(trained, holdout=0.5, fresh=True).fit(X[1000:])
    assert found.drift(rng.normal(size=(300, 4))).alarm is None
    assert found.drift(rng.normal(size=(300, 4)) + 1).alarm is not None
