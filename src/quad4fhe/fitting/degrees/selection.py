"""Families of one degree, judged on folds of the calibration set: `families.selection` in an orthonormal basis.

The prior is each unit's own least-squares polynomial (for the shared family, one polynomial for all units) instead of
the shared quadratic; sharpness and strength are chosen in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array, IntArray
from quad4fhe._progress import Progress
from quad4fhe.fitting.degrees.basis import Basis
from quad4fhe.fitting.families.base import Parametrisation
from quad4fhe.fitting.families.features import (
    FOLDS,
    Pool,
    Single,
    Standardised,
    blends_for,
    stratified_folds,
    stratified_rows,
)
from quad4fhe.fitting.families.selection import CV_ROWS, Judged, Selection
from quad4fhe.mlp import MLP

_BASIS_ROWS = 20_000
# Multiply-adds of one pass over the folds. Many classes are judged on fewer folds, down to one that may take more: with
# fewer rows to learn from, folds would speak against the higher degree.
_WORK, _LEAST_WORK = 2e9, 6e9
_FEWEST_ROWS = 2_000
_CHUNK = 8_192
# Real and made rows together, and made rows per real row: a unit has more coefficients than at degree 2, so sets of up
# to 50,000 rows are filled up too.
_FILLS = ((40_000, 3), (100_000, 1))


class DegreeSelection(Selection):
    """Families of one degree. `prior` is the least-squares fit of all rows, weights (K, p m) and constants (K,).

    There is no finish on the decisions: above degree 2 it gains nothing that held-out rows confirm.
    """

    def __init__(
        self,
        mlp: MLP,
        X: NDArray[Any],
        decided: IntArray,
        degree: int,
        *,
        pooled: bool,
        seed: int,
        budget: int,
        progress: Progress,
        highest: int | None = None,
    ) -> None:
        """Prepare for X (n, d) and its decisions (n,); `pooled` takes one basis and one prior for all units.

        `highest` is the highest degree that this one is compared with: all are judged on the rows that it can afford.
        """
        self.mlp, self.degree, self.pooled, self._progress = mlp, degree, pooled, progress
        self._highest = max(degree, highest or 0)
        self.basis = Basis.of(mlp, X[_basis_rows(mlp, X, decided, seed)], degree, pooled=pooled)
        self._features = Standardised(mlp, X, budget, self.basis)
        self._blends = max(blends_for(len(X)), *(blends_for(len(X), *fill) for fill in _FILLS))
        self._pool = Pool.of(mlp, X, stratified_folds(decided, seed), self._features, seed, self._blends)
        self._part = self._some(X, decided, seed)
        weights = self._part.fold_weights()
        self._fold_priors = [self._least_squares(self._part.features, weight) for weight in weights]
        self.prior = self._least_squares(self._pool.features, self._pool.weights()[0])
        self.trace, self.judged = [], {}

    def _some(self, X: NDArray[Any], decided: IntArray, seed: int) -> Pool:
        """The rows that are judged on, with as many folds as the work allows."""
        size = self._highest * self.mlp.units * self.mlp.outputs
        wanted = int(min(CV_ROWS, max(_FEWEST_ROWS, _LEAST_WORK / size)))
        folds = int(min(FOLDS, max(1, _WORK / size // min(wanted, len(X)))))
        part = self._pool
        if len(X) > wanted:
            rows = stratified_rows(decided, wanted, seed)
            fold = stratified_folds(decided[rows], seed)
            part = Pool.of(self.mlp, X[rows], fold, self._features.take(rows), seed, self._blends)
        return replace(part, folds=folds)

    def point(self, family: str) -> tuple[Array, Array]:
        """Weights (K, p m) and constants (K,) of a judged family, fitted on all rows."""
        setting = self.judged[family].setting
        if setting is None:
            return self.prior
        self._progress(f"{family} of degree {self.degree} on all rows", 0, 0)
        return self._on_all_rows(family, self.prior, setting)

    def judge(self, family: str) -> Judged:
        """As for degree 2; the prior itself is taken where no step from it is better by more than one error."""
        weights, constants = self._stack(self._fold_priors)
        kept = self._part.held_out(weights, constants)
        prior = Judged(family, None, kept, (weights, constants), self._part.folds, self.degree)
        found = super().judge(family)
        behind, error = prior.behind(found)
        self.judged[family] = found if behind > error else prior
        return self.judged[family]

    def _finish(self, family: str, chosen: Judged) -> Judged:
        return chosen

    def _problem(self, family: str, weights: Array, constant: Array, pool: Pool, sharpness: float) -> Parametrisation:
        if self.pooled:
            return PooledProblem(self.mlp, weights, constant, sharpness)
        return super()._problem(family, weights, constant, pool, sharpness)

    def _stack(self, models: Sequence[Any]) -> tuple[Array, Array]:
        return np.array([weights for weights, _ in models]), np.array([constant for _, constant in models])

    def _scaled_priors(
        self, models: Sequence[Any], pool: Pool, weight: Single, sharpness: float
    ) -> tuple[Array, Array]:
        """Least squares has the scale of the logits already."""
        weights, constants = self._stack(models)
        return weights * sharpness, constants * sharpness

    def _least_squares(self, features: Standardised, weight: Single) -> tuple[Array, Array]:
        """Weights and constants of the polynomials nearest to the activation for rows with these weights (n,)."""
        p, m = self.degree, self.mlp.units
        gram, right = np.zeros((m, p + 1, p + 1)), np.zeros((m, p + 1))
        for rows, chunk in features.chunks():
            n = len(chunk)
            F = np.concatenate([np.ones((n, 1, m)), chunk.reshape(n, p, m)], axis=1).transpose(2, 1, 0)
            y = np.asarray(features.X[rows], dtype=np.float64) @ self.mlp.W1.T + self.mlp.b1
            weighted = F * weight[rows]
            gram += weighted @ F.transpose(0, 2, 1)
            right += np.einsum("jkn,nj->jk", weighted, self.mlp.activation(y))
        if self.pooled:
            gram, right = np.broadcast_to(gram.sum(axis=0), gram.shape), np.broadcast_to(right.sum(axis=0), right.shape)
        size = np.trace(gram, axis1=1, axis2=2)[:, None, None]
        own = np.linalg.solve(gram + 1e-9 * size * np.eye(p + 1), right[..., None])[..., 0]
        W2 = self.mlp.W2
        return np.concatenate([W2 * own[:, k] for k in range(1, p + 1)], axis=1), self.mlp.b2 + W2 @ own[:, 0]


def _basis_rows(mlp: MLP, X: NDArray[Any], decided: IntArray, seed: int) -> IntArray:
    """Some rows, and those with the smallest and largest pre-activation of each unit.

    Beyond the rows it was made from, a polynomial of a basis grows without bound: to 10^9 on Shuttle at degree 8.
    """
    if len(X) <= _BASIS_ROWS:
        return np.arange(len(X))
    low, high = np.full(mlp.units, np.inf), np.full(mlp.units, -np.inf)
    first, last = np.zeros(mlp.units, dtype=np.int64), np.zeros(mlp.units, dtype=np.int64)
    for start in range(0, len(X), _CHUNK):
        y = mlp.hidden(X[start : start + _CHUNK])
        lower, higher = y.min(axis=0) < low, y.max(axis=0) > high
        first[lower], last[higher] = start + y.argmin(axis=0)[lower], start + y.argmax(axis=0)[higher]
        low, high = np.minimum(low, y.min(axis=0)), np.maximum(high, y.max(axis=0))
    return np.unique(np.concatenate([stratified_rows(decided, _BASIS_ROWS, seed), first, last]))


class PooledProblem:
    """Weights = prior + s_k W2, constants = prior + e B: p + 1 unknowns for all units; B are the row sums of W2."""

    def __init__(self, mlp: MLP, prior: Array, constant: Array, sharpness: float) -> None:
        self._prior, self._constant = prior, constant
        self._degree = prior.shape[2] // mlp.units
        self._head = mlp.W2 * sharpness
        self._sums = mlp.head_sums * sharpness
        self._strength = 1.0

    def strengthen(self, strength: float) -> None:
        """Set the ridge: strength/2 times the squared distance of the unknowns from the prior."""
        self._strength = strength

    def expand(self, x: Array) -> tuple[Array, Array]:
        """Weights (problems, K, p m) and constants (problems, K) of the unknowns x (problems, p + 1)."""
        blocks = [x[:, k, None, None] * self._head for k in range(self._degree)]
        return self._prior + np.concatenate(blocks, axis=2), self._constant + x[:, -1:] * self._sums

    def gather(self, weights: Array, constant: Array) -> Array:
        """The gradient in x of a function with these gradients in weights and constants."""
        blocks = np.split(weights, self._degree, axis=2)
        own = [np.einsum("bkj,kj->b", block, self._head) for block in blocks]
        return np.stack([*own, constant @ self._sums], axis=1)

    def solve(self, weights: Array, constant: Array) -> Array:
        """The unknowns that `expand` to these weights and constants, which must belong to the family."""
        size, sums = float(np.square(self._head).sum()), float(np.square(self._sums).sum())
        own = self.gather(weights - self._prior, constant - self._constant)
        own[:, :-1] /= max(size, 1e-300)
        own[:, -1] /= max(sums, 1e-300)
        return own

    def penalty(self, x: Array) -> tuple[Array, Array]:
        """The ridge (problems,) and its gradient in x."""
        pull = self._strength * x
        return 0.5 * np.einsum("bi,bi->b", pull, x), pull
