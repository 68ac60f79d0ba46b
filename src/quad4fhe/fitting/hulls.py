"""Closest points of two convex hulls, or of two reduced hulls, in any dimension, by Wolfe's active-set method.

The hulls are known only through their extreme points in a direction, so n points in R^p cost n p operations a step and
reduced hulls (weights of at most mu) differ only in how an extreme point is put together. Every iterate is the nearest
point of a simplex of at most p + 1 differences of extreme points; the method stops on the duality gap.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

import numpy as np

from quad4fhe._arrays import Array, IntArray

_GAP = 1e-12  # relative, of the squared distance
_MEETS = 1e-12  # of the size of the nearest points: a distance this small is rounding
_ROUNDS = 10_000
_STUCK = 10  # rounds without progress
_NOTHING = 1e-12  # of the nearest point: vertices whose weighted share is smaller leave the simplex
_PAIRS = 10_000_000  # beyond so many, their largest distance is bounded instead


@dataclass(frozen=True, eq=False)
class Apart:
    """The hulls are disjoint: `direction` (p,) leads from `v`, the nearest point of the second hull, to `u`.

    Projected on the direction, the first set lies at `high` or above and the second at `low` or below (for reduced
    hulls: their extreme points do).
    """

    direction: Array
    low: float
    high: float
    u: Array
    v: Array

    @property
    def distance(self) -> float:
        """The distance of the hulls."""
        return float(np.linalg.norm(self.direction))


@dataclass(frozen=True, eq=False)
class Meet:
    """The hulls have a common point, up to rounding: rows of either set that it lies between."""

    first: IntArray
    second: IntArray


class Hull:
    """The convex hull of points (n, p) with weights of at most `cap`; 1 is the hull itself."""

    def __init__(self, points: Array, cap: float = 1.0) -> None:
        self.points = points
        self.cap = max(cap, 1.0 / len(points))
        self._whole = min(len(points), floor(1.0 / self.cap * (1 + 1e-12)))
        self._rest = max(0.0, 1.0 - self._whole * self.cap)

    def lowest(self, direction: Array) -> tuple[Array, IntArray]:
        """The point of the hull that is lowest in a direction, (p,), and the rows it is made of."""
        height = self.points @ direction
        if self._whole <= 1 and self.cap >= 1.0:
            row = int(np.argmin(height))
            return self.points[row], np.array([row])
        if self._whole == len(height):
            return self.points.mean(axis=0), np.arange(len(height))
        rows = np.argpartition(height, self._whole)[: self._whole + 1]
        full = np.sort(rows[:-1])  # a fixed order to add up in
        return self.cap * self.points[full].sum(axis=0) + self._rest * self.points[rows[-1]], np.append(full, rows[-1])


def closest(positive: Array, negative: Array, cap: float = 1.0) -> Apart | Meet:
    """The nearest points of the hulls of two sets (n, p): the point of least norm of the hull of their differences.

    Coordinates are taken from the middle of all points: a common offset (a constant unit, say) separates nothing, but
    would drown the differences in its rounding. The median, because one huge row moves the mean away from all others.
    """
    centre = np.median(np.concatenate([positive, negative]), axis=0)
    first, second = Hull(positive - centre, cap), Hull(negative - centre, cap)
    simplex, least, stuck = _Simplex(), np.inf, 0
    at = first.points.mean(axis=0) - second.points.mean(axis=0)
    for used in range(_ROUNDS):
        norm = float(at @ at)
        u, u_rows = first.lowest(at)
        v, v_rows = second.lowest(-at)
        gap = norm - float(at @ (u - v))
        if used:
            size = simplex.size()
            if norm <= (_MEETS * size) ** 2:
                break
            # In exact arithmetic every step shortens the norm; where rounding alone is left, none does.
            stuck = 0 if norm < least * (1 - 1e-15) else stuck + 1
            least = min(least, norm)
            # A huge row rounds whole steps: a vertex that comes again is the end only if it separates.
            low, high, offset = float(v @ at), float(u @ at), float(centre @ at)
            is_apart = high - low > _MEETS * size * norm**0.5
            if gap <= _GAP * norm or stuck > _STUCK or (simplex.knows(u, v) and is_apart):
                if not is_apart:
                    break
                u, v = simplex.ends()
                return Apart(at, low + offset, high + offset, u + centre, v + centre)
        at = simplex.nearest(u, v, u_rows, v_rows)
    return simplex.meet()


class _Simplex:
    """Wolfe's corral: differences of extreme points, the rows they came from, and the weights of the nearest point."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Array, Array, IntArray, IntArray]] = []
        self._weights = np.empty(0)

    def knows(self, u: Array, v: Array) -> bool:
        """Whether a difference is in the simplex already, so that no further step is possible in float64."""
        return any(np.array_equal(u - v, pair[0] - pair[1]) for pair in self._pairs)

    def ends(self) -> tuple[Array, Array]:
        """The nearest points u and v of the two hulls."""
        first, second = (np.array([pair[side] for pair in self._pairs]) for side in (0, 1))
        return self._weights @ first, self._weights @ second

    def size(self) -> float:
        """How large the numbers are that the nearest points were added up from."""
        return float(self._weights @ self._sizes())

    def _sizes(self) -> Array:
        """How large the ends of each difference are, (r,), above zero."""
        sizes = np.array([np.abs(u).max() + np.abs(v).max() for u, v, *_ in self._pairs])
        return np.where(sizes > 0, sizes, sizes[sizes > 0].min(initial=1.0))

    def meet(self) -> Meet:
        """The rows behind the simplex."""
        return Meet(*(np.unique(np.concatenate([pair[side] for pair in self._pairs])) for side in (2, 3)))

    def nearest(self, u: Array, v: Array, u_rows: IntArray, v_rows: IntArray) -> Array:
        """Add a difference and walk to the point of least norm of the simplex it leaves; returns that point."""
        self._pairs.append((u, v, u_rows, v_rows))
        self._weights = np.append(self._weights, 0.0 if self._weights.size else 1.0)
        while True:
            points = np.array([pair[0] - pair[1] for pair in self._pairs])
            affine, sizes = _affine(points), self._sizes()
            # A huge vertex may carry a tiny weight, so weights are compared by what they move.
            least = _NOTHING * float(np.abs(affine * sizes).max()) / sizes
            if (affine > least).all():
                self._weights = affine
                return np.asarray(affine @ points)
            falling = affine <= least
            steps = self._weights[falling] / np.maximum(self._weights[falling] - affine[falling], 1e-300)
            step = min(1.0, float(steps.min(initial=1.0)))
            self._weights = (1 - step) * self._weights + step * affine
            stays = self._weights > np.minimum(least, _NOTHING)
            if stays.all():  # rounding: the vertex that limits the step has to go
                stays[int(np.argmin(np.where(falling, self._weights, np.inf)))] = False
            self._pairs = [pair for pair, stay in zip(self._pairs, stays, strict=True) if stay]
            self._weights = self._weights[stays] / self._weights[stays].sum()


