"""Two classes, relaxed: closest points of two reduced convex hulls, using only their support oracle.

Finds the cap of the paper's grid that separates (regime rch), the critical cap between grid points, and the soft
solution, which by RCH duality (Theorem 4) is the same problem at caps mu = 2c below the grid. No n-variable QP is
formed. One oracle call is a projection and a partial sort: a few points are fetched as they are; of many, only counts
in ever finer bins travel, then partial sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from quad4fhe._arrays import Array, BoolArray, IntArray
from quad4fhe.calibration.plane import Cloud, Plane
from quad4fhe.fitting.diagnostics import SoftStep, best_step
from quad4fhe.fitting.hulls import Atom, nearest_to_origin

CAPS = (0.80, 0.60, 0.40, 0.30, 0.20, 0.15, 0.10, 0.08, 0.05, 0.03, 0.02, 0.01)
"""The paper's grid of base caps mu; each class uses max(mu, 1/n)."""

_TOUCHING = 1e-12  # a margin this small, relative to the points, is rounding: the hulls touch
_HALVINGS = 30  # of the interval that holds the critical cap
_FEW = 4096  # points that are fetched as they are
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


def lowest(plane: Plane, direction: Array, counts: Sequence[int]) -> list[Lowest]:
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


def _few(plane: Plane, direction: Array, counts: Sequence[int]) -> list[Lowest]:
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


def _many(plane: Plane, direction: Array, side: int, count: int) -> Lowest:
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


class ReducedHulls:
    """RCH_mu of both classes (Eq. rch-def): convex combinations in which no point weighs more than mu, or 1/n.

    Coordinates are taken from the centre of all points: a common offset (a constant unit, say) moves no line, but would
    drown the differences in its rounding.
    """

    def __init__(self, plane: Plane, mu: float) -> None:
        self.plane, self.centre = plane, plane.moments.centre
        counts = plane.moments.counts
        self.mu = tuple(max(mu, 1.0 / n) for n in counts)
        full = (min(n, math.floor(1.0 / cap * (1 + 1e-12))) for n, cap in zip(counts, self.mu, strict=True))
        self._full = tuple(full)
        self._rest = tuple(max(0.0, 1.0 - full * cap) for full, cap in zip(self._full, self.mu, strict=True))

    def support(self, dx: float, dy: float) -> tuple[Array, Array]:
        """The point (2,) of the plus hull that is lowest along (dx, dy), and that of the minus hull that is highest.

        Weight mu on the lowest, the rest on the next.
        """
        counts, means = self.plane.moments.counts, self.plane.moments.means
        whole = [full == n for full, n in zip(self._full, counts, strict=True)]
        asked = [0 if all_ else full for all_, full in zip(whole, self._full, strict=True)]
        found = [] if all(whole) else lowest(self.plane, np.array([dx, dy]), asked)
        plus, minus = (
            means[side] - self.centre
            if whole[side]
            else found[side].sum * self.mu[side] + found[side].next * self._rest[side]
            for side in (0, 1)
        )
        return plus, minus


@dataclass(frozen=True)
class ReducedSeparation:
    """Closest points u* and v* of the reduced hulls; theta is the unit vector from v* to u*."""

    mu: float
    mu_plus: float
    mu_minus: float
    theta: Array
    u: Array
    v: Array
    low: float
    high: float
    margin: float


def closest(plane: Plane, mu: float) -> ReducedSeparation | None:
    """Solve D-RCH at base cap mu; None if the reduced hulls meet."""
    hulls = ReducedHulls(plane, mu)

    def support(dx: float, dy: float) -> Atom:
        p, q = hulls.support(dx, dy)
        return Atom(float(p[0] - q[0]), float(p[1] - q[1]), (*p.tolist(), *q.tolist()))

    moments = plane.moments
    scale = float(moments.reach.max())
    start = moments.means[0] - moments.means[1]
    found = nearest_to_origin(
        support, support(float(start[0]), float(start[1])), tolerance=1e-13, noise=8 * 2.0**-53 * scale
    )
    norm = math.hypot(found.x, found.y)
    if norm <= _TOUCHING * scale:
        return None
    theta = np.array([found.x, found.y]) / norm
    low, high = (float(theta @ end) for end in hulls.support(*theta))
    if low - high <= _TOUCHING * scale:
        return None
    u, v = (end + hulls.centre for end in _ends(found.atoms, found.x, found.y))
    offset = float(theta @ hulls.centre)
    return ReducedSeparation(mu, hulls.mu[0], hulls.mu[1], theta, u, v, low + offset, high + offset, low - high)


