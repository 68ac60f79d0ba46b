"""The type of every scalar replacement of ReLU, and what it costs under encryption.

A replacement is evaluated without losing digits. Depth and products are those of an explicit evaluation schedule (baby
and giant steps, Paterson-Stockmeyer where it pays). The files beside this one choose coefficients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import isfinite, isqrt, prod

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import ArrayLike

from quad4fhe._arrays import Array, BoolArray, tensor
from quad4fhe.errors import InputError

_BLOCK = 2**14  # values evaluated at a time: the recurrences are bound by memory, and a block stays in the cache
_NEVER = 10**9  # more products than any schedule has
_SMALLEST = 1e-280  # below, the width of an interval and its square leave the normal range of float64


@dataclass(frozen=True, eq=False)
class Series:
    """A Chebyshev series on [lo, hi]: sum c_k T_k(u), with u the affine image of x in [-1, 1].

    An `odd` series is x sum c_k T_k(v), with v the image of x^2 in [lo^2, hi^2] and 0 <= lo: every odd polynomial, in
    a basis that stays well conditioned on [lo, hi] however narrow it is.
    """

    coefficients: Array
    lo: float
    hi: float
    odd: bool

    def __init__(self, coefficients: ArrayLike, lo: float, hi: float, *, odd: bool = False) -> None:
        if not (isfinite(lo) and isfinite(hi) and lo < hi):
            raise InputError(f"a series needs a finite interval with lo < hi, not [{lo}, {hi}]")
        object.__setattr__(self, "coefficients", tensor("coefficients", coefficients, 1))
        object.__setattr__(self, "lo", float(lo))
        object.__setattr__(self, "hi", float(hi))
        object.__setattr__(self, "odd", odd)

    @property
    def degree(self) -> int:
        """The degree; exact zeros at the end of the coefficients do not count."""
        used = np.flatnonzero(self.coefficients)
        top = int(used[-1]) if used.size else 0
        return 2 * top + 1 if self.odd else top

    def unit(self, x: Array) -> Array:
        """The Chebyshev variable of x; inside [-1, 1] for x in [lo, hi]."""
        if self.odd:
            lo, hi = self.lo * self.lo, self.hi * self.hi
            return (2.0 * (x * x) - (lo + hi)) / (hi - lo)
        # Halving first keeps the sum and the difference finite on the largest intervals.
        return (x - (0.5 * self.lo + 0.5 * self.hi)) / (0.5 * self.hi - 0.5 * self.lo)

    def basis(self, x: Array) -> Array:
        """The basis functions at x (n,), shape (n, terms)."""
        out = np.asarray(chebyshev.chebvander(self.unit(x), self.coefficients.size - 1), dtype=np.float64)
        return out * x[:, None] if self.odd else out

    def __call__(self, x: Array) -> Array:
        """The values at x, by Clenshaw's recurrence on whole arrays."""
        u = self.unit(x)
        c = self.coefficients[: (self.degree // 2 if self.odd else self.degree) + 1]
        if c.size == 1:
            value = np.full_like(u, c[0])
        else:
            # Three buffers in turn: allocations would cost more than the arithmetic.
            ahead, current, spare = np.zeros_like(u), np.full_like(u, c[-1]), np.empty_like(u)
            twice = u + u
            for coefficient in c[-2:0:-1]:
                np.multiply(twice, current, out=spare)
                spare -= ahead
                spare += coefficient
                ahead, current, spare = current, spare, ahead
            np.multiply(u, current, out=spare)
            spare -= ahead
            spare += c[0]
            value = spare
        return value * x if self.odd else value

    def critical_points(self, slope: float, lo: float, hi: float) -> Array:
        """The points inside [lo, hi] where the derivative equals `slope`, from the roots of its Chebyshev series.

        Roots rather than a grid: an exchange that places its points on a grid can't equalise errors to the last digits.
        """
        if self.odd:
            half = 0.5 * (self.hi * self.hi - self.lo * self.lo)
            middle = 0.5 * (self.hi * self.hi + self.lo * self.lo)
            # d/dx of x q(x^2) is q(t) + 2 t q'(t) with t = x^2 = middle + half v.
            inner = chebyshev.chebder(self.coefficients)
            derivative = chebyshev.chebadd(self.coefficients, chebyshev.chebmul([2.0 * middle / half, 2.0], inner))
        else:
            half = 0.5 * self.hi - 0.5 * self.lo
            middle = 0.5 * self.lo + 0.5 * self.hi
            derivative = chebyshev.chebder(self.coefficients) / half
        derivative = chebyshev.chebsub(derivative, [slope])
        # A leading coefficient that is only rounding would send spurious roots to infinity, and an exact zero would
        # make the companion matrix divide by it.
        scale = np.abs(derivative).max(initial=0.0)
        derivative = chebyshev.chebtrim(derivative, 1e-15 * scale)
        if derivative.size < 2:
            return np.empty(0)
        roots = chebyshev.chebroots(derivative)
        # A double root may come back as a close complex pair; its real part is the point wanted.
        real = roots.real[np.abs(roots.imag) <= 1e-6]
        x = middle + half * real
        if self.odd:
            x = np.sqrt(x[x > 0.0])
        return np.sort(x[(x > lo) & (x < hi)])


@dataclass(frozen=True)
class Polynomial:
    """A scalar replacement of ReLU.

    With `gate` None it is the one series in `stages`. With `gate` B it is x (1 + s(x / B)) / 2, where s is the
    composition of the `stages`, first to last, and x is clipped to [-B, B] first: outside, a composition of this degree
    is astronomically large. A clip is not a polynomial, so `outside` counts the values that need it.
    """

    name: str
    stages: tuple[Series, ...]
    interval: tuple[float, float] | None
    gate: float | None = None

    @property
    def degree(self) -> int:
        """The degree as a polynomial in x, compositions and the gate's product included."""
        composed = prod(stage.degree for stage in self.stages)
        return composed if self.gate is None else composed + 1

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """How each stage is evaluated under encryption."""
        folds = self.gate is None
        return tuple(schedule(stage.degree, odd=stage.odd, folds=folds) for stage in self.stages)

    @property
    def depth(self) -> int:
        """Multiplicative depth: the levels of the stages one after the other, and one for the gate's product."""
        return sum(s.depth for s in self.schedules) + (0 if self.gate is None else 1)

    @property
    def products(self) -> int:
        """Ciphertext-ciphertext products of the schedule."""
        return sum(s.products for s in self.schedules) + (0 if self.gate is None else 1)

    def __call__(self, x: ArrayLike) -> Array:
        """The values at x, in float64; the caller must check for infinities from overflow."""
        values = np.asarray(x, dtype=np.float64)
        out = np.empty(values.shape)
        flat, flat_out = values.reshape(-1), out.reshape(-1)
        for start in range(0, flat.size, _BLOCK):
            block = slice(start, start + _BLOCK)
            flat_out[block] = self._values(flat[block])
        return out

    def _values(self, x: Array) -> Array:
        if self.gate is None:
            return self.stages[0](x)
        clipped = np.clip(x, -self.gate, self.gate)
        sign = clipped / self.gate
        for stage in self.stages:
            sign = stage(sign)
        sign += 1.0
        sign *= 0.5
        sign *= clipped
        return sign

    def outside(self, x: ArrayLike) -> BoolArray:
        """Which values of x are outside the polynomial's interval."""
        values = np.asarray(x, dtype=np.float64)
        if self.interval is None:
            return np.zeros(values.shape, dtype=np.bool_)
        lo, hi = self.interval
        return (values < lo) | (values > hi)

    def activation_error(self, lo: float, hi: float) -> float:
        """The largest |p(x) - relu(x)| on [lo, hi]."""
        points = [np.array([lo, hi, min(max(0.0, lo), hi)])]
        if self.gate is None:
            series = self.stages[0]
            points += [series.critical_points(0.0, lo, min(hi, 0.0)), series.critical_points(1.0, max(lo, 0.0), hi)]
        else:
            # The composition has hundreds of extrema, crowded towards zero: use a grid that is fine on both scales.
            near = max(abs(lo), abs(hi)) * np.logspace(-9, 0, 20001)
            points += [np.linspace(lo, hi, 20001), near, -near]
        x = np.concatenate(points)
        x = x[(x >= lo) & (x <= hi)]
        return float(np.abs(self(x) - np.maximum(x, 0.0)).max())


def linear(name: str, lo: float, hi: float) -> Polynomial | None:
    """ReLU itself where it is a straight line on [lo, hi] (or a single value), else None.

    If all pre-activations have one sign, a straight line is exact, and nothing is fitted.
    """
    if not (isfinite(lo) and isfinite(hi) and lo <= hi):
        raise InputError(f"{name} needs a finite interval with lo <= hi, not [{lo}, {hi}]")
    if lo == hi:
        return Polynomial(name, (Series([max(lo, 0.0)], lo - 1.0 - abs(lo), hi + 1.0 + abs(hi)),), (lo, hi))
    if hi <= 0.0 or max(-lo, hi) < _SMALLEST:
        return Polynomial(name, (Series([0.0], lo, hi),), (lo, hi))
    if lo >= 0.0:
        return Polynomial(name, (Series([0.5 * lo + 0.5 * hi, 0.5 * hi - 0.5 * lo], lo, hi),), (lo, hi))
    return None


@dataclass(frozen=True)
class Schedule:
    """One way to evaluate a polynomial on a ciphertext.

    `depth` is the number of levels it takes and `products` the number of ciphertext-ciphertext products. The steps
    T_k (powers, or Chebyshev polynomials) listed in `steps` are computed once: T_k costs one product and sits at level
    ceil(log2 k). The polynomial is then split as q T_g + r until every part is a plaintext combination of steps.
    """

    depth: int
    products: int
    steps: tuple[int, ...]


def _level(k: int) -> int:
    return max(0, (k - 1).bit_length())


def _least_products(degree: int, depth: int, steps: tuple[int, ...], odd: bool, folds: bool) -> int:
    """Products beyond the steps themselves for a polynomial of `degree` within `depth` levels.

    A combination of steps costs one more level for its plaintext coefficients, unless it `folds` into the affine map
    that follows. The leading part of a split must be ready one level before the sum is, so it is often split again
    below the baby steps, where a product saves the level a coefficient would cost: depth is the scarce thing.
    """
    babies = 1
    while babies + (2 if odd else 1) in steps:
        babies += 2 if odd else 1

    @cache
    def least(d: int, budget: int, folded: bool) -> int:
        if d <= 0:
            return 0 if budget >= 0 else _NEVER
        coefficients = 0 if folded else 1
        best = _NEVER
        if d <= babies and _level(d) + coefficients <= budget:
            best = 0
        for g in steps:
            if g == d and not odd and _level(g) + coefficients <= budget:
                best = min(best, least(g - 1, budget, folded))  # a constant times T_g is a plaintext product
            elif 1 < g < d and not (odd and g % 2) and _level(g) < budget:
                best = min(best, 1 + least(d - g, budget - 1, False) + least(g - 1, budget, folded))
        return best

    return least(degree, depth, folds)


def _step_sets(degree: int, odd: bool) -> Iterator[tuple[int, ...]]:
    """Baby steps 1..b (odd ones only for an odd polynomial) with giant steps doubled from one of them.

    Each set is closed: every T_k in it is a product of two members of half its index, so the levels are as stated.
    An odd polynomial is split at powers of two only, which keeps both parts odd.
    """
    for babies in range(1, min(degree, 2 * isqrt(degree) + 4) + 1, 2 if odd else 1):
        for giant in (2,) if odd else range(2, babies + 2):
            steps = {2} | set(range(1, babies + 1, 2 if odd else 1))
            while giant <= degree:
                steps.add(giant)
                giant *= 2
            yield tuple(sorted(k for k in steps if k <= degree))


@cache
def schedule(degree: int, *, odd: bool = False, folds: bool = True) -> Schedule:
    """The schedule of least depth, and of fewest products at that depth, for a dense or an odd polynomial.

    `folds` says that an affine map follows, as it does after an activation: the last plaintext products then become
    part of its matrix and cost no level. A stage inside a composition has no such map.
    """
    if degree <= 0:
        return Schedule(0, 0, ())
    if degree == 1:
        return Schedule(0 if folds else 1, 0, (1,))
    depth = _level(degree) if folds else _level(degree + 1)
    best = Schedule(depth, _NEVER, ())
    for steps in _step_sets(degree, odd):
        products = len(steps) - 1 + _least_products(degree, depth, steps, odd, folds)
        if products < best.products:
            best = Schedule(depth, products, steps)
    assert best.products < _NEVER, f"no schedule of depth {depth} for degree {degree}"
    return best
