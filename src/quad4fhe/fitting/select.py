"""Which family, how sharp, how strong a prior: chosen by cross-validation, the smaller one within one standard error.

Families of one degree cost about the same under encryption, so held-out decisions alone decide. Every family is pulled
towards each unit's own least-squares polynomial of the activation, in an orthonormal basis of its pre-activations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array, BoolArray, IntArray
from quad4fhe._progress import Progress
from quad4fhe.fitting.basis import BLOCK, Basis
from quad4fhe.fitting.diagnostics import FamilyStep, FamilyTrial
from quad4fhe.fitting.distil import Divergence, distil
from quad4fhe.fitting.families import FAMILIES, SHARED, UNITWISE
from quad4fhe.fitting.features import (
    FOLDS,
    Pool,
    Single,
    Standardised,
    stratified_folds,
    stratified_rows,
)
from quad4fhe.fitting.subspaces import Subspace, subspace
from quad4fhe.mlp import MLP
from quad4fhe.polynomial import PolynomialModel

SHARPNESS = (1.0, 2.0, 4.0)
"""Factors on the ReLU logits before their softmax: few rows learn from all of it (1), many from what decides (4)."""
STRENGTHS = (100.0, 10.0, 1.0, 0.1)
"""How many rows the prior is worth, per unit of squared distance; tried from strong to weak."""

CV_ROWS = 10_000  # a strength is counted in rows, so one chosen on this many serves all of them
_CLOSE = 0.5  # of a standard error: settings of one family that differ by less are equally good
_ROUNDS, _TOLERANCE = 60, 1e-4
_FEW_ROUNDS = 30  # where rows are filled up, stopping early costs no agreement
_BASIS_ROWS = 20_000
# Multiply-adds of one pass over the folds. Many classes are judged on fewer folds, down to one that may take more: with
# fewer rows to learn from, folds would speak against the higher degree.
_WORK, _LEAST_WORK = 2e9, 6e9
_FEWEST_ROWS = 2_000
_CHUNK = 8_192
_FEW_AT_A_TIME = 512  # rows of a step that needs several copies of their features
Priors = Callable[[IntArray], PolynomialModel]


@dataclass(frozen=True)
class Setting:
    """What cross-validation chooses within a family."""

    sharpness: float
    strength: float


@dataclass(frozen=True)
class Judged:
    """A setting (None for the prior itself, and for shared) and the held-out decisions that its fold problems keep.

    `kept` is (1 + blends, n): the real rows, then the made ones, which together weigh `mass` times as much.
    """

    family: str
    setting: Setting | None
    kept: BoolArray
    folds: int = FOLDS
    degree: int = 2
    mass: float = 1.0

    @property
    def score(self) -> Array:
        """Whether each real row is kept, (n,), or the mean of that and the share kept of its made rows.

        Calibration rows are often those the model was trained on, and it decides these with larger margins than new
        ones. Made rows are new to it: they see the overfitting that real rows hide. But they are not real, and so they
        count for as much here as they weigh in the fit: the more real rows there are, the less.
        """
        real: Array = self.kept[:1].mean(axis=0)
        return real if self.kept.shape[0] == 1 else (real + self.mass * self.kept[1:].mean(axis=0)) / (1.0 + self.mass)

    @property
    def mean(self) -> float:
        """The mean score."""
        return float(self.score.mean())

    def behind(self, other: Judged) -> tuple[float, float]:
        """By how much this keeps less than `other`, and the standard error of that difference, row by row."""
        difference = other.score - self.score
        return float(difference.mean()), float(difference.std() / np.sqrt(difference.size))

    @property
    def trial(self) -> FamilyTrial:
        """The report on this setting."""
        real = self.kept[0]
        share = float(real.mean())
        return FamilyTrial(
            family=self.family,
            agreement=share,
            spread=float(np.sqrt(share * (1.0 - share) / real.size)),
            made_agreement=float(self.kept[1:].mean()) if self.kept.shape[0] > 1 else None,
            rows=int(real.size),
            folds=self.folds,
            sharpness=None if self.setting is None else self.setting.sharpness,
            strength=None if self.setting is None else self.setting.strength,
            degree=self.degree,
        )


class Selection:
    """Families of one degree, judged on folds of the calibration set and fitted on all of it.

    `prior` is the least-squares fit of all rows, weights (K, p m) and constants (K,).
    """

    def __init__(
        self,
        mlp: MLP,
        X: NDArray[Any],
        decided: IntArray,
        degree: int,
        *,
        seed: int,
        budget: int,
        progress: Progress,
        pooled: bool = False,
        highest: int | None = None,
    ) -> None:
        """Prepare the folds and their priors.

        Parameters
        ----------
        mlp
            The ReLU model.
        X
            The rows to learn from, (n, d).
        decided
            The decisions of `mlp` on X, (n,).
        degree
            The degree p.
        seed
            Seed of folds and made rows.
        budget
            Bytes for the features.
        progress
            Progress callback (what, done, total).
        pooled
            Take one basis and one prior for all units.
        highest
            The highest degree that this one is compared with: all are judged on the rows that it can afford.
        """
        self.mlp, self.degree, self.pooled, self._progress = mlp, degree, pooled, progress
        self._highest = max(degree, highest or 0)
        self.basis = Basis.of(mlp, X, degree, rows=_basis_rows(mlp, X, decided, seed, pooled), pooled=pooled)
        self._pool = Pool.of(mlp, X, stratified_folds(decided, seed), self.basis, budget, seed)
        self._part = self._some(X, decided, seed)
        weights = self._part.fold_weights(self._part.masses)
        self._fold_priors = [self._least_squares(self._part.features, weight) for weight in weights]
        self.prior = self._least_squares(self._pool.features, self._pool.weights(self._pool.masses)[0])
        self.trace: list[FamilyStep] = []
        self.judged: dict[str, Judged] = {}

    def judge_shared(self, priors: Priors) -> Judged:
        """Judge the shared family, which `priors` fits to some of the rows of X, on the same folds."""
        part, kept = self._part, np.zeros(self._part.features.samples, dtype=np.bool_)
        for k in range(part.folds):
            self._progress("cross-validation of shared", k, part.folds)
            model, out = priors(self._rows[part.fold[: part.real] != k]), part.fold == k
            kept[out] = model.decide(part.features.X[out]) == part.decided[out]
        self.judged[SHARED] = Judged(SHARED, None, part.judged(kept), part.folds, self.degree, part.mass)
        return self.judged[SHARED]

    def judge(self, family: str) -> Judged:
        """Choose sharpness and strength of a family: the strongest prior within half an error of the best.

        The prior itself is taken where no step from it is better by more than that.
        """
        # What sharper targets gain grows and falls with the sharpness: look to one side of the middle if it is better.
        low, middle, high = SHARPNESS
        steps, sharper = list(self._path(family, middle)), self._path(family, high)
        if _best(sharper).mean <= _best(steps).mean:
            steps += self._path(family, low)
        steps += sharper
        best = _best(steps)
        near = [step for step in steps if _ties(step, best, _CLOSE)]
        chosen = max(near, key=lambda step: (_setting(step).strength, step.mean))
        kept = self._part.held_out(*self._stack(self._fold_priors))
        prior = Judged(family, None, kept, self._part.folds, self.degree, self._part.mass)
        self.judged[family] = prior if _ties(prior, chosen, _CLOSE) else chosen
        return self.judged[family]

    def choose(self) -> str:
        """The smallest family within one error of the best, and never one that keeps fewer than shared."""
        usable = [self.judged[name] for name in (SHARED, *self.eligible())]
        best = _best(usable)
        return next(each.family for each in usable if _ties(each, best))

    def eligible(self) -> list[str]:
        """The learned families that do not cross-validate worse than shared, smallest first."""
        learned = [name for name in FAMILIES.names() if name in self.judged and name != SHARED]
        return [name for name in learned if _no_worse(self.judged[name], self.judged[SHARED])]

    def fit(self, family: str, mlp: MLP, power: int) -> tuple[PolynomialModel, Any, Any, Any]:
        """A judged family of degree 2 on all rows, with alpha, beta and eta (m,) if it has them.

        It is the model of `mlp`, whose logits are 2^power times those here.
        """
        S, T, c = self.quadratic(family)
        if family == UNITWISE:
            three = per_unit(self.mlp, S, T, c)  # the same for every scale of the head
            return PolynomialModel.unitwise(mlp, *three), *three
        return (
            PolynomialModel.quadratic(mlp.W1, mlp.b1, *(np.ldexp(each, power) for each in (S, T, c))),
            None,
            None,
            None,
        )

    def quadratic(self, family: str) -> tuple[Array, Array, Array]:
        """S, T and c of a judged family of degree 2, fitted on all rows."""
        weights, constant = self.point(family)
        m = self.mlp.units
        C = self.basis.powers(np.zeros(m), np.ones(m))
        blocks = weights.reshape(weights.shape[0], 2, m)
        c, T, S = (np.einsum("kpj,pj->kj", blocks, C[:, i]) for i in range(3))
        return S, T, constant + c.sum(axis=1)

    def point(self, family: str) -> tuple[Array, Array]:
        """Weights (K, p m) and constants (K,) of a judged family, fitted on all rows."""
        setting = self.judged[family].setting
        if setting is None:
            return self.prior
        self._progress(f"{family} of degree {self.degree} on all rows", 0, 0)
        steps = STRENGTHS[: STRENGTHS.index(setting.strength) + 1]
        # The same steps as in the folds: these were judged, not the minimum that they approach.
        pool, weight = self._pool, self._pool.weights(self._pool.near)
        *_, (_, point) = self._path_from(family, [self.prior], pool, weight, setting.sharpness, steps)
        return point[0][0] / setting.sharpness, point[1][0] / setting.sharpness

    def _path(self, family: str, sharpness: float) -> Sequence[Judged]:
        pool, weight = self._part, self._part.fold_weights(self._part.near)
        path: list[Judged] = []
        for setting, point in self._path_from(family, self._fold_priors, pool, weight, sharpness, STRENGTHS):
            path.append(self._judge_point(family, setting, *point))
            self._progress(f"cross-validation of {family}, sharpness {sharpness:g}", len(path), len(STRENGTHS))
            if len(path) > 1 and path[-1].mean <= path[-2].mean:
                break  # weaker priors only overfit further
        return path

    def _path_from(
        self,
        family: str,
        priors: Sequence[Any],
        pool: Pool,
        weight: Single,
        sharpness: float,
        strengths: Sequence[float],
    ) -> Iterator[tuple[Setting, tuple[Array, Array]]]:
        """From the priors to ever weaker strengths, each starting where the one before it ended."""
        weights, constants = self._stack(priors)
        point = weights * sharpness, constants * sharpness
        problem = subspace(family, self.mlp, *point, lambda: pool.moments, sharpness)
        loss = Divergence(pool.logits * sharpness)
        for strength in strengths:
            setting = Setting(sharpness, strength)
            point = self._minimise(problem, loss, pool, weight, point, setting)
            yield setting, point

    def _judge_point(self, family: str, setting: Setting, weights: Array, constant: Array) -> Judged:
        kept = self._part.held_out(weights, constant)
        judged = Judged(family, setting, kept, self._part.folds, self.degree, self._part.mass)
        score = judged.score
        self.trace.append(
            FamilyStep(
                family=family,
                sharpness=setting.sharpness,
                strength=setting.strength,
                agreement=float(judged.kept[0].mean()),
                score=float(score.mean()),
                spread=float(score.std() / np.sqrt(score.size)),
                degree=self.degree,
            )
        )
        return judged

    def _minimise(
        self,
        problem: Subspace,
        loss: Divergence,
        pool: Pool,
        weight: Single,
        start: tuple[Array, Array],
        setting: Setting,
    ) -> tuple[Array, Array]:
        rounds = _FEW_ROUNDS if pool.blends else _ROUNDS
        # Sharper targets multiply the loss by the sharpness and squared distances by its square: divide by it once.
        problem.strengthen(setting.strength / (pool.counted * setting.sharpness))
        weights, constant, _ = distil(pool.features, problem, loss, weight, start, rounds=rounds, tolerance=_TOLERANCE)
        return weights, constant

    def _stack(self, models: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
        return np.array([weights for weights, _ in models]), np.array([constant for _, constant in models])

    def _some(self, X: NDArray[Any], decided: IntArray, seed: int) -> Pool:
        """The rows to learn from and to be judged on, with as many folds as the work allows.

        With one fold, the problem learns from as many rows as one of five folds would, and is judged on up to twelve
        thousand others.
        """
        wanted, folds = judged_rows(self._highest * self.mlp.units * self.mlp.outputs, len(X))
        taken = min(len(X), 2 * wanted if folds == 1 else wanted)
        held_out = FOLDS - round((FOLDS - 1) * wanted / taken) if folds == 1 else 1
        if taken == len(X) and held_out <= 1:
            self._rows = np.arange(len(X))
            return replace(self._pool, folds=folds)
        rows = stratified_rows(decided, taken, seed) if taken < len(X) else np.arange(len(X))
        fold = np.maximum(stratified_folds(decided[rows], seed) - (held_out - 1), 0)
        order = np.argsort(fold, kind="stable")  # a pass then skips the fold that a problem does not learn from
        self._rows = rows = rows[order]
        part = Pool.of(self.mlp, X[rows], fold[order], self.basis, self._pool.features.left, seed, len(X))
        return replace(part, folds=folds)

    def _least_squares(self, features: Standardised, weight: Single) -> tuple[Array, Array]:
        """Weights and constants of the polynomials nearest to the activation for rows with these weights (n,)."""
        p, m = self.degree, self.mlp.units
        gram, right = np.zeros((m, p + 1, p + 1)), np.zeros((m, p + 1))
        for rows, chunk in features.chunks(_FEW_AT_A_TIME):
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


def judged_rows(size: int, rows: int) -> tuple[int, int]:
    """How many of the rows are learned from, and on how many folds, with so many weights: degree * units * outputs."""
    wanted = int(min(CV_ROWS, max(_FEWEST_ROWS, _LEAST_WORK / size)))
    return wanted, int(min(FOLDS, max(1, _WORK / size // min(wanted, rows))))


def _basis_rows(mlp: MLP, X: NDArray[Any], decided: IntArray, seed: int, pooled: bool) -> IntArray:
    """Some rows, and those with the smallest and largest pre-activation of each unit.

    Beyond the rows it was made from, a polynomial of a basis grows without bound: to 10^9 on Shuttle at degree 8. A
    pooled basis needs fewer rows: each counts once for every unit.
    """
    wanted = max(_FEWEST_ROWS, BLOCK // mlp.units) if pooled else _BASIS_ROWS
    if len(X) <= wanted:
        return np.arange(len(X))
    low, high = np.full(mlp.units, np.inf), np.full(mlp.units, -np.inf)
    first, last = np.zeros(mlp.units, dtype=np.int64), np.zeros(mlp.units, dtype=np.int64)
    for start in range(0, len(X), _CHUNK):
        y = mlp.hidden(X[start : start + _CHUNK])
        lower, higher = y.min(axis=0) < low, y.max(axis=0) > high
        first[lower], last[higher] = start + y.argmin(axis=0)[lower], start + y.argmax(axis=0)[higher]
        low, high = np.minimum(low, y.min(axis=0)), np.maximum(high, y.max(axis=0))
    return np.unique(np.concatenate([stratified_rows(decided, wanted, seed), first, last]))


def _best(steps: Sequence[Judged]) -> Judged:
    return max(steps, key=lambda step: step.mean)


def per_unit(mlp: MLP, S: Array, T: Array, c: Array) -> tuple[Array, Array, Array]:
    """alpha, beta, eta (m,) of a unitwise S, T, c: the projections on the columns of W2, eta of the smallest norm."""
    alpha, beta = own_coefficients(mlp, np.hstack([S, T]))
    eta: Array = np.linalg.lstsq(mlp.W2, c - mlp.b2, rcond=None)[0].astype(np.float64)
    return alpha, beta, eta


def own_coefficients(mlp: MLP, weights: Array) -> Array:
    """The coefficients (p, m) of unit polynomials with these weights (K, p m) = own * W2: projections on W2."""
    sizes = np.einsum("kj,kj->j", mlp.W2, mlp.W2)
    blocks = np.split(weights, weights.shape[1] // mlp.units, axis=1)
    own = np.array([np.einsum("kj,kj->j", block, mlp.W2) for block in blocks])
    return np.asarray(np.divide(own, sizes, where=sizes > 0, out=np.zeros_like(own)))


def _setting(judged: Judged) -> Setting:
    assert judged.setting is not None
    return judged.setting


def _ties(candidate: Judged, best: Judged, errors: float = 1.0) -> bool:
    behind, error = candidate.behind(best)
    return behind <= errors * error


def _no_worse(candidate: Judged, shared: Judged) -> bool:
    return (
        float(candidate.score.mean()) >= float(shared.score.mean()) and candidate.kept[0].sum() >= shared.kept[0].sum()
    )
