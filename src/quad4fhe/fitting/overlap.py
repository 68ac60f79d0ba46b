"""Where most intervals overlap: the exact answer to one line search, over blocks of rows.

Decides the best step along a line in coefficient space. A moderate number of intervals is fetched and sorted; of more
only counts in bins travel, until the places that could be the deepest hold few enough ends to be fetched. Either way
the answer is that of sorting all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from quad4fhe._arrays import Array, IntArray
from quad4fhe.lift import Lift, Statistics

FETCHED = 100_000
"""Intervals, or ends of them, that are fetched at once."""
_BINS = 16_384
_FINEST = 1e-12  # bins narrower than this beside their place are rounding


class Line(NamedTuple):
    """Points point + t direction of coefficients (alpha, beta, eta), t from `lowest` to `highest`."""

    point: Array
    direction: Array
    lowest: float
    highest: float


def best_on(lift: Statistics, line: Line) -> tuple[int, float]:
    """How many decisions can be kept at once on the line, and the middle of the widest place to do it."""
    if lift.samples <= FETCHED:
        low, high = (np.concatenate(ends) for ends in zip(*lift.map(_intervals, line), strict=True))
        return deepest(low, high)
    return _by_bins(lift, line)


def _by_bins(lift: Statistics, line: Line) -> tuple[int, float]:
    """Narrow a window to the bins that could hold the deepest place, then fetch their ends.

    A place in a bin is at most as deep as what is open
    when the bin begins and all that open in it; what is open between two bins is a depth that is reached.
    """
    window = (line.lowest, line.highest)
    while True:
        counts = lift.total(np.add, _ends_of, line, window)
        opened, closed = counts[:, 1:]
        entering = counts[0, 0] - counts[1, 0] + np.concatenate([[0], np.cumsum(opened - closed)])
        reached = int(entering.max())
        possible = np.flatnonzero(((opened > 0) | (closed > 0)) & (entering[:-1] + opened >= reached))
        if possible.size == 0:
            return 0, 0.0
        step = (window[1] - window[0]) / _BINS
        # One bin more on either side, for their edges are rounded.
        narrower = (window[0] + (int(possible[0]) - 1) * step, window[0] + (int(possible[-1]) + 2) * step)
        few = (opened + closed)[possible].sum() <= FETCHED
        if few or step < _FINEST * max(map(abs, window)) or narrower[1] - narrower[0] > 0.5 * (window[1] - window[0]):
            break
        window = narrower
    parts = lift.map(_ends_in, line, window, possible)
    low, high = (np.concatenate(ends) for ends in zip(*parts, strict=True))
    return _deepest_of(low, high, _bin(low, window), _bin(high, window), entering)


def _bin(ends: Array, window: tuple[float, float]) -> IntArray:
    return np.clip((ends - window[0]) * (_BINS / (window[1] - window[0])), 0, _BINS - 1).astype(np.int64)


def _ends_of(block: Lift, line: Line, window: tuple[float, float]) -> IntArray:
    """Intervals that open and that close before the window and in each of its bins, (2, 1 + bins)."""
    counts = np.empty((2, 1 + _BINS), dtype=np.int64)
    for k, ends in enumerate(_intervals(block, line)):
        counts[k, 0] = np.count_nonzero(ends < window[0])
        counts[k, 1:] = np.bincount(_bin(ends[(ends >= window[0]) & (ends <= window[1])], window), minlength=_BINS)
    return counts


def _ends_in(block: Lift, line: Line, window: tuple[float, float], bins: IntArray) -> tuple[Array, Array]:
    """The ends that lie in some bins of the window."""
    wanted = np.zeros(_BINS, dtype=np.bool_)
    wanted[bins] = True
    found = []
    for ends in _intervals(block, line):
        ends = ends[(ends >= window[0]) & (ends <= window[1])]
        found.append(ends[wanted[_bin(ends, window)]])
    return found[0], found[1]


def _deepest_of(
    low: Array, high: Array, low_bin: IntArray, high_bin: IntArray, entering: IntArray
) -> tuple[int, float]:
    """As `deepest`, where the bins between those of the ends only change the depth by what is known of them."""
    ends, bins = np.concatenate([low, high]), np.concatenate([low_bin, high_bin])
    order = np.argsort(ends, kind="stable")
    ends, bins = ends[order], bins[order]
    running = np.cumsum(np.where(order < low.size, 1, -1))
    first = np.searchsorted(bins, bins, side="left")  # where the bin of each end begins
    depth = entering[bins] + running - np.where(first > 0, running[first - 1], 0)
    return _widest(ends, depth)


def deepest(low: Array, high: Array) -> tuple[int, float]:
    """How many of the open intervals (low, high) can be met at once, and the middle of the widest place to do it.

    The intervals must be bounded; empty ones (low >= high) are ignored.
    """
    real = low < high
    low, high = low[real], high[real]
    if low.size == 0:
        return 0, 0.0
    ends = np.concatenate([low, high])
    order = np.argsort(ends, kind="stable")
    return _widest(ends[order], np.cumsum(np.where(order < low.size, 1, -1)))


def _widest(ends: Array, depth: IntArray) -> tuple[int, float]:
    width = np.diff(ends)
    depth = np.where(width > 0, depth[:-1], -1)
    most = int(depth.max())
    widest = int(np.argmax(np.where(depth == most, width, -1.0)))
    return most, float((ends[widest] + ends[widest + 1]) / 2)


def _intervals(block: Lift, line: Line) -> tuple[Array, Array]:
    """The intervals of a block that are not empty, within the line's reach."""
    low, high = kept_intervals(block, line.point, line.direction)
    low, high = np.maximum(low, line.lowest), np.minimum(high, line.highest)
    real = low < high
    return low[real], high[real]


def kept_intervals(lift: Lift, point: Array, direction: Array) -> tuple[Array, Array]:
    """For each sample the open interval of t on which point + t direction keeps its decision (empty: low >= high)."""
    low, high = np.empty(lift.samples), np.empty(lift.samples)
    offset, drift = point[2] * lift.B + lift.b, direction[2] * lift.B
    for rows, Q, L, target in lift.chunks():
        at = np.arange(target.size)
        value = Q * point[0]
        value += L * point[1]
        value += offset
        slope = Q * direction[0]
        slope += L * direction[1]
        slope += drift
        value = value[at, target][:, None] - value
        slope = slope[at, target][:, None] - slope
        value[at, target], slope[at, target] = 1.0, 0.0
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            crossing = -value / slope
        low[rows] = np.where(slope > 0, crossing, -np.inf).max(axis=1)
        high[rows] = np.where(slope < 0, crossing, np.inf).min(axis=1)
        never = np.any((slope == 0) & (value <= 0), axis=1)
        low[rows][never], high[rows][never] = np.inf, -np.inf
    return low, high
