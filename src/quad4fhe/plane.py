"""The binary lift: a plane in which a quadratic is a line, as clouds of points of the two classes, in blocks of rows.

Decides how the plane is cut into blocks and what is known of it without a direction: counts, means and extent. Where
its points come from is left to `lift`, what is looked for in it to `fit`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np

from quad4fhe._arrays import Array, BoolArray, IntArray
from quad4fhe.shards import SHARD_ROWS

_SAME_SUM = 1e-9  # two row sums of W2 this close are the same: an eta that uses their difference would drown c


class Cloud(NamedTuple):
    """Lifted points of one class: coordinates x and y (k,), and the rows (k,) of the data set they belong to."""

    x: Array
    y: Array
    rows: IntArray


class Moments(NamedTuple):
    """Points a class (plus, minus), their mean (2, 2), the mean of all (2,), and the farthest from it by axis (2,)."""

    counts: tuple[int, int]
    means: Array
    centre: Array
    reach: Array


class PlaneBlocks(ABC):
    """The binary lift (Definition 1), block by block: points (Q, H) of both classes, and the offsets B and b.

    B is 0 where eta can't move the threshold; `size` is the number of rows of a block.
    """

    B: float
    b: float
    size: int

    @abstractmethod
    def map(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """function(plus, minus, *args) of the clouds of every block, in their order."""

    @abstractmethod
    def total(self, merge: Callable[[Any, Any], Any], function: Callable[..., Any], *args: Any) -> Any:
        """The same, merged pairwise in any order."""

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


def _sums(plus: Cloud, minus: Cloud) -> tuple[tuple[int, int], Array]:
    return (plus.x.size, minus.x.size), np.array([[c.x.sum(), c.y.sum()] for c in (plus, minus)])


def _reach(plus: Cloud, minus: Cloud, centre: Array) -> Array:
    return np.array(
        [max(np.abs(side - at).max(initial=0.0) for side in sides)
         for sides, at in zip(((plus.x, minus.x), (plus.y, minus.y)), centre, strict=True)]
    )  # fmt: skip


@dataclass(frozen=True)
class Plane(PlaneBlocks):
    """A binary lift in memory: points (n, 2) with columns Q and H, `positive` (n,)."""

    points: Array
    positive: BoolArray
    B: float
    b: float
    size: int = SHARD_ROWS

    @cached_property
    def _clouds(self) -> list[tuple[Cloud, Cloud]]:
        size, n = self.size, self.positive.size
        return [
            clouds(self.points[start : start + size], self.positive[start : start + size], start)
            for start in range(0, n, size)
        ]

    def map(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Function(plus, minus, *args) of every block."""
        return [function(*pair, *args) for pair in self._clouds]

    def total(self, merge: Callable[[Any, Any], Any], function: Callable[..., Any], *args: Any) -> Any:
        """The same, merged."""
        return reduce(merge, self.map(function, *args))


def clouds(points: Array, positive: BoolArray, first: int) -> tuple[Cloud, Cloud]:
    """Points (n, 2) of the rows from `first` on, by class."""
    sides = (np.flatnonzero(positive), np.flatnonzero(~positive))
    plus, minus = (Cloud(points[at, 0], points[at, 1], at + first) for at in sides)
    return plus, minus


def plane_offsets(B: Array, b: Array) -> tuple[float, float]:
    """B and b of the plane; B is 0 where eta moves both classes alike."""
    shift = float(B[1] - B[0])
    return 0.0 if abs(shift) <= _SAME_SUM * float(np.abs(B).max()) else shift, float(b[1] - b[0])
