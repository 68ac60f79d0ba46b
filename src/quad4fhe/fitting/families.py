"""Which family, how sharp, how strong a prior: chosen by cross-validation, the smaller one on a tie within one error.

Decides between shared, unitwise and head, which cost the same under encryption, on held-out decisions alone. Every
family is drawn towards the shared fit, so that the strongest prior is the paper's replacement itself. How a family is
fitted at one strength is left to `distil`, which rows inform which to `pool`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_changes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array, BoolArray, IntArray
from quad4fhe._progress import Progress
from quad4fhe.fitting.distil import Parametrisation, distil
from quad4fhe.fitting.head import Head
from quad4fhe.fitting.losses import Divergence, Hinge, Loss
from quad4fhe.fitting.pool import FOLDS, Pool, stratified_folds, stratified_rows
from quad4fhe.fitting.standardised import Single, Standardised
from quad4fhe.fitting.trials import FamilyStep, FamilyTrial
from quad4fhe.fitting.unitwise import Unitwise
from quad4fhe.mlp import MLP
from quad4fhe.quadratic import QuadraticModel

ORDER = ("shared", "unitwise", "head")
SHARPNESS = (1.0, 4.0)
"""Factors on the ReLU logits before their softmax: few rows are best told all (1), many rows only what decides (4)."""
STRENGTHS = (100.0, 10.0, 1.0, 0.1)
"""How many rows the prior is worth, per unit of squared distance; tried from strong to weak."""

_CV_ROWS = 10_000  # a strength is counted in rows, so one chosen on this many serves all of them
_ROUNDS, _TOLERANCE = 60, 1e-4
_FEW_ROUNDS = 30  # where rows are few enough to be filled up, stopping early costs no agreement
_TETHER = 100.0  # how much stronger the finish is tied to the solution so far than that was to its prior
_WIDTH = 1.0  # margin that the finish asks for, in the ReLU model's own logits
Priors = Callable[[IntArray], QuadraticModel]


@dataclass(frozen=True)
class Setting:
    """What cross-validation chooses within a family."""

    sharpness: float
    strength: float
    finish: bool = False

    @property
    def regime(self) -> str:
        """The name that a fit carries: the loss, and its finish on the decisions if there was one."""
        return "kl+hinge" if self.finish else "kl"


@dataclass(frozen=True)
class Judged:
    """A setting (None for shared), its fold problems' weights and constants, and the held-out decisions they keep.

    `kept` is (1 + blends, n): the real rows, then the made ones.
    """

    family: str
    setting: Setting | None
    kept: BoolArray
    point: tuple[Array, Array]

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
        """What is reported of it."""
        real = self.kept[0]
        share = float(real.mean())
        return FamilyTrial(
            family=self.family,
            agreement=share,
            spread=float(np.sqrt(share * (1.0 - share) / real.size)),
            made_agreement=float(self.kept[1:].mean()) if self.kept.shape[0] > 1 else None,
            rows=int(real.size),
            folds=FOLDS,
            sharpness=None if self.setting is None else self.setting.sharpness,
            strength=None if self.setting is None else self.setting.strength,
            finish=self.setting is not None and self.setting.finish,
        )


class Families:
    """The families of one fit: judged on folds of the calibration set, fitted on all of it."""

    def __init__(
        self,
        mlp: MLP,
        X: NDArray[Any],
        decided: IntArray,
        shared: QuadraticModel,
        priors: Priors,
        *,
        seed: int,
        budget: int,
        progress: Progress,
    ) -> None:
        """Prepare for X (n, d), its decisions (n,), the shared fit to all rows and `priors`, which fits it to some."""
        self.mlp, self.shared, self._progress = mlp, shared, progress
        self._features = Standardised(mlp, X, budget)
        fold = stratified_folds(decided, seed)
        self._pool = Pool.of(mlp, X, fold, self._features, seed)
        rows, part = np.arange(X.shape[0]), self._pool
        if X.shape[0] > _CV_ROWS:
            rows = stratified_rows(decided, _CV_ROWS, seed)
            fold = stratified_folds(decided[rows], seed)
            part = Pool.of(mlp, X[rows], fold, self._features.take(rows), seed)
        self._part = part
        self._fold_priors = []
        for k in range(FOLDS):
            progress("cross-validation of shared", k, FOLDS)
            self._fold_priors.append(priors(rows[fold != k]))
        self.trace: list[FamilyStep] = []
        weights, constants = self._stack(self._fold_priors)
        self.judged = {"shared": Judged("shared", None, part.held_out(weights, constants), (weights, constants))}

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
        shared = self.judged["shared"]
        usable = [self.judged[name] for name in ORDER if name in self.judged]
        usable = [each for each in usable if each is shared or _no_worse(each, shared)]
        best = max(usable, key=lambda each: float(each.score.mean()))
        return next(each.family for each in usable if _ties(each, best))

    def eligible(self) -> list[str]:
        """The families that do not cross-validate worse than shared, smallest first."""
        shared = self.judged["shared"]
        return [name for name in ORDER if name in self.judged and _no_worse(self.judged[name], shared)]

    def fit(self, family: str) -> tuple[Array, Array, Array]:
        """S (K, m), T (K, m), c (K,) of a judged family, on all rows."""
        setting = _setting(self.judged[family])
        pool, weight = self._pool, self._pool.weights()
        steps = STRENGTHS[: STRENGTHS.index(setting.strength) + 1]
        self._progress(f"{family} on all rows", 0, 0)
        # By the same steps as in the folds: what was judged is where they lead, not where endless descent would.
        *_, (_, point) = self._descent(family, [self.shared], pool, weight, setting.sharpness, steps)
        if setting.finish:
            point = self._sharpen(family, pool, weight, *point, setting)
        # Back on the scale of the ReLU model's own logits; no decision depends on it.
        weights, constant = point[0][0] / setting.sharpness, point[1][0] / setting.sharpness
        return self._features.scales.coefficients(weights, constant)

    def _path(self, family: str, sharpness: float) -> Sequence[Judged]:
        pool, weight = self._part, self._part.fold_weights()
        path: list[Judged] = []
        for setting, point in self._descent(family, self._fold_priors, pool, weight, sharpness, STRENGTHS):
            path.append(self._judge_point(family, setting, *point))
            best = max(path, key=lambda step: float(step.score.mean()))
            behind, error = path[-1].behind(best)
            self._progress(f"cross-validation of {family}, sharpness {sharpness:g}", len(path), len(STRENGTHS))
            if behind > 2 * error:
                break  # weaker priors only overfit further
        return path

    def _descent(
        self,
        family: str,
        priors: Sequence[QuadraticModel],
        pool: Pool,
        weight: Single,
        sharpness: float,
        strengths: Sequence[float],
    ) -> Iterator[tuple[Setting, tuple[Array, Array]]]:
        """From the priors to ever weaker strengths, each from where the one before it ended."""
        point = self._scaled_priors(priors, pool, weight, sharpness)
        problem = self._problem(family, *point, pool, sharpness)
        loss = Divergence(pool.logits * sharpness)
        for strength in strengths:
            setting = Setting(sharpness, strength)
            point = self._descend(problem, loss, pool, weight, point, setting)
            yield setting, point

    def _finish(self, family: str, chosen: Judged) -> Judged:
        setting = _setting(chosen)
        self._progress(f"cross-validation of {family}, finish", 0, 0)
        pool, weight = self._part, self._part.fold_weights()
        point = self._sharpen(family, pool, weight, *chosen.point, setting)
        return self._judge_point(family, Setting(setting.sharpness, setting.strength, finish=True), *point)

    def _judge_point(self, family: str, setting: Setting, weights: Array, constant: Array) -> Judged:
        judged = Judged(family, setting, self._part.held_out(weights, constant), (weights, constant))
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
            )
        )
        return judged

    def _descend(
        self,
        problem: Parametrisation,
        loss: Loss,
        pool: Pool,
        weight: Single,
        start: tuple[Array, Array],
        setting: Setting,
    ) -> tuple[Array, Array]:
        rounds = _FEW_ROUNDS if pool.blends else _ROUNDS
        # Sharper targets make the loss larger in proportion and squared distances by its square; once is left over.
        problem.strengthen(setting.strength / (pool.real * setting.sharpness))
        weights, constant, _ = distil(pool.features, problem, loss, weight, start, rounds=rounds, tolerance=_TOLERANCE)
        return weights, constant

    def _sharpen(
        self, family: str, pool: Pool, weight: Single, weights: Array, constant: Array, setting: Setting
    ) -> tuple[Array, Array]:
        """The finish on the decisions, with the solution so far as its prior."""
        problem = self._problem(family, weights, constant, pool, setting.sharpness)
        loss = Hinge(pool.decided, _WIDTH * setting.sharpness)
        tied = with_changes(setting, strength=_TETHER * setting.strength)
        return self._descend(problem, loss, pool, weight, (weights, constant), tied)

    def _problem(self, family: str, weights: Array, constant: Array, pool: Pool, sharpness: float) -> Parametrisation:
        if family == "head":
            return Head(weights, constant, pool.moments)
        return Unitwise(self.mlp, weights, constant, pool.moments, sharpness)

    def _stack(self, models: Sequence[QuadraticModel]) -> tuple[Array, Array]:
        pairs = [self._features.scales.weights(model.S, model.T, model.c) for model in models]
        return np.array([weights for weights, _ in pairs]), np.array([constant for _, constant in pairs])

    def _scaled_priors(
        self, models: Sequence[QuadraticModel], pool: Pool, weight: Single, sharpness: float
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
