"""The lifted statistics through which a shared quadratic can act on a trained model, in blocks of rows.

Decides Q, L, B, b and the targets (the ReLU model's own decisions, exact), and what solvers may ask of them: a function
of every block, so that they need not be in one place (`fitting.sharded`). Choosing coefficients is left to `fit`. The
n(K-1) pairwise rows of the paper are never formed: they are differences of entries kept here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array, IntArray, samples
from quad4fhe._rows import ArrayRows
from quad4fhe.errors import InputError
from quad4fhe.exact import target_labels
from quad4fhe.mlp import MLP
from quad4fhe.plane import Plane, PlaneBlocks, plane_offsets
from quad4fhe.shards import SHARD_ROWS, Shard, Shards

SWEEP_ROWS = 4096  # rows of one step of a margin sweep; a few n x K temporaries of this height stay in the cache
_SHARD_BYTES = 16 * 2**20  # of statistics


def shard_rows(classes: int) -> int:
    """How many rows are one block: a matter of the model alone, so that sums never depend on who adds them up."""
    rows = SHARD_ROWS
    while rows > 1024 and rows * row_bytes(classes) > _SHARD_BYTES:
        rows //= 2
    return rows


def row_bytes(classes: int) -> int:
    """What the statistics of one row take."""
    return 16 * classes + 8


class Statistics(Protocol):
    """Lifted statistics in blocks, wherever they are; `box`, `ties`, B and b are those of a `Lift`."""

    @property
    def samples(self) -> int:
        """The number n of calibration samples."""

    @property
    def classes(self) -> int:
        """The number K of classes."""

    @property
    def B(self) -> Array:
        """Row sums of W2, (K,)."""

    @property
    def b(self) -> Array:
        """Output biases, (K,)."""

    @property
    def ties(self) -> int:
        """Exact ties among the ReLU logits."""

    @property
    def box(self) -> Array:
        """The range of each feature, (2, d)."""

    def map(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """function(block, *args) of every block, a Lift, in their order."""

    def total(self, merge: Callable[[Any, Any], Any], function: Callable[..., Any], *args: Any) -> Any:
        """The same, merged pairwise in any order."""

    def plane(self) -> PlaneBlocks:
        """The binary lift."""

    def shifted(self, tau: float) -> Statistics:
        """With the threshold tau taken from the last class."""

    def scaled(self, scales: Array) -> Statistics:
        """With Q, L, B and b divided by scales (4,)."""

    def sampled(self, share: float, seed: int) -> Statistics:
        """Some rows of every block, the same for the same seed."""


@dataclass(frozen=True)
class Lift:
    """Class-wise statistics: Q and L (n, K), B and b (K,), target (n,); K >= 2, a binary score being (0, score).

    `ties` counts exact ties among the ReLU logits (their target is the lowest index), and `box` (2, d) holds the
    smallest and largest value of each feature. A block of a larger data set begins at its row `first`.
    """

    Q: Array
    L: Array
    B: Array
    b: Array
    target: IntArray
    ties: int
    box: Array
    first: int = 0

    @property
    def samples(self) -> int:
        """The number n of calibration samples."""
        return int(self.Q.shape[0])

    @property
    def classes(self) -> int:
        """The number K of classes, at least 2."""
        return int(self.Q.shape[1])

    def map(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Function(block, *args) of every block."""
        size = shard_rows(self.classes)
        return [function(self._rows(slice(at, at + size), at), *args) for at in range(0, self.samples, size)]

    def total(self, merge: Callable[[Any, Any], Any], function: Callable[..., Any], *args: Any) -> Any:
        """The same, merged."""
        return reduce(merge, self.map(function, *args))

    def _rows(self, rows: slice | IntArray, first: int) -> Lift:
        return replace(self, Q=self.Q[rows], L=self.L[rows], target=self.target[rows], first=self.first + first)

    def plane(self) -> Plane:
        """The binary lift: what decides between two classes is the difference of their statistics."""
        B, b = plane_offsets(self.B, self.b)
        return Plane(self.points(), self.target == 1, B, b)

    def points(self) -> Array:
        """The lifted points (n, 2) of two classes."""
        with np.errstate(over="ignore", invalid="ignore"):
            points = np.column_stack(
                [self.Q[:, 1] - self.Q[:, 0], self.L[:, 1] - self.L[:, 0] + float(self.b[1] - self.b[0])]
            )
        if not np.isfinite(points).all():
            raise InputError(
                "the two logits overflow when they are compared; scale the features to ordinary size first"
            )
        return points

    def shifted(self, tau: float) -> Lift:
        """With the threshold tau taken from the last class."""
        if not tau:
            return self
        b = self.b.copy()
        b[-1] -= tau
        return replace(self, b=b)

    def scaled(self, scales: Array) -> Lift:
        """With Q, L, B and b divided by scales (4,)."""
        Q, L, B, b = (part / s for part, s in zip((self.Q, self.L, self.B, self.b), scales, strict=True))
        return replace(self, Q=Q, L=L, B=B, b=b)

    def sampled(self, share: float, seed: int) -> Lift:
        """Some rows of every block."""
        size = shard_rows(self.classes)
        chosen = [
            start + sampled_rows(min(size, self.samples - start), share, seed, k)
            for k, start in enumerate(range(0, self.samples, size))
        ]
        return self._rows(np.concatenate(chosen), 0)

    def chunks(self) -> Iterator[tuple[slice, Array, Array, IntArray]]:
        """Yield (rows, Q, L, target) in steps of SWEEP_ROWS."""
        for start in range(0, self.samples, SWEEP_ROWS):
            rows = slice(start, min(start + SWEEP_ROWS, self.samples))
            yield rows, self.Q[rows], self.L[rows], self.target[rows]

    def pair_rows(self, i: IntArray, rivals: IntArray) -> Array:
        """Pairwise lifts (Definition 2) of samples i against rival classes, shape (len(i), 4)."""
        t = self.target[i]
        return np.column_stack(
            [
                self.Q[i, t] - self.Q[i, rivals],
                self.L[i, t] - self.L[i, rivals],
                self.B[t] - self.B[rivals],
                self.b[t] - self.b[rivals],
            ]
        )


