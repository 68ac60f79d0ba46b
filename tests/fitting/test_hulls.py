"""Closest points of hulls and of reduced hulls, against programs written out for generic solvers."""

from __future__ import annotations

import clarabel
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linprog

from quad4fhe.fitting.hulls import Apart, Hull, Meet, closest, farthest
from reference_solvers import dual_reduced_hulls, primal_reduced_hulls
from support.strategies import grid_points, overlapping_clouds, seeds

Clouds = tuple[NDArray[np.float64], NDArray[np.float64]]
caps = st.floats(0.02, 1.0)


def hulls_meet(p: np.ndarray, q: np.ndarray) -> bool:
    """A linear program: is there a common convex combination?"""
    equal = np.vstack(
        [np.hstack([p.T, -q.T]), np.r_[np.ones(len(p)), np.zeros(len(q))], np.r_[np.zeros(len(p)), np.ones(len(q))]]
    )
    wanted = np.r_[np.zeros(p.shape[1]), 1, 1]
    return bool(linprog(np.zeros(len(p) + len(q)), A_eq=equal, b_eq=wanted, method="highs").status == 0)


@given(grid_points())
def test_disjoint_or_not_is_decided_as_a_linear_program_does(drawn) -> None:
    points, positive = drawn
    p, q = points[positive], points[~positive]
    found = closest(p, q)
    assert isinstance(found, Meet if hulls_meet(p, q) else Apart)
    if isinstance(found, Meet):
        assert hulls_meet(p[found.first], q[found.second])


@given(overlapping_clouds())
def test_the_separation_is_the_closest_pair_of_a_qp_solver(clouds: Clouds) -> None:
    p, q = clouds
    found = closest(p, q)
    if isinstance(found, Meet):
        assert hulls_meet(p, q)
        return
    u, v = dual_reduced_hulls(p, q, 1.0, 1.0)
    distance, size = np.linalg.norm(u - v), farthest(p, q)
    assert found.distance == pytest.approx(distance, rel=1e-5, abs=1e-7 * size)  # what the solver resolves
    theta = found.direction / found.distance
    np.testing.assert_allclose(theta, (u - v) / distance, atol=1e-5 * max(1.0, size / found.distance))
    assert found.high == pytest.approx((p @ found.direction).min(), rel=1e-9, abs=1e-9)
    assert found.low == pytest.approx((q @ found.direction).max(), rel=1e-9, abs=1e-9)


