"""Exact arithmetic on doubles: arrays of Python integers times one power of two."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quad4fhe._arrays import Array
from quad4fhe.errors import InputError

BigInts = NDArray[Any]  # dtype object, Python integers: sums and products outgrow 64 bits


@dataclass(frozen=True, eq=False)
class Dyadic:
    """The numbers integers * 2^exponent, of any shape."""

    integers: BigInts
    exponent: int

    @classmethod
    def of(cls, array: ArrayLike) -> Dyadic:
        """The exact values of finite doubles."""
        values = np.asarray(array, dtype=np.float64)
        mantissa, exponents = np.frexp(values)
        whole = np.ldexp(mantissa, 53).astype(np.int64)
        used = exponents[whole != 0]
        low = int(used.min()) if used.size else 53
        out = np.empty(values.shape, dtype=object)
        shifts = np.where(whole != 0, exponents - low, 0)
        out.ravel()[:] = [n << s for n, s in zip(whole.ravel().tolist(), shifts.ravel().tolist(), strict=True)]
        return cls(out, low - 53)

    def __add__(self, other: Dyadic) -> Dyadic:
        low = min(self.exponent, other.exponent)
        return Dyadic(self._at(low) + other._at(low), low)

    def __sub__(self, other: Dyadic) -> Dyadic:
        return self + Dyadic(-other.integers, other.exponent)

    def __mul__(self, other: Dyadic) -> Dyadic:
        return Dyadic(self.integers * other.integers, self.exponent + other.exponent)

    def __matmul__(self, other: Dyadic) -> Dyadic:
        return Dyadic(np.asarray(self.integers.dot(other.integers)), self.exponent + other.exponent)

    def __pow__(self, power: int) -> Dyadic:
        return Dyadic(self.integers**power, power * self.exponent)

    def _at(self, exponent: int) -> BigInts:
        if exponent == self.exponent:
            return self.integers
        out: BigInts = self.integers * (1 << (self.exponent - exponent))
        return out

    def floats(self) -> Array:
        """The nearest doubles."""
        return nearest_doubles(self.integers, self.exponent)

    def fractions(self) -> list[Fraction]:
        """The numbers of a vector."""
        unit = Fraction(2) ** self.exponent
        return [Fraction(int(value)) * unit for value in self.integers]

    def rounded(self, log2_scale: int) -> BigInts:
        """The integers nearest to 2^log2_scale times the numbers (halves go up)."""
        shift = self.exponent + log2_scale
        if shift >= 0:
            out: BigInts = self.integers * (1 << shift)
            return out
        half = 1 << (-shift - 1)
        rounded = np.empty(self.integers.shape, dtype=object)
        rounded.ravel()[:] = [(n + half) >> -shift for n in self.integers.ravel().tolist()]
        return rounded


def nearest_doubles(integers: BigInts, exponent: int) -> Array:
    """integers * 2^exponent, each correctly rounded to a double."""
    # Python's integer division rounds correctly, where float(big) * 2**-n could overflow on the way.
    power = 1 << abs(exponent)
    try:
        values = [(n / power if exponent < 0 else float(n * power)) for n in integers.ravel().tolist()]
    except OverflowError:
        raise InputError("the folded weights overflow float64; standardise the features or narrow the box") from None
    return np.array(values, dtype=np.float64).reshape(integers.shape)
