"""The multiclass problems against a generic QP solver on all rows, and what is said when they have no answer."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.optimize import linprog

from quad4fhe.fitting.design import Block, Design
from quad4fhe.fitting.pairs import (
    OutOfRounds,
    PairContradiction,
    PairSeparation,
    separate_pairs,
    soft_pairs,
    solve,
)
from quad4fhe.fitting.sweeps import Sweeper, largest_row
from quad4fhe.proof.evidence import contradiction_weights
from reference_solvers import hard_pairs, pair_rows, solve_qp
from reference_solvers import soft_pairs as generic_soft
from support.strategies import blocks, seeds


@given(blocks(separable=True))
def test_the_hard_optimum_is_that_of_a_generic_solver(block: Block) -> None:
    assume(np.unique(block.target).size > 1)
    found = separate_pairs(Sweeper(Design.of(block)))
    assert isinstance(found, PairSeparation)
    rows, _ = pair_rows(block)
    assert (rows @ found.theta).min() >= 1 - 1e-9
    assert found.theta[3] >= 1 - 1e-12
    assert found.gap <= 1e-7
    status, theta, _ = hard_pairs(block)
    if status == "Solved":
        assert np.linalg.norm(found.theta) == pytest.approx(np.linalg.norm(theta), rel=1e-5)
        np.testing.assert_allclose(found.theta, theta, atol=1e-4 * np.linalg.norm(theta))


@given(blocks())
def test_feasible_is_said_exactly_where_a_generic_solver_agrees(block: Block) -> None:
    assume(np.unique(block.target).size > 1)
    found = separate_pairs(Sweeper(Design.of(block)))
    status, _, _ = hard_pairs(block)
    if isinstance(found, PairContradiction):
        assert status != "Solved"
        assert found.samples.size + found.scale <= 5
        rows = block.pair_rows(found.samples, found.rivals).tolist() + [[0.0, 0.0, 0.0, 1.0]] * found.scale
        weights = contradiction_weights([[Fraction(v) for v in row] for row in rows])
        assert weights is not None
        assert min(weights) >= 0
    else:
        assert isinstance(found, PairSeparation)
        assert "Infeasible" not in status


@settings(max_examples=40)
@given(blocks(), st.sampled_from([1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0]))
def test_the_soft_optimum_is_that_of_a_generic_solver(block: Block, C: float) -> None:
    found = soft_pairs(Sweeper(Design.of(block)), [C])
    step = found.trace[0]
    assert step.gap <= 1e-6
    _, value = generic_soft(block, C)
    rows, i = pair_rows(block)
    margin = np.full(block.samples, np.inf)
    np.minimum.at(margin, i, rows @ found.theta)
    slack = np.maximum(0.0, 1.0 - margin)
    ours = 0.5 * found.theta @ found.theta + C * slack.sum()
    assert ours == pytest.approx(value, rel=1e-5)
    assert step.slack_sum == pytest.approx(slack.sum(), rel=1e-9, abs=1e-9)
    assert step.slack_max == pytest.approx(slack.max(), rel=1e-9, abs=1e-9)
    assert step.margin == pytest.approx(margin.min(), rel=1e-9, abs=1e-9)
    assert step.agreement == pytest.approx(np.mean(margin > 0))


@settings(max_examples=3)
@given(blocks())
def test_cuts_found_for_one_weight_serve_the_others(block: Block) -> None:
    together = soft_pairs(Sweeper(Design.of(block)))
    for step in together.trace:
        alone = soft_pairs(Sweeper(Design.of(block)), [step.weight]).trace[0]
        value = [0.5 * s.norm**2 + s.weight * s.slack_sum for s in (step, alone)]
        assert value[0] == pytest.approx(value[1], rel=3e-6)


@given(blocks(separable=True))
def test_running_out_of_rounds_is_never_feasible(block: Block) -> None:
    assume(np.unique(block.target).size > 1)
    sweeper = Sweeper(Design.of(block))
    found = separate_pairs(sweeper, rounds=1)
    if isinstance(found, PairSeparation):
        rows, _ = pair_rows(block)
        assert (rows @ found.theta).min() > 0
    else:
        assert isinstance(found, OutOfRounds)


def test_two_classes_that_nothing_tells_apart_are_a_contradiction() -> None:
    Q = np.array([[1.0, 1.0, 0.0], [2.0, 2.0, 5.0]])
    block = Block(np.stack([Q, Q]), np.array([1.0, 1.0, 2.0]), np.zeros(3), np.array([0, 2]))
    found = separate_pairs(Sweeper(Design.of(block)))
    assert isinstance(found, PairContradiction)
    assert contradiction_weights([[Fraction(v) for v in row] for row in block.pair_rows(found.samples, found.rivals)])


@pytest.mark.parametrize("scale", [1e-8, 1e8])
@given(blocks(separable=True))
def test_the_scale_of_the_statistics_does_not_decide_feasibility(scale: float, block: Block) -> None:
    assume(np.unique(block.target).size > 1)
    scaled = replace(block, P=block.P * np.array([scale**2, scale])[:, None, None])
    assert isinstance(separate_pairs(Sweeper(Design.of(scaled))), PairSeparation)


@given(blocks())
def test_the_largest_row_is_the_largest_row(block: Block) -> None:
    rows, _ = pair_rows(block)
    assert largest_row(Design.of(block)) == pytest.approx(np.linalg.norm(rows, axis=1).max())


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


@settings(max_examples=20)
@given(st.integers(3, 8), st.data())
def test_pairs_in_any_dimension_are_separated_where_a_linear_program_is_feasible(p: int, data: st.DataObject) -> None:
    block = data.draw(blocks(degree=p))
    block = replace(block, P=block.P / np.abs(block.P).max(axis=(1, 2), keepdims=True))
    assume(np.unique(block.target).size > 1)
    rows = np.vstack([pair_rows(block)[0], np.eye(p + 2)[-1]])
    by_program = linprog(np.zeros(p + 2), A_ub=-rows, b_ub=-np.ones(len(rows)), bounds=(None, None)).status
    found = separate_pairs(Sweeper(Design.of(block)))
    if isinstance(found, PairSeparation):
        assert by_program == 0
        assert (rows @ found.theta >= 1 - 1e-6).all()
    elif isinstance(found, PairContradiction):
        assert by_program == 2
        assert found.samples.size + found.scale <= p + 3


@given(blocks(), st.integers(1, 20))
def test_a_sweep_does_not_depend_on_the_blocks(block: Block, size: int) -> None:
    assume(np.unique(block.target).size > 1)
    whole, cut = (Sweeper(Design.of(block, rows)).worst(np.array([0.3, 0.5, 0.1, 1.0])) for rows in (None, size))
    assert whole.margin == cut.margin
    assert set(zip(whole.samples, whole.rivals, strict=True)) == set(zip(cut.samples, cut.rivals, strict=True))
