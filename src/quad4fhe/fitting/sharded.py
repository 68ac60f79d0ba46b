"""Lifted statistics that lie in shards, in this process or with workers: `Lift` and `Plane` without having them.

Decides how a question to a block travels with the view it is asked of (thresholds, scales, samples of rows). Answers
are those a `Lift` in memory gives, to the last bit, for its blocks are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe._store import Arrays
from quad4fhe.lift import Lift, merged, offsets, sampled_rows, shard_lift, summary
from quad4fhe.mlp import MLP
from quad4fhe.plane import Cloud, PlaneBlocks, clouds, plane_offsets
from quad4fhe.shards import Report, Shard, Shards


@dataclass(frozen=True)
class _View:
    """How a block is to be seen: its offsets, a tau to take from b, scales to divide by, (share, seed) of its rows."""

    B: Array
    b: Array
    tau: float = 0.0
    scales: Array | None = None
    sample: tuple[float, int] | None = None


class LiftShards:
    """The statistics of the shards' MLP on their rows; `report` hears how many shards have them."""

    def __init__(self, shards: Shards, mlp: MLP, report: Report | None = None) -> None:
        self._shards = shards
        B, b = offsets(mlp)
        parts = dict(shards.stream(summary, B, b, together=2, report=report))
        self.counts, self.ties, self.box = merged("X_cal", [parts[index] for index in range(shards.count)])
        self.samples, self.classes = shards.samples, mlp.classes
        self._view = _View(B, b)

    @property
    def B(self) -> Array:
        """Row sums of W2, (K,)."""
        return self._seen(self._view.B, 2)

    @property
    def b(self) -> Array:
        """Output biases, (K,)."""
        b = self._view.b.copy()
        b[-1] -= self._view.tau
        return self._seen(b, 3)

    def _seen(self, part: Array, k: int) -> Array:
        return part if self._view.scales is None else part / self._view.scales[k]

    def map(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Function(block, *args) of every block, in their order."""
        return self._shards.map(_on_block, self._view, function, args)

    def total(self, merge: Callable[[Any, Any], Any], function: Callable[..., Any], *args: Any) -> Any:
        """The same, merged pairwise in any order."""
        return self._shards.total(merge, _on_block, self._view, function, args)

    def plane(self) -> PlaneShards:
        """The binary lift."""
        return PlaneShards(self._shards, self._view)

    def shifted(self, tau: float) -> LiftShards:
        """With the threshold tau taken from the last class."""
        return self._viewed(tau=self._view.tau + tau)

    def scaled(self, scales: Array) -> LiftShards:
        """With Q, L, B and b divided by scales (4,)."""
        return self._viewed(scales=scales)

    def sampled(self, share: float, seed: int) -> LiftShards:
        """Some rows of every block."""
        found = self._viewed(sample=(share, seed))
        size, n = self._shards.size, self.samples
        found.samples = sum(max(1, round(share * min(size, n - at))) for at in range(0, n, size))
        return found

    def _viewed(self, **changes: Any) -> LiftShards:
        same = object.__new__(LiftShards)
        same.__dict__.update(self.__dict__)
        same._view = replace(self._view, **changes)
        return same


def _on_block(shard: Shard, view: _View, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    block = shard_lift(shard, view.B, view.b) if view.sample is None else _sampled(shard, view)
    block = block.shifted(view.tau)
    return function(block if view.scales is None else block.scaled(view.scales), *args)


def _sampled(shard: Shard, view: _View) -> Lift:
    assert view.sample is not None
    share, seed = view.sample

    def make() -> Arrays:
        whole = shard_lift(shard, view.B, view.b)
        rows = sampled_rows(shard.samples, share, seed, shard.index)
        return whole.Q[rows], whole.L[rows], whole.target[rows]

    Q, L, target = shard.keep(("sample", share, seed), make)
    return Lift(Q, L, view.B, view.b, target, 0, np.empty((2, 0)))


class PlaneShards(PlaneBlocks):
    """The binary lift of shards."""

    def __init__(self, shards: Shards, view: _View) -> None:
        self._shards, self._view, self.size = shards, view, shards.size
        self.B, self.b = plane_offsets(view.B, view.b)

    def map(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Function(plus, minus, *args) of every block, in their order."""
        return self._shards.map(_on_clouds, self._view, function, args)

    def total(self, merge: Callable[[Any, Any], Any], function: Callable[..., Any], *args: Any) -> Any:
        """The same, merged pairwise in any order."""
        return self._shards.total(merge, _on_clouds, self._view, function, args)


def _on_clouds(shard: Shard, view: _View, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    def make() -> Arrays:
        block = shard_lift(shard, view.B, view.b)
        plus, minus = clouds(block.points(), block.target == 1, block.first)
        return (*plus, *minus)

    kept = shard.keep("clouds", make)
    return function(Cloud(*kept[:3]), Cloud(*kept[3:]), *args)
