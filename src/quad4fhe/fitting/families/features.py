"""The rows a family learns from and is judged on, as standardised features: pre-activations and their squares.

Coefficients are fitted and penalised in coordinates of zero mean and unit variance, in which a family is linear. Folds
are stratified by decision. A small calibration set is filled up with blends of two rows of one fold: the ReLU model
answers them like any other input, so no labels are needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array, BoolArray, IntArray, row_chunks
from quad4fhe.errors import InputError
from quad4fhe.mlp import MLP, decide

Single = NDArray[np.float32]
ROWS = 4096  # rows of one step: its logits for a few stacked problems stay in the cache
_STILL = 1e-9  # a spread this small, relative to the mean, is rounding: the unit is a constant


@dataclass(frozen=True)
class Scales:
    """v = (y - mean) / spread and z = (v*v - square_mean) / square_spread, all (m,), over the calibration set."""

    mean: Array
    spread: Array
    square_mean: Array
    square_spread: Array

    @property
    def width(self) -> int:
        """How many features a row has."""
        return 2 * self.mean.size

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
        """The weights (K, 2m) on (z, v) and constants (K,) of S (y*y) + T y + c."""
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


class Coordinates(Protocol):
    """How pre-activations become features: `Scales`, or the orthonormal basis of a higher degree."""

    @property
    def width(self) -> int:
        """How many features a row has."""

    def features(self, y: Array) -> Single:
        """The features (n, width) of pre-activations y (n, m)."""


class Standardised:
    """The features of the rows of X (n, d), in steps of ROWS, and their second moments.

    Kept in memory (for (z, v) as much as one float64 copy of the pre-activations) if that is within `budget` bytes;
    otherwise every pass computes them from X again, in the same steps and with the same bits.
    """

    def __init__(self, mlp: MLP, X: NDArray[Any], budget: int, scales: Coordinates | None = None) -> None:
        self.mlp, self.X, self.budget = mlp, X, budget
        self.samples = int(X.shape[0])
        self.scales: Any = scales or _scales(mlp, X)  # `Scales` unless others are given
        self._kept: Single | None = None
        if 4 * self.samples * self.scales.width <= budget:
            self._kept = np.empty((self.samples, self.scales.width), dtype=np.float32)
            for rows in self.steps():
                self._kept[rows] = self._make(rows)

    @property
    def streamed(self) -> bool:
        """Whether every pass computes the features again."""
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
        """The features of some rows, within the rest of the budget."""
        left = self.budget if self._kept is None else self.budget - self._kept.nbytes
        return Standardised(self.mlp, self.X[rows], left, self.scales)

    def moments(self) -> Array:
        """The mean of the outer products of the features, (width, width)."""
        total = np.zeros((self.scales.width, self.scales.width))
        for _, chunk in self.chunks():
            total += chunk.T @ chunk
        return total / self.samples

    def logits(self, weights: Array, constant: Array) -> Single:
        """Logits of one weight matrix (K, width), transposed: (K, n)."""
        out = np.empty((weights.shape[0], self.samples), dtype=np.float32)
        single = weights.astype(np.float32)
        for rows, chunk in self.chunks():
            out[:, rows] = single @ chunk.T + constant.astype(np.float32)[:, None]
        return out

    def _make(self, rows: slice) -> Single:
        made: Single = self.scales.features(np.asarray(self.X[rows], dtype=np.float64) @ self.mlp.W1.T + self.mlp.b1)
        return made


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


FOLDS = 5
_FILL = 4000  # real and made rows together; larger calibration sets are left as they are
_BLENDS = 6  # made rows per real row at most


@dataclass(frozen=True)
class Pool:
    """n real rows and their made rows after them: features, ReLU logits (K, rows), decisions and folds (rows,).

    Cross-validation holds out the first `folds` of FOLDS folds in turn, and judges the rows in them.
    """

    real: int
    features: Standardised
    logits: Array
    decided: IntArray
    fold: IntArray
    folds: int = FOLDS

    @classmethod
    def of(
        cls,
        mlp: MLP,
        X: NDArray[Any],
        fold: IntArray,
        features: Standardised,
        seed: int,
        blends: int | None = None,
    ) -> Pool:
        """Fill up the rows X (n, d) of the folds (n,); `features` are those of X.

        `blends` is the number of made rows per real row; by default what `blends_for` says.
        """
        n = X.shape[0]
        blends = blends_for(n) if blends is None else blends
        if blends > 0:
            made = [_blend(np.asarray(X, dtype=np.float64), fold, seed + k) for k in range(blends)]
            X = np.vstack([X, *made])
            fold = np.tile(fold, blends + 1)
            features = Standardised(mlp, X, features.budget, features.scales)
        logits = mlp.logits(X)
        return cls(n, features, np.ascontiguousarray(logits.T), decide(logits), fold)

    @property
    def blends(self) -> int:
        """Made rows per real row."""
        return self.features.samples // self.real - 1

    @cached_property
    def moments(self) -> Array:
        """Second moments of the features, (2m, 2m)."""
        return self.features.moments()

    @cached_property
    def _mass(self) -> Single:
        """Made rows weigh as much as the real ones, all together."""
        mass = np.ones(self.features.samples, dtype=np.float32)
        mass[self.real :] /= max(1, self.blends)
        return mass

    def fold_weights(self) -> Single:
        """For each judged fold the weights of all other rows, (folds, rows), each summing to one."""
        weight = np.where(self.fold[None, :] == np.arange(self.folds)[:, None], np.float32(0), self._mass)
        return np.asarray(weight / weight.sum(axis=1, keepdims=True), dtype=np.float32)

    def weights(self) -> Single:
        """The weights of all rows, (1, rows)."""
        return np.asarray(self._mass / self._mass.sum(), dtype=np.float32)[None, :]

    def held_out(self, weights: Array, constant: Array) -> BoolArray:
        """Whether the problem that has not seen a row keeps its decision, (1 + blends, judged), the real rows first."""
        kept = np.empty(self.features.samples, dtype=np.bool_)
        flat, shift = weights.reshape(-1, weights.shape[2]).astype(np.float32), constant.reshape(-1, 1)
        for rows, chunk in self.features.chunks():
            logits = (flat @ chunk.T + shift.astype(np.float32)).reshape(weights.shape[0], weights.shape[1], -1)
            own = logits[np.minimum(self.fold[rows], self.folds - 1), :, np.arange(chunk.shape[0])]
            kept[rows] = decide(own.astype(np.float64)) == self.decided[rows]
        return kept.reshape(-1, self.real)[:, self.fold[: self.real] < self.folds]


def blends_for(rows: int, fill: int = _FILL, most: int = _BLENDS) -> int:
    """Made rows per real row: at most `most`, and real and made rows together at most `fill`."""
    return max(0, min(most, fill // rows - 1))


def stratified_folds(decided: IntArray, seed: int) -> IntArray:
    """A fold for each row, every class spread as evenly as its count allows."""
    rng = np.random.default_rng(seed)
    fold = np.empty(decided.size, dtype=np.int64)
    dealt = 0
    for label in np.unique(decided):
        rows = rng.permutation(np.flatnonzero(decided == label))
        fold[rows] = (dealt + np.arange(rows.size)) % FOLDS
        dealt += rows.size  # the next class continues where this one stopped, or small classes would all be in fold 0
    return fold


def stratified_rows(decided: IntArray, count: int, seed: int) -> IntArray:
    """About `count` rows in which every class has its share and at least one row, in ascending order."""
    rng = np.random.default_rng(seed)
    chosen = []
    for label in np.unique(decided):
        rows = np.flatnonzero(decided == label)
        size = max(1, round(count * rows.size / decided.size))
        chosen.append(rng.choice(rows, size, replace=False))
    return np.sort(np.concatenate(chosen))


def _blend(X: Array, fold: IntArray, seed: int) -> Array:
    """One made row per real row: a random point on the way to a random row of the same fold."""
    rng = np.random.default_rng(seed)
    made = X.copy()
    for k in range(FOLDS):
        rows = np.flatnonzero(fold == k)
        partner = rng.permutation(rows)
        made[rows] += rng.uniform(size=(rows.size, 1)) * (X[partner] - X[rows])
    return made
