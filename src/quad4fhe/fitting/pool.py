"""The rows a family learns from and is judged on: folds stratified by decision, and made rows where real ones are few.

Decides which rows may inform which: a made row is the blend of two real rows of one fold, so it stays in that fold. The
ReLU model answers it like any other input, which is why a small calibration set can be filled up without any label.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array, BoolArray, IntArray
from quad4fhe.fitting.standardised import Single, Standardised
from quad4fhe.mlp import MLP, decide

FOLDS = 5
_FILL = 4000  # real and made rows together; larger calibration sets are left as they are
_BLENDS = 6  # made rows per real row at most


@dataclass(frozen=True)
class Pool:
    """n real rows and their made rows after them: features, ReLU logits (K, rows), decisions and folds (rows,)."""

    real: int
    features: Standardised
    logits: Array
    decided: IntArray
    fold: IntArray

    @classmethod
    def of(cls, mlp: MLP, X: NDArray[Any], fold: IntArray, features: Standardised, seed: int) -> Pool:
        """Fill up the rows X (n, d) of the folds (n,); `features` are those of X."""
        n = X.shape[0]
        blends = min(_BLENDS, _FILL // n - 1)
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
        """For each fold the weights of all other rows, (FOLDS, rows), each summing to one."""
        weight = np.where(self.fold[None, :] == np.arange(FOLDS)[:, None], np.float32(0), self._mass)
        return np.asarray(weight / weight.sum(axis=1, keepdims=True), dtype=np.float32)

    def weights(self) -> Single:
        """The weights of all rows, (1, rows)."""
        return np.asarray(self._mass / self._mass.sum(), dtype=np.float32)[None, :]

    def held_out(self, weights: Array, constant: Array) -> BoolArray:
        """Whether the problem that has not seen a row keeps its decision, (1 + blends, n), the real rows first."""
        kept = np.empty(self.features.samples, dtype=np.bool_)
        flat, shift = weights.reshape(-1, weights.shape[2]).astype(np.float32), constant.reshape(-1, 1)
        for rows, chunk in self.features.chunks():
            logits = (flat @ chunk.T + shift.astype(np.float32)).reshape(weights.shape[0], weights.shape[1], -1)
            own = logits[self.fold[rows], :, np.arange(chunk.shape[0])]
            kept[rows] = decide(own.astype(np.float64)) == self.decided[rows]
        return kept.reshape(-1, self.real)


def stratified_folds(decided: IntArray, seed: int) -> IntArray:
    """A fold for each row, every class spread as evenly as its count allows."""
    rng = np.random.default_rng(seed)
    fold = np.empty(decided.size, dtype=np.int64)
    dealt = 0
    for label in np.unique(decided):
        rows = rng.permutation(np.flatnonzero(decided == label))
        fold[rows] = (dealt + np.arange(rows.size)) % FOLDS
        dealt += rows.size  # the next class goes on where this one stopped, or small classes would all be in fold 0
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