def _ends(atoms: Sequence[Atom], x: float, y: float) -> tuple[Array, Array]:
    """Split the nearest point x, y = u* - v* into u* and v* with the weights its atoms have in it."""
    tags = np.array([atom.tag for atom in atoms])
    if len(atoms) == 1:
        return tags[0, :2], tags[0, 2:]
    a, b = atoms[0], atoms[1]
    dx, dy = b.x - a.x, b.y - a.y
    share = ((x - a.x) * dx + (y - a.y) * dy) / (dx * dx + dy * dy)
    point = tags[0] + share * (tags[1] - tags[0])
    return point[:2], point[2:]


def scan(plane: Plane) -> tuple[ReducedSeparation | None, list[tuple[float, float]]]:
    """The largest cap of the grid that separates, and the trace of (cap, margin), with margin 0 if the hulls meet."""
    trace: list[tuple[float, float]] = []
    for mu in CAPS:
        found = closest(plane, mu)
        trace.append((mu, 0.0 if found is None else found.margin))
        if found is not None:
            return found, trace
    return None, trace


def critical_cap(plane: Plane, separates: float, meets: float) -> float:
    """The largest separating cap mu*, by bisection between one that separates and one that does not."""
    low, high = math.log(separates), math.log(meets)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if closest(plane, math.exp(middle)) is None:
            high = middle
        else:
            low = middle
    return math.exp(low)


@dataclass(frozen=True)
class PlanarSoft:
    """The chosen soft solution: P-RCH at weight c = mu / 2, with the trace over the grid.

    Along theta the positive class is asked to reach `low` = t + rho, the negative to stay below `high` = t - rho.
    """

    step: SoftStep
    theta: Array
    low: float
    high: float
    trace: list[SoftStep]


def soft(plane: Plane) -> PlanarSoft | None:
    """Solve P-RCH over a grid of c and choose by agreement, slack and margin; None if no c gives a direction.

    On overlapping hulls a large c has the optimum theta = 0, which is not a direction; such a step is left out.
    """
    trace: list[SoftStep] = []
    levels: list[tuple[Array, float, float]] = []
    for mu in _soft_caps(plane):
        found = closest(plane, mu)
        if found is not None:
            levels.append((found.theta, *_levels(plane, found)))
            trace.append(_soft_step(plane, mu / 2, found, *levels[-1][1:]))
    if not trace:
        return None
    chosen = best_step(trace)
    return PlanarSoft(chosen, *levels[trace.index(chosen)], trace)


def _soft_caps(plane: Plane) -> list[float]:
    largest = max(plane.moments.counts)
    caps, mu = list(CAPS), CAPS[-1] / 2
    while mu > 1.0 / largest:
        caps.append(mu)
        mu /= 2
    return [*caps, 1.0 / largest] if largest > 1 / caps[-1] else caps


def _levels(plane: Plane, found: ReducedSeparation) -> tuple[float, float]:
    """t + rho and t - rho of P-RCH: 1/mu samples of a class fall short of its level, so it is an order statistic."""
    counts = [
        min(n, math.ceil(1 / mu * (1 - 1e-12))) - 1
        for n, mu in zip(plane.moments.counts, (found.mu_plus, found.mu_minus), strict=True)
    ]
    plus, minus = lowest(plane, found.theta, counts)
    offset = float(found.theta @ plane.moments.centre)
    return plus.height + offset, offset - minus.height


def _soft_step(plane: Plane, c: float, found: ReducedSeparation, low: float, high: float) -> SoftStep:
    slack_count, slack_sum, slack_max, agreeing, margin = 0, 0.0, 0.0, 0, math.inf
    for part in plane.map(_slacks_of, found.theta, plane.moments.centre, low, high):
        slack_count, slack_sum, slack_max = slack_count + part[0], slack_sum + part[1], max(slack_max, part[2])
        agreeing, margin = agreeing + part[3], min(margin, part[4])
    return SoftStep(
        weight=c,
        agreement=agreeing / sum(plane.moments.counts),
        slack_count=slack_count,
        slack_sum=slack_sum,
        slack_max=slack_max,
        margin=margin,
        norm=1.0,
        gap=abs(1.0 - found.margin / float(np.linalg.norm(found.u - found.v))),
    )


def _slacks_of(
    plus: Cloud, minus: Cloud, theta: Array, centre: Array, low: float, high: float
) -> tuple[int, float, float, int, float]:
    """Count, sum and maximum of the slacks of a block; how many scores are right, and the worst."""
    offset, middle = float(theta @ centre), (low + high) / 2
    # From the centre, like the levels, so that the sample at a level has no slack instead of a rounding error.
    up, down = ((cloud.x - centre[0]) * theta[0] + (cloud.y - centre[1]) * theta[1] + offset for cloud in (plus, minus))
    slack = np.maximum(np.concatenate([low - up, down - high]), 0.0)
    score = np.concatenate([up - middle, middle - down])
    return (
        int(np.count_nonzero(slack)),
        float(slack.sum()),
        float(slack.max()),
        int(np.count_nonzero(score > 0)),
        float(score.min()),
    )
