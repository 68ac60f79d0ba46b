"""Agreement polish: move the coefficients so that more decisions are kept.

Searches the p coefficients and eta near a soft solution along lines. On a line each sample is kept on one interval, so
the best point of the line is where most intervals overlap. The result never keeps fewer decisions than the start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from quad4fhe._arrays import Array, IntArray
from quad4fhe.fitting.design import Block, Design
from quad4fhe.fitting.sweeps import coordinate_scales, tally

_LINES = 160  # line searches at most
_PATIENCE = 48  # line searches without a gain
_REACH = 8.0  # how much larger the coefficients may become, so that the logits keep an ordinary size
_ENTRIES = 4_000_000  # n x K beyond which the search first runs on a sample of the rows
_SAMPLE = 99_000  # rows of such a sample at most: the intervals of all rows of a line are sorted in one place
_FULL_LINES = 12  # line searches on all rows after one on a sample, unless the rows are more than that


@dataclass(frozen=True)
class Polished:
    """Coefficients (p + 1,), eta the last, and how many calibration decisions they keep."""

    coefficients: Array
    agreeing: int


def polish(design: Design, starts: Sequence[Array], seed: int, report: Callable[[str], None] | None = None) -> Polished:
    """Search from the best of `starts`, each (p + 1,)."""
    rng = np.random.default_rng(seed)
    scales = coordinate_scales(design)[:-1]
    counts = [_agreeing(design, start) for start in starts]
    at = int(np.argmax(counts))
    best = Polished(starts[at], counts[at])
    if design.samples * design.classes > _ENTRIES or design.samples > _SAMPLE:
        share = min(max(1, _ENTRIES // design.classes), _SAMPLE) / design.samples
        part = design.sampled(share, seed)
        rough = _search(part, best.coefficients, _agreeing(part, best.coefficients), _LINES, scales, rng, report)
        count = _agreeing(design, rough.coefficients)
        if count > best.agreeing:
            best = Polished(rough.coefficients, count)
        if design.samples > _SAMPLE:
            return best
        return _search(design, best.coefficients, best.agreeing, _FULL_LINES, scales, rng, report)
    return _search(design, best.coefficients, best.agreeing, _LINES, scales, rng, report)


def _agreeing(design: Design, coefficients: Array) -> int:
    return tally(design, np.append(coefficients, 1.0)).agreeing


def _search(
    design: Design,
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
            direction = point  # scales all: only the fixed biases tell such points apart
        elif line % 4 == 1 and _leads((point - previous) * scales):
            direction, previous = point - previous, point
        else:
            direction = rng.standard_normal(scales.size) / scales
        lowest, highest = _reach(point * scales, direction * scales, limit)
        reached, step = best_on(design, Line(point, direction, lowest, highest))
        if reached >= count:
            # The middle of a sliver may round to its edge, so count before the step is taken.
            ahead = point + step * direction
            reached = _agreeing(design, ahead)
        stale = 0 if reached > count else stale + 1
        if reached >= count:
            point, count = ahead, reached
        if stale >= _PATIENCE or count == design.samples:
            break
        if report is not None and line % 16 == 15:
            report(f"polish: agreement {100 * count / design.samples:.2f}% after {line + 1} line searches")
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
    """Points point + t direction of coefficients (p + 1,), t from `lowest` to `highest`."""

    point: Array
    direction: Array
    lowest: float
    highest: float


def best_on(design: Design, line: Line) -> tuple[int, float]:
    """How many decisions can be kept at once on the line, and the middle of the widest stretch that keeps them."""
    low, high = (np.concatenate(ends) for ends in zip(*design.map(_intervals, line), strict=True))
    return deepest(low, high)


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


def _intervals(block: Block, line: Line) -> tuple[Array, Array]:
    """The intervals of a block that are not empty, within the line's reach."""
    low, high = kept_intervals(block, line.point, line.direction)
    low, high = np.maximum(low, line.lowest), np.minimum(high, line.highest)
    real = low < high
    return low[real], high[real]


def kept_intervals(block: Block, point: Array, direction: Array) -> tuple[Array, Array]:
    """For each sample the open interval of t on which point + t direction keeps its decision (empty: low >= high)."""
    low, high = np.empty((2, block.samples))
    theta, turn = np.append(point, 1.0), np.append(direction, 0.0)
    for rows, P, target in block.chunks:
        at = np.arange(target.size)
        value, slope = block.scores(P, theta), block.scores(P, turn)
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
