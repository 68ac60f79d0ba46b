"""Piecewise rational activations: every decision of a model with one can be settled in fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.activations import Kind

_Number = Any  # a float, or an array with one number for each hidden unit


def _leaky(u: Array, slope: _Number) -> Array:
    return np.where(u >= 0, u, slope * u)


def _leaky_exact(u: Fraction, slope: Fraction) -> Fraction:
    return u if u >= 0 else slope * u


def _clip(u: Array, low: _Number, high: _Number) -> Array:
    return np.minimum(np.maximum(u, low), high)


def _clip_exact(u: Fraction, low: Fraction, high: Fraction) -> Fraction:
    return min(max(u, low), high)


def _hard_sigmoid(u: Array, alpha: _Number, beta: _Number) -> Array:
    return _clip(alpha * u + beta, 0.0, 1.0)


def _hard_sigmoid_exact(u: Fraction, alpha: Fraction, beta: Fraction) -> Fraction:
    return _clip_exact(alpha * u + beta, Fraction(0), Fraction(1))


def _hard_swish_exact(u: Fraction) -> Fraction:
    return u * _clip_exact(u + 3, Fraction(0), Fraction(6)) / 6


RELU = Kind("relu", "ReLU", lambda u: np.maximum(u, 0.0), lambda: 1.0, lambda u: max(u, Fraction(0)))
LEAKY_RELU = Kind(
    "leaky_relu",
    "LeakyReLU",
    _leaky,
    lambda slope: np.maximum(1.0, np.abs(slope)),
    _leaky_exact,
    parameters=(("slope", 0.01),),
)
RELU6 = Kind(
    "relu6", "ReLU6", lambda u: _clip(u, 0.0, 6.0), lambda: 1.0, lambda u: _clip_exact(u, Fraction(0), Fraction(6))
)
HARDTANH = Kind(
    "hardtanh", "Hardtanh", _clip, lambda low, high: 1.0, _clip_exact, parameters=(("low", -1.0), ("high", 1.0))
)
HARD_SIGMOID = Kind(
    "hard_sigmoid",
    "HardSigmoid",
    _hard_sigmoid,
    # Larger than the slope, to cover the rounding of alpha u + beta.
    lambda alpha, beta: np.abs(alpha) + np.abs(beta) + 1.0,
    _hard_sigmoid_exact,
    parameters=(("alpha", 1 / 6), ("beta", 0.5)),
)
HARD_SWISH = Kind(
    "hard_swish", "HardSwish", lambda u: u * _clip(u + 3.0, 0.0, 6.0) / 6.0, lambda: 1.5, _hard_swish_exact
)
SOFTSIGN = Kind(
    "softsign", "Softsign", lambda u: u / (1.0 + np.abs(u)), lambda: 1.0, lambda u: u / (1 + abs(u)), divides=True
)
