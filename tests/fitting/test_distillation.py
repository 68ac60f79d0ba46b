"""The parts that fit a family: coordinates, losses, parametrisations and descent."""

from __future__ import annotations

import tracemalloc
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

from quad4fhe import MLP, InputError, PolynomialModel, fit
from quad4fhe._progress import silent
from quad4fhe.fitting.basis import Basis
from quad4fhe.fitting.distil import Divergence, distil, minimise
from quad4fhe.fitting.features import FOLDS, ROWS, Pool, Standardised, stratified_folds, stratified_rows
from quad4fhe.fitting.select import Selection, Setting, per_unit
from quad4fhe.fitting.subspaces import Subspace, subspace

rng = np.random.default_rng(5)


def small(outputs: int = 3, units: int = 7, features: int = 4) -> MLP:
    draw = np.random.default_rng(outputs).standard_normal
    return MLP(draw((units, features)), draw(units), draw((outputs, units)), draw(outputs))


def of(mlp: MLP, X: NDArray[Any], budget: int = 10**9) -> Standardised:
    return Standardised(mlp, X, budget, Basis.of(mlp, X[:20_000], 2))


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("family", ["unitwise", "head"])
def test_a_quadratic_has_the_logits_of_the_weights_it_is_made_from(outputs: int, family: str) -> None:
    mlp, X = small(outputs), 3 + 2 * rng.standard_normal((200, 4))
    selection = Selection(mlp, X, mlp.decide(X), 2, seed=0, budget=10**9, progress=silent)
    selection.judge(family)
    wanted = Standardised(mlp, X, 10**9, selection.basis).logits(*selection.point(family))
    found = PolynomialModel.quadratic(mlp.W1, mlp.b1, *selection.quadratic(family)).logits(X)
    np.testing.assert_allclose(found, wanted.T, rtol=1e-4, atol=1e-3)


def test_features_have_zero_mean_and_unit_variance_except_those_of_a_dead_unit() -> None:
    first = rng.standard_normal((3, 4))
    first[1] = 0.0
    mlp = MLP(first, [1.0, 1e6, -2.0], np.ones((2, 3)), [0.0, 0.0])
    features = of(mlp, rng.standard_normal((500, 4)))
    chunk = np.vstack([chunk for _, chunk in features.chunks()])
    np.testing.assert_allclose(chunk.mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(chunk.std(axis=0), [1, 0, 1, 1, 0, 1], atol=1e-5)


def test_features_made_again_at_every_pass_are_those_kept_in_memory_to_the_bit() -> None:
    mlp, X = small(), rng.standard_normal((2 * ROWS + 17, 4)).astype(np.float32)
    kept, streamed = of(mlp, X), of(mlp, X, 0)
    assert streamed.streamed
    assert not kept.streamed
    for (_, a), (_, b) in zip(kept.chunks(), streamed.chunks(), strict=True):
        assert np.array_equal(a, b)


def test_memory_is_one_copy_within_the_budget_and_a_few_steps_beyond_it() -> None:
    mlp, n = small(units=64), 300_000
    X = rng.standard_normal((n, 4)).astype(np.float32)
    peaks, basis = [], Basis.of(mlp, X[:20_000], 2)
    for budget in (10**9, 0):
        tracemalloc.start()
        for _ in Standardised(mlp, X, budget, basis).chunks():
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    copy = 8 * n * 64
    assert peaks[0] < 1.5 * copy
    assert peaks[1] < 0.5 * copy


def test_features_too_large_to_square_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="scale its features"):
        of(small(), 1e160 * rng.standard_normal((50, 4)))
    assert np.isfinite(of(small(), 1e80 * rng.standard_normal((50, 4))).moments()).all()


@pytest.mark.parametrize("outputs", [1, 2, 4])
def test_the_divergence_has_the_gradient_of_its_values(outputs: int) -> None:
    n = 6
    loss = Divergence(2 * rng.standard_normal((outputs, n)))
    weight = rng.uniform(0.5, 1.0, (2, n)).astype(np.float32)
    logits = rng.standard_normal((2, outputs, n)).astype(np.float32)
    _, gradient = loss(logits.copy(), slice(0, n), weight)
    direction = rng.standard_normal(logits.shape).astype(np.float32)
    step = np.float32(1e-2)
    ahead, _ = loss(logits + step * direction, slice(0, n), weight)
    back, _ = loss(logits - step * direction, slice(0, n), weight)
    np.testing.assert_allclose(
        (ahead - back) / (2 * step), (gradient * direction).sum(axis=(1, 2)), rtol=2e-2, atol=2e-3
    )


