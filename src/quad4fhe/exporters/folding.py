"""Fold the linear term of a quadratic model into its squares, which leaves affine, square, affine.

Compilers for encrypted inference spend a product and a level on a linear term. The folded model is the same function
up to rounding. `planning` has its own, exact fold for the circuits of this library.
"""

from __future__ import annotations

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.errors import InputError
from quad4fhe.polynomial import PolynomialModel

_PROPORTIONAL = 64 * np.finfo(np.float64).eps  # the rounding of products such as alpha * W2


def folded(model: PolynomialModel) -> PolynomialModel:
    """The same function without a linear term.

    With one quadratic per unit (families shared and unitwise), complete the square: S y^2 + T y = S (y+t)^2 - S t^2.
    A free head gets two more units per class instead, because 4 s v = (s v + 1)^2 - (s v - 1)^2 with v = T y.
    """
    if not model.is_quadratic:
        raise InputError(
            f"only a model of degree 2 can be folded, and this has degree {model.degree}; export it unfolded"
        )
    if not model.T.any():
        return model
    offset = _offset(model.S, model.T)
    if offset is not None:
        c = model.c - model.S @ np.square(offset)
        return PolynomialModel.quadratic(model.W1, model.b1 + offset, model.S, np.zeros_like(model.T), c)
    return _with_more_units(model)


def _offset(S: Array, T: Array) -> Array | None:
    """The t (m,) with T = 2 S t column by column, up to rounding; None if there is none."""
    largest, at = np.abs(S).argmax(axis=0), np.arange(S.shape[1])
    pivot = S[largest, at]
    if not (pivot != 0).all():
        return None
    t: Array = T[largest, at] / (2 * pivot)
    same = np.abs(T - 2 * S * t) <= _PROPORTIONAL * np.abs(2 * S * t).max(axis=0)
    return t if same.all() else None


def _with_more_units(model: PolynomialModel) -> PolynomialModel:
    K, m = model.S.shape
    U, u = model.T @ model.W1, model.T @ model.b1
    # Near 1/|v|, so that both squares are about as large as their difference; a power of two makes scaling exact.
    size = np.maximum(np.abs(U).max(axis=1), np.abs(u))
    s = np.ldexp(1.0, -np.frexp(np.where(size > 0, size, 1.0))[1])
    W1 = np.vstack([model.W1, s[:, None] * U, s[:, None] * U])
    b1 = np.concatenate([model.b1, s * u + 1, s * u - 1])
    S = np.zeros((K, m + 2 * K))
    S[:, :m] = model.S
    S[np.arange(K), m + np.arange(K)] = 1 / (4 * s)
    S[np.arange(K), m + K + np.arange(K)] = -1 / (4 * s)
    return PolynomialModel.quadratic(W1, b1, S, np.zeros_like(S), model.c)
