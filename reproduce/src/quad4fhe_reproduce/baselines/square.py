"""Square (CryptoNets): every ReLU becomes y^2, the cheapest replacement."""

from __future__ import annotations

from quad4fhe_reproduce.baselines.polynomial import Polynomial, Series
from quad4fhe_reproduce.baselines.problem import Baseline


def square() -> Polynomial:
    """The square, y^2 = (T_0(y) + T_2(y)) / 2 on [-1, 1]; no interval, so nothing is outside it."""
    return Polynomial("Square", (Series([0.5, 0.0, 0.5], -1.0, 1.0),), None)


BASELINE = Baseline("Square: y^2 (CryptoNets)", ("Square",), lambda problem: {"Square": square()})
