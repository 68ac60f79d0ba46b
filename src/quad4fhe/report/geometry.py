"""The lifted plane of a binary model as a picture needs it: hulls, closest pair, separating line.

A fit has a line if it is one shared quadratic, and a closest pair if the line lies halfway between the two points.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quad4fhe._arrays import Array, BoolArray
from quad4fhe.calibration.plane import Plane
from quad4fhe.errors import CertificateError
from quad4fhe.fitting import Fit
from quad4fhe.fitting.hulls import Separation, hull, separate
from quad4fhe.fitting.reduced_hulls import ReducedHulls, closest

Line = tuple[float, float, float]

_NEAR = 1e-6  # relative: what is left of a direction and an offset after a solver and rounding
_DIRECTIONS = 720  # in which the outline of a reduced hull is sampled


@dataclass(frozen=True, eq=False)
class PlaneView:
    """Points (n, 2) with columns Q and H, which are positive, and what can be drawn around them.

    `hulls` are those of the positive and the negative class, `reduced` those of the regime's cap. `pair` (2, 2) holds
    the closest points u* and v*. `line` = (p, q, r) is p Q + q H + r = 0.
    """

    points: Array
    positive: BoolArray
    hulls: tuple[Array, Array]
    reduced: tuple[Array, Array] | None
    pair: Array | None
    line: Line | None

    @property
    def distance(self) -> float | None:
        """The distance of the closest pair."""
        return None if self.pair is None else float(np.hypot(*(self.pair[0] - self.pair[1])))


def plane_view(fit: Fit, plane: Plane) -> PlaneView:
    """What can be drawn of `fit` in the plane of its calibration set."""
    sides = (np.flatnonzero(plane.positive), np.flatnonzero(~plane.positive))
    plus, minus = (plane.points[hull(plane.points, members)] for members in sides)
    line, reduced, pair = None, None, None
    if fit.alpha is not None and np.ndim(fit.alpha) == 0:  # one quadratic for all units
        line = (fit.alpha, fit.beta, fit.eta * plane.B + (1 - fit.beta) * plane.b - fit.tau)
        pair = _closest_pair(plane)
        if pair is None or not _halves(line, pair):
            pair, reduced = _reduced(fit, plane, line)
    return PlaneView(plane.points, plane.positive, (plus, minus), reduced, pair, line)


def _reduced(fit: Fit, plane: Plane, line: Line) -> tuple[Array | None, tuple[Array, Array] | None]:
    """The closest points and the outlines of the reduced hulls that regime rch separates.

    Their cap is only stated by the fit, so the fit is rejected if its line does not lie halfway between these hulls.
    Soft fits have no such pair: slacks place their threshold.
    """
    mu = fit.diagnostics.mu
    if not fit.regime.is_reduced or mu is None:
        return None, None
    found = closest(plane, mu)
    pair = None if found is None else np.stack([found.u, found.v])
    if pair is None or not _halves(line, pair):
        raise CertificateError(f"the regime is said to be {fit.regime}, but its reduced hulls give another line")
    return pair, _outlines(plane, mu)


def _halves(line: Line, pair: Array) -> bool:
    """Whether the line runs halfway between two points, at right angles to their segment."""
    p, q, r = line
    (dx, dy), (x, y) = (pair[0] - pair[1]).tolist(), ((pair[0] + pair[1]) / 2).tolist()
    across = abs(p * dy - q * dx) <= _NEAR * (abs(p * dy) + abs(q * dx))
    return bool(across and abs(p * x + q * y + r) <= _NEAR * (abs(p * x) + abs(q * y) + abs(r)))


def _closest_pair(plane: Plane) -> Array | None:
    found = separate(plane)
    if not isinstance(found, Separation):
        return None
    plus, minus = (plane.points[ends] for ends in found.closest)
    # Two convex sets in the plane that do not meet are closest at a vertex of one of them.
    candidates = [np.stack([u, _nearest(minus, u)]) for u in plus] + [np.stack([_nearest(plus, v), v]) for v in minus]
    return min(candidates, key=lambda pair: float(np.hypot(*(pair[0] - pair[1]))))


def _nearest(ends: Array, point: Array) -> Array:
    """The point of the segment between `ends` (1 or 2, 2) nearest to `point`."""
    a, along = ends[0], ends[-1] - ends[0]
    length = float(along @ along)
    share = 0.0 if length == 0 else min(1.0, max(0.0, float((point - a) @ along) / length))
    out: Array = a + share * along
    return out


def _outlines(plane: Plane, mu: float) -> tuple[Array, Array]:
    """The reduced hulls of both classes, from their supports in directions all around."""
    hulls = ReducedHulls(plane, mu)
    scale = np.maximum(plane.moments.reach, 1e-300)  # so that directions are evenly spaced in the picture
    angles = np.linspace(0, 2 * np.pi, _DIRECTIONS, endpoint=False)
    ends = [hulls.support(float(np.cos(a)) / scale[0], float(np.sin(a)) / scale[1]) for a in angles]
    plus, minus = (np.unique(np.array(corners), axis=0) + hulls.centre for corners in zip(*ends, strict=True))
    return plus[hull(plus, np.arange(len(plus)))], minus[hull(minus, np.arange(len(minus)))]
