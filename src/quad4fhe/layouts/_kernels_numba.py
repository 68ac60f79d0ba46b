"""Element-by-element operations on residues, compiled; `_kernels_numpy` documents each of them.

The compiled functions are called as they are: several thousand calls a request would notice one more layer.

int64 division does not vectorise, nor do its conversions on AVX2. So everything stays in float64: a fused multiply-add
gives the exact error of a product, and x*y mod q takes five vector instructions for any q below 2^31.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

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
    # x y = p + e exactly, |e| <= 2^9 for |x y| <= 2^63. With |x y| <= 4 (q/2)^2 and a little, for q < 2^31, k is off
    # by at most 1/2 + 2^-20.9, so p - k q is an integer of at most q/2 + 1.1 * 2^10, and the second fma is exact too.
    p = x * y
    e = _fma(x, y, -p)
    k = (p * inverse + _ROUND) - _ROUND
    return _fma(-k, q, p) + e  # type: ignore[no-any-return]


@njit(nogil=True, cache=True)
def load(words: Any, q: int, out: Array) -> None:
    half = q // 2
    for i in range(words.shape[0]):
        for p in range(words.shape[1]):
            for k in range(words.shape[2]):
                v = np.float64(np.int64(words[i, p, k]))
                out[i, p, k] = v - q if v > half else v


@njit(nogil=True, cache=True)
def centre(values: Array, q: int) -> None:
    inverse = 1.0 / q
    flat = values.reshape(-1)
    for k in range(flat.size):
        flat[k] = _centred(flat[k], q, inverse)


@njit(nogil=True, cache=True)
def raise_limb(high: Array, rows: Any, low: Array, q: int, step: float) -> None:
    inverse = 1.0 / q
    for i in range(high.shape[0]):
        j = rows[i]
        for k in range(high.shape[1]):
            low[j, k] += step * _centred(high[i, k], q, inverse)


@njit(nogil=True, cache=True)
def square(values: Array, bias: Array, q: int, out: Array) -> None:
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
def expand(values: Array, bias: Array, coefficients: Array, q: int, out: Array) -> None:
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
def store(values: Array, bias: Array, q: int, out: Any) -> None:
    inverse = 1.0 / q
    for j in range(values.shape[0]):
        for p in range(values.shape[1]):
            b = bias[j] if p == 0 else 0.0
            for k in range(values.shape[2]):
                v = _centred(values[j, p, k] + b, q, inverse)
                v = v + q if v < 0.0 else v
                v = v - q if v >= q else v
                out[j, p, k] = np.uint32(v)