def _affine(points: Array) -> Array:
    """Weights, adding up to one, of the point of least norm of the affine hull of points (r, p)."""
    origin = points[0]
    if len(points) == 1:
        return np.ones(1)
    edges = (points[1:] - origin).T
    sizes = np.sqrt(np.square(edges).sum(axis=0))
    sizes[sizes == 0] = 1.0
    rest = np.linalg.lstsq(edges / sizes, -origin, rcond=1e-14)[0] / sizes
    return np.concatenate([[1.0 - rest.sum()], rest])


def farthest(positive: Array, negative: Array) -> float:
    """The largest distance between a point of one set and one of the other, M of the quantisation corollary."""
    sides = [positive, negative]
    u = positive[int(np.argmax(np.square(positive - positive.mean(axis=0)).sum(axis=1)))]
    v = negative[int(np.argmax(np.square(negative - u).sum(axis=1)))]
    least = float(np.sqrt(np.square(positive - v).sum(axis=1).max()))
    centre = (positive.mean(axis=0) + negative.mean(axis=0)) / 2
    radii = [np.sqrt(np.square(side - centre).sum(axis=1)) for side in sides]
    # A pair this far apart has both ends outside a ball around the centre: few points are.
    short = (1 - 1e-9) * least
    p, q = (side[r >= short - other.max()] for side, r, other in zip(sides, radii, radii[::-1], strict=True))
    if len(p) * len(q) > _PAIRS:
        return float(radii[0].max() + radii[1].max())
    return float(np.sqrt(max(np.square(q - each).sum(axis=1).max() for each in p)))
