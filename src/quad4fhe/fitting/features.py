"""The rows a family learns from and is judged on, as features: orthonormal polynomials of their pre-activations.

Coefficients are fitted and penalised in coordinates of zero mean and unit variance, in which a family is linear. Folds
are stratified by decision. A calibration set is filled up with blends of two rows of one fold: the ReLU model answers
them like any other input, so no labels are needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array, BoolArray, IntArray
from quad4fhe.errors import InputError
from quad4fhe.fitting.basis import Basis
from quad4fhe.mlp import MLP, decide
from quad4fhe.proof.guarantee import margins_of

Single = NDArray[np.float32]
ROWS = 4096  # rows of one step: its logits for a few stacked problems stay in the cache


class Standardised:
    """The features of the rows of X (n, d), in steps of ROWS, and their second moments.

    Kept in memory (at degree 2 as much as one float64 copy of the pre-activations) if that is within `budget` bytes;
    otherwise every pass computes them from X again, in the same steps and with the same bits.
    """

    def __init__(self, mlp: MLP, X: NDArray[Any], budget: int, basis: Basis) -> None:
        self.mlp, self.X, self.budget, self.basis = mlp, X, budget, basis
        self.samples = int(X.shape[0])
        self._kept: Single | None = None
        if 4 * self.samples * self.basis.width <= budget:
            self._kept = np.empty((self.samples, self.basis.width), dtype=np.float32)
            for rows in self.steps():
                self._kept[rows] = self._make(rows)

    @property
    def streamed(self) -> bool:
        """Whether every pass computes the features again."""
        return self._kept is None

    def steps(self, size: int = ROWS) -> Iterator[slice]:
        """The row ranges of one pass."""
        for start in range(0, self.samples, size):
            yield slice(start, min(start + size, self.samples))

    def chunks(self, size: int = ROWS) -> Iterator[tuple[slice, Single]]:
        """Yield (rows, features) of one pass."""
        for rows in self.steps(size):
            yield rows, self._make(rows) if self._kept is None else self._kept[rows]

    @property
    def left(self) -> int:
        """What is left of the budget."""
        return self.budget if self._kept is None else self.budget - self._kept.nbytes

    def moments(self) -> Array:
        """The mean of the outer products of the features, (width, width)."""
        total = np.zeros((self.basis.width, self.basis.width))
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
        made: Single = self.basis.features(np.asarray(self.X[rows], dtype=np.float64) @ self.mlp.W1.T + self.mlp.b1)
        return made


FOLDS = 5
# Real and made rows together, and made rows per real row: the fewer real rows, the more they need.
_FILLS = ((4_000, 6), (40_000, 3), (100_000, 1))
_MADE = 12_500  # made rows weigh as much as the real ones, but all together not more than so many of these
_LEAST = 0.01  # what a row far from every boundary still weighs: a polynomial must not run away from it

_WILD = 2.0  # times the largest polynomial of its degree on real rows: a fit should not learn from rows beyond it


@dataclass(frozen=True)
class Pool:
    """n real rows and their made rows after them: features, ReLU logits (K, rows), decisions and folds (rows,).

    All made rows together weigh `mass` times as much as the real ones, and rows near a boundary more than others.
    Cross-validation holds out the first `folds` of FOLDS folds in turn, and judges the rows in them.
    """

    real: int
    features: Standardised
    logits: Array
    decided: IntArray
    fold: IntArray
    mass: float
    folds: int = FOLDS

    @classmethod
    def of(
        cls,
        mlp: MLP,
        X: NDArray[Any],
        fold: IntArray,
        basis: Basis,
        budget: int,
        seed: int,
        whole: int | None = None,
    ) -> Pool:
        """Fill up the rows X (n, d) of the folds (n,); features in the basis take at most `budget` bytes.

        X may be part of a set of `whole` rows, and is then filled up in the same proportion.
        """
        n = X.shape[0]
        whole = n if whole is None else whole
        blends = blends_for(whole)
        if blends > 0:
            filled = np.empty(((1 + blends) * n, mlp.features))
            filled[:n] = X
            for k in range(blends):
                _blend(mlp, basis, filled[:n], fold, seed + k, filled[(k + 1) * n : (k + 2) * n])
            X, fold = filled, np.tile(fold, blends + 1)
        features = Standardised(mlp, X, budget, basis)
        logits = mlp.logits(X)
        return cls(n, features, np.ascontiguousarray(logits.T), decide(logits), fold, min(1.0, _MADE / whole))

    @property
    def counted(self) -> float:
        """The real rows that strengths are counted in: those a problem learns from, times 5/4 if any are held out."""
        held_out = int(np.count_nonzero(self.fold[: self.real] == 0))
        return min(self.real, (self.real - held_out) * FOLDS / (FOLDS - 1))

    @property
    def blends(self) -> int:
        """Made rows per real row."""
        return self.features.samples // self.real - 1

    @cached_property
    def moments(self) -> Array:
        """Second moments of the features, (p m, p m)."""
        return self.features.moments()

    @cached_property
    def masses(self) -> Single:
        """What each row weighs by itself: real ones 1, made ones all together `mass` times as much as the real ones."""
        masses = np.ones(self.features.samples, dtype=np.float32)
        masses[self.real :] = self.mass / max(1, self.blends)
        return masses

    @cached_property
    def near(self) -> Single:
        """The masses, less for larger margins: 1/e of it at the median margin, _LEAST of it far from every boundary.

        Decisions change only near boundaries. And a model decides the rows it was trained on, which calibration sets
        are often made of, with larger margins than new ones: without this, a fit cares too much about far rows.
        """
        margins = margins_of(self.logits.T)
        usual, mean = float(np.median(margins[: self.real])), float(margins.mean())
        if usual <= 1e-9 * mean:  # most rows tie
            usual = mean
        share = np.maximum(np.exp(-margins / usual), _LEAST) if usual > 0 else 1.0
        return np.asarray(self.masses * share, dtype=np.float32)

    def weights(self, of_rows: Single) -> Single:
        """The weights of all rows, (1, rows), proportional to `of_rows`."""
        return np.asarray(of_rows / of_rows.sum(), dtype=np.float32)[None, :]

    def fold_weights(self, of_rows: Single) -> Single:
        """For each judged fold the weights of all other rows, (folds, rows), each summing to one."""
        weight = np.where(self.fold[None, :] == np.arange(self.folds)[:, None], np.float32(0), of_rows)
        return np.asarray(weight / weight.sum(axis=1, keepdims=True), dtype=np.float32)

    def held_out(self, weights: Array, constant: Array) -> BoolArray:
        """Whether the problem that has not seen a row keeps its decision, (1 + blends, judged), the real rows first."""
        kept = np.empty(self.features.samples, dtype=np.bool_)
        flat, shift = weights.reshape(-1, weights.shape[2]).astype(np.float32), constant.reshape(-1, 1)
        for rows, chunk in self.features.chunks():
            logits = (flat @ chunk.T + shift.astype(np.float32)).reshape(weights.shape[0], weights.shape[1], -1)
            own = logits[np.minimum(self.fold[rows], self.folds - 1), :, np.arange(chunk.shape[0])]
            kept[rows] = decide(own.astype(np.float64)) == self.decided[rows]
        return self.judged(kept)

    def judged(self, kept: BoolArray) -> BoolArray:
        """What was kept of all rows (rows,), as (1 + blends, judged)."""
        return kept.reshape(-1, self.real)[:, self.fold[: self.real] < self.folds]


def blends_for(rows: int) -> int:
    """Made rows per real row."""
    return max(0, *(min(most, fill // rows - 1) for fill, most in _FILLS))


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


def _blend(mlp: MLP, basis: Basis, X: Array, fold: IntArray, seed: int, made: Array) -> None:
    """Make one row for each real row: a random point of the quarter circle from it to a random row of the same fold.

    The circle is about the mean of the fold, so its points have the mean and covariance of real rows; the points of a
    line between two rows lie nearer to the mean. Where a unit leaves its range over the fold, beyond which polynomials
    explode, the point moves towards the line, which stays inside, just as far as it must. Polynomials explode between
    outliers too: where one is far larger than on any row of the fold, the real row is taken again.
    """
    rng = np.random.default_rng(seed)
    for k in np.unique(fold):
        rows = np.flatnonzero(fold == k)
        own, partner = X[rows], X[rng.permutation(rows)]
        share = rng.uniform(size=(rows.size, 1))
        with np.errstate(over="ignore", invalid="ignore"):  # reported below, with a name
            angle, mean = 0.5 * np.pi * share, own.mean(axis=0)
            line = own + share * (partner - own)
            step = mean + np.cos(angle) * (own - mean) + np.sin(angle) * (partner - mean) - line
            y, move, seen = line @ mlp.W1.T, step @ mlp.W1.T, own @ mlp.W1.T
            room = np.where(move > 0, seen.max(axis=0) - y, y - seen.min(axis=0))
            far = np.divide(room, np.abs(move), where=move != 0, out=np.ones_like(move)).min(axis=1, keepdims=True)
            made[rows] = line + np.clip(far, 0.0, 1.0) * step
        if not np.isfinite(made[rows]).all():
            raise InputError("X_cal has numbers too large to add; scale its features to ordinary size")
        limit = _WILD * _sizes(mlp, basis, own).max(axis=0)
        wild = (_sizes(mlp, basis, made[rows]) > limit).any(axis=1)
        made[rows[wild]] = own[wild]


def _sizes(mlp: MLP, basis: Basis, X: Array) -> Array:
    """The largest magnitude of the polynomials of each degree over a row's units, (n, p)."""
    sizes = np.empty((len(X), basis.degree))
    for start in range(0, len(X), ROWS):
        rows = slice(start, start + ROWS)
        for k, phi in enumerate(basis.polynomials(X[rows] @ mlp.W1.T + mlp.b1)):
            sizes[rows, k] = np.abs(phi).max(axis=1)
    return sizes