@given(grid_points())
def test_the_largest_distance_is_that_between_samples(drawn) -> None:
    points, positive = drawn
    p, q = points[positive], points[~positive]
    assert farthest(p, q) == pytest.approx(max(np.linalg.norm(a - b) for a in p for b in q), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("scale", [1e-100, 1e-8, 1.0, 1e8, 1e100])
@pytest.mark.parametrize("gap", [-1e-6, 1e-6])
def test_points_almost_on_an_edge_are_told_apart_at_any_scale(scale: float, gap: float) -> None:
    edge = np.array([[0.0, 0.0], [3.0, 1.0], [1.0, -4.0], [2.0, -4.0]])
    found = closest(np.array([[1.5, 0.5 + gap]]) * scale, edge * scale)
    assert isinstance(found, Apart if gap > 0 else Meet)


def test_one_point_a_side_works_and_the_same_point_is_a_contact() -> None:
    found = closest(np.array([[3.0, 4.0]]), np.zeros((1, 2)))
    assert isinstance(found, Apart)
    np.testing.assert_allclose(found.direction, [3.0, 4.0])
    assert isinstance(closest(np.zeros((1, 2)), np.zeros((1, 2))), Meet)


@given(seeds, caps, st.integers(1, 30), st.floats(0, 7))
def test_the_support_point_is_the_optimum_of_the_linear_program(seed: int, mu: float, n: int, angle: float) -> None:
    points = np.random.default_rng(seed).normal(size=(n, 2))
    direction = np.array([np.cos(angle), np.sin(angle)])
    hull = Hull(points, mu)
    found, rows = hull.lowest(direction)
    best = linprog(points @ direction, A_eq=np.ones((1, n)), b_eq=[1.0], bounds=(0, hull.cap), method="highs")
    assert found @ direction == pytest.approx(best.fun, rel=1e-9, abs=1e-9)
    assert len(set(rows.tolist())) == rows.size


@given(overlapping_clouds(), caps)
def test_closest_points_agree_with_the_dual_problem(clouds: Clouds, mu: float) -> None:
    p, q = clouds
    found = closest(p, q, mu)
    u, v = dual_reduced_hulls(p, q, max(mu, 1 / len(p)), max(mu, 1 / len(q)))
    distance, scale = float(np.linalg.norm(u - v)), float(np.abs(np.vstack(clouds)).max())
    if isinstance(found, Meet):
        assert distance < 1e-5 * scale
        return
    assert found.distance == pytest.approx(distance, rel=1e-5, abs=1e-8 * scale)
    np.testing.assert_allclose(found.u - found.v, found.direction, atol=1e-9 * scale)


@given(overlapping_clouds(), caps)
def test_the_direction_and_value_agree_with_the_primal_problem(clouds: Clouds, mu: float) -> None:
    """Theorem 4 at c = mu/2: theta is half of u* - v*, and the value is minus an eighth of the squared margin."""
    p, q = clouds
    found = closest(p, q, mu)
    theta, value = primal_reduced_hulls(p, q, max(mu, 1 / len(p)) / 2, max(mu, 1 / len(q)) / 2)
    scale = float(np.abs(np.vstack(clouds)).max())
    margin = found.distance if isinstance(found, Apart) else 0.0
    assert value == pytest.approx(-(margin**2) / 8, rel=1e-4, abs=1e-7 * scale**2)
    if isinstance(found, Apart) and margin > 1e-3 * scale:
        np.testing.assert_allclose(theta, found.direction / 2, rtol=1e-3, atol=1e-4 * margin)


@given(overlapping_clouds(), st.sampled_from([1e3, 1e6, 1e9]))
def test_a_common_offset_changes_no_separation(clouds: Clouds, offset: float) -> None:
    before, after = closest(*clouds, 0.3), closest(clouds[0] + offset, clouds[1] + offset, 0.3)
    if isinstance(before, Meet) or before.distance < 1e-5 * offset:
        return
    assert isinstance(after, Apart)
    assert after.distance == pytest.approx(before.distance, rel=1e-5)


def by_qp(P: np.ndarray, N: np.ndarray, cap: float) -> float:
    """The distance of two reduced hulls, by an interior-point method with a weight per point."""
    n, k, p = len(P), len(N), P.shape[1]
    Q = sparse.block_diag([sparse.csc_matrix((n + k, n + k)), 2 * sparse.eye(p)], format="csc")
    points = sparse.hstack([sparse.csc_matrix(np.vstack([P, -N]).T), -sparse.eye(p)])
    ones = np.zeros((2, n + k + p))
    ones[0, :n], ones[1, n : n + k] = 1.0, 1.0
    box = sparse.hstack([sparse.eye(n + k), sparse.csc_matrix((n + k, p))])
    A = sparse.vstack([points, sparse.csc_matrix(ones), -box, box], format="csc")
    caps = np.r_[np.full(n, max(cap, 1 / n)), np.full(k, max(cap, 1 / k))]
    b = np.r_[np.zeros(p), 1.0, 1.0, np.zeros(n + k), caps]
    settings = clarabel.DefaultSettings()
    settings.verbose, settings.tol_gap_abs, settings.tol_gap_rel, settings.tol_feas = False, 1e-12, 1e-12, 1e-12
    cones = [clarabel.ZeroConeT(p + 2), clarabel.NonnegativeConeT(2 * (n + k))]
    solution = clarabel.DefaultSolver(Q, np.zeros(n + k + p), A, b, cones, settings).solve()
    return float(np.linalg.norm(np.array(solution.x)[-p:]))


@given(
    st.integers(0, 10**6),
    st.integers(1, 8),
    st.sampled_from([1.0, 0.5, 0.3, 0.1]),
    st.booleans(),
)
def test_closest_points_are_those_of_a_quadratic_program(seed: int, p: int, cap: float, whole: bool) -> None:
    rng = np.random.default_rng(seed)
    P, N = rng.standard_normal((rng.integers(1, 40), p)), rng.standard_normal((rng.integers(1, 40), p))
    P[:, 0] += rng.uniform(0, 5)
    if whole:  # duplicates and degenerate faces
        P, N = np.round(P), np.round(N)
    found, distance = closest(P, N, cap), by_qp(P, N, cap)
    if isinstance(found, Apart):
        assert found.distance == pytest.approx(distance, rel=1e-6, abs=1e-6)
        assert found.high > found.low
    else:
        assert isinstance(found, Meet)
        assert distance < 1e-5
