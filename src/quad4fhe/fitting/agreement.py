"""Agreement polish: move the coefficients so that the count of kept decisions itself goes up.

Decides (alpha, beta, eta) near a soft solution by exact line searches: along a line each sample is kept on one
interval, so the best point of the line is where most intervals overlap. It never returns fewer kept decisions than it
was given. The exact optimum of the binary case is in `bestline`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.fitting.overlap import Line, best_on
from quad4fhe.fitting.sweep import Sweeper, coordinate_scales
from quad4fhe.lift import Statistics

_LINES = 160  # line searches at most
_PATIENCE = 48  # line searches without a gain
_REACH = 8.0  # how much larger the coefficients may become, so that the logits keep an ordinary size
_ENTRIES = 4_000_000  # n x K beyond which the search runs on a sample of the rows first
_SAMPLE = 99_000  # rows beyond which it does too: few enough for their intervals to be fetched
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
    return Sweeper(lift).tally(np.append(coefficients, 1.0)).agreeing


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
        if line % 4 == 0:
            direction = point  # all three together: only the fixed biases tell such points apart
        elif line % 4 == 1 and np.any(point != previous):
            direction, previous = point - previous, point
        else:
            direction = rng.standard_normal(3) / scales
        lowest, highest = _reach(point * scales, direction * scales, limit)
        found, step = best_on(lift, Line(point, direction, lowest, highest))
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
