"""Measure a model and its replacements on labelled data: agreement, accuracy, F1 and AUC, by class and by margin.

Decides how each figure is computed, in one way for all of them. Which fits are measured is left to `runs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from msgspec import structs

from quad4fhe._arrays import Array, IntArray
from quad4fhe.fitting import Fit
from quad4fhe.fitting.families import FAMILIES
from quad4fhe.mlp import MLP, decide
from quad4fhe_reproduce.baselines import Polynomial, Problem, measure
from quad4fhe_reproduce.baselines import fitted as fitted_baselines
from quad4fhe_reproduce.prepare import Features, Parts
from quad4fhe_reproduce.records import Fitted, Measured

_DIGITS = 5  # of figures by class and by tenth, which are shown with two


@dataclass(frozen=True, eq=False)
class Bench:
    """A trained model with the samples it is fitted to and judged on; ReLU logits are computed once."""

    mlp: MLP
    X_cal: Features
    X_test: Features
    y_test: IntArray

    @classmethod
    def full(cls, mlp: MLP, parts: Parts) -> Bench:
        """Calibrated on train and validation."""
        return cls(mlp, parts.X_cal, parts.X_test, parts.y_test)

    @cached_property
    def relu_test(self) -> Array:
        """The ReLU logits of the test set."""
        return self.mlp.logits(self.X_test)

    @cached_property
    def relu_cal(self) -> Array:
        """The ReLU logits of the calibration set."""
        return self.mlp.logits(self.X_cal)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.mlp.classes


def margins(logits: Array) -> Array:
    """How sure a model is: the gap between its two largest logits, or |score|; (n,)."""
    if logits.shape[1] == 1:
        return np.abs(logits[:, 0])
    top = np.partition(logits, -2, axis=1)
    return np.asarray(top[:, -1] - top[:, -2])


def measured(name: str, bench: Bench, agree_cal: int, logits: Array) -> Measured:
    """The figures of one model, given how many calibration decisions it keeps and its test logits."""
    with np.errstate(invalid="ignore"):
        decisions = decide(logits)
    n_cal, n_test = len(bench.X_cal), len(bench.X_test)
    agree = int((decisions == decide(bench.relu_test)).sum())
    scores = class_f1(bench.y_test, decisions, bench.classes)
    return Measured(
        name=name,
        agreement_cal=agree_cal / n_cal,
        agreement_test=agree / n_test,
        mismatches_cal=n_cal - agree_cal,
        mismatches_test=n_test - agree,
        accuracy=float((decisions == bench.y_test).mean()),
        macro_f1=float(np.mean([score for score in scores if score is not None])),
        auc=auc(bench.y_test, logits),
    )


def relu(bench: Bench) -> Measured:
    """The ReLU model itself."""
    return measured("ReLU", bench, len(bench.X_cal), bench.relu_test)


def fitted(name: str, bench: Bench, fit: Fit, seconds: float) -> Fitted:
    """One of our fits, with everything the paper's diagnostics ask for."""
    d = fit.diagnostics
    logits = fit.model.logits(bench.X_test)
    decisions, wanted = decide(logits), decide(bench.relu_test)
    own = not FAMILIES.get(fit.family).is_learned
    return Fitted(
        name=name,
        family=fit.family,
        regime=str(fit.regime),
        alpha=float(fit.alpha) if own else None,
        beta=float(fit.beta) if own else None,
        eta=float(fit.eta) if own else None,
        hard=d.hard,
        lossless=fit.certificate.statement == "lossless",
        margin=d.margin,
        normalised_margin=d.normalised_margin,
        constraints=None if bench.classes == 2 else len(bench.X_cal) * (bench.classes - 1),
        slack_count=None if d.slack is None else d.slack.count,
        slack_sum=None if d.slack is None else d.slack.sum,
        slack_max=None if d.slack is None else d.slack.max,
        critical_mu=d.critical_mu,
        gap=d.gap,
        decimals=d.quantisation.decimals,
        seconds=round(seconds, 3),
        measured=measured(name, bench, d.calibration.samples - d.calibration.mismatches, logits),
        class_f1=class_f1(bench.y_test, decisions, bench.classes),
        class_agreement=class_agreement(wanted, decisions, bench.classes),
        deciles=deciles(margins(bench.relu_test), decisions == wanted),
        estimates={trial.family: round(trial.agreement, _DIGITS) for trial in d.families},
        notes=d.notes,
    )


def measured_baselines(bench: Bench) -> list[Measured]:
    """The published baselines, fitted to the calibration pre-activations of this model."""
    chosen = fitted_baselines(Problem(bench.mlp, bench.X_cal), published=True)
    compared = measure(bench.mlp, bench.X_cal, bench.X_test, replacements=chosen)
    out = []
    for name, polynomial in chosen.items():
        assert isinstance(polynomial, Polynomial)
        row = compared[name]
        agree = round(row.agreement_cal * len(bench.X_cal))
        figures = measured(name, bench, agree, _logits(bench, polynomial))
        out.append(structs.replace(figures, degree=row.degree, depth=row.depth, products=row.products))
    return out


def _logits(bench: Bench, polynomial: Polynomial) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        logits = polynomial(bench.mlp.hidden(bench.X_test)) @ bench.mlp.W2.T + bench.mlp.b2
    return np.asarray(logits)


def class_f1(truth: IntArray, decisions: IntArray, classes: int) -> list[float | None]:
    """F1 of each class; None for one that occurs neither among the labels nor among the decisions."""
    from sklearn.metrics import f1_score

    scores = f1_score(truth, decisions, labels=np.arange(classes), average=None, zero_division=np.nan)
    return [None if np.isnan(score) else round(score, _DIGITS) for score in scores.tolist()]


def class_agreement(wanted: IntArray, decisions: IntArray, classes: int) -> list[float | None]:
    """Agreement on the samples of each ReLU decision; None where there are none."""
    kept = np.bincount(wanted[wanted == decisions], minlength=classes).tolist()
    total = np.bincount(wanted, minlength=classes).tolist()
    return [round(k / t, _DIGITS) if t else None for k, t in zip(kept, total, strict=True)]


def deciles(sureness: Array, kept: Sequence[bool] | np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[float]:
    """Agreement on each tenth of the samples, from the least sure to the surest."""
    order = np.argsort(sureness, kind="stable")
    parts = np.array_split(np.asarray(kept)[order], 10)
    return [round(float(part.mean()), _DIGITS) if part.size else 0.0 for part in parts]


def auc(truth: IntArray, logits: Array) -> float | None:
    """Macro one-against-rest area under the ROC curve of the softmax (K > 1) or the score; None where undefined.

    A class without test samples leaves the macro figure undefined, as in the paper's tables.
    """
    if not np.isfinite(logits).all():
        return None
    if logits.shape[1] == 1:
        return _area(truth == 1, logits[:, 0])
    shifted = logits - logits.max(axis=1, keepdims=True)
    shares = np.exp(shifted)
    shares /= shares.sum(axis=1, keepdims=True)
    areas = [_area(truth == label, shares[:, label]) for label in range(logits.shape[1])]
    known = [area for area in areas if area is not None]
    return float(np.mean(known)) if len(known) == len(areas) else None


def _area(positive: np.ndarray[tuple[int], np.dtype[np.bool_]], scores: Array) -> float | None:
    """The chance that a positive scores above a negative, ties counting half; None where there is no such pair."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(positive, scores)) if positive.any() and not positive.all() else None
