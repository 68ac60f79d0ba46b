"""The hard binary regime: hulls, closest pairs and contacts, against brute force, exact arithmetic and a QP solver."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from scipy.optimize import linprog

from quad4fhe.calibration.plane import Plane
from quad4fhe.fitting.hulls import Contact, Separation, _diameter, hull, orientation, separate
from reference_solvers import dual_reduced_hulls
from support.strategies import grid_points, overlapping_planes, seeds


def exact_turn(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> int:
    ax, ay, bx, by, cx, cy = (Fraction(float(v)) for p in (a, b, c) for v in p)
    value = (bx - ax) * (cy - ay) - (by - ay) * (cx - ax)
    return (value > 0) - (value < 0)


def vertices_by_definition(points: np.ndarray) -> set[tuple[float, float]]:
    """A distinct point is a vertex if it is not in the hull of the other distinct points: no segment, no triangle."""
    distinct = [np.array(p) for p in {tuple(p) for p in points.tolist()}]
    found = set()
    for k, p in enumerate(distinct):
        others = distinct[:k] + distinct[k + 1 :]
        on_segment = any(
            exact_turn(a, b, p) == 0
            and min(a[0], b[0]) <= p[0] <= max(a[0], b[0])
            and min(a[1], b[1]) <= p[1] <= max(a[1], b[1])
            for a, b in combinations(others, 2)
        )
        in_triangle = any(
            len({exact_turn(a, b, p), exact_turn(b, c, p), exact_turn(c, a, p)}) == 1 and exact_turn(a, b, c) != 0
            for a, b, c in combinations(others, 3)
        )
        if not (on_segment or in_triangle):
            found.add(tuple(p.tolist()))
    return found


@given(grid_points())
def test_hull_vertices_are_those_of_the_definition(drawn) -> None:
    points, _ = drawn
    found = hull(points, np.arange(len(points)))
    assert {tuple(p) for p in points[found].tolist()} == vertices_by_definition(points)
    assert len(found) == len({tuple(p) for p in points[found].tolist()})


@given(seeds)
def test_the_filter_for_large_sets_drops_no_vertex(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(3000, 2)) * [1e6, 1e-3]
    found = hull(points, np.arange(3000))
    for a, b in zip(found, np.roll(found, -1), strict=True):
        turn = (points[b, 0] - points[a, 0]) * (points[:, 1] - points[a, 1])
        turn -= (points[b, 1] - points[a, 1]) * (points[:, 0] - points[a, 0])
        assert turn.min() > -1e-6 * np.abs(turn).max()


def test_orientation_is_exact_where_floats_are_not() -> None:
    a, b = (0.5, 0.5), (12.0, 12.0)
    for k in range(-8, 9):
        c = (24.0 + k * 2.0**-47, 24.0)
        assert orientation(*a, *b, *c) == exact_turn(np.array(a), np.array(b), np.array(c)) == (k < 0) - (k > 0)


def hulls_meet(points: np.ndarray, positive: np.ndarray) -> bool:
    """A linear program: is there a common convex combination?"""
    p, q = points[positive], points[~positive]
    equal = np.vstack(
        [np.hstack([p.T, -q.T]), np.r_[np.ones(len(p)), np.zeros(len(q))], np.r_[np.zeros(len(p)), np.ones(len(q))]]
    )
    return bool(linprog(np.zeros(len(points)), A_eq=equal, b_eq=[0, 0, 1, 1], method="highs").status == 0)


@given(grid_points())
def test_disjoint_or_not_is_decided_as_a_linear_program_does(drawn) -> None:
    points, positive = drawn
    found = separate(Plane.of(points, positive, 1.0, 0.0))
    assert isinstance(found, Contact if hulls_meet(points, positive) else Separation)


@given(overlapping_planes())
def test_the_separation_is_the_closest_pair_of_a_qp_solver(plane: Plane) -> None:
    found = separate(plane)
    if isinstance(found, Contact):
        assert hulls_meet(plane.points, plane.positive)
        return
    u, v = dual_reduced_hulls(plane, 1.0, 1.0)
    distance = np.linalg.norm(u - v)
    assert found.margin == pytest.approx(distance, rel=1e-5, abs=1e-7 * found.diameter)  # what the solver resolves
    np.testing.assert_allclose(found.theta, (u - v) / distance, atol=1e-5 * max(1.0, found.diameter / found.margin))
    assert found.low == pytest.approx((plane.points[plane.positive] @ found.theta).min(), rel=1e-9, abs=1e-9)
    assert found.high == pytest.approx((plane.points[~plane.positive] @ found.theta).max(), rel=1e-9, abs=1e-9)


@given(grid_points())
def test_the_diameter_is_the_largest_distance_between_samples(drawn) -> None:
    points, positive = drawn
    p, q = points[positive], points[~positive]
    largest = max(np.linalg.norm(a - b) for a in p for b in q)
    hulls = p[hull(p, np.arange(len(p)))], q[hull(q, np.arange(len(q)))]
    assert _diameter(*hulls) == pytest.approx(largest, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("scale", [1e-150, 1e-8, 1.0, 1e8, 1e140])
@pytest.mark.parametrize("gap", [-1, 0, 1])
def test_touching_is_told_from_apart_by_one_unit_in_the_last_place(scale: float, gap: int) -> None:
    """A point beside an edge: on it, or one float on either side."""
    edge = np.array([[0.0, 0.0], [3.0, 1.0]])
    middle = np.array([1.5, np.nextafter(0.5, 0.5 + gap)]) if gap else np.array([1.5, 0.5])
    below = np.array([[1.0, -4.0], [2.0, -4.0]])
    points = np.vstack([middle[None, :], edge, below]) * scale
    found = separate(Plane.of(points, np.array([True, False, False, False, False]), 1.0, 0.0))
    meets = exact_turn(points[1], points[2], points[0]) <= 0
    assert isinstance(found, Contact) == meets


def test_one_point_a_side_works_and_the_same_point_is_a_contact() -> None:
    positive = np.array([True, False])
    found = separate(Plane.of(np.array([[3.0, 4.0], [0.0, 0.0]]), positive, 1.0, 0.0))
    assert isinstance(found, Separation)
    np.testing.assert_allclose(found.theta, [0.6, 0.8])
    assert found.margin == pytest.approx(5.0)
    assert separate(Plane.of(np.zeros((2, 2)), positive, 1.0, 0.0)) == Contact([0], [1])
