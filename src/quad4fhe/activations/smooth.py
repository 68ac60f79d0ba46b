"""Transcendental activations: float64 functions, and rigorous intervals for decisions that floats can't settle."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from scipy import special

from quad4fhe._arrays import Array
from quad4fhe.activations import Kind
from quad4fhe.activations.intervals import ONE, TWO, Interval, exp_minus, log1p, pi, root, upper_tail

_Number = Any  # a float, or an array with one number for each hidden unit


def _logistic(v: Fraction, bits: int) -> Interval:
    """1 / (1 + exp(-v))."""
    t = exp_minus(abs(v), bits)
    return (ONE / (ONE + t)) if v >= 0 else (t / (ONE + t))


def _tanh(u: Fraction, bits: int) -> Interval:
    return TWO * _logistic(2 * u, bits + 1) - ONE


def _gelu(u: Fraction, bits: int) -> Interval:
    wide = bits + max(0, int(abs(u)).bit_length())
    tail = upper_tail(abs(u), wide)
    return Interval.at(u) * (ONE - tail if u >= 0 else tail)


# The float64 number in torch's 0.5 u (1 + tanh(sqrt(2 / pi) (u + 0.044715 u^3)))
_CUBE = Fraction(0.044715)


def _gelu_tanh_float(u: Array) -> Array:
    inner = np.sqrt(2.0 / np.pi) * (u + 0.044715 * u * u * u)
    out: Array = u * special.expit(2.0 * inner)
    return out


def _gelu_tanh(u: Fraction, bits: int) -> Interval:
    wide = bits + 2 * max(0, int(abs(u)).bit_length()) + 8
    inner = Interval.at(2 * (u + _CUBE * u**3)) * root(TWO / pi(wide), wide)
    low, high = _logistic(inner.low, wide), _logistic(inner.high, wide)
    return Interval.at(u) * Interval(low.low, high.high)


def _silu(u: Fraction, bits: int, beta: Fraction) -> Interval:
    wide = bits + max(0, int(abs(u)).bit_length())
    return Interval.at(u) * _logistic(beta * u, wide)


def _elu(u: Fraction, bits: int, alpha: Fraction) -> Interval:
    return Interval.at(u) if u >= 0 else Interval.at(alpha) * (exp_minus(-u, bits) - ONE)


def _selu(u: Fraction, bits: int, alpha: Fraction, gamma: Fraction) -> Interval:
    return Interval.at(gamma) * _elu(u, bits, alpha)


def _celu(u: Fraction, bits: int, alpha: Fraction) -> Interval:
    return Interval.at(u) if u >= 0 else Interval.at(alpha) * (exp_minus(-u / alpha, bits) - ONE)


def _softplus(u: Fraction, bits: int, beta: Fraction) -> Interval:
    t = exp_minus(abs(beta * u), bits)
    inside = Interval(t.low, min(t.high, Fraction(1)))
    return Interval.at(max(u, Fraction(0))) + log1p(inside, bits) / Interval.at(beta)


def _mish(u: Fraction, bits: int) -> Interval:
    """u tanh(log(1 + e^u)), as a quotient of polynomials in t = exp(-|u|)."""
    wide = bits + max(0, int(abs(u)).bit_length()) + 4
    t = exp_minus(abs(u), wide)
    above = (ONE + TWO * t) if u >= 0 else (t * t + TWO * t)
    return Interval.at(u) * above / (above + (TWO * t * t if u >= 0 else TWO))


def _expm1(u: Array) -> Array:
    return np.expm1(np.minimum(u, 0.0))


def _mish_float(u: Array) -> Array:
    return u * np.tanh(np.logaddexp(0.0, u))


SIGMOID = Kind("sigmoid", "Sigmoid", special.expit, lambda: 1.0, enclose=_logistic)
TANH = Kind("tanh", "tanh", np.tanh, lambda: 1.0, enclose=_tanh)
GELU = Kind("gelu", "GELU", lambda u: u * special.ndtr(u), lambda: 1.25, enclose=_gelu)
GELU_TANH = Kind("gelu_tanh", "GELU (tanh form)", _gelu_tanh_float, lambda: 1.25, enclose=_gelu_tanh)
SILU = Kind(
    "silu",
    "SiLU",
    lambda u, beta: u * special.expit(beta * u),
    lambda beta: 1.25 + 0.0 * np.abs(beta),  # the largest slope is 1.0999 for every beta
    enclose=_silu,
    parameters=(("beta", 1.0),),
)
ELU = Kind(
    "elu",
    "ELU",
    lambda u, alpha: np.where(u >= 0, u, alpha * _expm1(u)),
    lambda alpha: np.maximum(1.0, np.abs(alpha)),
    enclose=_elu,
    parameters=(("alpha", 1.0),),
)
SELU = Kind(
    "selu",
    "SELU",
    lambda u, alpha, gamma: gamma * np.where(u >= 0, u, alpha * _expm1(u)),
    lambda alpha, gamma: np.abs(gamma) * np.maximum(1.0, np.abs(alpha)),
    enclose=_selu,
    parameters=(("alpha", 1.6732632423543772), ("gamma", 1.0507009873554805)),
)
CELU = Kind(
    "celu",
    "CELU",
    lambda u, alpha: np.where(u >= 0, u, alpha * _expm1(u / alpha)),
    lambda alpha: 1.0 + np.abs(alpha),
    enclose=_celu,
    parameters=(("alpha", 1.0),),
    positive=True,
)
SOFTPLUS = Kind(
    "softplus",
    "Softplus",
    lambda u, beta: np.logaddexp(0.0, beta * u) / beta,
    lambda beta: 1.0 + 1.0 / np.abs(beta),
    enclose=_softplus,
    parameters=(("beta", 1.0),),
    positive=True,
)
MISH = Kind("mish", "Mish", _mish_float, lambda: 1.25, enclose=_mish)
