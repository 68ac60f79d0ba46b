"""From a fitted polynomial to the model with few bits that runs encrypted: rounded first, measured and certified after.

Under encryption every bit of a weight costs modulus, p times for the first layer. So the fit itself is rounded, and the
rounded polynomial is the model: its agreement is what is reported, and planning loses nothing by rounding it again.

Unit j becomes u = (y - middle) / 2^e, within [-1, 1] on the calibration rows, so that powers of u are of ordinary size.
Coefficients are rounded from the highest power down: what rounding a_k adds is taken off again by the lower powers, but
for a multiple of the orthonormal phi_k. That leaves an error of 1 / C_kk of the step, C_kk the leading coefficient of
phi_k, which is large: high powers need few bits.

A free head weighs every power of every unit for every class: for one unit, a matrix of classes by powers. Its singular
vectors turn it into a sum of (weights of classes) times (a polynomial), so a head is a model with one polynomial for
each unit again (`Copies`), in which a hidden unit stands once for each of its polynomials. Most units need one or two.
The server computes equal rows of the first layer once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from quad4fhe._arrays import Array, IntArray
from quad4fhe.fitting.basis import Basis
from quad4fhe.mlp import MLP
from quad4fhe.polynomial import PolynomialModel

_LOWER = 16  # extra bits of a coefficient for every power below the highest; far below the scale of any plan's y


@dataclass(frozen=True)
class Bits:
    """Bits of the largest first weight, of coefficients by the spread of a unit, of the largest head weight."""

    first: int
    unit: int
    head: int


GRID = (Bits(10, 7, 10), Bits(11, 8, 11), Bits(12, 9, 12), Bits(13, 10, 13), Bits(15, 12, 15), Bits(18, 15, 18))
"""What is tried, fewest bits first."""
FINER = (Bits(24, 18, 18), Bits(32, 20, 18), Bits(40, 22, 18), Bits(50, 24, 18))
"""What is tried next where features, or units of one shared polynomial, differ in size by many powers of two."""
SHARES = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0)
"""Polynomials per hidden unit on average that are tried, fewest first; then all of them."""
_NOTHING = 1e-12  # of the largest singular value
_ALIKE = 6  # powers of two: units whose polynomials differ less in size share one scale
_BIAS = 16  # bits of a bias behind the point: u is within [-1, 1] on the calibration rows


@dataclass(frozen=True, eq=False)
class Units:
    """u = (y - middle) / 2^exponent of each unit, both (m,)."""

    middle: Array
    exponent: Array

    @classmethod
    def of(cls, low: Array, high: Array) -> Units:
        """From the smallest and largest pre-activation of each unit on the calibration rows, (m,)."""
        radius = np.maximum((high - low) / 2, 1e-30 + 1e-12 * np.maximum(np.abs(low), np.abs(high)))
        return cls((low + high) / 2, np.ceil(np.log2(radius)))

    @property
    def radius(self) -> Array:
        """2^exponent."""
        return np.asarray(np.exp2(self.exponent))

    def first_layer(self, mlp: MLP, bits: int) -> tuple[Array, Array]:
        """W1 and b1 of u, rounded: the largest weight to `bits` bits, biases finer."""
        W = mlp.W1 / self.radius[:, None]
        step = _step(float(np.abs(W).max()), bits)
        return _rounded(W, step), _rounded((mlp.b1 - self.middle) / self.radius, min(step * 2.0**-12, 2.0**-_BIAS))


class Rounded(Protocol):
    """Makes the model of few bits of coefficients (p, m) in a basis and constants (K,)."""

    def __call__(self, basis: Basis, own: Array, constant: Array, *, lossless: bool = False) -> PolynomialModel:
        """The model."""


def rounded_units(mlp: MLP, units: Units, basis: Basis, own: Array, constant: Array, bits: Bits) -> PolynomialModel:
    """The model of unit polynomials sum_k own[k - 1, j] phi_k(y_j) under the head W2, with logits that add `constant`.

    `own` is (p, m), `constant` (K,).
    """
    C = basis.powers(units.middle, units.radius)
    p = basis.degree
    scale = _scales(own)
    own, W2 = own / scale, mlp.W2 * scale
    diagonal = np.array([C[k, k + 1] for k in range(p)])
    spread = np.where(np.isfinite(basis.spread), basis.spread, 0.0)
    used = (diagonal[-1] > 0) & (spread > 0)
    size = (diagonal[-1] * spread / scale)[used]
    step = 2.0 ** np.floor(np.log2(np.quantile(size, 0.1)) - bits.unit) if used.any() else 1.0
    a, rest = np.zeros((p, mlp.units)), np.einsum("kj,kij->ij", own, C)
    for k in range(p, 0, -1):
        finest = 2.0 ** (np.ceil(np.log2(max(float(np.abs(rest[k]).max()), 1e-300))) - (52 - bits.head))
        a[k - 1] = _rounded(rest[k], max(step * 2.0 ** (-_LOWER * (p - k)), finest))
        change = np.divide(a[k - 1] - rest[k], diagonal[k - 1], where=diagonal[k - 1] != 0, out=np.zeros(mlp.units))
        rest = rest + change * C[k - 1]
    V = _rounded(W2, _step(float(np.abs(W2).max()), bits.head))
    W1, b1 = units.first_layer(mlp, bits.first)
    return PolynomialModel.by_unit(W1, b1, V, a, constant + W2 @ rest[0])


def _scales(own: Array) -> Array:
    """Powers of two (m,) that move from coefficients (p, m) to head weights, 1 for units of ordinary size.

    Without them, one step for all head weights would remove units with large pre-activations and small head weights.
    """
    sizes = np.abs(own).max(axis=0)
    used = sizes > 0
    powers = np.zeros(sizes.size)
    if used.any():
        powers[used] = np.rint(np.log2(sizes[used] / np.median(sizes[used])))
    return np.asarray(np.exp2(np.where(np.abs(powers) > _ALIKE, powers, 0.0)))


def _step(largest: float, bits: int) -> float:
    return float(2.0 ** (np.ceil(np.log2(max(largest, 1e-300))) - bits))


def _rounded(values: Array, step: float) -> Array:
    return np.asarray(np.rint(values / step) * step)


@dataclass(frozen=True, eq=False)
class Copies:
    """All polynomials of a head: unit `of` (r,), weights V (K, r), coefficients `own` (p, r) in the basis.

    They are in the order of their size, largest first.
    """

    of: IntArray
    V: Array
    own: Array

    @classmethod
    def split(cls, weights: Array, units: int) -> Copies:
        """The polynomials of weights (K, p m) of phi_k, block k at (k - 1) m.

        For K > 1 the mean over the classes is left out: no difference of logits depends on it.
        """
        K = weights.shape[0]
        blocks = weights.reshape(K, -1, units)
        if K > 1:
            blocks = blocks - blocks.mean(axis=0)
        left, sizes, right = np.linalg.svd(blocks.transpose(2, 0, 1), full_matrices=False)
        flat = np.argsort(-sizes, axis=None, kind="stable")
        flat = flat[sizes.ravel()[flat] > _NOTHING * sizes.max(initial=0.0)]
        j, r = np.unravel_index(flat, sizes.shape)
        return cls(j.astype(np.int64), (left[j, :, r] * sizes[j, r, None]).T, right[j, r].T)

    def __len__(self) -> int:
        return int(self.of.size)

    def first(self, count: int) -> Copies:
        """The largest ones, with those of one unit next to each other."""
        order = np.argsort(self.of[:count], kind="stable")
        return Copies(self.of[order], self.V[:, order], self.own[:, order])

    def network(self, mlp: MLP) -> MLP:
        """The network whose hidden units are those of `mlp`, each as often as it has polynomials, under the head V."""
        return MLP(mlp.W1[self.of], mlp.b1[self.of], self.V, np.zeros(len(self.V)))

    def basis(self, basis: Basis) -> Basis:
        """The basis of these units."""
        parts = (basis.mean, basis.spread, basis.centre, basis.back, basis.scale)
        return Basis(*(part[..., self.of] for part in parts))
