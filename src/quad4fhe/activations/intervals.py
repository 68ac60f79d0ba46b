"""Rigorous intervals for exp, log and erf of rational numbers, in whole-number arithmetic with outward rounding.

They settle the decisions of a model with a transcendental activation where floating point leaves a doubt. They use
Python's integers only, so the result does not depend on a mathematical library.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Interval:
    """A closed interval with rational ends that contains a real number."""

    low: Fraction
    high: Fraction

    @classmethod
    def at(cls, value: Fraction | int) -> Interval:
        """The interval that holds one rational number."""
        return cls(Fraction(value), Fraction(value))

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Interval) -> Interval:
        return Interval(self.low - other.high, self.high - other.low)

    def __mul__(self, other: Interval) -> Interval:
        ends = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        return Interval(min(ends), max(ends))

    def __truediv__(self, other: Interval) -> Interval:
        """Divide by a positive interval."""
        if other.low <= 0:
            raise ZeroDivisionError("the divisor of an interval must be positive")
        return self * Interval(1 / other.high, 1 / other.low)

    def rounded(self, bits: int) -> Interval:
        """A slightly larger interval whose ends are multiples of 2^-bits, so that numbers stay short."""
        return Interval(_down(self.low, bits), _up(self.high, bits))


ZERO, ONE, TWO = Interval.at(0), Interval.at(1), Interval.at(2)


def exp_minus(v: Fraction, bits: int) -> Interval:
    """An interval of width near 2^-bits around exp(-v), for v >= 0."""
    if v > bits:  # exp(-v) < 2^-v
        return Interval(Fraction(0), Fraction(1, 2**bits))
    halvings = max(0, math.ceil(v).bit_length() + 1)
    places = bits + 2 * halvings + 16
    found = Interval(
        _exp_small(_up(v, places) / 2**halvings, places), _exp_small(_down(v, places) / 2**halvings, places, up=True)
    )
    for _ in range(halvings):
        found = (found * found).rounded(places)
    return found


def _exp_small(v: Fraction, places: int, *, up: bool = False) -> Fraction:
    """A bound on exp(-v), 0 <= v <= 1/2: an alternating series with falling terms lies between its partial sums."""
    unit = 2**places
    x = math.floor(v * unit) if up else math.ceil(v * unit)
    term, total, k = unit, unit, 0
    while term > 1:
        k += 1
        term = term * x // (unit * k) + 1
        total += term if k % 2 == 0 else -term
    # Each term is rounded by at most 2 units, and the terms left out add up to less than the last one.
    slack = 4 * (k + 1) + term
    return Fraction(total + slack if up else max(0, total - slack), unit)


def log1p(t: Interval, bits: int) -> Interval:
    """An interval of width near 2^-bits around log(1 + t), for t within [0, 1]."""
    return Interval(_log1p(t.low, bits)[0], _log1p(t.high, bits)[1])


def _log1p(t: Fraction, bits: int) -> tuple[Fraction, Fraction]:
    """Bounds on log(1 + t) = 2 atanh(z) = 2 (z + z^3/3 + ...) with z = t / (2 + t) <= 1/3."""
    places = bits + 16
    unit = 2**places
    low = high = 0
    z = t / (2 + t)
    below, above = math.floor(z * unit), math.ceil(z * unit)
    lower, upper, k = below, above, 1
    while upper > 1:
        low += lower // k
        high += upper // k + 1
        lower, upper = lower * below // unit * below // unit, (upper * above // unit + 1) * above // unit + 1
        k += 2
    # The terms left out are bounded by a geometric series with a ratio of at most 1/9.
    return Fraction(2 * low, unit), Fraction(2 * (high + 2 * upper + 2), unit)


def upper_tail(u: Fraction, bits: int) -> Interval:
    """An interval of width near 2^-bits around the normal distribution's P(Z > u), for u >= 0."""
    square = u * u
    if square > 2 * bits + 2:  # the tail is at most exp(-u^2 / 2) / 2
        return Interval(Fraction(0), Fraction(1, 2**bits))
    # P(0 < Z < u) = phi(u) (u + u^3/3 + u^5/15 + ...): all terms are positive, so nothing cancels.
    places = bits + 24 + math.ceil(square)
    unit = 2**places
    low = high = 0
    below, above = math.floor(u * unit), math.ceil(u * unit)
    square_below, square_above = math.floor(square * unit), math.ceil(square * unit)
    k = 1
    while above > 1 or k < 2 * square_above // unit + 4:
        low, high = low + below, high + above
        k += 2
        below = below * square_below // (unit * k)
        above = above * square_above // (unit * k) + 1
    # From here on, every term is at most half of the previous one.
    inner = Interval(Fraction(low, unit), Fraction(high + 4 * above + 4, unit))
    density = exp_minus(square / 2, places) / root(TWO * pi(places), places)
    return Interval.at(Fraction(1, 2)) - inner * density


def pi(bits: int) -> Interval:
    """An interval around pi, by Machin's formula 16 atan(1/5) - 4 atan(1/239)."""
    five, other = _atan_inverse(5, bits + 8), _atan_inverse(239, bits + 8)
    return Interval.at(16) * five - Interval.at(4) * other


def _atan_inverse(n: int, bits: int) -> Interval:
    unit = 2**bits
    power, total, k = unit // n, 0, 0
    while power:
        total += power // (2 * k + 1) if k % 2 == 0 else -(power // (2 * k + 1))
        power //= n * n
        k += 1
    return Interval(Fraction(total - 3 * k - 2, unit), Fraction(total + 3 * k + 2, unit))


def root(value: Interval, bits: int) -> Interval:
    """An interval around the square root of a positive interval."""
    low = math.isqrt(math.floor(value.low * 4**bits))
    high = math.isqrt(math.ceil(value.high * 4**bits)) + 1
    return Interval(Fraction(low, 2**bits), Fraction(high, 2**bits))


def _down(value: Fraction, bits: int) -> Fraction:
    return Fraction(math.floor(value * 2**bits), 2**bits)


def _up(value: Fraction, bits: int) -> Fraction:
    return Fraction(math.ceil(value * 2**bits), 2**bits)
