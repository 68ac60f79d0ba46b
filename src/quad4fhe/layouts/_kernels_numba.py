"""Element-by-element operations on residues, compiled; `_kernels_numpy` documents each of them.

int64 division does not vectorise, nor do its conversions on AVX2. So everything stays in float64: a fused multiply-add
gives the exact error of a product, and x*y mod q takes five vector instructions for any q below 2^31.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from quad4fhe._arrays import Array

NAME = "numba"
# Adding and taking off 1.5 * 2^52 rounds |v| < 2^51 to the nearest integer in two additions.
_ROUND = 6755399441055744.0


def _typed_fma(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c rounded once: LLVM's llvm.fma, exact on every target (a library call where the chip lacks it)."""
    signature = types.float64(types.float64, types.float64, types.float64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return signature, generate


_fma: Any = intrinsic(_typed_fma)


# numba's intrinsics have no types, so what _fma returns is Any to mypy: hence the two ignores.
@njit(inline="always")
def _centred(v: float, q: float, inverse: float) -> float:
    # The quotient is off by at most 1/2 + 2^-30, so the remainder is |r| <= q/2 + 2; v - k q is an integer below 2^53.
    k = (v * inverse + _ROUND) - _ROUND
    return _fma(-k, q, v)  # type: ignore[no-any-return]


@njit(inline="always")
def _product(x: float, y: float, q: float, inverse: float) -> float:
    # x y = p + e exactly, |e| <= 2^7 for |x y| <= 2^61. k is off by at most 1/2 + 2^-22, so p - k q is an integer of
    # at most q/2 + 2^9 and the second fma is exact too.
    p = x * y
    e = _fma(x, y, -p)
    k = (p * inverse + _ROUND) - _ROUND
    return _fma(-k, q, p) + e  # type: ignore[no-any-return]


@njit(nogil=True, cache=True)
def _load(words: Any, q: float, half: float, out: Array) -> None:
    for i in range(words.shape[0]):
        for p in range(words.shape[1]):
            for k in range(words.shape[2]):
                v = np.float64(np.int64(words[i, p, k]))
                out[i, p, k] = v - q if v > half else v


@njit(nogil=True, cache=True)
def _centre(values: Array, q: float) -> None:
    inverse = 1.0 / q
    for k in range(values.size):
        values[k] = _centred(values[k], q, inverse)


@njit(nogil=True, cache=True)
def _raise(high: Array, rows: Any, low: Array, q: float, step: float) -> None:
    inverse = 1.0 / q
    for i in range(high.shape[0]):
        j = rows[i]
        for k in range(high.shape[1]):
            low[j, k] += step * _centred(high[i, k], q, inverse)


@njit(nogil=True, cache=True)
def _square(values: Array, bias: Array, q: float, out: Array) -> None:
    inverse = 1.0 / q
    width = values.shape[2]
    x, y = np.empty(width), np.empty(width)
    # One result a loop, from arrays of its own: a loop with all five is not vectorised, and takes twice as long.
    for j in range(values.shape[0]):
        b = bias[j]
        for k in range(width):
            x[k] = _centred(values[j, 0, k] + b, q, inverse)
        for k in range(width):
            y[k] = _centred(values[j, 1, k], q, inverse)
        for k in range(width):
            out[j, 0, k] = _product(x[k], x[k], q, inverse)
        for k in range(width):
            out[j, 1, k] = _product(x[k] + x[k], y[k], q, inverse)
        for k in range(width):
            out[j, 2, k] = _product(y[k], y[k], q, inverse)


@njit(nogil=True, cache=True)
def _expand(values: Array, bias: Array, coefficients: Array, q: float, out: Array) -> None:
    inverse = 1.0 / q
    degree, units, width = coefficients.shape[0], values.shape[0], values.shape[2]
    x, first, power = np.empty(width), np.empty(width), np.empty(width)
    b = np.empty((degree, width))
    for j in range(units):
        top = coefficients[degree - 1, j]
        for k in range(width):
            x[k] = _centred(values[j, 0, k] + bias[j], q, inverse)
            first[k] = _product(x[k], top, q, inverse)
        # Synthetic division by (y - x), again and again: after pass i, b[i] is the i-th derivative at x over i!. The
        # first step of every pass is the same product. Sums stay below (degree + 1) q / 2.
        for i in range(degree):
            for k in range(width):
                b[degree - 1, k] = first[k] + (b[degree - 1, k] if i else coefficients[degree - 2, j])
            for step in range(degree - 2, i - 1, -1):
                above = b[step + 1]
                here = b[step]
                if i:
                    for k in range(width):
                        here[k] += _product(above[k], x[k], q, inverse)
                else:
                    a = coefficients[step - 1, j] if step else 0.0
                    for k in range(width):
                        here[k] = a + _product(above[k], x[k], q, inverse)
        for k in range(width):
            out[j, 0, k] = b[0, k]
            x[k] = _centred(values[j, 1, k], q, inverse)
            power[k] = x[k]
        for i in range(1, degree):
            taken, row = b[i], out[j, i]
            for k in range(width):
                row[k] = _product(taken[k], power[k], q, inverse)
            for k in range(width):
                power[k] = _product(power[k], x[k], q, inverse)
        for k in range(width):
            out[j, degree, k] = _product(power[k], top, q, inverse)


@njit(nogil=True, cache=True)
def _store(values: Array, bias: Array, q: float, out: Any) -> None:
    inverse = 1.0 / q
    for j in range(values.shape[0]):
        for p in range(values.shape[1]):
            b = bias[j] if p == 0 else 0.0
            for k in range(values.shape[2]):
                v = _centred(values[j, p, k] + b, q, inverse)
                v = v + q if v < 0.0 else v
                v = v - q if v >= q else v
                out[j, p, k] = np.uint32(v)


def load(words: NDArray[Any], q: int, out: Array) -> None:
    """Unsigned residues (d, p, T) to centred float64 of the same shape."""
    _load(words, float(q), float(q // 2), out)


def centre(values: Array, q: int) -> None:
    """Reduce exact integers |v| <= 2^53 in place to centred residues."""
    _centre(values.reshape(-1), float(q))


def raise_limb(high: Array, rows: NDArray[np.intp], low: Array, q: int, step: float) -> None:
    """low[rows] += step * (high mod q): one Horner step from a higher limb (r, n) into a lower one (m, n)."""
    _raise(high, rows, low, float(q), step)


def square(values: Array, bias: Array, q: int, out: Array) -> None:
    """(c0 + bias, c1) of (m, 2, T) to the three polynomials of the square, (m, 3, T), centred."""
    _square(values, bias, float(q), out)


def expand(values: Array, bias: Array, coefficients: Array, q: int, out: Array) -> None:
    """g(c0 + bias + s c1) of (m, 2, T) for g = sum_k a_k y^k: its coefficients in s, (m, degree + 1, T), centred.

    `coefficients` (degree, m) are centred residues of a_1 ... a_p; degree at least 2, q below 2^30.
    """
    _expand(values, bias, coefficients, float(q), out)


def store(values: Array, bias: Array, q: int, out: NDArray[np.uint32]) -> None:
    """(K, 3, T) exact integers plus a bias on the first polynomial, to canonical residues in [0, q)."""
    _store(values, bias, float(q), out)
