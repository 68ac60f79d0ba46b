"""Measure every way to replace ReLU on the same samples: the decisions that it keeps, and what it costs.

A new baseline is one file and one name in `BASELINES`. All are measured in one pass over the calibration set and one
over the test set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quad4fhe._arrays import Array, BoolArray, IntArray, row_chunks, samples
from quad4fhe._progress import Progress, silent
from quad4fhe._threads import few_threads
from quad4fhe.errors import InputError
from quad4fhe.fitting.families import DEGREES as FITTED
from quad4fhe.mlp import MLP, decide
from quad4fhe.polynomial import PolynomialModel
from quad4fhe.report.preactivations import PreActivations
from quad4fhe_reproduce.baselines import least_squares, ola, precise, quadratics, remez, square
from quad4fhe_reproduce.baselines.comparison import Comparison, Row
from quad4fhe_reproduce.baselines.polynomial import Polynomial
from quad4fhe_reproduce.baselines.problem import Baseline, Problem, Replacement

if TYPE_CHECKING:
    from quad4fhe.fitting import Fit

BASELINES: tuple[Baseline, ...] = tuple(
    module.BASELINE for module in (square, least_squares, remez, ola, precise, quadratics)
)
"""All replacements that `compare` measures, from the cheapest to the most precise; ours come last."""

_RELU = "ReLU"
_ROWS_AT_WORK = 4  # arrays of the size of a chunk's pre-activations that are alive at once


@dataclass
class _Candidate:
    """One replacement and its counts so far."""

    name: str
    logits: Callable[[Array, Array], Array]  # (pre-activations, inputs) -> logits, one chunk at a time
    polynomial: Polynomial | None = None
    model: PolynomialModel | None = None
    agree: dict[str, int] = field(default_factory=lambda: {"X_cal": 0, "X_test": 0})
    nonfinite: int = 0
    outside_values: int = 0
    outside_samples: int = 0
    confusion: IntArray | None = None  # (classes, classes + 1): labels by decisions; the last column is "overflow"


def published_names() -> tuple[str, ...]:
    """The names of the published baselines, from the cheapest to the most precise."""
    return tuple(name for entry in BASELINES if entry.published for name in entry.names)


def fitted(problem: Problem, *, published: bool) -> dict[str, Replacement]:
    """The published baselines, or ours, fitted to a problem, by name."""
    return {
        name: replacement
        for entry in BASELINES
        if entry.published == published
        for name, replacement in entry.fit(problem).items()
    }


@few_threads()
def compare(
    mlp: MLP,
    X_cal: ArrayLike,
    X_test: ArrayLike,
    y_test: ArrayLike | None = None,
    *,
    fits: Mapping[str, Fit] | None = None,
    auto: bool = False,
    degree: int | None = None,
    seed: int = 2026,
    progress: Progress = silent,
) -> Comparison:
    """Measure the ReLU model, the published baselines and our fits side by side on the same samples.

    Everything is fitted on X_cal alone. The result prints as a table.

    Parameters
    ----------
    mlp
        The trained classifier.
    X_cal
        Calibration samples (n, d).
    X_test
        Test samples (n, d).
    y_test
        Class ids 0 to K-1 of the test samples; they add accuracy and F1.
    fits
        The fits to show, by name; by default the paper's own (Quad) and, where it differs, the polished one.
    auto
        Also fit the family that cross-validates best, which takes longer.
    degree
        Also compare at this degree (2, 3, 4, 6 or 8): least squares, Remez, OLA, and a polynomial for every unit.
    seed
        Seed of the fits.
    progress
        Progress callback (what, done, total).
    """
    mlp, X_cal, X_test = _head(mlp, X_cal, X_test)
    if degree is not None and (isinstance(degree, bool) or degree not in FITTED):
        raise InputError(f"degree is {degree!r}, wanted one of {', '.join(map(str, FITTED))}, or None")
    test, labels = _test_part(mlp, X_test, y_test)
    problem = Problem(mlp, samples("X_cal", X_cal, mlp.features), auto, seed, progress, degree)
    ours = fitted(problem, published=False) if fits is None else {name: each.model for name, each in fits.items()}
    published = fitted(problem, published=True)
    if twice := published.keys() & ours.keys():
        raise InputError(f"each fit needs a name of its own, and {min(twice)!r} is a baseline; rename the fit")
    return _measured(problem, test, labels, published | ours)


@few_threads()
def measure(
    mlp: MLP,
    X_cal: ArrayLike,
    X_test: ArrayLike,
    y_test: ArrayLike | None = None,
    *,
    replacements: Mapping[str, Replacement] | None = None,
    progress: Progress = silent,
) -> Comparison:
    """Measure the ReLU model and the given replacements, by default the published baselines, on the same samples.

    Intervals and bounds come from X_cal alone.

    Parameters
    ----------
    mlp
        The trained classifier.
    X_cal
        Calibration samples (n, d).
    X_test
        Test samples (n, d).
    y_test
        Class ids 0 to K-1 of the test samples; they add accuracy and F1.
    replacements
        Polynomials and fitted models, by name.
    progress
        Progress callback (what, done, total).
    """
    mlp, X_cal, X_test = _head(mlp, X_cal, X_test)
    test, labels = _test_part(mlp, X_test, y_test)
    problem = Problem(mlp, samples("X_cal", X_cal, mlp.features), progress=progress)
    chosen = fitted(problem, published=True) if replacements is None else replacements
    return _measured(problem, test, labels, chosen)


def _head(mlp: MLP, X_cal: ArrayLike, X_test: ArrayLike) -> tuple[MLP, ArrayLike, ArrayLike]:
    """The head of a model with a feature part, and the features of both data sets."""
    if not mlp.activation.is_default:
        raise InputError(
            f"compare measures replacements of ReLU, and this model has {mlp.activation}; use fit, which needs no ReLU"
        )
    return mlp.with_feature_part(None), mlp.inputs(X_cal), mlp.inputs(X_test)


def _test_part(mlp: MLP, X_test: ArrayLike, y_test: ArrayLike | None) -> tuple[NDArray[Any], IntArray | None]:
    mlp.require_one_hidden("compare")
    test = samples("X_test", X_test, mlp.features)
    if test.shape[0] == 0:
        raise InputError("X_test has no rows; pass at least one test sample")
    return test, None if y_test is None else _labels(y_test, test.shape[0], mlp.classes)


def _measured(
    problem: Problem, test: NDArray[Any], labels: IntArray | None, replacements: Mapping[str, Replacement]
) -> Comparison:
    mlp, cal, progress, data = problem.mlp, problem.X_cal, problem.progress, problem.preactivations
    if _RELU in replacements:
        raise InputError(f"{_RELU!r} is the name of the model itself; give the replacement another name")
    relu = _Candidate(_RELU, lambda y, x: np.maximum(y, 0.0) @ mlp.W2.T + mlp.b2)
    candidates = [relu, *(_candidate(mlp, name, each) for name, each in replacements.items())]
    _sweep("X_cal", cal, None, mlp, candidates, progress)
    _sweep("X_test", test, labels, mlp, candidates, progress)
    rows = tuple(_row(candidate, cal.shape[0], test.shape[0], mlp.units, data) for candidate in candidates)
    return Comparison(rows, (data.lo, data.hi), cal.shape[0], test.shape[0], mlp.sha256)


def _candidate(mlp: MLP, name: str, model: Replacement) -> _Candidate:
    if isinstance(model, Polynomial):
        polynomial = model
        return _Candidate(name, lambda y, x: polynomial(y) @ mlp.W2.T + mlp.b2, polynomial)
    if (model.features, model.outputs) != (mlp.features, mlp.outputs):
        raise InputError(
            f"replacement {name!r} takes {model.features} features to {model.outputs} logits, "
            f"but the model takes {mlp.features} to {mlp.outputs}"
        )
    if np.array_equal(model.W1, mlp.W1) and np.array_equal(model.b1, mlp.b1):
        return _Candidate(name, lambda y, x: model.head(y), model=model)
    return _Candidate(name, lambda y, x: model.logits(x), model=model)


def _sweep(
    part: str,
    X: NDArray[Any],
    labels: IntArray | None,
    mlp: MLP,
    candidates: list[_Candidate],
    progress: Progress,
) -> None:
    """Count the agreements of all candidates in one pass over X; on the test set, all other figures too."""
    for rows, chunk in row_chunks(part, X, 8 * (mlp.features + _ROWS_AT_WORK * mlp.units)):
        # A degree-31 polynomial overflows far outside its interval; this is counted, so no warning is needed.
        with np.errstate(over="ignore", invalid="ignore"):
            y = chunk @ mlp.W1.T + mlp.b1
            wanted: IntArray | None = None
            for candidate in candidates:
                logits = candidate.logits(y, chunk)
                finite = np.asarray(np.isfinite(logits).all(axis=1))
                decisions = decide(logits)
                if wanted is None:  # the first candidate is the ReLU model itself
                    if not finite.all():
                        raise InputError(f"the ReLU model's own logits overflow on {part}; scale the features first")
                    wanted = decisions
                candidate.agree[part] += int(((decisions == wanted) & finite).sum())
                candidate.nonfinite += int((~finite).sum())
                if labels is not None:
                    _count_labels(candidate, labels[rows], decisions, finite, mlp.classes)
            if part == "X_test":
                _count_outside(candidates, y)
        progress("comparing on the " + ("calibration" if part == "X_cal" else "test") + " set", rows.stop, len(X))


def _count_labels(
    candidate: _Candidate, labels: IntArray, decisions: IntArray, finite: BoolArray, classes: int
) -> None:
    cells = labels * (classes + 1) + np.where(finite, decisions, classes)
    table = np.bincount(cells, minlength=classes * (classes + 1)).reshape(classes, classes + 1)
    candidate.confusion = table if candidate.confusion is None else candidate.confusion + table


def _count_outside(candidates: list[_Candidate], y: Array) -> None:
    lowest, highest = float(y.min()), float(y.max())
    for candidate in candidates:
        polynomial = candidate.polynomial
        if polynomial is None or polynomial.interval is None:
            continue
        if lowest < polynomial.interval[0] or highest > polynomial.interval[1]:
            outside = polynomial.outside(y)
            candidate.outside_values += int(outside.sum())
            candidate.outside_samples += int(outside.any(axis=1).sum())


def _row(candidate: _Candidate, n_cal: int, n_test: int, units: int, data: PreActivations) -> Row:
    polynomial, confusion = candidate.polynomial, candidate.confusion
    degree = depth = products = error = outside_values = outside_samples = None
    if candidate.model is not None:
        # Affine, powers, affine: the coefficients fold into the affine maps.
        degree = candidate.model.degree
        depth, products = (degree - 1).bit_length(), degree - 1
    if polynomial is not None:
        degree, depth, products = polynomial.degree, polynomial.depth, polynomial.products
        with np.errstate(over="ignore", invalid="ignore"):
            error = polynomial.activation_error(data.lo, data.hi)
        if polynomial.interval is not None:
            outside_values = candidate.outside_values / (n_test * units)
            outside_samples = candidate.outside_samples / n_test
    return Row(
        name=candidate.name,
        agreement_cal=candidate.agree["X_cal"] / n_cal,
        agreement_test=candidate.agree["X_test"] / n_test,
        accuracy=None if confusion is None else float(np.trace(confusion[:, :-1]) / n_test),
        macro_f1=None if confusion is None else _macro_f1(confusion),
        degree=degree,
        depth=depth,
        products=products,
        activation_error=error,
        outside_values=outside_values,
        outside_samples=outside_samples,
        clipped=polynomial is not None and polynomial.gate is not None,
        nonfinite_samples=candidate.nonfinite,
    )


def _macro_f1(confusion: IntArray) -> float:
    """The mean F1 over the classes that occur among the labels or the decisions."""
    hits = np.diagonal(confusion)
    either = confusion.sum(axis=1) + confusion[:, :-1].sum(axis=0)
    occurs = either > 0
    return float((2.0 * hits[occurs] / either[occurs]).mean())


def _labels(y_test: ArrayLike, n: int, classes: int) -> IntArray:
    labels = np.asarray(y_test)
    if labels.shape != (n,):
        raise InputError(f"y_test has shape {labels.shape}, but X_test has {n} rows: wanted ({n},)")
    if labels.dtype.kind not in "biuf" or not np.array_equal(labels, np.floor(labels)):
        first = str(labels.flat[0])
        raise InputError(f"y_test holds {first!r}, wanted class ids 0 to {classes - 1} as whole numbers")
    if labels.min() < 0 or labels.max() >= classes:
        raise InputError(
            f"y_test holds class ids {labels.min():g} to {labels.max():g}, but the model decides 0 to {classes - 1}"
        )
    return labels.astype(np.int64)
