"""The polish: exact along lines, never worse than its start, and provably best in the plane."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quad4fhe.calibration.lift import Lift, Statistics
from quad4fhe.calibration.plane import Plane
from quad4fhe.fitting import polish as polishing
from quad4fhe.fitting.binary import best_line
from quad4fhe.fitting.polish import _agreeing, deepest, kept_intervals, polish
from support.strategies import grid_points, lifts, overlapping_planes, seeds


@given(st.lists(st.tuples(st.integers(-8, 8), st.integers(-8, 8)), min_size=1, max_size=12))
def test_the_deepest_point_of_intervals_is_found(ends: list[tuple[int, int]]) -> None:
    low, high = (np.array(side, dtype=float) for side in zip(*ends, strict=True))
    depth, at = deepest(low, high)
    tried = np.arange(-9, 9.25, 0.25)
    best = max(int(np.count_nonzero((low < t) & (t < high))) for t in tried)
    assert depth == best
    assert np.count_nonzero((low < at) & (at < high)) == best or best == 0


@given(lifts(), seeds)
def test_a_sample_is_kept_exactly_inside_its_interval(lift: Lift, seed: int) -> None:
    rng = np.random.default_rng(seed)
    point, direction = rng.normal(size=3), rng.normal(size=3)
    low, high = kept_intervals(lift, point, direction)
    for t in rng.normal(size=5):
        p = point + t * direction
        scores = p[0] * lift.Q + p[1] * lift.L + p[2] * lift.B + lift.b
        own = scores[np.arange(lift.samples), lift.target]
        scores[np.arange(lift.samples), lift.target] = -np.inf
        margin = own - scores.max(axis=1)
        sure = np.abs(margin) > 1e-9 * (1 + np.abs(own))
        assert np.array_equal(((low < t) & (t < high))[sure], (margin > 0)[sure])


@settings(max_examples=30)
@given(lifts(), seeds)
def test_a_polish_never_loses_a_decision_in_total(lift: Lift, seed: int) -> None:
    start = np.random.default_rng(seed).normal(size=3)
    found = polish(Statistics.of(lift), [start], seed)
    assert found.agreeing == _agreeing(Statistics.of(lift), found.coefficients) >= _agreeing(Statistics.of(lift), start)
    again = polish(Statistics.of(lift), [start], seed)
    assert np.array_equal(found.coefficients, again.coefficients)


@settings(max_examples=15)
@given(lifts(), seeds)
def test_a_polish_on_a_sample_of_the_rows_never_loses_either(lift: Lift, seed: int) -> None:
    start = np.random.default_rng(seed).normal(size=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(polishing, "_ENTRIES", 2 * lift.classes)
        found = polish(Statistics.of(lift), [start], seed)
    assert found.agreeing == _agreeing(Statistics.of(lift), found.coefficients) >= _agreeing(Statistics.of(lift), start)


def most_by_brute_force(points: np.ndarray, positive: np.ndarray) -> int:
    """Try every direction between two critical ones and every cut: all dichotomies by a line."""
    differences = [b - a for a in points for b in points if tuple(a) != tuple(b)]
    critical = sorted({round(float(np.arctan2(-d[0], d[1])) % (2 * np.pi), 12) for d in differences}) or [0.0]
    between = [
        (a + b) / 2 for a, b in zip(critical, [*critical[1:], critical[0] + 2 * np.pi], strict=True) if b - a > 1e-9
    ]
    best = 0
    for angle in between:
        height = points @ [np.cos(angle), np.sin(angle)]
        levels = np.unique(np.round(height, 9))
        cuts = np.concatenate([[levels[0] - 1], (levels[1:] + levels[:-1]) / 2, [levels[-1] + 1]])
        best = max(best, *(int(np.count_nonzero((height > cut) == positive)) for cut in cuts))
    return best


@given(grid_points(most=10))
def test_no_line_beats_the_best_line_even_on_degenerate_points(drawn) -> None:
    points, positive = drawn
    found = best_line(Plane.of(points, positive, 1.0, 0.0), len(points))
    best = most_by_brute_force(points, positive)
    if found is None:  # only a line that puts all points on one side does as well
        assert best <= max(np.count_nonzero(positive), np.count_nonzero(~positive)) or len(points) <= 2
        return
    side = points @ found.separation.theta > (found.separation.low + found.separation.high) / 2
    assert np.count_nonzero(side == positive) == len(points) - found.mistakes.size == best


@settings(max_examples=40)
@given(overlapping_planes(), st.integers(0, 6))
def test_leaving_out_deep_points_does_not_change_the_optimum(plane: Plane, extra: int) -> None:
    whole = best_line(plane, plane.positive.size)
    if whole is None:
        return
    assert whole.optimal  # points in general position
    pruned = best_line(plane, whole.mistakes.size + extra)
    assert pruned is not None
    assert pruned.optimal
    assert pruned.mistakes.size == whole.mistakes.size
