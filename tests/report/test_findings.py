"""What the report finds out, against counting, brute force and fits made on their own."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy.optimize import minimize

from quad4fhe import MLP, CertificateError, Fit, InputError, fit
from quad4fhe.fitting.design import Design
from quad4fhe.fitting.result import count_agreement
from quad4fhe.regime import Regime
from quad4fhe.report.drawing import apart
from quad4fhe.report.findings import Options, find, measure
from quad4fhe.report.geometry import plane_view
from quad4fhe.report.preactivations import preactivations
from quad4fhe.report.sections.ladder import NOT_RUN, OWN, Rung, climb
from quad4fhe.report.sections.polynomial import activation
from support.cases import LOSSLESS, LOSSLESS_X, PAIRS, PAIRS_X, PLANE, PLANE_X
from support.family_fits import pairs, plane

Pair = tuple[Fit, np.ndarray[Any, Any]]


def view_of(pair: Pair) -> Any:
    return plane_view(pair[0], Design.of_samples(pair[0].mlp, pair[1]))


@pytest.mark.parametrize("threshold", ["zero", "free"])
@pytest.mark.parametrize("outputs", [1, 2])
def test_the_side_of_the_line_is_the_decision(threshold: Any, outputs: int) -> None:
    head = np.vstack([np.zeros_like(PLANE.mlp.W2), PLANE.mlp.W2])[-outputs:]
    bias = np.append(0.0, PLANE.mlp.b2)[-outputs:]
    mlp = MLP(PLANE.mlp.W1, PLANE.mlp.b1, head + 0.3 * (outputs - 1), bias)
    found = fit(mlp, PLANE_X, threshold=threshold, family="shared")
    view = view_of((found, PLANE_X))
    p, q, r = view.line
    side = view.points @ np.array([p, q]) + r
    clear = np.abs(side) > 1e-9
    assert clear.sum() > 70
    assert np.array_equal((side > 0)[clear], (found.predict(PLANE_X) == 1)[clear])


def test_the_closest_pair_is_the_closest() -> None:
    view = view_of((LOSSLESS, LOSSLESS_X))
    plus, minus = view.points[view.positive], view.points[~view.positive]

    def distance(weights: np.ndarray[Any, Any]) -> float:
        u, v = np.abs(weights[: len(plus)]), np.abs(weights[len(plus) :])
        return float(np.hypot(*(u @ plus / u.sum() - v @ minus / v.sum())))

    rng = np.random.default_rng(0)
    starts = [rng.uniform(0.1, 1, len(view.points)) for _ in range(8)]
    best = min(minimize(distance, start, method="Nelder-Mead", options={"maxiter": 4000}).fun for start in starts)
    assert view.distance == pytest.approx(best, rel=1e-3)
    assert view.distance == pytest.approx(LOSSLESS.diagnostics.margin, rel=1e-9)


def test_a_family_that_is_no_line_gets_none() -> None:
    view = view_of((plane("unitwise"), PLANE_X))
    assert view.line is None
    assert view.pair is None


def test_reduced_hulls_lie_inside_the_hulls_and_hold_the_closest_pair() -> None:
    rng = np.random.default_rng(5)
    mlp = MLP(rng.normal(size=(6, 3)), rng.normal(size=6), rng.normal(size=(1, 6)), [0.0])
    X = rng.normal(size=(400, 3))
    mlp = MLP(mlp.W1, mlp.b1, mlp.W2, -np.median(mlp.logits(X), axis=0))
    found = fit(mlp, X, regime="rch")
    view = view_of((found, X))
    assert view.reduced is not None
    assert view.distance == pytest.approx(found.diagnostics.margin, rel=1e-6)
    for inner, outer in zip(view.reduced, view.hulls, strict=True):
        ahead = np.roll(outer, -1, axis=0) - outer
        for point in inner:
            offset = point - outer
            assert (ahead[:, 0] * offset[:, 1] - ahead[:, 1] * offset[:, 0] >= -1e-9).all()


def test_margins_are_negative_where_and_only_where_a_decision_is_lost() -> None:
    for found, X in ((PLANE, PLANE_X), (PAIRS, PAIRS_X)):
        seen = measure(found, X, "X_cal")
        assert np.flatnonzero(seen.after < 0).tolist() == found.certificate.mismatches
        assert np.flatnonzero(seen.lost).tolist() == found.certificate.mismatches
        kept = ~seen.lost
        np.testing.assert_allclose(seen.after[kept], found.margins[kept], rtol=1e-9)
        logits = np.sort(found.mlp.logits(X), axis=1)
        before = np.abs(logits[:, 0]) if logits.shape[1] == 1 else logits[:, -1] - logits[:, -2]
        np.testing.assert_allclose(seen.before, before, rtol=1e-9)


def test_changes_are_counted_from_and_to() -> None:
    seen = measure(PAIRS, PAIRS_X, "X_cal")
    relu, now = PAIRS.mlp.decide(PAIRS_X), PAIRS.predict(PAIRS_X)
    for a, b, count in seen.changes():
        assert a != b
        assert count == np.count_nonzero((relu == a) & (now == b))
    assert sum(count for *_, count in seen.changes()) == np.count_nonzero(relu != now)


def rungs_of(own: Fit, X: Any, X_test: Any, extent: Any) -> list[Rung]:
    test = None if X_test is None else count_agreement(own.mlp, own.model, X_test)
    return climb(own, count_agreement(own.mlp, own.model, X), test, X, X_test, extent)


def test_the_ladder_says_what_separate_fits_say() -> None:
    X_test = np.random.default_rng(2).normal(size=(50, 3))
    rungs = rungs_of(PAIRS, PAIRS_X, X_test, "all")
    assert [rung.name for rung in rungs] == ["shared, as in the paper", "shared, polished", "unitwise", "head"]
    assert [rung.own for rung in rungs] == [rung.regime == PAIRS.regime for rung in rungs]
    assert sum(rung.own for rung in rungs) == 1
    paper = fit(PAIRS.mlp, PAIRS_X, polish=False, family="shared")
    for rung, alone in zip(rungs, (paper, PAIRS, pairs("unitwise"), pairs("head")), strict=True):
        assert rung.calibration == alone.diagnostics.calibration
        assert rung.test == count_agreement(alone.mlp, alone.model, X_test)


def test_which_rung_a_fit_is_follows_from_its_numbers_and_not_from_its_word() -> None:
    paper = fit(PAIRS.mlp, PAIRS_X, polish=False, family="shared")
    boasting = dataclasses.replace(paper, regime=PAIRS.regime, seed=5, threshold="free")
    for own in (paper, boasting):
        rungs = rungs_of(own, PAIRS_X, None, "shared")
        assert [rung.own for rung in rungs] == [True, False, False, False]
        assert rungs[0].regime == paper.regime
    other = fit(PAIRS.mlp, PAIRS_X[:60], family="shared")  # not a rung of this data
    assert [rung.name for rung in rungs_of(other, PAIRS_X, None, "shared") if rung.own] == [OWN]


def test_rungs_that_were_not_fitted_say_so() -> None:
    rungs = rungs_of(PAIRS, PAIRS_X, None, "shared")
    assert [rung.reason for rung in rungs] == ["", "", NOT_RUN, NOT_RUN]
    unfitted = rungs_of(PAIRS, PAIRS_X, None, "none")
    assert [rung.reason for rung in unfitted] == [NOT_RUN, NOT_RUN, "", NOT_RUN, NOT_RUN]
    assert unfitted[2].name == OWN
    assert unfitted[2].own
    lossless = rungs_of(LOSSLESS, LOSSLESS_X, None, "shared")
    assert lossless[0].own
    assert all(rung.reason.startswith("not needed") for rung in lossless[1:])
    few = rungs_of(LOSSLESS, LOSSLESS_X, None, "all")
    assert "needs at least 10 calibration rows" in few[-1].reason


def test_the_curve_is_the_polynomial_and_the_histogram_counts_everything() -> None:
    shape = activation(PLANE, preactivations(PLANE.mlp, PLANE_X))
    np.testing.assert_allclose(shape.middle, PLANE.alpha * shape.u**2 + PLANE.beta * shape.u + PLANE.eta)
    y = PLANE.mlp.hidden(PLANE_X)
    inside = (y >= shape.edges[0]) & (y <= shape.edges[-1])
    assert shape.covered == pytest.approx(inside.mean(), abs=2 / y.size)
    assert (shape.lo, shape.hi) == (y.min(), y.max())


def test_a_head_that_is_a_shared_quadratic_is_drawn_as_it() -> None:
    seen = preactivations(PAIRS.mlp, PAIRS_X)
    as_head = dataclasses.replace(PAIRS, family="head", alpha=None, beta=None, eta=None)
    found = activation(as_head, seen)
    # Its constant belongs to all units together, so the curve is known but for its height.
    apart_by = found.middle - (PAIRS.alpha * found.u**2 + PAIRS.beta * found.u)
    np.testing.assert_allclose(apart_by, apart_by[0], atol=1e-9 * np.abs(found.middle).max())
    assert found.band is not None
    np.testing.assert_allclose(found.band, np.stack([found.middle, found.middle]), atol=1e-9)


def test_the_band_holds_the_middle_of_the_units() -> None:
    unitwise = pairs("unitwise")
    shape = activation(unitwise, preactivations(PAIRS.mlp, PAIRS_X))
    curves = np.outer(unitwise.alpha, shape.u**2) + np.outer(unitwise.beta, shape.u) + unitwise.eta[:, None]
    assert shape.band is not None
    assert (shape.band[0] >= curves.min(axis=0) - 1e-12).all()
    assert (shape.band[1] <= curves.max(axis=0) + 1e-12).all()
    assert (shape.band[0] <= shape.middle).all()
    assert (shape.middle <= shape.band[1]).all()
    # Every drawn value is one that some unit takes.
    assert np.isclose(shape.middle[None], curves).any(axis=0).all()


def test_thinned_points_keep_the_extremes_and_cover_the_rest() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, 20_000))
    at = apart(x, y)
    assert len(at) < 6000
    assert {int(np.argmin(x)), int(np.argmax(x)), int(np.argmin(y)), int(np.argmax(y))} <= set(at.tolist())
    assert apart(x[:0], y[:0]).size == 0
    assert apart(np.ones(3), np.ones(3)).size == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ladder": "some"}, "ladder is 'some'"),
        ({"samples": 0}, "wanted at least 1"),
        ({"widen": -1.0}, "can be widened by a share"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        find(PLANE, PLANE_X, options=Options(**options))


def test_an_empty_test_set_and_labels_of_another_are_refused() -> None:
    with pytest.raises(InputError, match="X_test has no rows"):
        find(PLANE, PLANE_X, PLANE_X[:0])
    with pytest.raises(InputError, match="y_test has shape"):
        find(PLANE, PLANE_X, PLANE_X[:5], np.zeros(4, dtype=int))


def test_a_cross_validated_estimate_stands_beside_a_fit_that_was_made_for_the_page() -> None:
    rungs = rungs_of(pairs("head"), PAIRS_X, None, "all")
    about = {rung.name: rung.estimate for rung in rungs if rung.estimate is not None}
    assert list(about) == ["unitwise"]
    alone = next(trial for trial in pairs("unitwise").diagnostics.families if trial.family == "unitwise")
    assert about["unitwise"] == alone
    assert [rung.name for rung in rungs if rung.own] == ["head"]


def test_a_false_cap_gets_no_picture() -> None:
    rng = np.random.default_rng(5)
    mlp = MLP(rng.normal(size=(6, 3)), rng.normal(size=6), rng.normal(size=(1, 6)), [0.0])
    X = rng.normal(size=(400, 3))
    mlp = MLP(mlp.W1, mlp.b1, mlp.W2, -np.median(mlp.logits(X), axis=0))
    found = fit(mlp, X, regime="rch")
    for mu in (0.5, 0.02, found.diagnostics.mu * 1.5):
        if f"{mu:g}" == f"{found.diagnostics.mu:g}":
            continue
        said = msgspec.structs.replace(found.diagnostics, mu=mu)
        forged = dataclasses.replace(found, regime=Regime("rch", mu), diagnostics=said)
        with pytest.raises(CertificateError, match="give another line"):
            view_of((forged, X))
