"""Binary, relaxed: closest points of two reduced convex hulls, by their support oracle alone.

Decides which cap of the paper's grid separates (regime rch), the critical cap between grid points, and the soft
fall-back, which by RCH duality (Theorem 4) is the same problem at caps mu = 2c below the grid. No n-variable QP is
formed: one oracle call is a projection and a partial sort.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.fit.planar import Atom, nearest_to_origin
from quad4fhe.fit.trace import SoftStep, best_step
from quad4fhe.lift import Plane

CAPS = (0.80, 0.60, 0.40, 0.30, 0.20, 0.15, 0.10, 0.08, 0.05, 0.03, 0.02, 0.01)
"""The paper's grid of base caps mu; each class uses max(mu, 1/n)."""

_TOUCHING = 1e-12  # a margin this small beside the points is rounding, so the hulls are taken to touch


class ReducedHull:
    """RCH_mu of a point set (Eq. rch-def): convex combinations in which no point weighs more than mu."""

    def __init__(self, points: Array, mu: float) -> None:
        n = points.shape[0]
        self.mu = max(mu, 1.0 / n)
        self._x, self._y = np.ascontiguousarray(points[:, 0]), np.ascontiguousarray(points[:, 1])
        self._full = min(n, math.floor(1.0 / self.mu * (1 + 1e-12)))
        self._rest = max(0.0, 1.0 - self._full * self.mu)

    def support(self, dx: float, dy: float) -> tuple[float, float]:
        """The point of the reduced hull that minimises dx*x + dy*y: weight mu on the lowest, the rest on the next."""
        x, y, full = self._x, self._y, self._full
        if full == x.size:
            return float(x.mean()), float(y.mean())
        order = np.argpartition(x * dx + y * dy, full)
        low, last = order[:full], order[full]
        return (
            float(x[low].sum()) * self.mu + float(x[last]) * self._rest,
            float(y[low].sum()) * self.mu + float(y[last]) * self._rest,
        )


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
    """Solve D-RCH at base cap mu; None where the reduced hulls meet."""
    # A common offset (a constant unit, say) moves no line, but would drown the differences in its rounding.
    centre = plane.points.mean(axis=0)
    points = plane.points - centre
    plus, minus = ReducedHull(points[plane.positive], mu), ReducedHull(points[~plane.positive], mu)

    def support(dx: float, dy: float) -> Atom:
        px, py = plus.support(dx, dy)
        qx, qy = minus.support(-dx, -dy)
        return Atom(px - qx, py - qy, (px, py, qx, qy))

    scale = float(np.abs(points).max())
    start = points[plane.positive].mean(axis=0) - points[~plane.positive].mean(axis=0)
    found = nearest_to_origin(
        support, support(float(start[0]), float(start[1])), tolerance=1e-13, noise=8 * 2.0**-53 * scale
    )
    norm = math.hypot(found.x, found.y)
    if norm <= _TOUCHING * scale:
        return None
    theta = np.array([found.x, found.y]) / norm
    low, high = float(theta @ np.array(plus.support(*theta))), float(theta @ np.array(minus.support(*-theta)))
    if low - high <= _TOUCHING * scale:
        return None
    u, v = (end + centre for end in _ends(found.atoms, found.x, found.y))
    offset = float(theta @ centre)
    return ReducedSeparation(mu, plus.mu, minus.mu, theta, u, v, low + offset, high + offset, low - high)


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


def scan(plane: Plane, caps: Sequence[float] = CAPS) -> tuple[ReducedSeparation | None, list[tuple[float, float]]]:
    """The largest cap that separates, and the trace of (cap, margin) with margin 0 where the hulls meet."""
    trace: list[tuple[float, float]] = []
    for mu in caps:
        found = closest(plane, mu)
        trace.append((mu, 0.0 if found is None else found.margin))
        if found is not None:
            return found, trace
    return None, trace


def critical_cap(plane: Plane, separates: float, meets: float = 1.0, rounds: int = 30) -> float:
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


def soft(plane: Plane) -> PlanarSoft | None:
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


def _soft_caps(plane: Plane) -> list[float]:
    largest = int(max(np.count_nonzero(plane.positive), np.count_nonzero(~plane.positive)))
    caps, mu = list(CAPS), CAPS[-1] / 2
    while mu > 1.0 / largest:
        caps.append(mu)
        mu /= 2
    return [*caps, 1.0 / largest] if largest > 1 / caps[-1] else caps


def _levels(plane: Plane, found: ReducedSeparation) -> tuple[float, float]:
    """t + rho and t - rho of P-RCH: 1/mu samples of a class fall short of its level, so it is an order statistic."""
    height = plane.points @ found.theta
    plus, minus = height[plane.positive], -height[~plane.positive]
    low, high = (
        float(np.partition(side, k)[k])
        for side, k in (
            (plus, min(plus.size, math.ceil(1 / found.mu_plus * (1 - 1e-12))) - 1),
            (minus, min(minus.size, math.ceil(1 / found.mu_minus * (1 - 1e-12))) - 1),
        )
    )
    return low, -high


def _soft_step(plane: Plane, c: float, found: ReducedSeparation, low: float, high: float) -> SoftStep:
    height = plane.points @ found.theta
    slack = np.maximum(np.where(plane.positive, low - height, height - high), 0.0)
    score = np.where(plane.positive, 1.0, -1.0) * (height - (low + high) / 2)
    return SoftStep(
        weight=c,
        agreement=float(np.mean(score > 0)),
        slack_count=int(np.count_nonzero(slack)),
        slack_sum=float(slack.sum()),
        slack_max=float(slack.max()),
        margin=float(score.min()),
        norm=1.0,
        gap=abs(1.0 - found.margin / float(np.linalg.norm(found.u - found.v))),
    )
