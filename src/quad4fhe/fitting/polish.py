"""Agreement polish: move the coefficients so that more decisions are kept.

Searches (alpha, beta, eta) near a soft solution along lines. On a line each sample is kept on one interval, so the best
point of the line is where most intervals overlap. The result never keeps fewer decisions than the start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from quad4fhe._arrays import Array, IntArray
from quad4fhe.calibration.lift import Lift, Statistics
from quad4fhe.fitting.sweep import coordinate_scales, tally

FETCHED = 100_000
"""Intervals, or ends of intervals, that are fetched at once."""
_BINS = 16_384
_FINEST = 1e-12  # bins narrower than this, relative to their place, are rounding
_LINES = 160  # line searches at most
_PATIENCE = 48  # line searches without a gain
_REACH = 8.0  # how much larger the coefficients may become, so that the logits keep an ordinary size
_ENTRIES = 4_000_000  # n x K beyond which the search first runs on a sample of the rows
_SAMPLE = 99_000  # rows of such a sample at most: few enough for their intervals to be fetched
_FULL_LINES = 12  # line searches on all rows after one on a sample


@dataclass(frozen=True)
class Polished:
    """Coefficients (alpha, beta, eta) and how many calibration decisions they keep."""

    coefficients: Array
    agreeing: int


def polish(
    lift: Statistics, starts: Sequence[Array], seed: int, report: Callable[[str], None] | None = None
) -> Polished:
    """Search from the best of `starts`, each (alpha, beta, eta)."""
    rng = np.random.default_rng(seed)
    scales = coordinate_scales(lift)[:3]
    counts = [_agreeing(lift, start) for start in starts]
    at = int(np.argmax(counts))
    best = Polished(starts[at], counts[at])
    if lift.samples * lift.classes > _ENTRIES or lift.samples > _SAMPLE:
        share = min(max(1, _ENTRIES // lift.classes), _SAMPLE) / lift.samples
        part = lift.sampled(share, seed)
        rough = _search(part, best.coefficients, _agreeing(part, best.coefficients), _LINES, scales, rng, report)
        count = _agreeing(lift, rough.coefficients)
        if count > best.agreeing:
            best = Polished(rough.coefficients, count)
        return _search(lift, best.coefficients, best.agreeing, _FULL_LINES, scales, rng, report)
    return _search(lift, best.coefficients, best.agreeing, _LINES, scales, rng, report)


def _agreeing(lift: Statistics, coefficients: Array) -> int:
    return tally(lift, np.append(coefficients, 1.0)).agreeing


def _search(
    lift: Statistics,
    start: Array,
    count: int,
    lines: int,
    scales: Array,
    rng: np.random.Generator,
    report: Callable[[str], None] | None,
) -> Polished:
    limit = _REACH * float(np.linalg.norm(start * scales))
    point, previous, stale = start, start, 0
    for line in range(lines):
        if line % 4 == 0 and _leads(point * scales):
            direction = point  # scales all three: only the fixed biases tell such points apart
        elif line % 4 == 1 and _leads((point - previous) * scales):
            direction, previous = point - previous, point
        else:
            direction = rng.standard_normal(3) / scales
        lowest, highest = _reach(point * scales, direction * scales, limit)
        found, step = best_on(lift, Line(point, direction, lowest, highest))
        if found >= count:
            # The middle of a sliver may round to its edge, so count before the step is taken.
            ahead = point + step * direction
            found = _agreeing(lift, ahead)
        stale = 0 if found > count else stale + 1
        if found >= count:
            point, count = ahead, found
        if stale >= _PATIENCE or count == lift.samples:
            break
        if report is not None and line % 16 == 15:
            report(f"polish: agreement {100 * count / lift.samples:.2f}% after {line + 1} line searches")
    return Polished(point, count)


def _leads(direction: Array) -> bool:
    """Whether a direction is long enough to search in."""
    return float(direction @ direction) > 0


def _reach(point: Array, direction: Array, limit: float) -> tuple[float, float]:
    """The steps t for which |point + t direction| <= limit; the point itself is always within."""
    a, b = float(direction @ direction), float(point @ direction)
    c = float(point @ point) - limit * limit
    root = np.sqrt(max(0.0, b * b - a * c))
    return (-b - root) / a, (-b + root) / a


class Line(NamedTuple):
    """Points point + t direction of coefficients (alpha, beta, eta), t from `lowest` to `highest`."""

    point: Array
    direction: Array
    lowest: float
    highest: float


def best_on(lift: Statistics, line: Line) -> tuple[int, float]:
    """How many decisions can be kept at once on the line, and the middle of the widest stretch that keeps them."""
    if lift.samples <= FETCHED:
        low, high = (np.concatenate(ends) for ends in zip(*lift.map(_intervals, line), strict=True))
        return deepest(low, high)
    return _by_bins(lift, line)


def _by_bins(lift: Statistics, line: Line) -> tuple[int, float]:
    """Narrow a window to the bins that could hold the deepest place, then fetch their ends.

    Only counts in bins travel until few enough ends are left, and the answer is the same as with all ends sorted. A
    place in a bin is at most as deep as the intervals open at its start plus those that open in it; the number open
    between two bins is a depth that is reached.
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
        # One bin more on either side, because their edges are rounded.
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
    """Like `deepest`; of the bins in between only the change in depth is known, in `entering`."""
    ends, bins = np.concatenate([low, high]), np.concatenate([low_bin, high_bin])
    order = np.argsort(ends, kind="stable")
    ends, bins = ends[order], bins[order]
    running = np.cumsum(np.where(order < low.size, 1, -1))
    first = np.searchsorted(bins, bins, side="left")  # where the bin of each end begins
    depth = entering[bins] + running - np.where(first > 0, running[first - 1], 0)
    return _widest(ends, depth)


def deepest(low: Array, high: Array) -> tuple[int, float]:
    """How many of the open intervals (low, high) overlap at most, and the middle of the widest place where they do.

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
    low, high = np.empty((2, len(lift.Q)))
    offset, drift = point[2] * lift.B + lift.b, direction[2] * lift.B
    for rows, Q, L, target in lift.chunks:
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