def sampled_rows(n: int, share: float, seed: int, index: int) -> IntArray:
    """About a share of the n rows of a block, in ascending order."""
    rng = np.random.default_rng([seed, index])
    return np.sort(rng.choice(n, max(1, round(share * n)), replace=False))


def offsets(mlp: MLP) -> tuple[Array, Array]:
    """B and b (K,), K >= 2."""
    first = mlp.classes - mlp.outputs  # a single score fills class 1, class 0 stays zero
    B, b = np.zeros(mlp.classes), np.zeros(mlp.classes)
    B[first:], b[first:] = mlp.head_sums, mlp.b2
    return B, b


def shard_lift(shard: Shard, B: Array, b: Array) -> Lift:
    """The statistics of a shard, whose subject is the MLP with the offsets B and b; computed once and remembered."""
    mlp: MLP = shard.subject
    Q, L, box = shard.keep("lift", lambda: _statistics(mlp, shard))
    target, strict = target_labels(shard, mlp)
    return Lift(Q, L, B, b, target, int(np.count_nonzero(~strict)), box, shard.first)


def _statistics(mlp: MLP, shard: Shard) -> tuple[Array, Array, Array]:
    n, K = shard.samples, mlp.classes
    Q, L = np.zeros((n, K)), np.zeros((n, K))
    first = K - mlp.outputs
    box = np.empty((2, mlp.features))
    box[0], box[1] = np.inf, -np.inf
    with np.errstate(over="ignore", invalid="ignore"):  # reported below, with a name
        for rows, chunk in shard.chunks(8 * (mlp.features + 2 * mlp.units)):
            y = chunk @ mlp.W1.T + mlp.b1
            L[rows, first:] = y @ mlp.W2.T
            np.square(y, out=y)
            Q[rows, first:] = y @ mlp.W2.T
            box[0] = np.minimum(box[0], chunk.min(axis=0))
            box[1] = np.maximum(box[1], chunk.max(axis=0))
    finite = np.isfinite(Q) & np.isfinite(L)
    if not finite.all():
        row = shard.first + int(np.argwhere(~finite)[0][0])
        raise InputError(
            f"{shard.name} row {row} overflows the hidden layer; scale the features to ordinary size first"
        )
    return Q, L, box


class Summary(NamedTuple):
    """What is known of a block besides its statistics: decisions a class (K,), ties, and the box (2, d)."""

    counts: IntArray
    ties: int
    box: Array


def summary(shard: Shard, B: Array, b: Array) -> Summary:
    """Make the statistics of a shard and tell what they are worth."""
    return _summary(shard_lift(shard, B, b))


def _summary(block: Lift) -> Summary:
    return Summary(np.bincount(block.target, minlength=block.classes), block.ties, block.box)


def merged(name: str, parts: list[Summary]) -> Summary:
    """One summary of several; refuses data on which there is nothing to preserve."""
    counts = np.sum([part.counts for part in parts], axis=0)
    if np.count_nonzero(counts) < 2:
        only, n = int(np.argmax(counts)), int(counts.sum())
        raise InputError(
            f"the model decides class {only} for all {n} rows of {name}, so there is no decision to keep; "
            "use calibration data on which it decides at least two classes"
        )
    low, high = (bound([part.box[k] for part in parts], axis=0) for k, bound in enumerate((np.min, np.max)))
    return Summary(counts, sum(part.ties for part in parts), np.stack([low, high]))


def lift(mlp: MLP, X: NDArray[Any], name: str = "X_cal") -> Lift:
    """Compute the statistics of `mlp` on X (n, d) in memory; refuses data on which there is nothing to preserve."""
    rows = ArrayRows(samples(name, X, mlp.features))
    refuse_empty(name, rows.shape[0])
    with Shards(rows, shard_rows(mlp.classes), mlp, name=name) as shards:
        blocks: list[Lift] = shards.map(shard_lift, *offsets(mlp))
    _, ties, box = merged(name, [_summary(block) for block in blocks])
    Q, L, target = (np.concatenate([getattr(block, part) for block in blocks]) for part in ("Q", "L", "target"))
    return replace(blocks[0], Q=Q, L=L, target=target, ties=ties, box=box)


def refuse_empty(name: str, n: int) -> None:
    """Refuse a calibration set without rows."""
    if n == 0:
        raise InputError(f"{name} has no rows; the calibration set needs samples of at least two classes")
