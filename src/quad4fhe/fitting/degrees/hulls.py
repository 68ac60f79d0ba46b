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
_MEETS = 1e-13  # of the squared size of the points: a distance this small is rounding
_ROUNDS = 10_000
_STUCK = 10  # rounds without progress
_NOTHING = 1e-12  # weights below this leave the simplex


@dataclass(frozen=True, eq=False)
class Apart:
    """The hulls are disjoint: `direction` (p,) leads from the nearest point of the second hull to that of the first.

    Projected on the direction, the first set lies at `high` or above and the second at `low` or below (for reduced
    hulls: their extreme points do).
    """

    direction: Array
    low: float
    high: float

    @property
    def distance(self) -> float:
        """The distance of the hulls."""
        return float(np.linalg.norm(self.direction))


@dataclass(frozen=True, eq=False)
class Meet:
    """The hulls have a common point: rows of either set that it lies between."""

    first: IntArray
    second: IntArray


class Hull:
    """The convex hull of points (n, p) with weights of at most `cap`; 1 is the hull itself."""

    def __init__(self, points: Array, cap: float = 1.0) -> None:
        self.points = points
        self.cap = max(cap, 1.0 / len(points))

    def lowest(self, direction: Array) -> tuple[Array, IntArray]:
        """The point of the hull that is lowest in a direction, (p,), and the rows it is made of."""
        height = self.points @ direction
        whole = floor(1.0 / self.cap + 1e-12)
        if whole <= 1 and self.cap >= 1.0:
            row = int(np.argmin(height))
            return self.points[row], np.array([row])
        count = min(whole + 1, len(height))
        rows = np.argpartition(height, count - 1)[:count] if count < len(height) else np.arange(len(height))
        rows = rows[np.argsort(height[rows], kind="stable")]
        weights = np.full(rows.size, self.cap)
        weights[whole:] = max(0.0, 1.0 - whole * self.cap)
        return weights @ self.points[rows], rows[weights > 0]


def closest(first: Hull, second: Hull) -> Apart | Meet | None:
    """The nearest points of two hulls: the point of least norm of the hull of their differences; None if undecided."""
    size = max(float(np.square(first.points).sum(axis=1).max()), float(np.square(second.points).sum(axis=1).max()))
    simplex, least, stuck = _Simplex(), np.inf, 0
    at = first.points.mean(axis=0) - second.points.mean(axis=0)
    for used in range(_ROUNDS):
        norm = float(at @ at)
        top, top_rows = first.lowest(at)
        low, low_rows = second.lowest(-at)
        vertex = top - low
        gap = norm - float(at @ vertex)
        if used:
            if norm <= _MEETS * size:
                return simplex.meet()
            # In exact arithmetic every step shortens the norm; where rounding alone is left, none does.
            stuck = 0 if norm < least * (1 - 1e-15) else stuck + 1
            least = min(least, norm)
            if gap <= _GAP * norm or stuck > _STUCK or simplex.knows(vertex):
                high, below = float(top @ at), float(low @ at)
                return Apart(at, below, high) if high > below else None
        at = simplex.nearest(vertex, top_rows, low_rows)
    return None


class _Simplex:
    """Wolfe's corral: differences of extreme points, the rows they came from, and the weights of the nearest point."""

    def __init__(self) -> None:
        self._vertices: list[Array] = []
        self._rows: list[tuple[IntArray, IntArray]] = []
        self._weights = np.empty(0)

    def knows(self, vertex: Array) -> bool:
        """Whether a vertex is in the simplex already, so that no further step is possible in float64."""
        return any(np.array_equal(vertex, known) for known in self._vertices)

    def meet(self) -> Meet:
        """The rows behind the simplex."""
        first, second = (np.unique(np.concatenate(part)) for part in zip(*self._rows, strict=True))
        return Meet(first, second)

    def nearest(self, vertex: Array, first: IntArray, second: IntArray) -> Array:
        """Add a vertex and walk to the point of least norm of the simplex it leaves; returns that point."""
        self._vertices.append(vertex)
        self._rows.append((first, second))
        self._weights = np.append(self._weights, 0.0 if self._weights.size else 1.0)
        while True:
            points = np.array(self._vertices)
            affine = _affine(points)
            if (affine > _NOTHING).all():
                self._weights = affine
                return affine @ points
            falling = affine <= _NOTHING
            steps = self._weights[falling] / np.maximum(self._weights[falling] - affine[falling], 1e-300)
            step = min(1.0, float(steps.min(initial=1.0)))
            self._weights = (1 - step) * self._weights + step * affine
            kept = self._weights > _NOTHING
            if kept.all():  # rounding: the vertex that limits the step has to go
                kept[int(np.argmin(np.where(falling, self._weights, np.inf)))] = False
            self._vertices = [v for v, keep in zip(self._vertices, kept, strict=True) if keep]
            self._rows = [r for r, keep in zip(self._rows, kept, strict=True) if keep]
            self._weights = self._weights[kept] / self._weights[kept].sum()


def _affine(points: Array) -> Array:
    """Weights, adding up to one, of the point of least norm of the affine hull of points (r, p)."""
    origin = points[0]
    if len(points) == 1:
        return np.ones(1)
    edges = (points[1:] - origin).T
    rest = np.linalg.lstsq(edges, -origin, rcond=1e-14)[0]
    return np.concatenate([[1.0 - rest.sum()], rest])
