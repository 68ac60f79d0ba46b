"""Agreement polish: move the coefficients so that the count of kept decisions itself goes up.

Decides (alpha, beta, eta) near a soft solution by exact line searches: along a line each sample is kept on one
interval, so the best point of the line is where most intervals overlap. It never returns fewer kept decisions than it
was given. The exact optimum of the binary case is in `bestline`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.fit.sweep import Sweeper, coordinate_scales
from quad4fhe.lift import Lift

_LINES = 160  # line searches at most
_PATIENCE = 48  # line searches without a gain
_REACH = 8.0  # how much larger the coefficients may become, so that the logits keep an ordinary size
_ENTRIES = 4_000_000  # n x K beyond which the search runs on a sample of the rows first
_FULL_LINES = 12  # line searches on all rows after one on a sample


@dataclass(frozen=True)
class Polished:
    """Coefficients (alpha, beta, eta) and how many calibration decisions they keep."""

    coefficients: Array
    agreeing: int


def polish(lift: Lift, starts: Sequence[Array], seed: int, report: Callable[[str], None] | None = None) -> Polished:
    """Search from the best of `starts`, each (alpha, beta, eta)."""
    rng = np.random.default_rng(seed)
    counts = [_agreeing(lift, start) for start in starts]
    at = int(np.argmax(counts))
    best = Polished(starts[at], counts[at])
    if lift.samples * lift.classes > _ENTRIES:
        rows = np.sort(rng.choice(lift.samples, max(1, _ENTRIES // lift.classes), replace=False))
        part = replace(lift, Q=lift.Q[rows], L=lift.L[rows], target=lift.target[rows])
        rough = _search(part, best.coefficients, _agreeing(part, best.coefficients), _LINES, rng, report)
        count = _agreeing(lift, rough.coefficients)
        if count > best.agreeing:
            best = Polished(rough.coefficients, count)
        return _search(lift, best.coefficients, best.agreeing, _FULL_LINES, rng, report)
    return _search(lift, best.coefficients, best.agreeing, _LINES, rng, report)


def _agreeing(lift: Lift, coefficients: Array) -> int:
    return int(np.count_nonzero(Sweeper(lift).margins(np.append(coefficients, 1.0)).margin > 0))


def _search(
    lift: Lift, start: Array, count: int, lines: int, rng: np.random.Generator, report: Callable[[str], None] | None
) -> Polished:
    scales = coordinate_scales(lift)[:3]
    limit = _REACH * float(np.linalg.norm(start * scales))
    point, previous, stale = start, start, 0
    for line in range(lines):
        if line % 4 == 0:
            direction = point  # all three together: only the fixed biases tell such points apart
        elif line % 4 == 1 and np.any(point != previous):
            direction, previous = point - previous, point
        else:
            direction = rng.standard_normal(3) / scales
        lowest, highest = _reach(point * scales, direction * scales, limit)
        low, high = _kept_intervals(lift, point, direction)
        found, step = deepest(np.maximum(low, lowest), np.minimum(high, highest))
        if found >= count:
            # The middle of a sliver may round to its edge, so what the step promises is counted before it is taken.
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


def _reach(point: Array, direction: Array, limit: float) -> tuple[float, float]:
    """The steps t for which |point + t direction| <= limit; the point itself is always within."""
    a, b = float(direction @ direction), float(point @ direction)
    c = float(point @ point) - limit * limit
    root = np.sqrt(max(0.0, b * b - a * c))
    return (-b - root) / a, (-b + root) / a


def _kept_intervals(lift: Lift, point: Array, direction: Array) -> tuple[Array, Array]:
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


def deepest(low: Array, high: Array) -> tuple[int, float]:
    """How many of the open intervals (low, high) can be met at once, and the middle of the widest place to do it.

    The intervals must be bounded; empty ones (low >= high) are ignored.
    """
    real = low < high
    low, high = low[real], high[real]
    if low.size == 0:
        return 0, 0.0
    ends = np.concatenate([low, high])
    change = np.concatenate([np.ones(low.size), -np.ones(high.size)])
    order = np.argsort(ends, kind="stable")
    ends, depth = ends[order], np.cumsum(change[order])
    width = np.diff(ends)
    depth = np.where(width > 0, depth[:-1], -1.0)
    most = depth.max()
    widest = int(np.argmax(np.where(depth == most, width, -1.0)))
    return int(most), float((ends[widest] + ends[widest + 1]) / 2)
