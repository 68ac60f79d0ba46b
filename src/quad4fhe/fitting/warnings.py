"""What may be wrong with a fit though nothing failed: lines for its headline.

Each is one sentence of `notes`. A fit with a warning is still made, and its certificate still holds: warnings are about
what the calibration rows can tell of others.
"""

from __future__ import annotations

import numpy as np

from quad4fhe._arrays import Array, IntArray
from quad4fhe.fitting import notes
from quad4fhe.fitting.diagnostics import Accuracy, Agreement
from quad4fhe.io.rows import Rows
from quad4fhe.mlp import MLP
from quad4fhe.proof.guarantee import margins_of

PER_CLASS = 10
"""Calibration rows for each class below which a fit says little about other rows."""
_ROWS, _BLOCKS = 2_000, 4  # that the scale of the features is judged on
_STILL = 0.5  # of the hidden units that never switch; in trained networks hardly any of those that ever do
_HUGE = 1e3  # between the two largest logits: a softmax that was trained reaches 1 to 100
_LESS = 0.01  # of the share on calibration rows that others may lose without a word, and
_ERRORS = 3.0  # standard errors of it
_LOST = 0.02  # of the decisions: more are worth another try
_SATURATED = ("sigmoid", "tanh", "hard_sigmoid", "hardtanh", "softsign")  # they have no side where they are off


def too_few(samples: int, classes: int) -> bool:
    """Whether so many calibration rows are too few to say anything of others."""
    return samples < PER_CLASS * classes


def about_classes(decided: IntArray, classes: int) -> list[str]:
    """Too few rows, classes without any, and classes with few."""
    counts = np.bincount(decided, minlength=classes)
    found = [notes.FEW_ROWS.format(decided.size, classes)] if too_few(decided.size, classes) else []
    missing, few = np.flatnonzero(counts == 0), np.flatnonzero((counts > 0) & (counts < PER_CLASS))
    if missing.size:
        found.append(notes.MISSING.format(missing.size, classes, missing[0]))
    if few.size and not too_few(decided.size, classes):
        found.append(notes.FEW_OF_CLASS.format(PER_CLASS, few.size, classes, few[0], counts[few[0]]))
    return found


def about_scale(mlp: MLP, rows: Rows) -> list[str]:
    """Features that are much smaller or larger than those of training, as far as the network itself shows it."""
    X, found = _some(rows), []
    with np.errstate(over="ignore", invalid="ignore"):  # the fit itself refuses numbers that overflow
        y = mlp.hidden(X)
        margins = margins_of(mlp.logits(X)) if mlp.network is None else np.zeros(1)
    on = (y > 0).mean(axis=0)
    still = int(np.count_nonzero((on < 0.02) | (on > 0.98)))
    always = int(np.count_nonzero(on > 0.98))
    # Units that training switched off for good are common, but they are off, not on.
    if len(X) >= 50 and mlp.activation.name not in _SATURATED and still > _STILL * mlp.units and 4 * always > still:
        found.append(notes.STILL_UNITS.format(still, mlp.units))
    if np.isfinite(margins).all() and np.median(margins) > _HUGE:
        found.append(notes.HUGE_LOGITS.format(np.median(margins)))
    return found


def about_other_rows(
    kept: Agreement, other: Agreement, right: Accuracy | None, other_right: Accuracy | None
) -> list[str]:
    """Calibration rows that the network or the fit treats much better than other rows, as it does those of training."""
    if right is not None and other_right is not None:
        shares = right.network / right.samples, other_right.network / other_right.samples
        if _falls(*shares, right.samples, other_right.samples):
            return [notes.KNOWN_ROWS.format(*(100 * share for share in shares))]
    if _falls(kept.agreement, other.agreement, kept.samples, other.samples):
        return [notes.KEPT_LESS.format(100 * kept.agreement, 100 * other.agreement)]
    return []


def is_lossy(kept: Agreement) -> bool:
    """Whether so many decisions are lost that a higher degree or more rows are worth a try."""
    return kept.agreement < 1 - _LOST


def _falls(first: float, second: float, samples: int, others: int) -> bool:
    pooled = (first * samples + second * others) / (samples + others)
    error = np.sqrt(pooled * (1 - pooled) * (1 / samples + 1 / others))
    return first - second > max(_LESS, _ERRORS * float(error))


def _some(rows: Rows) -> Array:
    """Up to `_ROWS` rows in blocks spread over the data, because rows are often sorted by class."""
    n = rows.shape[0]
    if n <= _ROWS:
        return np.asarray(rows.part(0, n), dtype=np.float64)
    size = _ROWS // _BLOCKS
    parts = [rows.part(at := k * (n - size) // (_BLOCKS - 1), at + size) for k in range(_BLOCKS)]
    return np.concatenate([np.asarray(part, dtype=np.float64) for part in parts])
