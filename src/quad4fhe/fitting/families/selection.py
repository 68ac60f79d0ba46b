"""Which family, how sharp, how strong a prior: chosen by cross-validation, the smaller one within one standard error.

All families cost the same under encryption, so held-out decisions alone decide. Every family is pulled towards the
shared fit, so that the strongest prior is the paper's replacement itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array, BoolArray, IntArray
from quad4fhe._progress import Progress
from quad4fhe.fitting.diagnostics import FamilyStep, FamilyTrial
from quad4fhe.fitting.families import FAMILIES, SHARED
from quad4fhe.fitting.families.base import LearnedFamily, Parametrisation, Replacement
from quad4fhe.fitting.families.distil import Divergence, Hinge, Loss, distil
from quad4fhe.fitting.families.features import FOLDS, Pool, Single, Standardised, stratified_folds, stratified_rows
from quad4fhe.mlp import MLP
from quad4fhe.polynomial import PolynomialModel
from quad4fhe.regime import Regime

SHARPNESS = (1.0, 4.0)
"""Factors on the ReLU logits before their softmax: few rows learn from all of it (1), many from what decides (4)."""
STRENGTHS = (100.0, 10.0, 1.0, 0.1)
"""How many rows the prior is worth, per unit of squared distance; tried from strong to weak."""

CV_ROWS = 10_000  # a strength is counted in rows, so one chosen on this many serves all of them
_ROUNDS, _TOLERANCE = 60, 1e-4
_FEW_ROUNDS = 30  # where rows are few enough to be filled up, stopping early costs no agreement
_TETHER = 100.0  # how much stronger the finish is tied to the solution so far than that was to its prior
_WIDTH = 1.0  # margin that the finish asks for, in the ReLU model's own logits
Priors = Callable[[IntArray], PolynomialModel]


@dataclass(frozen=True)
class Setting:
    """What cross-validation chooses within a family; `finish` adds a finish on the decisions."""

    sharpness: float
    strength: float
    finish: bool = False


@dataclass(frozen=True)
class Judged:
    """A setting (None for shared), its fold problems' weights and constants, and the held-out decisions they keep.

    `kept` is (1 + blends, n): the real rows, then the made ones.
    """

    family: str
    setting: Setting | None
    kept: BoolArray
    point: tuple[Array, Array]
    folds: int = FOLDS
    degree: int = 2

    @property
    def score(self) -> Array:
        """Per real row the share kept of it and of the made rows that began at it, half and half; (n,)."""
        share: Array = self.kept[:1].mean(axis=0)
        if self.kept.shape[0] > 1:
            share = 0.5 * (share + self.kept[1:].mean(axis=0))
        return share

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
            finish=self.setting is not None and self.setting.finish,
            degree=self.degree,
        )


class Selection:
    """Families judged on folds of the calibration set, and fitted on all of it."""

    degree = 2

    def __init__(
        self,
        mlp: MLP,
        X: NDArray[Any],
        decided: IntArray,
        shared: PolynomialModel,
        priors: Priors,
        *,
        seed: int,
        budget: int,
        progress: Progress,
    ) -> None:
        """Prepare the folds, and judge the shared family on them.

        Parameters
        ----------
        mlp
            The ReLU model.
        X
            The rows to learn from, (n, d).
        decided
            The decisions of `mlp` on X, (n,).
        shared
            The shared fit to all rows.
        priors
            Fits the shared family to some rows.
        seed
            Seed of folds and made rows.
        budget
            Bytes for the standardised features.
        progress
            Progress callback (what, done, total).
        """
        self.mlp, self.shared, self._progress = mlp, shared, progress
        self._features = Standardised(mlp, X, budget)
        fold = stratified_folds(decided, seed)
        self._pool = Pool.of(mlp, X, fold, self._features, seed)
        rows, part = np.arange(X.shape[0]), self._pool
        if X.shape[0] > CV_ROWS:
            rows = stratified_rows(decided, CV_ROWS, seed)
            fold = stratified_folds(decided[rows], seed)
            part = Pool.of(mlp, X[rows], fold, self._features.take(rows), seed)
        self._part = part
        self._fold_priors: list[Any] = []
        for k in range(FOLDS):
            progress("cross-validation of shared", k, FOLDS)
            self._fold_priors.append(priors(rows[fold != k]))
        self.trace: list[FamilyStep] = []
        weights, constants = self._stack(self._fold_priors)
        self._base = Judged(SHARED, None, part.held_out(weights, constants), (weights, constants))
        self.judged = {SHARED: self._base}

    def judge(self, family: str) -> Judged:
        """Choose sharpness, strength and finish of a family: the strongest prior within one error of the best."""
        steps = [judged for sharpness in SHARPNESS for judged in self._path(family, sharpness)]
        best = max(steps, key=lambda step: float(step.score.mean()))
        near = [step for step in steps if _ties(step, best)]
        chosen = max(near, key=lambda step: (_setting(step).strength, float(step.score.mean())))
        finished = self._finish(family, chosen)
        behind, error = chosen.behind(finished)
        self.judged[family] = finished if behind > error else chosen
        return self.judged[family]

    def choose(self) -> str:
        """The smallest family within one error of the best, and never one that keeps fewer than shared."""
        usable = [self._base, *(self.judged[name] for name in self.eligible())]
        best = max(usable, key=lambda each: float(each.score.mean()))
        return next(each.family for each in usable if _ties(each, best))

    def eligible(self) -> list[str]:
        """The learned families that do not cross-validate worse than shared, smallest first."""
        learned = [name for name in FAMILIES.names() if name in self.judged and name != self._base.family]
        return [name for name in learned if _no_worse(self.judged[name], self._base)]

    def regime(self, family: str) -> Regime:
        """The regime of a judged family at its setting."""
        return Regime("kl", polished=_setting(self.judged[family]).finish)

    def fit(self, family: str, mlp: MLP, power: int) -> Replacement:
        """A judged family fitted on all rows: the model of `mlp`, whose logits are 2^power times those learned here."""
        self._progress(f"{family} on all rows", 0, 0)
        weights, constant = self._on_all_rows(family, self.shared, _setting(self.judged[family]))
        S, T, c = self._features.scales.coefficients(weights, constant)
        return _learned(family).replacement(mlp, self.mlp, S, T, c, power)

    def _on_all_rows(self, family: str, prior: Any, setting: Setting) -> tuple[Array, Array]:
        """Weights (K, p m) and constants (K,) of a family fitted on all rows, on the scale of the model's logits."""
        pool, weight = self._pool, self._pool.weights()
        steps = STRENGTHS[: STRENGTHS.index(setting.strength) + 1]
        # The same steps as in the folds: these were judged, not the minimum that they approach.
        *_, (_, point) = self._path_from(family, [prior], pool, weight, setting.sharpness, steps)
        if setting.finish:
            point = self._sharpen(family, pool, weight, *point, setting)
        return point[0][0] / setting.sharpness, point[1][0] / setting.sharpness

    def _path(self, family: str, sharpness: float) -> Sequence[Judged]:
        pool, weight = self._part, self._part.fold_weights()
        path: list[Judged] = []
        for setting, point in self._path_from(family, self._fold_priors, pool, weight, sharpness, STRENGTHS):
            path.append(self._judge_point(family, setting, *point))
            best = max(path, key=lambda step: float(step.score.mean()))
            behind, error = path[-1].behind(best)
            self._progress(f"cross-validation of {family}, sharpness {sharpness:g}", len(path), len(STRENGTHS))
            if behind > 2 * error:
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
        point = self._scaled_priors(priors, pool, weight, sharpness)
        problem = self._problem(family, *point, pool, sharpness)
        loss = Divergence(pool.logits * sharpness)
        for strength in strengths:
            setting = Setting(sharpness, strength)
            point = self._minimise(problem, loss, pool, weight, point, setting)
            yield setting, point

    def _finish(self, family: str, chosen: Judged) -> Judged:
        setting = _setting(chosen)
        self._progress(f"cross-validation of {family}, finish", 0, 0)
        pool, weight = self._part, self._part.fold_weights()
        point = self._sharpen(family, pool, weight, *chosen.point, setting)
        return self._judge_point(family, Setting(setting.sharpness, setting.strength, finish=True), *point)

    def _judge_point(self, family: str, setting: Setting, weights: Array, constant: Array) -> Judged:
        kept = self._part.held_out(weights, constant)
        judged = Judged(family, setting, kept, (weights, constant), self._part.folds, self.degree)
        score = judged.score
        self.trace.append(
            FamilyStep(
                family=family,
                sharpness=setting.sharpness,
                strength=setting.strength,
                finish=setting.finish,
                agreement=float(judged.kept[0].mean()),
                score=float(score.mean()),
                spread=float(score.std() / np.sqrt(score.size)),
                degree=self.degree,
            )
        )
        return judged

    def _minimise(
        self,
        problem: Parametrisation,
        loss: Loss,
        pool: Pool,
        weight: Single,
        start: tuple[Array, Array],
        setting: Setting,
    ) -> tuple[Array, Array]:
        rounds = _FEW_ROUNDS if pool.blends else _ROUNDS
        # Sharper targets multiply the loss by the sharpness and squared distances by its square: divide by it once.
        problem.strengthen(setting.strength / (pool.real * setting.sharpness))
        weights, constant, _ = distil(pool.features, problem, loss, weight, start, rounds=rounds, tolerance=_TOLERANCE)
        return weights, constant

    def _sharpen(
        self, family: str, pool: Pool, weight: Single, weights: Array, constant: Array, setting: Setting
    ) -> tuple[Array, Array]:
        """The finish on the decisions, with the solution so far as its prior."""
        problem = self._problem(family, weights, constant, pool, setting.sharpness)
        loss = Hinge(pool.decided, _WIDTH * setting.sharpness)
        tied = replace(setting, strength=_TETHER * setting.strength)
        return self._minimise(problem, loss, pool, weight, (weights, constant), tied)

    def _problem(self, family: str, weights: Array, constant: Array, pool: Pool, sharpness: float) -> Parametrisation:
        return _learned(family).problem(self.mlp, weights, constant, pool.moments, sharpness)

    def _stack(self, models: Sequence[Any]) -> tuple[Array, Array]:
        pairs = [self._features.scales.weights(model.A[1], model.A[0], model.c) for model in models]
        return np.array([weights for weights, _ in pairs]), np.array([constant for _, constant in pairs])

    def _scaled_priors(
        self, models: Sequence[Any], pool: Pool, weight: Single, sharpness: float
    ) -> tuple[Array, Array]:
        """The shared fits, each times the factor at which it diverges least: their decisions fix no scale."""
        weights, constant = self._stack(models)
        loss = Divergence(pool.logits * sharpness)
        sizes = 2.0 ** np.arange(-8, 8.1, 0.5)
        for k in range(len(models)):
            logits = pool.features.logits(weights[k], constant[k])
            first = sharpness * _spread(pool.logits) / max(_spread(logits), 1e-300)
            tried = [
                float(loss((logits * np.float32(first * size))[None], slice(None), weight[k : k + 1])[0][0])
                for size in sizes
            ]
            factor = first * float(sizes[int(np.argmin(tried))])
            weights[k], constant[k] = weights[k] * factor, constant[k] * factor
        return weights, constant


def _spread(logits: NDArray[Any]) -> float:
    """The root mean square of logits (K, n) about their mean over the classes."""
    centre = logits.mean(axis=0) if logits.shape[0] > 1 else 0.0
    return float(np.sqrt(np.mean(np.square(logits - centre, dtype=np.float64))))


def _learned(name: str) -> LearnedFamily:
    family = FAMILIES.get(name)
    assert isinstance(family, LearnedFamily)
    return family


def _setting(judged: Judged) -> Setting:
    assert judged.setting is not None
    return judged.setting


def _ties(candidate: Judged, best: Judged) -> bool:
    behind, error = candidate.behind(best)
    return behind <= error


def _no_worse(candidate: Judged, shared: Judged) -> bool:
    return (
        float(candidate.score.mean()) >= float(shared.score.mean()) and candidate.kept[0].sum() >= shared.kept[0].sum()
    )
