"""Reduced hulls: the oracle, both sides of the paper's duality, and the caps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from quad4fhe.calibration.plane import Plane
from quad4fhe.fitting.hulls import Separation, separate
from quad4fhe.fitting.reduced_hulls import CAPS, ReducedHulls, closest, critical_cap, scan, soft
from reference_solvers import dual_reduced_hulls, primal_reduced_hulls
from support.strategies import overlapping_planes, seeds

caps = st.floats(0.02, 1.0)


@given(seeds, caps, st.integers(1, 30), st.floats(0, 7))
def test_the_support_point_is_the_optimum_of_the_linear_program(seed: int, mu: float, n: int, angle: float) -> None:
    points = np.random.default_rng(seed).normal(size=(n, 2))
    direction = np.array([np.cos(angle), np.sin(angle)])
    sides = (points, points[::-1] + 3.0)
    reduced = ReducedHulls(Plane.of(np.vstack(sides), np.repeat([True, False], n), 1.0, 0.0), mu)
    for sign, side, cap, found in zip((1, -1), sides, reduced.mu, reduced.support(*direction), strict=True):
        best = linprog(sign * side @ direction, A_eq=np.ones((1, n)), b_eq=[1.0], bounds=(0, cap), method="highs")
        assert sign * np.dot(found + reduced.centre, direction) == pytest.approx(best.fun, rel=1e-9, abs=1e-9)


@given(overlapping_planes(), caps)
def test_closest_points_agree_with_the_dual_problem(plane: Plane, mu: float) -> None:
    found = closest(plane, mu)
    plus, minus = int(plane.positive.sum()), int((~plane.positive).sum())
    u, v = dual_reduced_hulls(plane, max(mu, 1 / plus), max(mu, 1 / minus))
    distance, scale = float(np.linalg.norm(u - v)), float(np.abs(plane.points).max())
    if found is None:
        assert distance < 1e-5 * scale
        return
    assert found.margin == pytest.approx(distance, rel=1e-5, abs=1e-8 * scale)
    np.testing.assert_allclose(found.u - found.v, found.margin * found.theta, atol=1e-9 * scale)
    assert (found.mu_plus, found.mu_minus) == (max(mu, 1 / plus), max(mu, 1 / minus))


@given(overlapping_planes(), caps)
def test_the_direction_and_value_agree_with_the_primal_problem(plane: Plane, mu: float) -> None:
    """Theorem 4 at c = mu/2: theta is half of u* - v*, and the value is minus an eighth of the squared margin."""
    found = closest(plane, mu)
    plus, minus = int(plane.positive.sum()), int((~plane.positive).sum())
    theta, value = primal_reduced_hulls(plane, max(mu, 1 / plus) / 2, max(mu, 1 / minus) / 2)
    scale = float(np.abs(plane.points).max())
    margin = 0.0 if found is None else found.margin
    assert value == pytest.approx(-(margin**2) / 8, rel=1e-4, abs=1e-7 * scale**2)
    if found is not None and margin > 1e-3 * scale:
        np.testing.assert_allclose(theta, margin / 2 * found.theta, rtol=1e-3, atol=1e-4 * margin)


@given(overlapping_planes())
def test_at_cap_one_the_reduced_hulls_are_the_hulls(plane: Plane) -> None:
    hard, reduced = separate(plane), closest(plane, 1.0)
    if isinstance(hard, Separation) and hard.margin > 1e-9 * hard.diameter:
        assert reduced is not None
        assert reduced.margin == pytest.approx(hard.margin, rel=1e-9)
        np.testing.assert_allclose(reduced.theta, hard.theta, atol=1e-6)
    elif reduced is not None:
        assert reduced.margin < 1e-8 * np.abs(plane.points).max()


@given(overlapping_planes())
def test_the_scan_takes_the_largest_cap_that_separates_and_the_critical_cap_lies_above_it(plane: Plane) -> None:
    found, trace = scan(plane)
    assert [mu for mu, _ in trace] == list(CAPS[: len(trace)])
    assert all(margin == 0 for _, margin in trace[:-1])
    if found is None or len(trace) == 1:
        return
    critical = critical_cap(plane, found.mu, trace[-2][0])
    assert found.mu <= critical <= trace[-2][0]
    assert closest(plane, critical) is not None
    assert closest(plane, critical * (1 + 1e-6)) is None


@given(overlapping_planes())
def test_a_soft_direction_is_never_degenerate(plane: Plane) -> None:
    found = soft(plane)
    assert found is not None
    assert np.linalg.norm(found.theta) == pytest.approx(1.0)
    assert found.step.agreement == max(step.agreement for step in found.trace)


@given(overlapping_planes())
def test_the_slacks_of_a_soft_step_are_those_of_the_primal_problem(plane: Plane) -> None:
    """At the direction found, t and rho minimise P-RCH: a linear program in t, rho and the slacks."""
    found = soft(plane)
    assert found is not None
    plus, minus = int(plane.positive.sum()), int((~plane.positive).sum())
    mu = 2 * found.step.weight
    c = np.where(plane.positive, max(mu, 1 / plus), max(mu, 1 / minus)) / 2
    side, n = np.where(plane.positive, 1.0, -1.0), plane.positive.size
    A = np.hstack([side[:, None], np.ones((n, 1)), -np.eye(n)])  # side t + rho - xi <= side theta.z
    height = plane.points @ found.theta
    best = linprog(
        np.concatenate([[0.0, -1.0], c]),
        A_ub=A,
        b_ub=side * height,
        bounds=[(None, None)] * 2 + [(0, None)] * n,
        method="highs",
    )
    rho = (found.low - found.high) / 2
    slack = np.maximum(np.where(plane.positive, found.low - height, height - found.high), 0.0)
    assert -rho + c @ slack == pytest.approx(best.fun, rel=1e-7, abs=1e-7 * np.abs(height).max())
    assert found.step.slack_sum == pytest.approx(slack.sum())


@given(overlapping_planes(), st.sampled_from([1e3, 1e6, 1e9]))
def test_a_common_offset_changes_no_separation(plane: Plane, offset: float) -> None:
    before, after = closest(plane, 0.3), closest(Plane.of(plane.points + offset, plane.positive, 1.0, 0.0), 0.3)
    if before is None or before.margin < 1e-5 * offset:
        return
    assert after is not None
    assert after.margin == pytest.approx(before.margin, rel=1e-5)


def test_classes_with_one_centre_have_no_soft_direction() -> None:
    square = np.array([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]])
    assert soft(Plane.of(square, np.array([True, True, False, False]), 1.0, 0.0)) is None
