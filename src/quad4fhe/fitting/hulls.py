"""Two classes, hard: whether the two planar hulls are disjoint, and the direction that separates them most widely.

Solves Theorem 1 (disjoint or not) and Theorem 2 (closest pair) for the lifted points as given in float64: floats first,
rationals wherever a sign is in doubt. Only vertices matter, so each block of rows sends those of its own hulls. The
lifted points are rounded, so a separation found here still needs its certificate, which starts at the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from quad4fhe._arrays import Array, IntArray
from quad4fhe.calibration.plane import Cloud, Plane

_ORIENTATION_BOUND = (3.0 + 16.0 * 2.0**-53) * 2.0**-53  # Shewchuk's error bound for the 2 x 2 determinant
_FILTER_ABOVE = 512  # points; below this the chain itself is quicker than filtering for it
_THIN = 1e-6  # hulls closer than this, relative to their size, are measured in rationals, where no digit is lost
_UNDERFLOW = 1e-280  # determinants this small may have lost bits to underflow, so their sign is not trusted


class Atom(NamedTuple):
    """A point of the difference set C+ - C-, with the tag that says where it came from."""

    x: Any
    y: Any
    tag: Any


class Nearest(NamedTuple):
    """The point of a convex set nearest to the origin, and the atoms (at most three) it is made of."""

    x: Any
    y: Any
    atoms: list[Atom]

    @property
    def is_origin(self) -> bool:
        """Whether the set contains the origin, so that the two hulls meet."""
        return bool(self.x == 0 and self.y == 0)


@dataclass(frozen=True)
class Separation:
    """A unit direction theta = (alpha, beta) with min theta.Phi+ = low > high = max theta.Phi-.

    `margin` is the distance of the hulls, `diameter` is M of the quantisation corollary, `closest` names the samples
    (positive, negative) that carry the closest pair.
    """

    theta: Array
    low: float
    high: float
    margin: float
    diameter: float
    closest: tuple[list[int], list[int]]


@dataclass(frozen=True)
class Contact:
    """The hulls meet: these positive and negative samples (at most three each) have a common convex combination."""

    positive: list[int]
    negative: list[int]


def orientation(ax: float, ay: float, bx: float, by: float, cx: float, cy: float) -> int:
    """The sign of the turn a -> b -> c, exact for the floats given."""
    left, right = (bx - ax) * (cy - ay), (by - ay) * (cx - ax)
    det, size = left - right, abs(left) + abs(right)
    if abs(det) > _ORIENTATION_BOUND * size and size > _UNDERFLOW and math.isfinite(size):
        return 1 if det > 0 else -1
    f = Fraction
    exact = (f(bx) - f(ax)) * (f(cy) - f(ay)) - (f(by) - f(ay)) * (f(cx) - f(ax))
    return (exact > 0) - (exact < 0)


def hull(points: Array, members: IntArray) -> IntArray:
    """Indices of the convex hull's vertices among points[members], counter-clockwise, by Andrew's monotone chain."""
    members = _outer(points, members)
    order = members[np.lexsort((points[members, 1], points[members, 0]))]
    keep = np.ones(order.size, dtype=np.bool_)
    keep[1:] = np.any(points[order[1:]] != points[order[:-1]], axis=1)
    order = order[keep]
    if order.size <= 2:
        return order
    corners = points[order].tolist()
    lower, upper = _chain(corners), _chain(corners[::-1])
    return order[lower[:-1] + [order.size - 1 - i for i in upper[:-1]]]


def _chain(corners: list[list[float]]) -> list[int]:
    chain: list[int] = []
    for i, corner in enumerate(corners):
        while len(chain) >= 2 and orientation(*corners[chain[-2]], *corners[chain[-1]], *corner) <= 0:
            chain.pop()
        chain.append(i)
    return chain


def _outer(points: Array, members: IntArray) -> IntArray:
    """Drop points that lie well inside the octagon of the extreme points; these can't be vertices."""
    if members.size <= _FILTER_ABOVE:
        return members
    x, y = points[members, 0], points[members, 1]
    sx, sy = float(np.ptp(x)), float(np.ptp(y))
    if not (0 < sx < math.inf and 0 < sy < math.inf):
        return members
    x, y = (x - x.mean()) / sx, (y - y.mean()) / sy
    corners = list(dict.fromkeys(int(np.argmax(k)) for k in (x, x + y, y, y - x, -x, -x - y, -y, x - y)))
    inside = np.ones(members.size, dtype=np.bool_)
    for a, b in zip(corners, corners[1:] + corners[:1], strict=True):
        # Coordinates are of order one here, so 1e-9 is far above the rounding of this determinant.
        inside &= (x[b] - x[a]) * (y - y[a]) - (y[b] - y[a]) * (x - x[a]) > 1e-9
    return members[~inside]


