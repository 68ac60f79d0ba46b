"""Reliable decisions: the walk by brute force, its promise by simulation, what clients are told, and no forgeries."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from scipy.stats import binom

from quad4fhe import CertificateError, Fit, InputError, describe, fit, plan, verify
from quad4fhe.cli import main
from quad4fhe.he.predict import predict_encrypted
from quad4fhe.planning.plan import Plan
from quad4fhe.proof.guarantee import HoldOut, Reliable, Terms, is_above, norms_of, relative, rounded
from quad4fhe.proof.holdout import best_power, thresholds
from support.cases import PAIRS, PAIRS_X
from support.forging import changed, opened, sealed
from support.serving import RunningServer

HELD = np.random.default_rng(12).normal(size=(4000, 3))


@cache
def made() -> Fit:
    return fit(PAIRS.mlp, PAIRS_X, holdout=HELD, fresh=True, reliable=0.95, family="shared")


def gaps(logits: Any) -> Any:
    ordered = np.sort(logits, axis=1)
    return ordered[:, -1] - ordered[:, -2]


def scores(found: Fit, X: Any, power: float) -> Any:
    logits = found.model.logits(X)
    centred = logits - logits.mean(axis=1, keepdims=True)
    return gaps(logits) / np.linalg.norm(centred, axis=1) ** power


def test_the_threshold_is_what_the_walk_by_brute_force_gives() -> None:
    found = made()
    assert found.guarantee is not None
    said = found.guarantee.reliable
    assert said is not None
    areas = {}
    for power in (0.0, 0.5, 1.0, 1.5, 2.0):
        score, kept = scores(found, PAIRS_X, power), found.mlp.decide(PAIRS_X) == found.predict(PAIRS_X)
        areas[power] = np.mean([np.mean(score[kept] > lost) for lost in score[~kept]])
    assert said.power == max(areas, key=areas.__getitem__)
    kept, score = found.mlp.decide(HELD) == found.predict(HELD), scores(found, HELD, said.power)
    ordered = np.sort(scores(found, PAIRS_X, said.power))
    ladder = [*(ordered[len(ordered) * q // 100] for q in range(99, 0, -1)), 0.0]
    needed = np.log(0.05) / np.log(0.95)
    starts = {int(np.ceil(m * needed / 40)) - 1: 0.05 * w for m, w in ((2, 0.5), (4, 0.25), (8, 0.125), (16, 0.125))}
    last, level = None, 0.0
    for j, threshold in enumerate(ladder):
        level += starts.get(j, 0.0)
        above = score >= threshold
        if level > 0 and binom.cdf(np.sum(above & ~kept), np.sum(above), 0.05) <= level:
            last = (threshold, int(np.sum(above)), int(np.sum(above & ~kept)))
        else:
            level = 0.0
    assert last is not None
    assert (said.accepted, said.lost) == last[1:]
    assert said.threshold == pytest.approx(last[0], rel=2e-6)
    assert 0 < said.accepted < 4000
    assert np.array_equal(found.is_reliable(HELD), score >= said.threshold)
    assert "margin of" in dict(found.summary())["reliable"]


def test_large_margins_of_large_logits_do_not_hide_the_others() -> None:
    """The surest decisions by plain margin are lost, so no walk that starts there names one; the relative one does."""
    rng = np.random.default_rng(8)
    size = np.exp(rng.normal(size=20_000))
    ratio = rng.uniform(size=20_000)
    kept = rng.uniform(size=20_000) < np.where(size > 4, 0.5, 0.9 + 0.1 * np.minimum(1, 2 * ratio))
    gap, norm = ratio * size, size
    seen, held = slice(0, 10_000), slice(10_000, None)
    power = best_power(gap[seen], norm[seen], kept[seen])
    assert power >= 1
    rows = np.zeros((10_000, 8))
    rows[:, 1], rows[:, 2], rows[:, 3], rows[:, 4] = 1, ~kept[held], gap[held], norm[held]
    plain, better = (
        HoldOut(
            Terms(
                confidence=0.95,
                sha256="0" * 64,
                split=None,
                level=0.97,
                power=p,
                thresholds=thresholds(relative(gap, norm, p)[seen]),
            ),
            rows,
            np.zeros((2, 1)),
        )
        .guarantee(3)
        .reliable
        for p in (0.0, power)
    )
    assert plain is not None
    assert better is not None
    assert better.accepted > 1.2 * plain.accepted


def test_norms_that_say_nothing_leave_the_margin_as_it_is() -> None:
    gap, kept = np.array([1.0, 2.0, 3.0]), np.array([True, False, True])
    assert best_power(gap, np.zeros(3), kept) == 0
    assert best_power(gap, np.ones(3), np.ones(3, dtype=bool)) == 1
    assert relative(gap, np.array([0.0, np.inf, 4.0]), 0.5).tolist() == [0, 0, 1.5]
    assert norms_of(np.array([[1.0, 2.0]])).tolist() == [0]
    assert norms_of(np.array([[1.0, 2.0, 3.0]]))[0] == pytest.approx(2**0.5)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_thresholds_fall_and_end_with_everything(margins: list[float]) -> None:
    found = thresholds(np.array(margins))
    assert len(found) == 100
    assert found == sorted(found, reverse=True)
    assert found[-1] == 0
    assert all(value == 0 or value >= min(margins) for value in found)


@given(st.floats(0, 1e300), st.booleans())
def test_rounding_goes_the_way_it_says(value: float, up: bool) -> None:
    near = float(rounded(np.array([value]), up=up)[0])
    assert near >= value if up else near <= value
    assert near == pytest.approx(value, rel=2e-6)


def test_few_rows_name_no_margin() -> None:
    said = fit(PAIRS.mlp, PAIRS_X, holdout=HELD[:30], fresh=True, reliable=0.995, family="shared")
    assert said.guarantee is not None
    assert said.guarantee.reliable is not None
    assert said.guarantee.reliable.threshold is None
    assert not said.is_reliable(HELD).any()
    assert "no margin" in dict(said.summary())["reliable"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"reliable": 1.0, "holdout": HELD, "fresh": True}, "reliable is 1.0"),
        ({"reliable": 0.99}, "found on a hold-out"),
        ({"reliable": 0.99, "fresh": True}, "found on a hold-out"),
    ],
)
def test_a_level_without_ground_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        fit(PAIRS.mlp, PAIRS_X, **options)
    with pytest.raises(InputError, match="names no margin"):
        PAIRS.is_reliable(HELD)


def test_a_forged_threshold_never_passes() -> None:
    manifest, tensors = opened(made().to_bytes())
    said, tried = manifest["guarantee"]["reliable"], manifest["holdout"]["thresholds"]
    forged: list[tuple[tuple[str | int, ...], Any]] = [
        (("guarantee", "reliable", "threshold"), 0.0),
        (("guarantee", "reliable", "threshold"), said["threshold"] / 2),
        (("guarantee", "reliable", "threshold"), None),
        (("guarantee", "reliable", "level"), 0.99),
        (("guarantee", "reliable", "accepted"), 4000),
        (("guarantee", "reliable", "lost"), 0),
        (("guarantee", "reliable"), None),
        *((("holdout", "power"), power) for power in (0.0, 0.5, 0.75, 1.0, 2.0) if power != said["power"]),
        (("holdout", "level"), 0.99),
        (("holdout", "level"), None),
        (("holdout", "thresholds"), tried[1:]),
        (("holdout", "thresholds"), []),
        (("holdout", "thresholds", 50), tried[50] * 0.5),
    ]
    for place, value in forged:
        file = sealed(changed(manifest, place, value), tensors)
        with pytest.raises((CertificateError, InputError)):
            verify(Fit.from_bytes(file), None, PAIRS_X, X_holdout=HELD)
    assert (
        verify(Fit.from_bytes(sealed(manifest, tensors)), None, PAIRS_X, X_holdout=HELD).guarantee == made().guarantee
    )


def test_a_plan_carries_the_threshold_of_its_own_inputs_and_its_hash_binds_it() -> None:
    found = made()
    planned = plan(found, samples=64, layout="batch")
    assert found.holdout is not None
    assert planned.promise is not None
    own = found.holdout.guarantee(4, "inside", planned.promise.error)
    assert planned.reliable == own.reliable
    assert planned.reliable is not None
    assert planned.reliable.threshold is not None
    again = Plan.from_dict(planned.to_dict())
    assert again == planned
    for key, value in (("threshold", 0.0), ("power", planned.reliable.power + 0.25)):
        fields = planned.to_dict()
        fields["promise"]["reliable"][key] = value
        assert Plan.from_dict(fields).sha256 != planned.sha256
    fields["promise"]["reliable"]["threshold"] = -1.0
    with pytest.raises(InputError, match="not a plan of this library"):
        Plan.from_dict(fields)
    assert plan(PAIRS, samples=64, layout="batch").reliable is None
    assert "reliable decisions: at least 95%" in describe(planned)


def test_encrypted_decisions_say_whether_they_are_reliable() -> None:
    found = made()
    X = PAIRS_X[:40]
    planned = plan(found, samples=len(X), layout="batch")
    answered = predict_encrypted(found, planned, X)
    assert answered.reliable is not None
    assert found.guarantee is not None
    assert found.guarantee.reliable is not None
    said = found.guarantee.reliable
    clear = np.abs(scores(found, X, said.power) - said.threshold) > 0.01 * said.threshold
    assert np.array_equal(answered.reliable[clear], found.is_reliable(X)[clear])
    assert clear.sum() > 30
    assert 0 < answered.reliable.sum() < len(X)
    assert answered.to_dict()["reliable"] == answered.reliable.tolist()


def test_scores_of_one_output_have_a_margin_too() -> None:
    one = np.array([[-3.0], [0.5], [2.0], [-0.1]])
    rule = Reliable(level=0.9, power=0.0, threshold=1.0, accepted=2, lost=0)
    assert is_above(one, rule).tolist() == [True, False, True, False]
    assert is_above(one, structs.replace(rule, threshold=None)).tolist() == [False] * 4


def test_the_commands_say_which_decisions_are_reliable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    mlp = PAIRS.mlp
    np.savez("model.npz", W1=mlp.W1, b1=mlp.b1, W2=mlp.W2, b2=mlp.b2)
    np.savez("calib.npz", X=PAIRS_X)
    np.savez("held.npz", X=HELD)
    options = ["--family", "shared", "--holdout", "held.npz", "--fresh", "--reliable", "0.95"]
    assert main(["fit", "model.npz", "calib.npz", *options]) == 0
    assert "margin of" in " ".join(capsys.readouterr().out.split())
    assert main(["predict", "fit.safetensors", "calib.npz", "-o", "out.csv"]) == 0
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0].endswith(",reliable")
    assert [line.rsplit(",", 1)[1] for line in lines[1:]] == [str(int(r)) for r in made().is_reliable(PAIRS_X)]
    assert main(["plan", "fit.safetensors", "--samples", "8"]) == 0
    assert "reliable decisions" in capsys.readouterr().out


def test_the_estimator_tells_too_and_does_not_call_training_rows_fresh() -> None:
    network = pytest.importorskip("sklearn.neural_network")
    from quad4fhe import QuadraticReplacement

    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 4))
    y = (X[:, 0] + X[:, 1] ** 2 > 0.7).astype(int)
    trained = network.MLPClassifier((12,), max_iter=2000, random_state=0).fit(X[:1000], y[:1000])
    options: dict[str, Any] = {"holdout": 0.5, "fresh": True, "reliable": 0.9}
    found = QuadraticReplacement(trained, **options).fit(X[1000:])
    assert np.array_equal(found.is_reliable(X), found.fit_.is_reliable(X))
    with pytest.raises(InputError, match="train it first"):
        QuadraticReplacement(network.MLPClassifier((12,)), **options).fit(X, y)


def test_remote_clients_are_told_which_decisions_are_reliable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from quad4fhe.serve.client import Remote

    found = made()
    found.save(tmp_path / "fit.safetensors")
    X = PAIRS_X[:12]
    np.savez(tmp_path / "X.npz", X=X)
    with RunningServer(tmp_path / "fit.safetensors", "--precision", "fast", "--samples", "4") as server:
        with Remote(server.url, layout="batch") as remote:
            answers, planned = remote.predict(X), remote.plan
        assert main(["query", server.url, str(tmp_path / "X.npz"), "--layout", "batch", "--json"]) == 0
    assert planned.reliable is not None
    assert planned.reliable.threshold is not None
    assert answers.reliable is not None
    clear = np.abs(scores(found, X, planned.reliable.power) / planned.reliable.threshold - 1) > 0.01
    assert np.array_equal(answers.reliable[clear], found.is_reliable(X)[clear])
    shown = json.loads(capsys.readouterr().out)["reliable"]
    assert np.array_equal(np.array(shown)[clear], found.is_reliable(X)[clear])


def test_the_page_shows_a_promise_only_if_it_was_counted_again() -> None:
    pytest.importorskip("matplotlib")
    from quad4fhe.report import Options, report

    options = Options(ladder="none", samples=16)
    loaded = Fit.from_bytes(made().to_bytes())
    without, page = (report(loaded, PAIRS_X, X_holdout=held, options=options) for held in (None, HELD))
    assert 'id="promise"' not in without.html()
    assert all(one["promise"] is None for one in without.to_dict()["plans"])
    assert 'id="promise"' in page.html()
    assert made().guarantee is not None
    assert made().guarantee.sentence() in page.html()
    assert "coverage" in [picture.name for picture in page.pictures]
    assert page.to_dict()["plans"][0]["promise"] is not None
