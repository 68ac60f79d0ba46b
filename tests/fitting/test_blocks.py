"""What is asked of blocks and put together is what all rows in one place would have said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quad4fhe.calibration.lift import Lift, Statistics
from quad4fhe.calibration.plane import Plane
from quad4fhe.fitting import polish, reduced_hulls
from quad4fhe.fitting.binary import best_line
from quad4fhe.fitting.hulls import separate
from quad4fhe.fitting.polish import Line, best_on, deepest, kept_intervals
from quad4fhe.fitting.reduced_hulls import lowest
from support.strategies import grid_points, lifts, overlapping_planes, seeds

sizes = st.integers(1, 20)


@given(grid_points(), sizes)
def test_the_hull_of_hulls_is_the_hull_down_to_the_rows_it_names(drawn, size: int) -> None:
    points, positive = drawn
    whole, cut = Plane.of(points, positive, 1.0, 0.0), Plane.of(points, positive, 1.0, 0.0, size)
    assert repr(separate(cut)) == repr(separate(whole))


@given(overlapping_planes(), sizes, st.integers(0, 6))
def test_the_best_line_does_not_depend_on_the_blocks(plane: Plane, size: int, known: int) -> None:
    cut = Plane.of(plane.points, plane.positive, plane.B, plane.b, size)
    assert repr(best_line(cut, known)) == repr(best_line(plane, known))


@given(seeds, sizes, st.booleans(), st.sampled_from([1, 3, 4096]), st.floats(0, 7), st.data())
def test_the_lowest_points_of_a_class_are_those_of_sorting_it(
    seed: int, size: int, ties: bool, few: int, angle: float, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 60))
    points = rng.integers(-2, 3, (n, 2)).astype(float) if ties else rng.normal(size=(n, 2))
    positive = rng.random(n) < 0.5
    positive[:2] = True, False
    plane = Plane.of(points, positive, 1.0, 0.0, size)
    direction = np.array([1.0, 0.0]) if ties else np.array([np.cos(angle), np.sin(angle)])
    counts = [data.draw(st.integers(0, int(side.sum()) - 1)) for side in (positive, ~positive)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reduced_hulls, "_FEW", few)
        found = lowest(plane, direction, counts)
    for sign, side, count, got in zip((1, -1), (positive, ~positive), counts, found, strict=True):
        rows = np.flatnonzero(side)
        height = sign * ((points - plane.moments.centre) @ direction)
        order = rows[np.lexsort((rows, np.round(height[rows], 9)))]
        assert got.height == pytest.approx(height[order[count]], abs=1e-9)
        if not ties or few >= n or direction[1] == 0:
            total = (points[order[:count]] - plane.moments.centre).sum(axis=0)
            np.testing.assert_allclose(got.sum, total, atol=1e-9)
            np.testing.assert_allclose(got.next, points[order[count]] - plane.moments.centre, atol=1e-9)


@given(lifts(), seeds, st.integers(1, 30))
def test_the_deepest_place_found_by_bins_is_that_of_sorting_all_ends(lift: Lift, seed: int, fetched: int) -> None:
    rng = np.random.default_rng(seed)
    if seed % 2:
        lift = replace(lift, Q=np.round(lift.Q), L=np.round(lift.L))
    line = Line(rng.normal(size=3), rng.normal(size=3), -4.0, 5.0)
    low, high = kept_intervals(lift, line.point, line.direction)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(polish, "FETCHED", fetched)
        assert best_on(Statistics.of(lift), line) == deepest(np.maximum(low, -4.0), np.minimum(high, 5.0))
