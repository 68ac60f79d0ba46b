"""Every way of replacing ReLU, measured on the same samples: what it keeps of the model's decisions and what it costs.

Decides the set of baselines and how they are measured, in one sweep over the calibration set and one over the test
set. The fitted quadratics come in as `replacements`; fitting them is left to `compare`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quad4fhe._arrays import Array, BoolArray, IntArray, row_chunks, samples
from quad4fhe._progress import Progress, silent
from quad4fhe._threads import few_threads
from quad4fhe.errors import InputError
from quad4fhe.mlp import MLP, decide
from quad4fhe.polynomials.comparison import Comparison, Row
from quad4fhe.polynomials.least_squares import least_squares
from quad4fhe.polynomials.ola import ola
from quad4fhe.polynomials.polynomial import Polynomial
from quad4fhe.polynomials.preactivations import PreActivations, preactivations
from quad4fhe.polynomials.precise import precise
from quad4fhe.polynomials.remez import remez
from quad4fhe.polynomials.square import square
from quad4fhe.quadratic import QuadraticModel

DEGREES = (2, 3, 5, 7)  # of the least-squares and the Remez baselines

_ROWS_AT_WORK = 4  # arrays of the size of a chunk's pre-activations that are alive at once


def baselines(data: PreActivations) -> tuple[Polynomial, ...]:
    """The published baselines, fitted to these calibration pre-activations: from the cheapest to the most precise."""
    lo, hi = data.lo, data.hi
    return (
        square(),
        *(least_squares(degree, lo, hi) for degree in DEGREES),
        *(remez(degree, lo, hi) for degree in DEGREES),
        ola(data),
        precise(data.bound),
    )


@dataclass
class _Candidate:
    """One replacement and what has been counted of it so far."""

    name: str
    logits: Callable[[Array, Array], Array]  # (pre-activations, inputs) -> logits, one chunk at a time
    polynomial: Polynomial | None = None
    quadratic: bool = False
    agree: dict[str, int] = field(default_factory=lambda: {"X_cal": 0, "X_test": 0})
    nonfinite: int = 0
    outside_values: int = 0
    outside_samples: int = 0
    confusion: IntArray | None = None  # (classes, classes + 1): labels by decisions; the last column is "overflow"


@few_threads()
def measure(
    mlp: MLP,
    X_cal: ArrayLike,
    X_test: ArrayLike,
    y_test: ArrayLike | None = None,
    *,
    replacements: Mapping[str, QuadraticModel] | None = None,
    polynomials: Sequence[Polynomial] | None = None,
    progress: Progress = silent,
) -> Comparison:
    """Measure the ReLU model, the baselines (or the given `polynomials`) and the `replacements` on the same samples.

    Intervals, weights and bounds come from X_cal alone.

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
        Fitted quadratics, by name.
    polynomials
        Activations to measure instead of the published baselines.
    progress
        Progress callback (what, done, total).
    """
    cal, test = samples("X_cal", X_cal, mlp.features), samples("X_test", X_test, mlp.features)
    if test.shape[0] == 0:
        raise InputError("X_test has no rows; pass at least one test sample")
    labels = None if y_test is None else _labels(y_test, test.shape[0], mlp.classes)
    data = preactivations(mlp, cal, progress)
    chosen = baselines(data) if polynomials is None else tuple(polynomials)
    candidates = [_relu(mlp)]
    candidates += [_with_polynomial(mlp, polynomial) for polynomial in chosen]
    candidates += [_with_quadratic(mlp, name, model) for name, model in (replacements or {}).items()]
    names = [candidate.name for candidate in candidates]
    if len(set(names)) < len(names):
        raise InputError(f"each replacement needs a name of its own, but these were given: {', '.join(names)}")
    _sweep("X_cal", cal, None, mlp, candidates, progress)
    _sweep("X_test", test, labels, mlp, candidates, progress)
    rows = tuple(_row(candidate, cal.shape[0], test.shape[0], mlp.units, data) for candidate in candidates)
    return Comparison(rows, (data.lo, data.hi), cal.shape[0], test.shape[0], mlp.sha256)


def _relu(mlp: MLP) -> _Candidate:
    return _Candidate("ReLU", lambda y, x: np.maximum(y, 0.0) @ mlp.W2.T + mlp.b2)


def _with_polynomial(mlp: MLP, polynomial: Polynomial) -> _Candidate:
    return _Candidate(polynomial.name, lambda y, x: polynomial(y) @ mlp.W2.T + mlp.b2, polynomial)


def _with_quadratic(mlp: MLP, name: str, model: QuadraticModel) -> _Candidate:
    if (model.features, model.outputs) != (mlp.features, mlp.outputs):
        raise InputError(
            f"replacement {name!r} takes {model.features} features to {model.outputs} logits, "
            f"but the model takes {mlp.features} to {mlp.outputs}"
        )
    if np.array_equal(model.W1, mlp.W1) and np.array_equal(model.b1, mlp.b1):
        return _Candidate(name, lambda y, x: (y * y) @ model.S.T + y @ model.T.T + model.c, quadratic=True)
    return _Candidate(name, lambda y, x: model.logits(x), quadratic=True)


def _sweep(
    part: str,
    X: NDArray[Any],
    labels: IntArray | None,
    mlp: MLP,
    candidates: list[_Candidate],
    progress: Progress,
) -> None:
    """Count agreements (and, on the test set, everything else) of all candidates in one pass over X."""
    for rows, chunk in row_chunks(part, X, 8 * (mlp.features + _ROWS_AT_WORK * mlp.units)):
        # Overflow is no surprise here: a degree-31 polynomial far outside its interval. It is counted, not warned of.
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
    if candidate.quadratic:
        degree, depth, products = 2, 1, 1  # affine, square, affine: the coefficients fold into the affine maps
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
    seen = either > 0
    return float((2.0 * hits[seen] / either[seen]).mean())


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
