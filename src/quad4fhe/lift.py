"""The lifted statistics through which a shared quadratic can act on a trained model, streamed over the samples.

Decides Q, L, B, b and the targets (the ReLU model's own decisions, exact). What coefficients to choose on them is left
to `fit`. The n(K-1) pairwise rows of the paper are never formed: they are differences of entries kept here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array, BoolArray, IntArray, row_chunks, samples
from quad4fhe.errors import InputError
from quad4fhe.exact import decisions
from quad4fhe.mlp import MLP

SWEEP_ROWS = 4096  # rows of one step of a margin sweep; a few n x K temporaries of this height stay in the cache
_SAME_SUM = 1e-9  # two row sums of W2 this close are the same: an eta that uses their difference would drown c


@dataclass(frozen=True)
class Plane:
    """Binary lift (Definition 1): points (n, 2) with columns Q and H, `positive` (n,), and the offsets B and b.

    B is 0 where eta can't move the threshold.
    """

    points: Array
    positive: BoolArray
    B: float
    b: float


@dataclass(frozen=True)
class Lift:
    """Class-wise statistics: Q and L (n, K), B and b (K,), target (n,); K >= 2, a binary score being (0, score).

    `ties` counts exact ties among the ReLU logits (their target is the lowest index), and `box` (2, d) holds the
    smallest and largest value of each feature.
    """

    Q: Array
    L: Array
    B: Array
    b: Array
    target: IntArray
    ties: int
    box: Array

    @property
    def samples(self) -> int:
        """The number n of calibration samples."""
        return int(self.Q.shape[0])

    @property
    def classes(self) -> int:
        """The number K of classes, at least 2."""
        return int(self.Q.shape[1])

    def plane(self) -> Plane:
        """The binary lift: what decides between two classes is the difference of their statistics."""
        B, b = float(self.B[1] - self.B[0]), float(self.b[1] - self.b[0])
        if abs(B) <= _SAME_SUM * float(np.abs(self.B).max()):
            B = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            points = np.column_stack([self.Q[:, 1] - self.Q[:, 0], self.L[:, 1] - self.L[:, 0] + b])
        if not np.isfinite(points).all():
            raise InputError(
                "the two logits overflow when they are compared; scale the features to ordinary size first"
            )
        return Plane(points, self.target == 1, B, b)

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


def lift(mlp: MLP, X: NDArray[Any], name: str = "X_cal") -> Lift:
    """Compute the statistics of `mlp` on X (n, d); refuses data on which there is nothing to preserve."""
    checked = samples(name, X, mlp.features)
    n, K = checked.shape[0], mlp.classes
    if n == 0:
        raise InputError(f"{name} has no rows; the calibration set needs samples of at least two classes")
    Q, L = np.zeros((n, K)), np.zeros((n, K))
    first = K - mlp.outputs  # a single score fills class 1, class 0 stays zero
    box = np.empty((2, mlp.features))
    box[0], box[1] = np.inf, -np.inf
    with np.errstate(over="ignore", invalid="ignore"):  # reported below, with a name
        for rows, chunk in row_chunks(name, checked, 8 * (mlp.features + 2 * mlp.units)):
            y = chunk @ mlp.W1.T + mlp.b1
            L[rows, first:] = y @ mlp.W2.T
            np.square(y, out=y)
            Q[rows, first:] = y @ mlp.W2.T
            box[0] = np.minimum(box[0], chunk.min(axis=0))
            box[1] = np.maximum(box[1], chunk.max(axis=0))
    if not (np.isfinite(Q).all() and np.isfinite(L).all()):
        row = int(np.argwhere(~(np.isfinite(Q) & np.isfinite(L)))[0][0])
        raise InputError(f"{name} row {row} overflows the hidden layer; scale the features to ordinary size first")
    decided = decisions(mlp, checked, name)
    present = np.unique(decided.label)
    if present.size < 2:
        raise InputError(
            f"the model decides class {int(present[0])} for all {n} rows of {name}, so there is no decision to keep; "
            "use calibration data on which it decides at least two classes"
        )
    B, b = np.zeros(K), np.zeros(K)
    B[first:], b[first:] = mlp.head_sums, mlp.b2
    return Lift(Q, L, B, b, decided.label, decided.ties, box)
