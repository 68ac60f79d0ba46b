"""The calibration data as a linear problem: the numbers on which one polynomial for all units acts linearly.

Coordinate k of a row is, for every class, the head's sum over the units of phi_k(y_j). At degree 2 the coordinates are
the paper's Q (squares) and L (linear); above, phi_k is orthonormal over all pre-activations. A `Block` has them for
some rows; `Design` is the whole data set, and solvers apply a function to every block, in this process or on workers.
The n(K-1) pairwise rows of the paper are differences of entries of P, and are never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array, BoolArray, IntArray, samples
from quad4fhe.errors import InputError
from quad4fhe.fitting.basis import Basis
from quad4fhe.io.rows import ArrayRows
from quad4fhe.mlp import MLP
from quad4fhe.proof.exact import target_labels
from quad4fhe.workers.scratch import Arrays
from quad4fhe.workers.shards import SHARD_ROWS, Report, Shard, Shards

SWEEP_ROWS = 4096  # rows of one step of a margin sweep; a few arrays of this height and K columns fit in the cache
_SHARD_BYTES = 16 * 2**20  # of coordinates
_SAME_SUM = 1e-9  # two row sums of W2 this close count as equal: dividing by their difference gives a huge eta


def shard_rows(classes: int, degree: int = 2) -> int:
    """The number of rows of a block: it depends on the problem alone, so sums do not depend on the workers."""
    rows = SHARD_ROWS
    while rows > 1024 and rows * row_bytes(classes, degree) > _SHARD_BYTES:
        rows //= 2
    return rows


def row_bytes(classes: int, degree: int = 2) -> int:
    """The bytes of the coordinates of one row."""
    return 8 * degree * classes + 8


@dataclass(frozen=True)
class Block:
    """Coordinates P (p, n, K) of some rows, B and b (K,), target (n,); K >= 2, and a score s counts as (0, s).

    `ties` counts exact ties among the logits (their target is the lowest index), and `box` (2, d) holds the smallest
    and largest value of each feature. A block of a larger data set begins at its row `first`.
    """

    P: Array
    B: Array
    b: Array
    target: IntArray
    ties: int = 0
    box: Array = field(default_factory=lambda: np.empty((2, 0)))
    first: int = 0

    @property
    def samples(self) -> int:
        """The number n of rows."""
        return int(self.P.shape[1])

    @property
    def classes(self) -> int:
        """The number K of classes, at least 2."""
        return int(self.P.shape[2])

    @cached_property
    def chunks(self) -> list[tuple[slice, Array, IntArray]]:
        """Views (rows, P, target) in steps of SWEEP_ROWS."""
        n = self.samples
        steps = [slice(start, min(start + SWEEP_ROWS, n)) for start in range(0, n, SWEEP_ROWS)]
        return [(rows, self.P[:, rows], self.target[rows]) for rows in steps]

    def scores(self, P: Array, theta: Array) -> Array:
        """The class scores (rows, K) of a chunk at homogeneous coefficients theta (p + 2,)."""
        scores: Array = P[0] * theta[0]
        for part, value in zip(P[1:], theta[1:], strict=False):
            scores += part * value
        scores += theta[-2] * self.B + theta[-1] * self.b
        return scores

    def pair_rows(self, i: IntArray, rivals: IntArray) -> Array:
        """Pairwise lifts (Definition 2) of samples i against rival classes, (len(i), p + 2)."""
        t = self.target[i]
        own = [part[i, t] - part[i, rivals] for part in self.P]
        return np.column_stack([*own, self.B[t] - self.B[rivals], self.b[t] - self.b[rivals]])


Make = Callable[[Shard, Array, Array], Block]
"""Computes the block of a shard, with the offsets B and b."""


@dataclass(frozen=True)
class _View:
    """How blocks are computed: by `make` from a shard, minus the threshold `tau` of the last class.

    `sample` is (share, seed) if only some rows are taken.
    """

    make: Make
    B: Array
    b: Array
    tau: float = 0.0
    sample: tuple[float, int] | None = None


@dataclass(frozen=True, eq=False)
class Design:
    """The coordinates of a data set, in blocks; `ties` and `box` are those of `Block`.

    `start` (p + 2,) are homogeneous coefficients to begin with: ReLU is nearly u / 2 and a constant.
    """

    shards: Shards
    samples: int
    ties: int
    box: Array
    view: _View
    start: Array
    basis: Basis | None = None

    @classmethod
    def of_shards(cls, shards: Shards, mlp: MLP, report: Report | None = None) -> Design:
        """The squares and sums of `mlp` on the rows of `shards`; `report` gets the number of finished shards.

        Raises InputError if the model decides the same class for all rows.
        """
        view = _View(partial(shard_block, basis=None), *offsets(mlp))
        parts = dict(shards.stream(_summary, view, together=2, report=report))
        ties, box = _merged(shards.name, [parts[index] for index in range(shards.count)])
        return cls(shards, shards.samples, ties, box, view, np.array([0.0, 0.5, 0.0, 1.0]))

    @classmethod
    def of_samples(cls, mlp: MLP, X: NDArray[Any]) -> Design:
        """The same of X (n, d), computed and kept in this process."""
        rows = ArrayRows(samples("X_cal", X, mlp.features))
        refuse_empty("X_cal", rows.shape[0])
        return cls.of_shards(Shards(rows, shard_rows(mlp.classes), mlp), mlp)

    @classmethod
    def of(cls, block: Block, size: int | None = None) -> Design:
        """Given coordinates, cut into blocks of `size` rows."""
        rows = ArrayRows(np.column_stack([*block.P, block.target]))
        shards = Shards(rows, size or shard_rows(block.classes, len(block.P)), name="the coordinates")
        start = np.zeros(len(block.P) + 2)
        start[[1, -1]] = 0.5, 1.0
        return cls(shards, block.samples, block.ties, block.box, _View(_given, block.B, block.b), start)

    def in_basis(self, basis: Basis) -> Design:
        """The same rows in the coordinates of one basis for all units."""
        start = np.zeros(basis.degree + 2)
        start[[0, -1]] = 0.5 * float(basis.spread[0]), 1.0
        return replace(self, view=replace(self.view, make=partial(shard_block, basis=basis)), start=start, basis=basis)

    @property
    def classes(self) -> int:
        """The number K of classes."""
        return int(self.view.B.size)

    @property
    def degree(self) -> int:
        """The number p of coordinates."""
        return int(self.start.size) - 2

    @property
    def B(self) -> Array:
        """Row sums of W2, (K,)."""
        return self.view.B

    @property
    def b(self) -> Array:
        """Output biases, (K,), the threshold subtracted from the last."""
        b = self.view.b.copy()
        b[-1] -= self.view.tau
        return b

    @property
    def shift(self) -> float:
        """What a constant of the polynomial adds to the score of two classes; 0 if it moves both alike."""
        shift = float(self.B[-1] - self.B[0])
        return 0.0 if abs(shift) <= _SAME_SUM * float(np.abs(self.B).max()) else shift

    def map(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """function(block, *args) for every block, in order."""
        if self._held is not None:
            return [function(block, *args) for block in self._held]
        return self.shards.map(_on_block, self.view, function, args)

    def total(self, merge: Callable[[Any, Any], Any], function: Callable[..., Any], *args: Any) -> Any:
        """The results of `map`, merged pairwise in any order."""
        if self._held is not None:
            return reduce(merge, (function(block, *args) for block in self._held))
        return self.shards.total(merge, _on_block, self.view, function, args)

    @cached_property
    def _held(self) -> list[Block] | None:
        """The blocks if their arrays stay in this process anyway: solvers ask for hundreds of functions."""
        return self.shards.map(_on_block, self.view, _itself, ()) if self.shards.in_memory else None

    @cached_property
    def points(self) -> tuple[Array, BoolArray]:
        """The lifted points (n, p) of two classes, the biases in that of L, and which of them are positive."""
        parts: list[tuple[Array, IntArray]] = self.map(_points_of)
        with np.errstate(over="ignore", invalid="ignore"):
            points, target = (np.concatenate(part) for part in zip(*parts, strict=True))
            if self.basis is None:
                points[:, 1] += self.b[1] - self.b[0]
        if not np.isfinite(points).all():
            raise InputError(
                "the two logits overflow when they are compared; scale the features to ordinary size first"
            )
        return points, target == 1

    def shifted(self, tau: float) -> Design:
        """With the threshold tau subtracted from the last class."""
        return replace(self, view=replace(self.view, tau=self.view.tau + tau)) if tau else self

    def sampled(self, share: float, seed: int) -> Design:
        """About a share of the rows of every block, the same for the same seed."""
        size, n = self.shards.size, self.shards.samples
        count = sum(_sample_size(min(size, n - at), share) for at in range(0, n, size))
        return replace(self, samples=count, view=replace(self.view, sample=(share, seed)))


def _on_block(shard: Shard, view: _View, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    block = view.make(shard, view.B, view.b) if view.sample is None else _sampled(shard, view, *view.sample)
    if view.tau:
        b = block.b.copy()
        b[-1] -= view.tau
        block = replace(block, b=b)
    return function(block, *args)


def _itself(block: Block) -> Block:
    return block


def _points_of(block: Block) -> tuple[Array, IntArray]:
    with np.errstate(over="ignore", invalid="ignore"):  # reported by the caller
        return (block.P[:, :, 1] - block.P[:, :, 0]).T, block.target


def _sampled(shard: Shard, view: _View, share: float, seed: int) -> Block:
    whole = view.make(shard, view.B, view.b)
    rng = np.random.default_rng([seed, shard.index])
    rows = np.sort(rng.choice(shard.samples, _sample_size(shard.samples, share), replace=False))
    P, target = shard.keep(("sample", share, seed, len(whole.P)), lambda: (whole.P[:, rows], whole.target[rows]))
    return Block(P, view.B, view.b, target, first=shard.first)


def _sample_size(n: int, share: float) -> int:
    return max(1, round(share * n))


def _given(shard: Shard, B: Array, b: Array) -> Block:
    def split() -> Arrays:
        rows = np.concatenate([chunk for _, chunk in shard.chunks(8 * B.size)])
        P = rows[:, :-1].reshape(len(rows), -1, B.size).transpose(1, 0, 2)
        return P, rows[:, -1].astype(np.int64)

    P, target = shard.keep("given", split)
    return Block(P, B, b, target, first=shard.first)


def offsets(mlp: MLP) -> tuple[Array, Array]:
    """B and b (K,), K >= 2."""
    first = mlp.classes - mlp.outputs  # a single score fills class 1, class 0 stays zero
    B, b = np.zeros(mlp.classes), np.zeros(mlp.classes)
    B[first:], b[first:] = mlp.head_sums, mlp.b2
    return B, b


def shard_block(shard: Shard, B: Array, b: Array, basis: Basis | None) -> Block:
    """The block of a shard, whose subject is the MLP with the offsets B and b; computed once and kept."""
    mlp: MLP = shard.subject
    P, box = shard.keep("lift" if basis is None else ("lift", basis.sha256), lambda: _coordinates(mlp, shard, basis))
    label, strict = target_labels(shard, mlp)
    return Block(P, B, b, label, int(np.count_nonzero(~strict)), box, shard.first)


def _coordinates(mlp: MLP, shard: Shard, basis: Basis | None) -> Arrays:
    degree, first = 2 if basis is None else basis.degree, mlp.classes - mlp.outputs
    P, box = np.zeros((degree, shard.samples, mlp.classes)), np.empty((2, mlp.features))
    box[0], box[1] = np.inf, -np.inf
    with np.errstate(over="ignore", invalid="ignore"):  # reported below, with the row
        for rows, chunk in shard.chunks(8 * (mlp.features + (degree if basis is None else degree + 4) * mlp.units)):
            y = chunk @ mlp.W1.T + mlp.b1
            for k, phi in enumerate(_squares(y) if basis is None else basis.polynomials(y)):
                P[k, rows, first:] = phi @ mlp.W2.T
            box[0] = np.minimum(box[0], chunk.min(axis=0))
            box[1] = np.maximum(box[1], chunk.max(axis=0))
    finite = np.isfinite(P).all(axis=0)
    if not finite.all():
        row = shard.first + int(np.argwhere(~finite)[0][0])
        raise InputError(
            f"{shard.name} row {row} overflows the hidden layer; scale the features to ordinary size first"
        )
    return P, box


def _squares(y: Array) -> Iterable[Array]:
    """The coordinates of the paper, Q and L, of pre-activations."""
    yield np.square(y)
    yield y


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
