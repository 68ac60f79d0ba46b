from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quad4fhe import InputError
from quad4fhe_reproduce.baselines.least_squares import least_squares

SIZES = st.floats(-3.0, 3.0).map(lambda exponent: 10.0**exponent)


def exact_least_squares(degree, lo, hi):
    """The normal equations of the continuous problem in rational arithmetic; coefficients of 1, x, x^2, ..."""
    lo, hi = Fraction(lo), Fraction(hi)
    n = degree + 1

    def moment(k, a, b):
        return (b ** (k + 1) - a ** (k + 1)) / (k + 1)

    rows = [[moment(i + j, lo, hi) for j in range(n)] + [moment(i + 1, Fraction(0), hi)] for i in range(n)]
    for i in range(n):
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for j in range(n):
            if j != i:
                rows[j] = [a - rows[j][i] * b for a, b in zip(rows[j], rows[i], strict=True)]
    return [row[-1] for row in rows]


@pytest.mark.parametrize("degree", [2, 3, 5, 7])
@pytest.mark.parametrize(("lo", "hi"), [(-1, 1), (-3, 7), (-135, 127), (-40, 2)])
def test_it_is_the_exact_projection(degree, lo, hi):
    coefficients = exact_least_squares(degree, lo, hi)
    polynomial = least_squares(degree, float(lo), float(hi))
    for x in np.linspace(lo, hi, 23):
        exact = sum(c * Fraction(float(x)) ** k for k, c in enumerate(coefficients))
        assert polynomial(x) == pytest.approx(float(exact), abs=1e-12 * hi)


@pytest.mark.parametrize("degree", [2, 3, 5, 7])
def test_a_dense_grid_gives_the_same_polynomial(degree):
    x = np.linspace(-3.0, 7.0, 200001)
    fitted = np.polynomial.Chebyshev.fit(x, np.maximum(x, 0.0), degree)
    np.testing.assert_allclose(least_squares(degree, -3.0, 7.0)(x), fitted(x), rtol=0.0, atol=1e-4)


@settings(deadline=None)
@given(SIZES, SIZES, st.sampled_from([2, 3, 5, 7]))
def test_a_higher_degree_is_never_further_away(left, right, degree):
    x = np.linspace(-left, right, 20001)

    def distance(d):
        return np.square(least_squares(d, -left, right)(x) - np.maximum(x, 0.0)).mean()

    assert distance(degree + 1) <= distance(degree) * (1.0 + 1e-6) + 1e-20


def test_one_sign_only_is_met_exactly():
    x = np.linspace(2.0, 5.0, 11)
    np.testing.assert_allclose(least_squares(7, 2.0, 5.0)(x), x, rtol=1e-15)
    assert np.all(least_squares(7, -5.0, -2.0)(-x) == 0.0)
    assert least_squares(2, 4.0, 4.0)(4.0) == 4.0


@pytest.mark.parametrize("degree", [0, -1, 40])
def test_a_degree_out_of_reach_is_refused(degree):
    with pytest.raises(InputError, match="least squares needs a degree"):
        least_squares(degree, -1.0, 1.0)
