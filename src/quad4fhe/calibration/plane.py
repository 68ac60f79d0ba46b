"""The binary lift: a plane in which a quadratic is a line, as a cloud of points for each class, in blocks of rows.

Solvers apply a function to the clouds of every block. Counts, means and extent are computed here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np

from quad4fhe._arrays import Array, BoolArray, IntArray
from quad4fhe.calibration.scratch import Arrays
from quad4fhe.calibration.shards import SHARD_ROWS, Shard, Shards
from quad4fhe.io.rows import ArrayRows

_SAME_SUM = 1e-9  # two row sums of W2 this close count as equal: dividing by their difference gives a huge eta


class Cloud(NamedTuple):
    """Lifted points of one class: coordinates x and y (k,), and their rows (k,) in the data set."""

    x: Array
    y: Array
    rows: IntArray


Clouds = tuple[Cloud, Cloud]


class Moments(NamedTuple):
    """Points per class (plus, minus), class means (2, 2), the mean of all (2,), the largest distance by axis (2,)."""

    counts: tuple[int, int]
    means: Array
    centre: Array
    reach: Array


class Plane:
    """The binary lift (Definition 1) in blocks: points (Q, H) of both classes, and the offsets B and b.

    B is 0 where eta can't move the threshold. `make(shard)` computes the clouds of a shard.
    """

    def __init__(self, shards: Shards, make: Callable[[Shard], Clouds], B: float, b: float) -> None:
        self._shards, self._make = shards, make
        self.B, self.b = B, b

    @classmethod
    def of(cls, points: Array, positive: BoolArray, B: float, b: float, size: int = SHARD_ROWS) -> Plane:
        """The plane of given points (n, 2) with columns Q and H; `positive` is (n,)."""
        return cls(Shards(ArrayRows(np.column_stack([points, positive])), size), _given, B, b)

    @property
    def size(self) -> int:
        """The rows of a block."""
        return self._shards.size

    def map(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """function(plus, minus, *args) for the clouds of every block, in order."""
        if self._held is not None:
            return [function(plus, minus, *args) for plus, minus in self._held]
        return self._shards.map(_on_clouds, self._make, function, args)

    def total(self, merge: Callable[[Any, Any], Any], function: Callable[..., Any], *args: Any) -> Any:
        """The results of `map`, merged pairwise in any order."""
        if self._held is not None:
            return reduce(merge, (function(plus, minus, *args) for plus, minus in self._held))
        return self._shards.total(merge, _on_clouds, self._make, function, args)

    @cached_property
    def _held(self) -> list[Clouds] | None:
        """The clouds of every block if they stay in this process anyway: solvers ask for hundreds of functions."""
        return self._shards.map(_on_clouds, self._make, _both, ()) if self._shards.in_memory else None

    @cached_property
    def moments(self) -> Moments:
        """Counts, means and extent; sums are taken in the order of the blocks."""
        parts = self.map(_sums)
        counts = [sum(part[0][side] for part in parts) for side in (0, 1)]
        sums = np.zeros((2, 2))
        for part in parts:
            sums += part[1]
        means = sums / np.maximum(counts, 1)[:, None]
        centre: Array = sums.sum(axis=0) / sum(counts)
        reach = np.max(self.map(_reach, centre), axis=0)
        return Moments((counts[0], counts[1]), means, centre, reach)

    @property
    def positive(self) -> BoolArray:
        """Which rows (n,) are of the positive class."""
        return self._gathered[1]

    @property
    def points(self) -> Array:
        """All points (n, 2), in the order of the rows."""
        return self._gathered[0]

    @cached_property
    def _gathered(self) -> tuple[Array, BoolArray]:
        points, positive = np.empty((self._shards.samples, 2)), np.zeros(self._shards.samples, dtype=np.bool_)
        for plus, minus in self.map(_both):
            positive[plus.rows] = True
            for cloud in (plus, minus):
                points[cloud.rows] = np.column_stack(cloud[:2])
        return points, positive


def _on_clouds(shard: Shard, make: Callable[[Shard], Clouds], function: Callable[..., Any], args: Any) -> Any:
    def flat() -> Arrays:
        plus, minus = make(shard)
        return (*plus, *minus)

    kept = shard.keep("clouds", flat)
    return function(Cloud(*kept[:3]), Cloud(*kept[3:]), *args)


def _both(plus: Cloud, minus: Cloud) -> Clouds:
    return plus, minus


def _sums(plus: Cloud, minus: Cloud) -> tuple[tuple[int, int], Array]:
    return (plus.x.size, minus.x.size), np.array([[c.x.sum(), c.y.sum()] for c in (plus, minus)])


def _reach(plus: Cloud, minus: Cloud, centre: Array) -> Array:
    return np.array(
        [max(np.abs(side - at).max(initial=0.0) for side in sides)
         for sides, at in zip(((plus.x, minus.x), (plus.y, minus.y)), centre, strict=True)]
    )  # fmt: skip


def _given(shard: Shard) -> Clouds:
    rows = np.concatenate([chunk for _, chunk in shard.chunks(24)])
    return clouds(rows[:, :2], rows[:, 2] > 0, shard.first)


def clouds(points: Array, positive: BoolArray, first: int) -> Clouds:
    """Points (n, 2) of the rows from `first` on, by class."""
    sides = (np.flatnonzero(positive), np.flatnonzero(~positive))
    plus, minus = (Cloud(points[at, 0], points[at, 1], at + first) for at in sides)
    return plus, minus


def plane_offsets(B: Array, b: Array) -> tuple[float, float]:
    """B and b of the plane; B is 0 where eta moves both classes alike."""
    shift = float(B[1] - B[0])
    return 0.0 if abs(shift) <= _SAME_SUM * float(np.abs(B).max()) else shift, float(b[1] - b[0])
