"""Square (CryptoNets): every ReLU becomes y^2.

Decides nothing from the data; it is the cheapest replacement there is.
"""

from __future__ import annotations

from quad4fhe.polynomials.polynomial import Polynomial, Series


def square() -> Polynomial:
    """The square, y^2 = (T_0(y) + T_2(y)) / 2 on [-1, 1]; it was made for no interval, so nothing is outside it."""
    return Polynomial("Square", (Series([0.5, 0.0, 0.5], -1.0, 1.0),), None)
