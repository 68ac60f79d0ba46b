"""The multiclass problems against a generic QP solver on all rows, and what is said when they have no answer."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import sparse

from quad4fhe.calibration.lift import Lift, Statistics
from quad4fhe.fitting.pairwise import OutOfRounds, PairContradiction, PairSeparation, separate_pairs, soft_pairs, solve
from quad4fhe.fitting.sweep import Sweeper, largest_row
from quad4fhe.proof.evidence import contradiction_weights
from reference_solvers import hard_pairs, pair_rows, solve_qp
from reference_solvers import soft_pairs as generic_soft
from support.strategies import lifts, seeds


@given(lifts(separable=True))
def test_the_hard_optimum_is_that_of_a_generic_solver(lift: Lift) -> None:
    assume(np.unique(lift.target).size > 1)
    found = separate_pairs(Sweeper(Statistics.of(lift)))
    assert isinstance(found, PairSeparation)
    rows, _ = pair_rows(lift)
    assert (rows @ found.theta).min() >= 1 - 1e-9
    assert found.theta[3] >= 1 - 1e-12
    assert found.gap <= 1e-7
    status, theta, _ = hard_pairs(lift)
    if status == "Solved":
        assert np.linalg.norm(found.theta) == pytest.approx(np.linalg.norm(theta), rel=1e-5)
        np.testing.assert_allclose(found.theta, theta, atol=1e-4 * np.linalg.norm(theta))


@given(lifts())
def test_feasible_is_said_exactly_where_a_generic_solver_agrees(lift: Lift) -> None:
    assume(np.unique(lift.target).size > 1)
    found = separate_pairs(Sweeper(Statistics.of(lift)))
    status, _, _ = hard_pairs(lift)
    if isinstance(found, PairContradiction):
        assert status != "Solved"
        assert found.samples.size + found.scale <= 5
        rows = lift.pair_rows(found.samples, found.rivals).tolist() + [[0.0, 0.0, 0.0, 1.0]] * found.scale
        weights = contradiction_weights([[Fraction(v) for v in row] for row in rows])
        assert weights is not None
        assert min(weights) >= 0
    else:
        assert isinstance(found, PairSeparation)
        assert "Infeasible" not in status


@settings(max_examples=40)
@given(lifts(), st.sampled_from([1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0]))
def test_the_soft_optimum_is_that_of_a_generic_solver(lift: Lift, C: float) -> None:
    found = soft_pairs(Sweeper(Statistics.of(lift)), [C])
    step = found.trace[0]
    assert step.gap <= 1e-6
    _, value = generic_soft(lift, C)
    rows, i = pair_rows(lift)
    margin = np.full(lift.samples, np.inf)
    np.minimum.at(margin, i, rows @ found.theta)
    slack = np.maximum(0.0, 1.0 - margin)
    ours = 0.5 * found.theta @ found.theta + C * slack.sum()
    assert ours == pytest.approx(value, rel=1e-5)
    assert step.slack_sum == pytest.approx(slack.sum(), rel=1e-9, abs=1e-9)
    assert step.slack_max == pytest.approx(slack.max(), rel=1e-9, abs=1e-9)
    assert step.margin == pytest.approx(margin.min(), rel=1e-9, abs=1e-9)
    assert step.agreement == pytest.approx(np.mean(margin > 0))


@settings(max_examples=8)
@given(lifts())
def test_cuts_found_for_one_weight_serve_the_others(lift: Lift) -> None:
    together = soft_pairs(Sweeper(Statistics.of(lift)))
    for step in together.trace:
        alone = soft_pairs(Sweeper(Statistics.of(lift)), [step.weight]).trace[0]
        value = [0.5 * s.norm**2 + s.weight * s.slack_sum for s in (step, alone)]
        assert value[0] == pytest.approx(value[1], rel=3e-6)


@given(lifts(separable=True))
def test_running_out_of_rounds_is_never_feasible(lift: Lift) -> None:
    assume(np.unique(lift.target).size > 1)
    sweeper = Sweeper(Statistics.of(lift))
    found = separate_pairs(sweeper, rounds=1)
    if isinstance(found, PairSeparation):
        rows, _ = pair_rows(lift)
        assert (rows @ found.theta).min() > 0
    else:
        assert isinstance(found, OutOfRounds)


def test_two_classes_that_nothing_tells_apart_are_a_contradiction() -> None:
    Q = np.array([[1.0, 1.0, 0.0], [2.0, 2.0, 5.0]])
    lift = Lift(Q, Q.copy(), np.array([1.0, 1.0, 2.0]), np.zeros(3), np.array([0, 2]), 0, np.zeros((2, 1)))
    found = separate_pairs(Sweeper(Statistics.of(lift)))
    assert isinstance(found, PairContradiction)
    assert contradiction_weights([[Fraction(v) for v in row] for row in lift.pair_rows(found.samples, found.rivals)])


@pytest.mark.parametrize("scale", [1e-8, 1e8])
@given(lifts(separable=True))
def test_the_scale_of_the_statistics_does_not_decide_feasibility(scale: float, lift: Lift) -> None:
    assume(np.unique(lift.target).size > 1)
    scaled = Lift(lift.Q * scale**2, lift.L * scale, lift.B, lift.b, lift.target, 0, lift.box)
    assert isinstance(separate_pairs(Sweeper(Statistics.of(scaled))), PairSeparation)


@given(lifts())
def test_the_largest_row_is_the_largest_row(lift: Lift) -> None:
    rows, _ = pair_rows(lift)
    assert largest_row(Statistics.of(lift)) == pytest.approx(np.linalg.norm(rows, axis=1).max())


@given(seeds, st.integers(1, 5), st.integers(1, 40))
def test_the_small_qp_agrees_with_a_generic_solver(seed: int, k: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    A, x0 = rng.normal(size=(rows, k)), rng.normal(size=k)
    h = A @ x0 - rng.uniform(0, 1, rows)  # feasible at x0
    P, q = rng.uniform(0.1, 2.0, k), rng.normal(size=k)
    x, y = solve(P, q, A, h, np.zeros(k))
    _, _, value = solve_qp(P, q, sparse.csc_matrix(-A), -h, 0)
    assert 0.5 * (P * x * x).sum() + q @ x == pytest.approx(value, rel=1e-8, abs=1e-8)
    assert (A @ x - h).min() > -1e-8
    assert y.min() > -1e-10
