"""The lifted plane of a binary model as a picture needs it: hulls, closest pair, separating line.

A fit has a line if it is one shared quadratic, and a closest pair if the line lies halfway between the two points.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quad4fhe._arrays import Array, BoolArray
from quad4fhe.errors import CertificateError
from quad4fhe.fitting import Fit
from quad4fhe.fitting.design import Design
from quad4fhe.fitting.hulls import Apart, Hull, closest

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


def plane_view(fit: Fit, design: Design) -> PlaneView:
    """What can be drawn of `fit` in the plane of its calibration set."""
    points, positive = design.points
    sides = points[positive], points[~positive]
    line, reduced, pair = None, None, None
    if fit.alpha is not None and np.ndim(fit.alpha) == 0:  # one quadratic for all units
        bias = float(design.b[1] - design.b[0])
        line = (fit.alpha, fit.beta, fit.eta * design.shift + (1 - fit.beta) * bias - fit.tau)
        pair = _closest_pair(*sides)
        if pair is None or not _halves(line, pair):
            pair, reduced = _reduced(fit, *sides, line)
    return PlaneView(points, positive, (_outline(sides[0]), _outline(sides[1])), reduced, pair, line)


def _reduced(fit: Fit, plus: Array, minus: Array, line: Line) -> tuple[Array | None, tuple[Array, Array] | None]:
    """The closest points and the outlines of the reduced hulls that regime rch separates.

    Their cap is only stated by the fit, so the fit is rejected if its line does not lie halfway between these hulls.
    Soft fits have no such pair: slacks place their threshold.
    """
    mu = fit.diagnostics.mu
    if not fit.regime.is_reduced or mu is None:
        return None, None
    pair = _closest_pair(plus, minus, mu)
    if pair is None or not _halves(line, pair):
        raise CertificateError(f"the regime is said to be {fit.regime}, but its reduced hulls give another line")
    return pair, (_reduced_outline(plus, mu), _reduced_outline(minus, mu))


def _halves(line: Line, pair: Array) -> bool:
    """Whether the line runs halfway between two points, at right angles to their segment."""
    p, q, r = line
    (dx, dy), (x, y) = (pair[0] - pair[1]).tolist(), ((pair[0] + pair[1]) / 2).tolist()
    across = abs(p * dy - q * dx) <= _NEAR * (abs(p * dy) + abs(q * dx))
    return bool(across and abs(p * x + q * y + r) <= _NEAR * (abs(p * x) + abs(q * y) + abs(r)))


def _closest_pair(plus: Array, minus: Array, cap: float = 1.0) -> Array | None:
    found = closest(plus, minus, cap)
    return np.stack([found.u, found.v]) if isinstance(found, Apart) else None


def _reduced_outline(points: Array, cap: float) -> Array:
    """The reduced hull of points (n, 2), from its extreme points in directions all around."""
    centre = points.mean(axis=0)
    hull = Hull(points - centre, cap)
    scale = np.maximum(np.abs(hull.points).max(axis=0), 1e-300)  # so that directions are evenly spaced in the picture
    angles = np.linspace(0, 2 * np.pi, _DIRECTIONS, endpoint=False)
    corners = [hull.lowest(np.array([np.cos(a), np.sin(a)]) / scale)[0] for a in angles]
    return _outline(np.array(corners) + centre)


def _outline(points: Array) -> Array:
    """The corners of the convex hull of points (n, 2), counter-clockwise, by Andrew's monotone chain."""
    corners = np.unique(points, axis=0).tolist()
    if len(corners) <= 2:
        return np.array(corners)
    halves = []
    for side in (corners, corners[::-1]):
        chain: list[list[float]] = []
        for x, y in side:
            while len(chain) > 1 and _turn(chain[-2], chain[-1], [x, y]) <= 0:
                chain.pop()
            chain.append([x, y])
        halves += chain[:-1]
    return np.array(halves)


def _turn(a: list[float], b: list[float], c: list[float]) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
