"""The k lowest points of each class in a direction, in the plane and over its blocks: the oracle of reduced hulls.

Decides which points they are (the lowest row on a tie), what they add up to and which comes next. Few are sent as they
are; of many only counts in ever finer bins travel, then partial sums, so that no one ever holds a class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from quad4fhe._arrays import Array, BoolArray, IntArray
from quad4fhe.plane import Cloud, PlaneBlocks

_FEW = 4096  # points that are sent as they are
_BINS = 4096
_LEVELS = 5  # of bins in bins; what still shares one differs by less than 2^-60 of the plane's extent: a tie


class Lowest(NamedTuple):
    """The sum (2,) of the k lowest points, and the next one (2,) with its height; coordinates are from the centre."""

    sum: Array
    next: Array
    height: float


@dataclass(frozen=True)
class _Bins:
    """Bins in bins of height: lower end and bins per unit of each level, and the bin chosen on each but the last."""

    low: tuple[float, ...]
    rate: tuple[float, ...]
    chosen: tuple[int, ...]

    def finer(self, bin_: int) -> _Bins:
        low = self.low[-1] + bin_ / self.rate[-1]
        return _Bins((*self.low, low), (*self.rate, self.rate[-1] * _BINS), (*self.chosen, bin_))

    def place(self, height: Array) -> tuple[BoolArray, BoolArray, IntArray]:
        """Which heights are below the chosen bins, which inside them, and the bins of those inside, (inside,)."""
        below, inside = np.zeros(height.size, dtype=np.bool_), np.ones(height.size, dtype=np.bool_)
        for low, rate, chosen in zip(self.low, self.rate, self.chosen, strict=False):
            at = self._at(height, low, rate)
            below |= inside & (at < chosen)
            inside &= at == chosen
        return below, inside, self._at(height[inside], self.low[-1], self.rate[-1])

    def _at(self, height: Array, low: float, rate: float) -> IntArray:
        return np.clip((height - low) * rate, 0, _BINS - 1).astype(np.int64)


def lowest(plane: PlaneBlocks, direction: Array, counts: Sequence[int]) -> list[Lowest]:
    """The counts[0] lowest points of the plus class along `direction`, and the counts[1] highest of the minus class.

    Each count is smaller than its class; heights of the minus class are taken along -direction.
    """
    if max(counts) <= _FEW:
        return _few(plane, direction, counts)
    return [_many(plane, direction, side, count) for side, count in enumerate(counts)]


def _heights(cloud: Cloud, side: int, direction: Array, centre: Array) -> tuple[Array, Array, Array]:
    x, y = cloud.x - centre[0], cloud.y - centre[1]
    dx, dy = direction if side == 0 else -direction
    return x * dx + y * dy, x, y


def _few(plane: PlaneBlocks, direction: Array, counts: Sequence[int]) -> list[Lowest]:
    parts = plane.map(_lowest_of, direction, plane.moments.centre, counts)
    found = []
    for side, count in enumerate(counts):
        points = parts[0][side] if len(parts) == 1 else np.concatenate([part[side] for part in parts], axis=1)
        found.append(_lowest_points(points, count))
    return found


def _lowest_of(plus: Cloud, minus: Cloud, direction: Array, centre: Array, counts: Sequence[int]) -> list[Array]:
    """Height, x, y and row of the count + 1 lowest of each class, (4, at most count + 1)."""
    found = []
    for side, (cloud, count) in enumerate(zip((plus, minus), counts, strict=True)):
        height, x, y = _heights(cloud, side, direction, centre)
        if height.size > count + 1:
            edge = np.partition(height, count)[count]
            at = np.flatnonzero(height < edge)
            at = np.concatenate([at, np.flatnonzero(height == edge)[: count + 1 - at.size]])
            height, x, y = height[at], x[at], y[at]
            rows = cloud.rows[at]
        else:
            rows = cloud.rows
        found.append(np.stack([height, x, y, rows.astype(np.float64)]))
    return found


def _lowest_points(points: Array, count: int) -> Lowest:
    """Of points (4, k), k > count: height, x, y, row."""
    order = np.lexsort((points[3], points[0]))
    chosen = np.sort(order[:count])  # blocks and their points come by row, edges last: a fixed order to add up in
    chosen = chosen[np.argsort(points[3, chosen])]
    last = points[:, order[count]]
    return Lowest(points[1:3, chosen].sum(axis=1), last[1:3], float(last[0]))


def _many(plane: PlaneBlocks, direction: Array, side: int, count: int) -> Lowest:
    centre, reach = plane.moments.centre, plane.moments.reach
    bound = float(np.abs(direction) @ reach) or 1.0
    bins = _Bins((-bound,), (_BINS / (2 * bound),), ())
    below, inside = 0, plane.moments.counts[side]
    while inside > _FEW and len(bins.chosen) < _LEVELS:
        tally = np.cumsum(plane.total(np.add, _counts_of, side, direction, centre, bins))
        at = int(np.searchsorted(tally, count - below, side="right"))
        before = int(tally[at - 1]) if at else 0
        below, inside = below + before, int(tally[at]) - before
        bins = bins.finer(at)
    if inside <= _FEW:
        limits = None
    else:  # so many at one height that they are taken by row: whole blocks, then a part of one
        held = np.cumsum(plane.map(_inside_of, side, direction, centre, bins))
        block = int(np.searchsorted(held, count - below, side="right"))
        start = block * plane.size
        limits = (start, start + plane.size, count - below - (int(held[block - 1]) if block else 0))
    total = np.zeros(2)
    kept = []
    for part_sum, points in plane.map(_rest_of, side, direction, centre, bins, limits):
        total += part_sum
        kept.append(points)
    points = np.concatenate(kept, axis=1)
    last = _lowest_points(points, count - below if limits is None else 0)
    return Lowest(total + last.sum, last.next, last.height)


def _counts_of(plus: Cloud, minus: Cloud, side: int, direction: Array, centre: Array, bins: _Bins) -> IntArray:
    height, _, _ = _heights((plus, minus)[side], side, direction, centre)
    return np.bincount(bins.place(height)[2], minlength=_BINS)


def _inside_of(plus: Cloud, minus: Cloud, side: int, direction: Array, centre: Array, bins: _Bins) -> int:
    height, _, _ = _heights((plus, minus)[side], side, direction, centre)
    return int(np.count_nonzero(bins.place(height)[1]))


def _rest_of(
    plus: Cloud,
    minus: Cloud,
    side: int,
    direction: Array,
    centre: Array,
    bins: _Bins,
    limits: tuple[int, int, int] | None,
) -> tuple[Array, Array]:
    """The sum of the points taken for certain, and (height, x, y, row) of those from which the others are taken.

    With limits = (start, stop, k) every row inside and before `start` is taken, and k of those up to `stop`; the next
    is returned.
    """
    cloud = (plus, minus)[side]
    height, x, y = _heights(cloud, side, direction, centre)
    taken, inside, _ = bins.place(height)
    open_ = np.flatnonzero(inside)
    if limits is not None and open_.size:
        start, stop, count = limits
        first = int(cloud.rows[open_[0]])
        count = open_.size if first < start else count if first < stop else 0
        taken[open_[:count]] = True
        open_ = open_[count : count + 1] if start <= first < stop else open_[:0]
    points = np.stack([height[open_], x[open_], y[open_], cloud.rows[open_].astype(np.float64)])
    return np.array([x[taken].sum(), y[taken].sum()]), points
