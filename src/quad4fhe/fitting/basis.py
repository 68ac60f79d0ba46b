"""Orthonormal polynomials of each hidden unit's own pre-activations: the coordinates that families are fitted in.

Powers of a pre-activation are hopelessly correlated from degree 4 on. Here unit j has polynomials phi_1 ... phi_p of
its own, orthonormal over the calibration rows (Stieltjes' recurrence), so that a ridge means the same for every degree.
A basis of degree p contains those of all lower degrees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array, IntArray, sha256
from quad4fhe.errors import InputError
from quad4fhe.mlp import MLP

Single = NDArray[np.float32]
_STILL = 1e-9  # a spread this small, relative to the terms of a pre-activation, is rounding: the unit is a constant
_FLAT = 1e-5  # a unit with so few values that the next polynomial vanishes on all of them has no further ones
_ROWS = 2048
BLOCK = 2**19
"""Pre-activations that a basis is made from at a time."""


@dataclass(frozen=True, eq=False)
class Basis:
    """phi_{k+1} = scale_k ((v - centre_k) phi_k - back_k phi_{k-1}) with v = (y - mean) / spread and phi_0 = 1.

    `mean` and `spread` are (m,); `centre`, `back` and `scale` are (p, m). A scale of zero ends a unit's basis.
    """

    mean: Array
    spread: Array
    centre: Array
    back: Array
    scale: Array

    @classmethod
    def of(cls, mlp: MLP, X: NDArray[Any], degree: int, *, rows: IntArray | None = None, pooled: bool = False) -> Basis:
        """The basis over `rows` of X (n, d), or all of them.

        `pooled` makes one basis for all units, orthonormal over the pre-activations of all of them.
        """
        rows = np.arange(len(X)) if rows is None else rows
        # Units are independent unless pooled: a block of them at a time takes little memory.
        size = mlp.units if pooled else max(1, BLOCK // len(rows))
        parts = [_recurrence(mlp, X, rows, slice(j, j + size), degree, pooled) for j in range(0, mlp.units, size)]
        return cls(*(np.concatenate(each, axis=-1) for each in zip(*parts, strict=True)))

    @cached_property
    def sha256(self) -> str:
        """A hash of the arrays."""
        return sha256("quad4fhe-basis-1", (self.mean, self.spread, self.centre, self.back, self.scale))

    @property
    def width(self) -> int:
        """How many features a row has."""
        return self.degree * self.units

    @property
    def degree(self) -> int:
        """The highest degree p."""
        return int(self.centre.shape[0])

    @property
    def units(self) -> int:
        """The number m of hidden units."""
        return int(self.mean.size)

    def features(self, y: Array) -> Single:
        """phi_1 ... phi_p of pre-activations y (n, m), shape (n, p m); the block of phi_k comes at (k - 1) m."""
        out = np.empty((y.shape[0], self.degree, self.units), dtype=np.float32)
        for start in range(0, len(y), _ROWS):
            rows = slice(start, start + _ROWS)
            for k, phi in enumerate(self.polynomials(y[rows])):
                out[rows, k] = phi
        return out.reshape(len(y), -1)

    def polynomials(self, y: Array) -> Iterator[Array]:
        """Yield phi_1 ... phi_p of pre-activations y (n, m), each (n, m)."""
        v = (y - self.mean) / self.spread
        below, at = np.zeros_like(v), np.ones_like(v)
        for k in range(self.degree):
            below, at = at, ((v - self.centre[k]) * at - self.back[k] * below) * self.scale[k]
            yield at

    def powers(self, middle: Array, radius: Array) -> Array:
        """C (p, p + 1, m) with phi_k = sum_i C[k - 1, i] u^i, u = (y - middle) / radius; exact, then rounded once."""
        p, m = self.degree, self.units
        out = np.zeros((p, p + 1, m))
        for j in range(m):
            if not np.isfinite(self.spread[j]):
                continue
            slope = Fraction(radius[j]) / Fraction(self.spread[j])
            start = (Fraction(middle[j]) - Fraction(self.mean[j])) / Fraction(self.spread[j])
            below, at = [Fraction(0)] * (p + 1), [Fraction(1)] + [Fraction(0)] * p
            for k in range(p):
                if not self.scale[k, j]:
                    break
                fixed = start - Fraction(self.centre[k, j])
                back, scale = Fraction(self.back[k, j]), Fraction(self.scale[k, j])
                above = [
                    scale * (fixed * at[i] + (slope * at[i - 1] if i else 0) - back * below[i]) for i in range(k + 2)
                ] + [Fraction(0)] * (p - k - 1)
                below, at = at, above
                out[k, :, j] = [float(value) for value in at]
        return out


def _recurrence(
    mlp: MLP, X: NDArray[Any], rows: IntArray, units: slice, degree: int, pooled: bool
) -> tuple[Array, ...]:
    """Mean, spread, centre, back and scale of some units."""
    W1, b1 = mlp.W1[units], mlp.b1[units]
    y, size = np.empty((len(rows), b1.size)), np.zeros(mlp.features)
    with np.errstate(over="ignore", invalid="ignore"):  # reported below, with a name
        for start in range(0, len(rows), _ROWS):
            chunk = np.asarray(X[rows[start : start + _ROWS]], dtype=np.float64)
            y[start : start + _ROWS] = chunk @ W1.T + b1
            size += np.abs(chunk / len(rows)).sum(axis=0)
        mean = _mean(y, pooled)
        y -= mean
        spread = np.sqrt(_mean(np.square(y), pooled))
    if not np.isfinite(spread).all():
        raise InputError("X_cal overflows the squares of the hidden layer; scale its features to ordinary size")
    terms = np.abs(b1) + np.abs(W1) @ size
    spread[spread <= _STILL * _mean(terms[None], pooled)] = np.inf
    y /= spread
    m = b1.size
    centre, back, scale = np.zeros((degree, m)), np.zeros((degree, m)), np.zeros((degree, m))
    below, at = np.zeros_like(y), np.ones_like(y)
    for k in range(degree):
        centre[k] = _mean(y * at * at, pooled)
        if k:
            back[k] = np.divide(1.0, scale[k - 1], where=scale[k - 1] > 0, out=np.zeros(m))
        above = (y - centre[k]) * at - back[k] * below
        norm = np.sqrt(_mean(np.square(above), pooled))
        scale[k] = np.divide(1.0, norm, where=norm > _FLAT, out=np.zeros(m))
        below, at = at, above * scale[k]
    return mean, spread, centre, back, scale


def _mean(values: Array, pooled: bool) -> Array:
    mean: Array = values.mean(axis=0)
    return np.full_like(mean, mean.mean()) if pooled else mean