def test_divergence_is_zero_at_the_logits_it_is_measured_from_and_positive_elsewhere() -> None:
    targets = rng.standard_normal((3, 10))
    weight = np.full((1, 10), 0.1, dtype=np.float32)
    at, slope = Divergence(targets)(targets[None].astype(np.float32), slice(0, 10), weight)
    assert abs(at[0]) < 1e-6
    assert np.abs(slope).max() < 1e-6
    assert Divergence(targets)(np.zeros((1, 3, 10), dtype=np.float32), slice(0, 10), weight)[0][0] > 0.01


def _family(name: str, mlp: MLP, problems: int) -> Subspace:
    draw = np.random.default_rng(3).standard_normal
    size = 2 * mlp.units
    prior = np.hstack([mlp.W2, mlp.W2]) * draw((problems, 1, size))
    root = draw((size, size))
    constant = draw((problems, mlp.outputs))
    if name == "head":
        return subspace("head", mlp, prior, constant, lambda: root @ root.T / size, 1.0)
    return subspace("unitwise", mlp, prior, constant, lambda: root @ root.T / size, 1.0)


@pytest.mark.parametrize("name", ["head", "unitwise"])
def test_parametrisations_gather_with_the_transpose_of_what_they_expand_by(name: str) -> None:
    family = _family(name, small(), 2)
    family.strengthen(0.3)
    size = 3 * 14 + 3 if name == "head" else 14 + 3
    x = rng.standard_normal((2, size))
    weights, constant = family.expand(x)
    origin = family.expand(np.zeros_like(x))
    np.testing.assert_allclose(family.solve(weights, constant), x, rtol=1e-8, atol=1e-8)
    a, b = rng.standard_normal(weights.shape), rng.standard_normal(constant.shape)
    moved = ((weights - origin[0]) * a).sum(axis=(1, 2)) + ((constant - origin[1]) * b).sum(axis=1)
    np.testing.assert_allclose(moved, (family.gather(a, b) * x).sum(axis=1), rtol=1e-8)
    value, slope = family.penalty(x)
    np.testing.assert_allclose(value, 0.15 * np.square(weights - origin[0]).sum(axis=(1, 2)), rtol=1e-8)
    np.testing.assert_allclose((slope * x).sum(axis=1), 2 * value, rtol=1e-8)


def test_unitwise_accepts_moments_that_rounding_has_left_indefinite() -> None:
    mlp = small()
    moments = np.full((14, 14), 1.0) - 1e-7 * np.eye(14)
    family = subspace("unitwise", mlp, np.zeros((1, 3, 14)), np.zeros((1, 3)), lambda: moments, 1.0)
    family.strengthen(1e-9)
    weights, _ = family.expand(rng.standard_normal((1, 17)))
    assert np.isfinite(weights).all()


