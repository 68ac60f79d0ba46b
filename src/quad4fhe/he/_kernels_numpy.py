"""The element-by-element steps on residues in plain numpy; `_kernels_numba` is the same contract, compiled.

Residues are float64 integers, centred: |r| <= q/2 + SLACK. Products of two of them pass 2^53, so they are taken in
two halves here and with a fused multiply-add there; what leaves `store` is canonical, so both agree in bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array

NAME = "numpy"
_HALF = 2.0**15  # splits a 31-bit factor; each half times a centred residue stays below 2^47


def load(words: NDArray[Any], q: int, out: Array) -> None:
    """Unsigned residues (d, p, T) to centred float64 of the same shape."""
    np.copyto(out, words, casting="unsafe")
    out -= np.where(out > q // 2, float(q), 0.0)


def centre(values: Array, q: int) -> None:
    """Reduce exact integers |v| <= 2^53 in place to centred residues."""
    values -= np.rint(values * (1.0 / q)) * float(q)


def raise_limb(high: Array, rows: NDArray[np.intp], low: Array, q: int, step: float) -> None:
    """low[rows] += step * (high mod q): one Horner step from a higher limb (r, n) into a lower one (m, n)."""
    centre(high, q)
    high *= step
    low[rows] += high


def square(values: Array, bias: Array, q: int, out: Array) -> None:
    """(c0 + bias, c1) of (m, 2, T) to the three polynomials of the square, (m, 3, T), centred."""
    values[:, 0] += bias[:, None]
    centre(values, q)
    first, second = values[:, 0], values[:, 1]
    _product(first, first, q, out[:, 0])
    _product(first + first, second, q, out[:, 1])
    _product(second, second, q, out[:, 2])


def _product(left: Array, right: Array, q: int, out: Array) -> None:
    high = np.rint(left * (1.0 / _HALF))
    low = left - high * _HALF
    high *= right
    centre(high, q)
    high *= _HALF
    low *= right
    np.add(high, low, out=out)
    centre(out, q)


def store(values: Array, bias: Array, q: int, out: NDArray[np.uint32]) -> None:
    """(K, 3, T) exact integers plus a bias on the first polynomial, to canonical residues in [0, q)."""
    values[:, 0] += bias[:, None]
    centre(values, q)
    values += np.where(values < 0, float(q), 0.0)
    values -= np.where(values >= q, float(q), 0.0)
    np.copyto(out, values, casting="unsafe")
