"""The lifted statistics, on which a shared quadratic acts linearly, in blocks of rows.

`Lift` is one block: Q, L, B, b and the targets, which are the decisions of the trained model. `Statistics` is the whole
data set: solvers apply a function to every block, in this process or on workers. The n(K-1) pairwise rows of the paper
are differences of entries of Q and L, and are never stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array, BoolArray, IntArray, samples
from quad4fhe.calibration.plane import Clouds, Plane, clouds, plane_offsets
from quad4fhe.calibration.scratch import Arrays
from quad4fhe.calibration.shards import SHARD_ROWS, Report, Shard, Shards
from quad4fhe.errors import InputError
from quad4fhe.io.rows import ArrayRows
from quad4fhe.mlp import MLP

SWEEP_ROWS = 4096  # rows of one step of a margin sweep; a few arrays of this height and K columns fit in the cache
_SHARD_BYTES = 16 * 2**20  # of statistics

Targets = Callable[[Shard, MLP], tuple[IntArray, BoolArray]]
"""Computes the trained model's decisions on a shard, and whether each is strict: `proof.exact.target_labels`."""


def shard_rows(classes: int) -> int:
    """The number of rows of a block. It depends on the model alone, so sums do not depend on the number of workers."""
    rows = SHARD_ROWS
    while rows > 1024 and rows * row_bytes(classes) > _SHARD_BYTES:
        rows //= 2
    return rows


def row_bytes(classes: int) -> int:
    """The bytes of the statistics of one row."""
    return 16 * classes + 8


@dataclass(frozen=True)
class Lift:
    """Statistics by class: Q and L (n, K), B and b (K,), target (n,); K >= 2, and a binary score counts as (0, score).

    `ties` counts exact ties among the logits (their target is the lowest index), and `box` (2, d) holds the smallest
    and largest value of each feature. A block of a larger data set begins at its row `first`.
    """

    Q: Array
    L: Array
    B: Array
    b: Array
    target: IntArray
    ties: int = 0
    box: Array = field(default_factory=lambda: np.empty((2, 0)))
    first: int = 0

    @property
    def samples(self) -> int:
        """The number n of rows."""
        return int(self.Q.shape[0])

    @property
    def classes(self) -> int:
        """The number K of classes, at least 2."""
        return int(self.Q.shape[1])

    def points(self) -> Array:
        """The lifted points (n, 2) of two classes: the differences of their statistics."""
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
        """With the threshold tau subtracted from the last class."""
        if not tau:
            return self
        b = self.b.copy()
        b[-1] -= tau
        return replace(self, b=b)

    def scaled(self, scales: Array) -> Lift:
        """With Q, L, B and b divided by scales (4,)."""
        Q, L, B, b = (part / s for part, s in zip((self.Q, self.L, self.B, self.b), scales, strict=True))
        return replace(self, Q=Q, L=L, B=B, b=b)

    @cached_property
    def chunks(self) -> list[tuple[slice, Array, Array, IntArray]]:
        """Views (rows, Q, L, target) in steps of SWEEP_ROWS."""
        n = len(self.Q)
        steps = [slice(start, min(start + SWEEP_ROWS, n)) for start in range(0, n, SWEEP_ROWS)]
        return [(rows, self.Q[rows], self.L[rows], self.target[rows]) for rows in steps]

    def pair_rows(self, i: IntArray, rivals: IntArray) -> Array:
        """Pairwise lifts (Definition 2) of samples i against rival classes, (len(i), 4)."""
        t = self.target[i]
        return np.column_stack(
            [
                self.Q[i, t] - self.Q[i, rivals],
                self.L[i, t] - self.L[i, rivals],
                self.B[t] - self.B[rivals],
                self.b[t] - self.b[rivals],
            ]
        )


Make = Callable[[Shard, Array, Array], Lift]
"""Computes the block of a shard, with the offsets B and b."""


@dataclass(frozen=True)
class _View:
    """How blocks are computed: by `make` from a shard, minus the threshold `tau`, divided by `scales`.

    `sample` is (share, seed) if only some rows are taken.
    """

    make: Make
    B: Array
    b: Array
    tau: float = 0.0
    scales: Array | None = None
    sample: tuple[float, int] | None = None


