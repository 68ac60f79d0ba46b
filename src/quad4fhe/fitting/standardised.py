"""What the families beyond the paper are linear in: standardised pre-activations and their squares.

Decides the coordinates (zero mean, unit variance) in which coefficients are fitted and penalised, and the way back to
S, T, c. Holds one float32 copy where a stated budget allows, else makes it again from the samples at every pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array, row_chunks
from quad4fhe.errors import InputError
from quad4fhe.mlp import MLP

Single = NDArray[np.float32]
ROWS = 4096  # rows of one step, so that its logits for a few stacked problems stay near the cache
_STILL = 1e-9  # a spread this small, relative to the mean, is rounding: the unit is a constant


@dataclass(frozen=True)
class Scales:
    """v = (y - mean) / spread and z = (v*v - square_mean) / square_spread, all (m,), over the calibration set."""

    mean: Array
    spread: Array
    square_mean: Array
    square_spread: Array

    def features(self, y: Array) -> Single:
        """(z, v) of pre-activations y (n, m), shape (n, 2m)."""
        m = self.mean.size
        out = np.empty((y.shape[0], 2 * m), dtype=np.float32)
        v = (y - self.mean) / self.spread
        out[:, m:] = v
        np.square(v, out=v)
        out[:, :m] = (v - self.square_mean) / self.square_spread
        return out

    def weights(self, S: Array, T: Array, c: Array) -> tuple[Array, Array]:
        """The weights (K, 2m) on (z, v) and constants (K,) with which S (y*y) + T y + c is written."""
        square = S * (self.spread * self.spread)
        linear = (T + 2.0 * S * self.mean) * self.spread
        constant = c + S @ (self.mean * self.mean) + T @ self.mean + square @ self.square_mean
        return np.hstack([square * self.square_spread, linear]), constant

    def coefficients(self, weights: Array, constant: Array) -> tuple[Array, Array, Array]:
        """S, T, c of weights (K, 2m) and constants (K,): the inverse of `weights`."""
        m = self.mean.size
        square, linear = weights[:, :m] / self.square_spread, weights[:, m:] / self.spread
        S = square / (self.spread * self.spread)
        T = linear - 2.0 * S * self.mean
        return S, T, constant + S @ (self.mean * self.mean) - square @ self.square_mean - linear @ self.mean


class Standardised:
    """The features (z, v) of the rows of X (n, d), in steps of ROWS, and their second moments.

    Kept in memory (8 n m bytes, as much as one float64 copy of the pre-activations) if that is within `budget` bytes;
    otherwise every pass computes them from X again, in the same steps and to the same bits.
    """

    def __init__(self, mlp: MLP, X: NDArray[Any], budget: int, scales: Scales | None = None) -> None:
        self.mlp, self.X, self.budget = mlp, X, budget
        self.samples = int(X.shape[0])
        self.scales = scales or _scales(mlp, X)
        self._kept: Single | None = None
        if 8 * self.samples * mlp.units <= budget:
            self._kept = np.empty((self.samples, 2 * mlp.units), dtype=np.float32)
            for rows in self.steps():
                self._kept[rows] = self._make(rows)

    @property
    def streamed(self) -> bool:
        """Whether the features are made again at every pass."""
        return self._kept is None

    def steps(self) -> Iterator[slice]:
        """The row ranges of one pass."""
        for start in range(0, self.samples, ROWS):
            yield slice(start, min(start + ROWS, self.samples))

    def chunks(self) -> Iterator[tuple[slice, Single]]:
        """Yield (rows, features) of one pass."""
        for rows in self.steps():
            yield rows, self._make(rows) if self._kept is None else self._kept[rows]

    def take(self, rows: NDArray[np.int64]) -> Standardised:
        """The same features of some rows only, within what this copy leaves of the budget."""
        left = self.budget if self._kept is None else self.budget - self._kept.nbytes
        return Standardised(self.mlp, self.X[rows], left, self.scales)

    def moments(self) -> Array:
        """The mean of the outer products of the features, (2m, 2m)."""
        total = np.zeros((2 * self.mlp.units, 2 * self.mlp.units))
        for _, chunk in self.chunks():
            total += chunk.T @ chunk
        return total / self.samples

    def logits(self, weights: Array, constant: Array) -> Single:
        """Logits of one weight matrix (K, 2m), transposed: (K, n)."""
        out = np.empty((weights.shape[0], self.samples), dtype=np.float32)
        single = weights.astype(np.float32)
        for rows, chunk in self.chunks():
            out[:, rows] = single @ chunk.T + constant.astype(np.float32)[:, None]
        return out

    def _make(self, rows: slice) -> Single:
        return self.scales.features(np.asarray(self.X[rows], dtype=np.float64) @ self.mlp.W1.T + self.mlp.b1)


def _scales(mlp: MLP, X: NDArray[Any]) -> Scales:
    """Two passes: squares are standardised only once the centre is known, or a large mean would cancel them."""
    n, m = X.shape[0], mlp.units
    mean = np.zeros(m)
    row_bytes = 8 * (mlp.features + 2 * m)
    for _, chunk in row_chunks("X_cal", X, row_bytes):
        mean += (chunk @ mlp.W1.T).sum(axis=0)
    mean = mean / n + mlp.b1
    second, fourth = np.zeros(m), np.zeros(m)
    for _, chunk in row_chunks("X_cal", X, row_bytes):
        y = chunk @ mlp.W1.T + (mlp.b1 - mean)
        with np.errstate(over="ignore"):  # reported below, with a name
            np.square(y, out=y)
            second += y.sum(axis=0)
            fourth += np.square(y, out=y).sum(axis=0)
    if not np.isfinite(fourth).all():
        raise InputError("X_cal overflows the squares of the hidden layer; scale the features to ordinary size first")
    spread = np.sqrt(second / n)
    spread[spread <= _STILL * (1.0 + np.abs(mean))] = 1.0
    square_mean = second / n / np.square(spread)
    square_spread = np.sqrt(np.maximum(fourth / n / np.square(np.square(spread)) - np.square(square_mean), 0.0))
    square_spread[square_spread <= 1e-6] = 1.0
    return Scales(mean, spread, square_mean, square_spread)
