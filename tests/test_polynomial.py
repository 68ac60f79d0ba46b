"""Polynomial models of any degree: logits, exact decisions, exactness of V and a."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from quad4fhe.errors import InputError
from quad4fhe.polynomial import PolynomialModel
from quad4fhe.proof.exact import WholeNumbers, bounded_logits


@pytest.mark.parametrize("degree", [2, 3, 8])
def test_logits_and_their_error_bound_hold_in_fractions(degree: int) -> None:
    rng = np.random.default_rng(degree)
    W1, b1, A, c = (rng.standard_normal(shape) for shape in ((6, 4), 6, (degree, 3, 6), 3))
    model, X = PolynomialModel(W1, b1, A, c), rng.standard_normal((8, 4))
    logits, error = bounded_logits(model, X)
    assert np.allclose(model.logits(X), logits)
    for i, x in enumerate(X):
        y = [sum(Fraction(w) * Fraction(v) for w, v in zip(W1[j], x, strict=True)) + Fraction(b1[j]) for j in range(6)]
        exact = [
            sum(Fraction(A[k, q, j]) * y[j] ** (k + 1) for k in range(degree) for j in range(6)) + Fraction(c[q])
            for q in range(3)
        ]
        assert WholeNumbers(model).logits(x) == exact
        assert all(abs(Fraction(logits[i, q]) - exact[q]) <= Fraction(error[i, q]) for q in range(3))


def test_a_polynomial_per_unit_is_the_same_model_by_blocks() -> None:
    rng = np.random.default_rng(0)
    V, a = rng.integers(-500, 500, (3, 6)) / 64, rng.integers(-99, 99, (4, 6)) / 8
    W1, b1, c, X = (
        rng.standard_normal((6, 4)),
        rng.standard_normal(6),
        rng.standard_normal(3),
        rng.standard_normal((9, 4)),
    )
    own = PolynomialModel.by_unit(W1, b1, V, a, c)
    blocks = PolynomialModel(W1, b1, V * a[:, None, :], c)
    assert own.sha256 == blocks.sha256
    assert np.allclose(own.logits(X), blocks.logits(X))
    assert (own.degree, blocks.V, repr(own)) == (4, None, "PolynomialModel(4-6-3, degree 4)")


def test_products_that_are_not_exact_are_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match="not exact"):
        PolynomialModel.by_unit(
            np.ones((6, 4)), np.zeros(6), rng.standard_normal((3, 6)), np.ones((3, 6)) / 3, np.zeros(3)
        )


def test_a_quadratic_is_a_polynomial_of_degree_two() -> None:
    rng = np.random.default_rng(0)
    S, T = rng.standard_normal((2, 3)), rng.standard_normal((2, 3))
    model = PolynomialModel.quadratic(np.eye(3), np.zeros(3), S, T, np.zeros(2))
    assert isinstance(model, PolynomialModel)
    assert model.degree == 2
    assert np.array_equal(model.A, np.stack([T, S]))