def nearest_to_origin(
    support: Callable[[Any, Any], Atom], start: Atom, *, tolerance: float = 0.0, noise: float = 0.0
) -> Nearest:
    """The point nearest to the origin in a planar convex set given by its support oracle (Gilbert, Johnson, Keerthi).

    support(dx, dy) returns an atom that minimises dx*x + dy*y. With fractions and zero tolerances the answer is exact.
    `tolerance` bounds the relative optimality gap, `noise` the rounding error of a coordinate.
    """
    atoms = [start]
    x, y = start.x, start.y
    while x != 0 or y != 0:
        new = support(x, y)
        square = x * x + y * y
        gap = square - (x * new.x + y * new.y)
        doubt = tolerance * square + noise * (abs(x) + abs(y)) if tolerance or noise else 0
        if gap <= doubt or any(new.tag == atom.tag for atom in atoms):
            break
        candidate = _nearest_face([*atoms, new])
        if not candidate.is_origin and candidate.x * candidate.x + candidate.y * candidate.y >= square:
            break  # no progress: rounding is all that is left
        x, y, atoms = candidate
    return Nearest(x, y, atoms)


def _nearest_face(atoms: list[Atom]) -> Nearest:
    new = atoms[-1]
    if len(atoms) == 3:
        a, b = atoms[0], atoms[1]
        turns = (_cross(a, b), _cross(b, new), _cross(new, a))
        if all(t >= 0 for t in turns) or all(t <= 0 for t in turns):
            zero = new.x - new.x
            return Nearest(zero, zero, atoms)
        faces = [_nearest_on_segment(a, new), _nearest_on_segment(b, new)]
        return min(faces, key=lambda face: face.x * face.x + face.y * face.y)
    return _nearest_on_segment(atoms[0], new)


def _nearest_on_segment(a: Atom, b: Atom) -> Nearest:
    dx, dy = b.x - a.x, b.y - a.y
    along = -(a.x * dx + a.y * dy)
    length = dx * dx + dy * dy
    if along <= 0:
        return Nearest(a.x, a.y, [a])
    if along >= length:
        return Nearest(b.x, b.y, [b])
    turn = _cross(a, b)
    return Nearest(turn * dy / length, -turn * dx / length, [a, b])


def _cross(a: Atom, b: Atom) -> Any:
    return a.x * b.y - a.y * b.x


class Corners(NamedTuple):
    """Vertices of the hulls of both classes: points (k, 2), the rows (k,) they are, and which are plus and minus."""

    points: Array
    rows: IntArray
    plus: IntArray
    minus: IntArray


def corners(plane: Plane, without: IntArray | None = None) -> Corners:
    """The hulls of both classes, those of the blocks put together; `without` names rows to leave out."""
    left_out = np.empty(0, dtype=np.int64) if without is None else without
    parts = plane.map(_block_corners, left_out)
    sides = []
    for side in (0, 1):
        points = np.concatenate([part[side][0] for part in parts])
        rows = np.concatenate([part[side][1] for part in parts])
        chosen = hull(points, np.argsort(rows, kind="stable"))
        sides.append((points[chosen], rows[chosen]))
    (p, i), (q, j) = sides
    return Corners(np.vstack([p, q]), np.concatenate([i, j]), np.arange(i.size), np.arange(i.size, i.size + j.size))


def _block_corners(plus: Cloud, minus: Cloud, without: IntArray) -> list[tuple[Array, IntArray]]:
    found = []
    for cloud in (plus, minus):
        points = np.column_stack([cloud.x, cloud.y])
        members = np.flatnonzero(~np.isin(cloud.rows, without)) if without.size else np.arange(cloud.rows.size)
        chosen = hull(points, members) if members.size else members
        found.append((points[chosen], cloud.rows[chosen]))
    return found


