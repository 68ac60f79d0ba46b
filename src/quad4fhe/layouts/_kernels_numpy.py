"""Element-by-element operations on residues in numpy; `_kernels_numba` has the same functions, compiled.

Residues are centred float64 integers: |r| <= q/2 + SLACK. A product of two can exceed 2^53, so this module computes it
in two halves, and `_kernels_numba` with a fused multiply-add. `store` makes residues canonical, so both agree bit for
bit.
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


def expand(values: Array, bias: Array, coefficients: Array, q: int, out: Array) -> None:
    """g(c0 + bias + s c1) of (m, 2, T) for g = sum_k a_k y^k: its coefficients in s, (m, degree + 1, T), centred.

    `coefficients` (degree, m) are centred residues of a_1 ... a_p; degree at least 2.
    """
    degree = coefficients.shape[0]
    values[:, 0] += bias[:, None]
    centre(values, q)
    x, y, a = values[:, 0], values[:, 1], coefficients[:, :, None]
    first = np.empty_like(x)
    _product(x, np.broadcast_to(a[-1], x.shape), q, first)
    b = [np.broadcast_to(each, x.shape).copy() for each in (np.zeros((len(x), 1)), *a[:-1])]
    product = np.empty_like(x)
    for i in range(degree):  # synthetic division by (y - x), again and again; see _kernels_numba
        b[-1] += first
        for step in range(degree - 2, i - 1, -1):
            _product(b[step + 1], x, q, product)
            b[step] += product
    out[:, 0] = b[0]
    power = y.copy()
    for i in range(1, degree):
        _product(b[i], power, q, out[:, i])
        _product(power, y, q, product)
        power[:] = product
    _product(power, np.broadcast_to(a[-1], x.shape), q, out[:, degree])


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