def test_descent_solves_a_stack_of_quadratics_each_to_its_own_minimum() -> None:
    roots = rng.standard_normal((3, 20, 20))
    matrices = np.einsum("bij,bkj->bik", roots, roots) + np.eye(20)
    goals = 5 * rng.standard_normal((3, 20))

    def function(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        away = x - goals
        slope = np.einsum("bij,bj->bi", matrices, away)
        return 0.5 * (slope * away).sum(axis=1) + 1.0, slope

    x, value, _ = minimise(function, np.zeros((3, 20)), 400, 1e-14)
    np.testing.assert_allclose(value, 1.0, atol=1e-8)
    np.testing.assert_allclose(x, goals, atol=1e-3)


@pytest.mark.parametrize("outputs", [1, 3])
def test_distilled_head_is_the_minimum_that_an_independent_solver_finds(outputs: int) -> None:
    mlp, X = small(outputs), np.random.default_rng(8).standard_normal((150, 4))
    features = of(mlp, X)
    prior, constant = np.zeros((1, outputs, 14)), np.zeros((1, outputs))
    family = subspace("head", mlp, prior, constant, features.moments, 1.0)
    family.strengthen(0.02)
    weight = np.full((1, 150), 1 / 150, dtype=np.float32)
    found, shift, _ = distil(
        features, family, Divergence(mlp.logits(X).T), weight, (prior, constant), rounds=500, tolerance=1e-9
    )
    F = np.vstack([chunk for _, chunk in features.chunks()]).astype(np.float64)
    target = mlp.logits(X) if outputs > 1 else np.hstack([np.zeros((150, 1)), mlp.logits(X)])
    p = np.exp(target - np.logaddexp.reduce(target, axis=1)[:, None])

    def objective(x: np.ndarray) -> float:
        theta, c = x[: outputs * 14].reshape(outputs, 14), x[outputs * 14 :]
        logits = F @ theta.T + c
        if outputs == 1:
            logits = np.hstack([np.zeros((150, 1)), logits])
        logs = logits - np.logaddexp.reduce(logits, axis=1)[:, None]
        return float(-(p * logs).sum(axis=1).mean() + 0.01 * np.square(theta).sum())

    ours = objective(np.concatenate([found[0].ravel(), shift[0]]))
    best = minimize(objective, np.zeros(outputs * 15), method="BFGS", options={"gtol": 1e-6}).fun
    assert ours <= best + 1e-5


@pytest.mark.parametrize("scattered", [False, True])
def test_a_problem_learns_from_the_rows_that_have_weight_in_it(scattered: bool) -> None:
    mlp, X, problems = small(), rng.standard_normal((6_000, 4)), 3
    rows = np.arange(6_000)
    left_out = rows % (problems + 1) if scattered else rows // 1_500
    weight = np.where((np.arange(problems)[:, None] == left_out) | (left_out == problems), 0.0, 1 / 3_000)
    basis = Basis.of(mlp, X, 2)

    def solve(used: NDArray[Any], weight: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        features = Standardised(mlp, X[used], 10**9, basis)
        start = np.zeros((len(weight), 3, basis.width)), np.zeros((len(weight), 3))
        family = subspace("head", mlp, *start, lambda: np.eye(basis.width), 1.0)
        family.strengthen(0.1)
        loss = Divergence(mlp.logits(X[used]).T)
        weights, constant, _ = distil(
            features, family, loss, weight.astype(np.float32), start, rounds=200, tolerance=1e-9
        )
        return weights, constant

    together = solve(rows, weight)
    for k in range(problems):
        used = np.flatnonzero(weight[k])
        assert used.size == 3_000
        alone = solve(used, weight[k : k + 1, used])
        np.testing.assert_allclose(together[0][k], alone[0][0], atol=1e-3)
        np.testing.assert_allclose(together[1][k], alone[1][0], atol=1e-3)


def test_unitwise_model_is_the_network_with_a_quadratic_per_unit_and_correctly_rounded_constants() -> None:
    mlp, X = small(), rng.standard_normal((20, 4))
    alpha, beta, eta = rng.standard_normal((3, 7))
    model = PolynomialModel.unitwise(mlp, alpha, beta, eta)
    y = mlp.hidden(X)
    np.testing.assert_allclose(
        model.logits(X), (alpha * y * y + beta * y + eta) @ mlp.W2.T + mlp.b2, rtol=1e-12, atol=1e-12
    )
    exact = [
        float(Fraction(float(b)) + sum(Fraction(float(term)) for term in row))
        for b, row in zip(mlp.b2, mlp.W2 * eta, strict=True)
    ]
    assert model.c.tolist() == exact
    with pytest.raises(InputError, match="7 hidden units"):
        PolynomialModel.unitwise(mlp, alpha[:3], beta, eta)


def test_unitwise_coefficients_come_back_even_where_a_unit_is_unheard_and_classes_are_equal() -> None:
    head = rng.standard_normal((3, 7))
    head[2], head[:, 4] = head[1], 0.0
    mlp = MLP(small().W1, small().b1, head, [0.1, 0.2, 0.3])
    alpha, beta, eta = rng.standard_normal((3, 7))
    model = PolynomialModel.unitwise(mlp, alpha, beta, eta)
    again = PolynomialModel.unitwise(mlp, *per_unit(mlp, model.S, model.T, model.c))
    for name in ("S", "T", "c"):
        np.testing.assert_allclose(getattr(again, name), getattr(model, name), rtol=1e-9, atol=1e-12)


def test_folds_spread_every_class_evenly_and_samples_of_rows_keep_every_class() -> None:
    decided = np.repeat([0, 1, 2, 3], [500, 47, 6, 1])
    fold = stratified_folds(decided, 1)
    for label in range(4):
        counts = np.bincount(fold[decided == label], minlength=FOLDS)
        assert counts.max() - counts.min() <= 1
    rows = stratified_rows(decided, 55, 1)
    assert np.bincount(decided[rows]).tolist() == [50, 5, 1, 1]
    assert np.array_equal(rows, np.unique(rows))


def test_made_rows_know_nothing_of_other_folds() -> None:
    mlp, X = small(), rng.standard_normal((60, 4))
    fold = stratified_folds(mlp.decide(X), 0)
    other = X.copy()
    other[fold != 2] = rng.standard_normal((int((fold != 2).sum()), 4))
    pools = [Pool.of(mlp, data, fold, Basis.of(mlp, X, 2), 10**9, 0) for data in (X, other)]
    assert pools[0].blends > 1
    mine = pools[0].fold == 2
    assert np.array_equal(pools[0].features.X[mine], pools[1].features.X[mine])
    assert not np.array_equal(pools[0].features.X, pools[1].features.X)
    weight = pools[0].fold_weights(pools[0].near)
    assert not weight[2, mine].any()
    np.testing.assert_allclose(weight.sum(axis=1), 1.0, rtol=1e-5)


def test_made_rows_have_the_spread_of_real_ones_and_leave_no_range() -> None:
    mlp, X = small(units=3), 5 + rng.standard_normal((20_000, 4)) * [1.0, 10.0, 0.1, 3.0]
    fold = stratified_folds(mlp.decide(X), 0)
    pool = Pool.of(mlp, X, fold, Basis.of(mlp, X, 2), 10**9, 0)
    made = pool.features.X[len(X) :]
    # A point halfway between two independent rows would have 0.71 of the spread, a random point of the line 0.82.
    np.testing.assert_allclose(made.std(axis=0), X.std(axis=0), rtol=0.03)
    np.testing.assert_allclose(made.mean(axis=0), X.mean(axis=0), atol=0.05 * X.std(axis=0).max())
    for k in range(FOLDS):
        seen, new = mlp.hidden(X[fold == k]), mlp.hidden(made[fold == k])
        slack = 1e-9 * np.abs(seen).max()
        assert (new >= seen.min(axis=0) - slack).all()
        assert (new <= seen.max(axis=0) + slack).all()


def test_a_path_ends_where_a_weaker_prior_keeps_no_more() -> None:
    mlp, X = small(), rng.standard_normal((300, 4))
    selection = Selection(mlp, X, mlp.decide(X), 2, seed=0, budget=10**9, progress=silent)
    judged = selection.judge("unitwise")
    scores: dict[float, list[float]] = {}
    for step in selection.trace:
        scores.setdefault(step.sharpness, []).append(step.score)
    for path in scores.values():
        assert all(later > earlier for earlier, later in pairwise(path[:-1]))
    assert judged.setting is None or judged.setting in {Setting(s.sharpness, s.strength) for s in selection.trace}


def test_one_fold_is_judged_on_all_rows_that_it_does_not_learn_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quad4fhe.fitting.select._WORK", 0.0)
    monkeypatch.setattr("quad4fhe.fitting.select.CV_ROWS", 2_000)
    mlp = small()
    for rows, judged in ((2_000, 400), (2_600, 1_040), (9_000, 2_400)):
        X = rng.standard_normal((rows, 4))
        selection = Selection(mlp, X, mlp.decide(X), 2, seed=0, budget=10**9, progress=silent)
        found = selection.judge("unitwise")
        assert found.folds == 1
        assert found.kept.shape[1] == pytest.approx(judged, abs=3)
        learned = selection._part.fold_weights(selection._part.near)[0] > 0
        assert not learned[selection._part.fold == 0].any()
        assert learned[selection._part.fold > 0].all()


def test_features_of_any_scale_are_fitted_alike() -> None:
    mlp, X, kept = small(), rng.standard_normal((300, 4)), []
    for scale in (1.0, 1e-12, 1e9):
        other = MLP(mlp.W1, scale * mlp.b1, mlp.W2 / scale, mlp.b2)
        kept.append(fit(other, scale * X, family="unitwise").agreement(scale * X))
    assert kept[1:] == pytest.approx([kept[0]] * 2, abs=0.01)


@pytest.mark.parametrize("degree", [2, 8])
def test_made_rows_between_outliers_do_not_explode(degree: int) -> None:
    mlp, X = small(units=3), rng.standard_normal((2_000, 4))
    X[:10] *= 1e4
    basis = Basis.of(mlp, X, degree)
    pool = Pool.of(mlp, X, stratified_folds(mlp.decide(X), 0), basis, 10**9, 0)
    sizes = np.abs(basis.features(mlp.hidden(pool.features.X))).reshape(-1, degree, 3).max(axis=2)
    assert (sizes[2_000:].max(axis=0) <= 2.0 * sizes[:2_000].max(axis=0)).all()
    assert np.isfinite(pool.moments).all()


def test_a_basis_takes_little_memory_beside_its_rows() -> None:
    mlp, X = small(units=256, features=32), rng.standard_normal((20_000, 32)).astype(np.float32)
    tracemalloc.start()
    Basis.of(mlp, X, 8)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * X.shape[0] * mlp.units  # one copy of all pre-activations


def test_numbers_too_large_to_add_are_refused_by_the_name_of_their_set() -> None:
    mlp, X = small(), rng.standard_normal((60, 4))
    first = mlp.W1.copy()
    first[:, 0] = 0.0
    X[:, 0] = np.where(rng.uniform(size=60) < 0.5, -1.7e308, 1.7e308)
    with pytest.raises(InputError, match="X_cal has numbers too large to add"):
        fit(MLP(first, mlp.b1, mlp.W2, mlp.b2), X, family="unitwise")