@dataclass(frozen=True, eq=False)
class Statistics:
    """Lifted statistics of a data set, in blocks; `ties` and `box` are those of `Lift`."""

    shards: Shards
    samples: int
    ties: int
    box: Array
    view: _View

    @classmethod
    def of_shards(cls, shards: Shards, mlp: MLP, targets: Targets, report: Report | None = None) -> Statistics:
        """Compute the statistics of `mlp` on the rows of `shards`; `report` gets the number of finished shards.

        Raises InputError if the model decides the same class for all rows.
        """
        view = _View(partial(shard_lift, targets=targets), *offsets(mlp))
        parts = dict(shards.stream(_summary, view, together=2, report=report))
        ties, box = _merged(shards.name, [parts[index] for index in range(shards.count)])
        return cls(shards, shards.samples, ties, box, view)

    @classmethod
    def of_samples(cls, mlp: MLP, X: NDArray[Any], targets: Targets) -> Statistics:
        """The statistics of `mlp` on X (n, d), computed and kept in this process."""
        rows = ArrayRows(samples("X_cal", X, mlp.features))
        refuse_empty("X_cal", rows.shape[0])
        return cls.of_shards(Shards(rows, shard_rows(mlp.classes), mlp), mlp, targets)

    @classmethod
    def of(cls, lift: Lift) -> Statistics:
        """Given statistics, cut into blocks."""
        rows = ArrayRows(np.column_stack([lift.Q, lift.L, lift.target]))
        shards = Shards(rows, shard_rows(lift.classes), name="the statistics")
        return cls(shards, lift.samples, lift.ties, lift.box, _View(_given, lift.B, lift.b))

    @property
    def classes(self) -> int:
        """The number K of classes."""
        return int(self.view.B.size)

    @property
    def B(self) -> Array:
        """Row sums of W2, (K,)."""
        return self._divided(self.view.B, 2)

    @property
    def b(self) -> Array:
        """Output biases, (K,)."""
        b = self.view.b.copy()
        b[-1] -= self.view.tau
        return self._divided(b, 3)

    def map(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """function(block, *args) for every block, a `Lift`, in order."""
        if self._held is not None:
            return [function(block, *args) for block in self._held]
        return self.shards.map(_on_block, self.view, function, args)

    def total(self, merge: Callable[[Any, Any], Any], function: Callable[..., Any], *args: Any) -> Any:
        """The results of `map`, merged pairwise in any order."""
        if self._held is not None:
            return reduce(merge, (function(block, *args) for block in self._held))
        return self.shards.total(merge, _on_block, self.view, function, args)

    @cached_property
    def _held(self) -> list[Lift] | None:
        """The blocks if their arrays stay in this process anyway: solvers ask for hundreds of functions."""
        if not self.shards.in_memory or self.view.scales is not None:  # scaled blocks would be a second copy
            return None
        return self.shards.map(_on_block, self.view, _itself, ())

    def plane(self) -> Plane:
        """The binary lift."""
        return Plane(self.shards, partial(_clouds, self.view), *plane_offsets(self.view.B, self.view.b))

    def whole(self) -> Lift:
        """All blocks as one, for solvers that need all rows in one place."""
        blocks: list[Lift] = self.map(_itself)
        Q, L, target = (np.concatenate([getattr(block, part) for block in blocks]) for part in ("Q", "L", "target"))
        return Lift(Q, L, self.B, self.b, target, self.ties, self.box)

    def shifted(self, tau: float) -> Statistics:
        """With the threshold tau subtracted from the last class."""
        return replace(self, view=replace(self.view, tau=self.view.tau + tau)) if tau else self

    def scaled(self, scales: Array) -> Statistics:
        """With Q, L, B and b divided by scales (4,)."""
        return replace(self, view=replace(self.view, scales=scales))

    def sampled(self, share: float, seed: int) -> Statistics:
        """About a share of the rows of every block, the same for the same seed."""
        size, n = self.shards.size, self.shards.samples
        count = sum(_sample_size(min(size, n - at), share) for at in range(0, n, size))
        return replace(self, samples=count, view=replace(self.view, sample=(share, seed)))

    def _divided(self, part: Array, k: int) -> Array:
        return part if self.view.scales is None else part / self.view.scales[k]


def _on_block(shard: Shard, view: _View, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    block = view.make(shard, view.B, view.b) if view.sample is None else _sampled(shard, view, *view.sample)
    block = block.shifted(view.tau)
    return function(block if view.scales is None else block.scaled(view.scales), *args)


def _itself(block: Lift) -> Lift:
    return block


def _sampled(shard: Shard, view: _View, share: float, seed: int) -> Lift:
    def chosen() -> Arrays:
        whole = view.make(shard, view.B, view.b)
        rng = np.random.default_rng([seed, shard.index])
        rows = np.sort(rng.choice(shard.samples, _sample_size(shard.samples, share), replace=False))
        return whole.Q[rows], whole.L[rows], whole.target[rows]

    Q, L, target = shard.keep(("sample", share, seed), chosen)
    return Lift(Q, L, view.B, view.b, target)


def _sample_size(n: int, share: float) -> int:
    return max(1, round(share * n))


def _clouds(view: _View, shard: Shard) -> Clouds:
    block = view.make(shard, view.B, view.b)
    return clouds(block.points(), block.target == 1, block.first)


def _given(shard: Shard, B: Array, b: Array) -> Lift:
    K = B.size

    def split() -> Arrays:
        rows = np.concatenate([chunk for _, chunk in shard.chunks(row_bytes(K))])
        return rows[:, :K], rows[:, K:-1], rows[:, -1].astype(np.int64)

    Q, L, target = shard.keep("lift", split)
    return Lift(Q, L, B, b, target, first=shard.first)


def offsets(mlp: MLP) -> tuple[Array, Array]:
    """B and b (K,), K >= 2."""
    first = mlp.classes - mlp.outputs  # a single score fills class 1, class 0 stays zero
    B, b = np.zeros(mlp.classes), np.zeros(mlp.classes)
    B[first:], b[first:] = mlp.head_sums, mlp.b2
    return B, b


def shard_lift(shard: Shard, B: Array, b: Array, targets: Targets) -> Lift:
    """The statistics of a shard, whose subject is the MLP with the offsets B and b; computed once and kept."""
    mlp: MLP = shard.subject

    def computed() -> Arrays:
        Q, L, box = _statistics(mlp, shard)
        label, strict = targets(shard, mlp)
        small = label.astype(np.min_scalar_type(mlp.classes - 1))
        return Q, L, box, small, np.array([np.count_nonzero(~strict)])

    Q, L, box, target, ties = shard.keep("lift", computed)
    return Lift(Q, L, B, b, target.astype(np.int64), int(ties[0]), box, shard.first)


def _statistics(mlp: MLP, shard: Shard) -> tuple[Array, Array, Array]:
    n, K = shard.samples, mlp.classes
    Q, L = np.zeros((n, K)), np.zeros((n, K))
    first = K - mlp.outputs
    box = np.empty((2, mlp.features))
    box[0], box[1] = np.inf, -np.inf
    with np.errstate(over="ignore", invalid="ignore"):  # reported below, with the row
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


class _Summary(NamedTuple):
    """Decisions per class (K,), ties and the box (2, d) of a block."""

    counts: IntArray
    ties: int
    box: Array


def _summary(shard: Shard, view: _View) -> _Summary:
    block = view.make(shard, view.B, view.b)
    return _Summary(np.bincount(block.target, minlength=block.classes), block.ties, block.box)


def _merged(name: str, parts: list[_Summary]) -> tuple[int, Array]:
    """The ties and the box of all blocks together."""
    counts = np.sum([part.counts for part in parts], axis=0)
    if np.count_nonzero(counts) < 2:
        only, n = int(np.argmax(counts)), int(counts.sum())
        raise InputError(
            f"the model decides class {only} for all {n} rows of {name}, so there is no decision to keep; "
            "use calibration data on which it decides at least two classes"
        )
    low, high = (bound([part.box[k] for part in parts], axis=0) for k, bound in enumerate((np.min, np.max)))
    return sum(part.ties for part in parts), np.stack([low, high])


def refuse_empty(name: str, n: int) -> None:
    """Raise InputError for a calibration set without rows."""
    if n == 0:
        raise InputError(f"{name} has no rows; the calibration set needs samples of at least two classes")