def separate(plane: Plane, without: IntArray | None = None) -> Separation | Contact | None:
    """Decide Theorem 1; None if the hulls are disjoint but no float64 direction tells them apart."""
    points, rows, plus, minus = corners(plane, without)
    found = _nearest_float(points, plus, minus)
    size = float(np.abs(points).max())
    if not found.is_origin and max(abs(found.x), abs(found.y)) > _THIN * size:
        separation = _separation(points, rows, plus, minus, found)
        if separation is not None:
            return separation
    if found.is_origin and (contact := _contact(points, rows, found)) is not None:
        return contact
    found = _nearest_exact(points, plus, minus)
    if found.is_origin:
        return Contact(*_tags(found, rows))
    return _separation(points, rows, plus, minus, found)


def _nearest_float(points: Array, plus: IntArray, minus: IntArray) -> Nearest:
    p, q = points[plus], points[minus]

    def support(dx: float, dy: float) -> Atom:
        i, j = int(np.argmin(p[:, 0] * dx + p[:, 1] * dy)), int(np.argmax(q[:, 0] * dx + q[:, 1] * dy))
        z = p[i] - q[j]
        return Atom(float(z[0]), float(z[1]), (int(plus[i]), int(minus[j])))

    noise = 4 * 2.0**-53 * float(max(np.abs(p).max(), np.abs(q).max()))
    start = p.mean(axis=0) - q.mean(axis=0)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return nearest_to_origin(support, support(float(start[0]), float(start[1])), tolerance=1e-14, noise=noise)


def _nearest_exact(points: Array, plus: IntArray, minus: IntArray) -> Nearest:
    def rational(members: IntArray) -> list[Atom]:
        return [Atom(Fraction(float(points[i, 0])), Fraction(float(points[i, 1])), int(i)) for i in members]

    p, q = rational(plus), rational(minus)

    def support(dx: Fraction, dy: Fraction) -> Atom:
        a = min(p, key=lambda z: z.x * dx + z.y * dy)
        b = max(q, key=lambda z: z.x * dx + z.y * dy)
        return Atom(a.x - b.x, a.y - b.y, (a.tag, b.tag))

    return nearest_to_origin(support, support(Fraction(1), Fraction(0)))


def _tags(found: Nearest, rows: IntArray) -> tuple[list[int], list[int]]:
    """The rows of the data set that a nearest point is made of."""
    positive, negative = zip(*(atom.tag for atom in found.atoms), strict=True)
    return sorted({int(rows[i]) for i in positive}), sorted({int(rows[i]) for i in negative})


def _contact(points: Array, rows: IntArray, found: Nearest) -> Contact | None:
    """Keep a contact found in floats only if the same atoms hold the origin in rationals."""
    exact = []
    for atom in found.atoms:
        i, j = atom.tag
        x, y = (Fraction(float(points[i, k])) - Fraction(float(points[j, k])) for k in (0, 1))
        exact.append(Atom(x, y, atom.tag))
    holds = exact[0].x == 0 == exact[0].y if len(exact) == 1 else _nearest_face(exact).is_origin
    return Contact(*_tags(found, rows)) if holds else None


def _separation(points: Array, rows: IntArray, plus: IntArray, minus: IntArray, found: Nearest) -> Separation | None:
    """Round the direction to floats and keep it only if it separates the hulls exactly."""
    largest = max(abs(found.x), abs(found.y))
    x, y = float(found.x / largest), float(found.y / largest)
    theta = np.array([x, y]) / math.hypot(x, y)

    def projections(members: IntArray) -> Iterable[Fraction]:
        a, b = Fraction(float(theta[0])), Fraction(float(theta[1]))
        return (a * Fraction(float(points[i, 0])) + b * Fraction(float(points[i, 1])) for i in members)

    low, high = min(projections(plus)), max(projections(minus))
    if low <= high:
        return None
    diameter = _diameter(points[plus], points[minus])
    return Separation(theta, float(low), float(high), float(low - high), diameter, _tags(found, rows))


def _diameter(p: Array, q: Array) -> float:
    """M = max |u - v| over two hulls: the farthest vertex of their difference, whose edges are theirs by angle."""
    edges = np.vstack([np.roll(p, -1, axis=0) - p, q - np.roll(q, -1, axis=0)])
    angle = np.arctan2(edges[:, 1], edges[:, 0])
    angle[angle <= -np.pi / 2] += 2 * np.pi  # a walk from the leftmost vertex starts downwards
    leftmost = p[np.lexsort((p[:, 1], p[:, 0]))[0]] - q[np.lexsort((q[:, 1], q[:, 0]))[-1]]
    vertices = leftmost + np.cumsum(edges[np.argsort(angle)], axis=0)
    return float(np.hypot(vertices[:, 0], vertices[:, 1]).max())
