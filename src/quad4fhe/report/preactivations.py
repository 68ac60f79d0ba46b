"""The distribution of the calibration pre-activations, which the report draws below the polynomial.

Two streamed passes give the range, the mean, the deviation and a histogram of the n x m numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import ArrayLike

from quad4fhe._arrays import Array, row_chunks, samples
from quad4fhe._progress import Progress, silent
from quad4fhe.errors import InputError
from quad4fhe.mlp import MLP

_BINS = 4096
_LARGEST = 1e100  # squares and products of larger pre-activations would overflow


@dataclass(frozen=True, eq=False)
class PreActivations:
    """The range [lo, hi], mean and standard deviation of all y = W1 x + b1, and a histogram of them.

    `values` are the means of the occupied bins and `counts` their sizes. The bins are even in asinh of the standardised
    value: fine where most pre-activations are, and still there for an outlier a thousand deviations away.
    """

    lo: float
    hi: float
    mean: float
    deviation: float
    values: Array
    counts: Array

    @property
    def bound(self) -> float:
        """B = max|y|."""
        return max(abs(self.lo), abs(self.hi))

    @classmethod
    def of(cls, y: ArrayLike) -> PreActivations:
        """Summarise pre-activations that are already at hand."""
        flat = np.asarray(y, dtype=np.float64).reshape(1, -1)
        if flat.size == 0:
            raise InputError("there are no pre-activations to summarise; pass at least one sample")
        return _summarise(lambda _: [flat])


def _summarise(chunks: Callable[[int], Iterable[Array]]) -> PreActivations:
    """Summarise the arrays that `chunks` yields; it is called once for each pass, 0 and 1."""
    lo, hi, count, mean, squares = np.inf, -np.inf, 0, 0.0, 0.0
    for y in chunks(0):
        lo, hi = min(lo, float(y.min())), max(hi, float(y.max()))
        if not max(abs(lo), abs(hi)) <= _LARGEST:
            raise InputError(f"pre-activations range from {lo:.3g} to {hi:.3g}; scale the features to ordinary numbers")
        # Chunks are merged around their own means (Chan et al.); plain sums of squares would cancel.
        size, chunk_mean = y.size, float(y.mean())
        shift, total = chunk_mean - mean, count + y.size
        squares += float(np.square(y - chunk_mean).sum()) + shift * shift * (count * size / total)
        mean += shift * (size / total)
        count = total
    deviation = sqrt(squares / count) or hi - lo  # the squares of tiny pre-activations underflow
    if lo == hi:
        return PreActivations(lo, hi, lo, 0.0, np.array([lo]), np.array([float(count)]))
    first, last = (float(np.arcsinh((end - mean) / deviation)) for end in (lo, hi))
    counts, sums = np.zeros(_BINS), np.zeros(_BINS)
    for y in chunks(1):
        z = np.arcsinh((y.ravel() - mean) / deviation)
        bins = np.clip((z - first) * (_BINS / (last - first)), 0, _BINS - 1).astype(np.int64)
        counts += np.bincount(bins, minlength=_BINS)
        sums += np.bincount(bins, weights=y.ravel(), minlength=_BINS)
    used = counts > 0
    return PreActivations(lo, hi, mean, deviation, sums[used] / counts[used], counts[used])


def preactivations(mlp: MLP, X: ArrayLike, progress: Progress = silent) -> PreActivations:
    """Summarise the pre-activations of `mlp` on the calibration samples X (n, d), in two passes over the chunks."""
    checked = samples("X_cal", X, mlp.features)
    n = checked.shape[0]
    if n == 0:
        raise InputError("X_cal has no rows; pass at least one calibration sample")

    def chunks(sweep: int) -> Iterable[Array]:
        for rows, chunk in row_chunks("X_cal", checked, 8 * (mlp.features + 4 * mlp.units)):
            with np.errstate(over="ignore", invalid="ignore"):
                y = chunk @ mlp.W1.T + mlp.b1  # overflow shows in the range, which is checked
            yield y
            progress("reading the calibration set", sweep * n + rows.stop, 2 * n)

    return _summarise(chunks)
