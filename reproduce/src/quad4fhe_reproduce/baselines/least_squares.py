"""Least-squares replacements of ReLU on an interval, and the weighted projection that OLA shares.

The projection uses a basis that is orthonormal for the weight itself, so that no digits are lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.polynomial import chebyshev, legendre

from quad4fhe._arrays import Array
from quad4fhe.errors import InputError
from quad4fhe_reproduce.baselines.polynomial import Polynomial, Series, linear
from quad4fhe_reproduce.baselines.problem import DEGREES, Baseline, Problem

_NODES = 40  # Gauss points of one panel: exact for products of two polynomials up to degree 39


@dataclass(frozen=True, eq=False)
class Quadrature:
    """Points inside [lo, hi] and positive weights: an inner product of functions on the interval."""

    lo: float
    hi: float
    x: Array
    weights: Array


def panels(lo: float, hi: float, breaks: Array) -> Quadrature:
    """Gauss-Legendre points between the breaks that lie inside [lo, hi]; the kink of ReLU is always a break.

    This is the limit of an ever denser grid: a polynomial, and ReLU times a polynomial, are integrated exactly.
    """
    inside = breaks[(breaks > lo) & (breaks < hi)]
    kink = [0.0] if lo < 0.0 < hi else []
    ends = np.unique(np.concatenate([[lo, hi], inside, kink]))
    nodes, weights = legendre.leggauss(_NODES)
    half = 0.5 * np.diff(ends)[:, None]
    x = (0.5 * (ends[:-1] + ends[1:]))[:, None] + half * nodes
    return Quadrature(lo, hi, x.ravel(), (half * weights).ravel())


class Projection:
    """The projections of ReLU onto all degrees up to `degree`, under one weight.

    The basis is made orthonormal for the weight by its three-term recurrence (Stieltjes), so each coefficient is one
    inner product and a lower degree is a shorter sum. Normal equations in monomials lose every digit here: a Gaussian
    a hundred times narrower than the interval puts the powers of x forty orders of magnitude apart.
    """

    def __init__(self, quadrature: Quadrature, degree: int) -> None:
        self.lo, self.hi = quadrature.lo, quadrature.hi
        u, w = self._unit(quadrature.x), quadrature.weights
        target = np.maximum(quadrature.x, 0.0)
        alphas, betas, inner = [], [float(np.sqrt(w.sum()))], []
        before, current = np.zeros_like(u), np.full_like(u, 1.0 / betas[0])
        for _ in range(degree + 1):
            inner.append(float((w * target * current).sum()))
            alphas.append(float((w * u * current * current).sum()))
            following = (u - alphas[-1]) * current - betas[-1] * before
            betas.append(float(np.sqrt((w * following * following).sum())))
            before, current = current, following / betas[-1]
        self.alphas, self.betas, self.inner = alphas, betas, inner

    def _unit(self, x: Array) -> Array:
        return (x - (0.5 * self.lo + 0.5 * self.hi)) / (0.5 * self.hi - 0.5 * self.lo)

    def sums(self, x: Array) -> Array:
        """The projection of every degree 0..degree at x (n,), shape (degree + 1, n)."""
        u = self._unit(x)
        out = np.empty((len(self.inner), u.size))
        before, current = np.zeros_like(u), np.full_like(u, 1.0 / self.betas[0])
        total = np.zeros_like(u)
        for k, (alpha, inner) in enumerate(zip(self.alphas, self.inner, strict=True)):
            total = total + inner * current
            out[k] = total
            following = (u - alpha) * current - self.betas[k] * before
            before, current = current, following / self.betas[k + 1]
        return out

    def series(self, degree: int) -> Series:
        """The projection of one degree as a Chebyshev series on [lo, hi], by interpolation at Chebyshev points."""
        unit = chebyshev.chebpts1(degree + 1)
        x = (0.5 * self.lo + 0.5 * self.hi) + (0.5 * self.hi - 0.5 * self.lo) * unit
        values = self.sums(x)[degree]
        coefficients = chebyshev.chebvander(unit, degree).T @ values * (2.0 / (degree + 1))
        coefficients[0] *= 0.5
        return Series(coefficients, self.lo, self.hi)


def least_squares(degree: int, lo: float, hi: float) -> Polynomial:
    """The polynomial closest to ReLU in mean square over the calibration interval [lo, hi]."""
    if not 1 <= degree < _NODES:
        raise InputError(f"least squares needs a degree from 1 to {_NODES - 1}, not {degree}")
    name = f"LS-{degree}"
    exact = linear(name, lo, hi)
    if exact is not None:
        return exact
    return Polynomial(name, (Projection(panels(lo, hi, np.empty(0)), degree).series(degree),), (lo, hi))


_NAMES = tuple(f"LS-{degree}" for degree in DEGREES)


def _fit(problem: Problem) -> dict[str, Polynomial]:
    data = problem.preactivations
    return {f"LS-{degree}": least_squares(degree, data.lo, data.hi) for degree in problem.degrees}


BASELINE = Baseline("the polynomial closest to ReLU in mean square on the calibration interval", _NAMES, _fit)
