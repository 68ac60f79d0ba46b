"""Binary, relaxed: closest points of two reduced convex hulls, by their support oracle alone.

Decides which cap of the paper's grid separates (regime rch), the critical cap between grid points, and the soft
fall-back, which by RCH duality (Theorem 4) is the same problem at caps mu = 2c below the grid. No n-variable QP is
formed: one oracle call is a projection and a partial sort, which `extremes` does block by block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.fitting.extremes import lowest
from quad4fhe.fitting.planar import Atom, nearest_to_origin
from quad4fhe.fitting.trace import SoftStep, best_step
from quad4fhe.plane import Cloud, PlaneBlocks

CAPS = (0.80, 0.60, 0.40, 0.30, 0.20, 0.15, 0.10, 0.08, 0.05, 0.03, 0.02, 0.01)
"""The paper's grid of base caps mu; each class uses max(mu, 1/n)."""

_TOUCHING = 1e-12  # a margin this small beside the points is rounding, so the hulls are taken to touch


class ReducedHulls:
    """RCH_mu of both classes (Eq. rch-def): convex combinations in which no point weighs more than mu, or 1/n.

    Coordinates are taken from the centre of all points: a common offset (a constant unit, say) moves no line, but would
    drown the differences in its rounding.
    """

    def __init__(self, plane: PlaneBlocks, mu: float) -> None:
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


def closest(plane: PlaneBlocks, mu: float) -> ReducedSeparation | None:
    """Solve D-RCH at base cap mu; None where the reduced hulls meet."""
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


def scan(
    plane: PlaneBlocks, caps: Sequence[float] = CAPS
) -> tuple[ReducedSeparation | None, list[tuple[float, float]]]:
    """The largest cap that separates, and the trace of (cap, margin) with margin 0 where the hulls meet."""
    trace: list[tuple[float, float]] = []
    for mu in caps:
        found = closest(plane, mu)
        trace.append((mu, 0.0 if found is None else found.margin))
        if found is not None:
            return found, trace
    return None, trace


def critical_cap(plane: PlaneBlocks, separates: float, meets: float = 1.0, rounds: int = 30) -> float:
    """The largest separating cap mu*, by bisection between one that separates and one that does not."""
    low, high = math.log(separates), math.log(meets)
    for _ in range(rounds):
        middle = (low + high) / 2
        if closest(plane, math.exp(middle)) is None:
            high = middle
        else:
            low = middle
    return math.exp(low)


@dataclass(frozen=True)
class PlanarSoft:
    """The soft fall-back that was chosen: P-RCH at weight c = mu / 2, with the trace over the grid.

    Along theta the positive class is asked to reach `low` = t + rho, the negative to stay below `high` = t - rho.
    """

    step: SoftStep
    theta: Array
    low: float
    high: float
    trace: list[SoftStep]


def soft(plane: PlaneBlocks) -> PlanarSoft | None:
    """Solve P-RCH over a grid of c and choose by agreement, slack and margin; None where no c gives a direction.

    On overlapping hulls a large c has the optimum theta = 0. That is no direction, so such a step is only traced.
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


def _soft_caps(plane: PlaneBlocks) -> list[float]:
    largest = max(plane.moments.counts)
    caps, mu = list(CAPS), CAPS[-1] / 2
    while mu > 1.0 / largest:
        caps.append(mu)
        mu /= 2
    return [*caps, 1.0 / largest] if largest > 1 / caps[-1] else caps


def _levels(plane: PlaneBlocks, found: ReducedSeparation) -> tuple[float, float]:
    """t + rho and t - rho of P-RCH: 1/mu samples of a class fall short of its level, so it is an order statistic."""
    counts = [
        min(n, math.ceil(1 / mu * (1 - 1e-12))) - 1
        for n, mu in zip(plane.moments.counts, (found.mu_plus, found.mu_minus), strict=True)
    ]
    plus, minus = lowest(plane, found.theta, counts)
    offset = float(found.theta @ plane.moments.centre)
    return plus.height + offset, offset - minus.height


def _soft_step(plane: PlaneBlocks, c: float, found: ReducedSeparation, low: float, high: float) -> SoftStep:
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
    # From the centre, as the levels were: the sample at a level then has no slack, not a rounding error's worth.
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
