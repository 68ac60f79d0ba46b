from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quad4fhe import InputError
from quad4fhe_reproduce.baselines import Polynomial, Series
from quad4fhe_reproduce.baselines.square import square

COEFFICIENTS = st.lists(st.floats(-4.0, 4.0), min_size=1, max_size=9)


def exact_chebyshev(coefficients, u):
    """sum c_k T_k(u) in rational arithmetic."""
    before, current, total = Fraction(1), u, Fraction(0)
    for k, c in enumerate(coefficients):
        if k == 0:
            total += Fraction(c)
            continue
        total += Fraction(c) * current
        before, current = current, 2 * u * current - before
    return total


@given(COEFFICIENTS, st.integers(-16, 16))
def test_a_series_evaluates_to_its_exact_value(coefficients, sixteenths):
    x = Fraction(sixteenths, 8)  # in [-2, 2], the interval below
    found = Series(coefficients, -2.0, 2.0)(np.array(float(x)))
    assert found == pytest.approx(float(exact_chebyshev(coefficients, x / 2)), abs=1e-13)


@given(COEFFICIENTS, st.integers(-16, 16))
def test_an_odd_series_is_odd_and_exact(coefficients, sixteenths):
    x = Fraction(sixteenths, 8)
    v = (2 * x * x - (1 + 4)) / Fraction(3)  # x^2 in [1, 4]
    series = Series(coefficients, 1.0, 2.0, odd=True)
    exact = float(x * exact_chebyshev(coefficients, v))
    assert series(np.array(float(x))) == pytest.approx(exact, rel=1e-12, abs=1e-9)
    assert series(np.array(-float(x))) == -series(np.array(float(x)))


@given(COEFFICIENTS, st.floats(-3.0, 3.0))
def test_critical_points_have_the_slope_asked_for(coefficients, slope):
    series = Series(coefficients, -1.0, 3.0)
    derivative = np.polynomial.Chebyshev(coefficients, domain=[-1.0, 3.0]).deriv()
    for x in series.critical_points(slope, -1.0, 3.0):
        assert derivative(x) == pytest.approx(slope, abs=1e-4)


def test_trailing_zeros_do_not_raise_the_degree():
    assert Series([1.0, 2.0, 0.0, 0.0], -1.0, 1.0).degree == 1
    assert Series([0.0, 0.0], -1.0, 1.0).degree == 0
    assert Series([1.0, 2.0, 0.0], 0.5, 1.0, odd=True).degree == 3


@given(st.floats(-1e6, 1e6))
def test_square_squares(y):
    assert square()(y) == pytest.approx(y * y, rel=1e-12, abs=1e-12)


def test_square_costs_one_product_and_one_level():
    assert (square().degree, square().depth, square().products) == (2, 1, 1)


def test_the_shape_of_the_data_is_kept():
    assert square()(np.ones((3, 4))).shape == (3, 4)
    assert square().outside(np.ones((3, 4))).shape == (3, 4)


def test_outside_is_told_for_the_interval_ends_included():
    polynomial = Polynomial("p", (Series([0.0, 1.0], -1.0, 1.0),), (-1.0, 1.0))
    assert polynomial.outside([-1.5, -1.0, 0.0, 1.0, 1.5]).tolist() == [True, False, False, False, True]


def test_the_largest_error_is_found_between_grid_points():
    # 1/4 + x/2 + x^2/4 on [-1, 1] is (1 + x)^2 / 4: furthest from ReLU at the kink, by a quarter.
    polynomial = Polynomial("p", (Series([0.375, 0.5, 0.125], -1.0, 1.0),), (-1.0, 1.0))
    assert polynomial.activation_error(-1.0, 1.0) == pytest.approx(0.25, rel=1e-14)
    # x^2 against ReLU on [0, 0.9] is furthest at 1/2, again by a quarter.
    assert square().activation_error(0.0, 0.9) == pytest.approx(0.25, rel=1e-14)


@pytest.mark.parametrize(("lo", "hi"), [(1.0, 1.0), (2.0, 1.0), (-np.inf, 1.0), (np.nan, 1.0)])
def test_a_series_needs_an_interval(lo, hi):
    with pytest.raises(InputError, match="finite interval"):
        Series([1.0], lo, hi)


def test_infinite_coefficients_are_refused():
    with pytest.raises(InputError, match="NaN or infinite"):
        Series([1.0, np.inf], -1.0, 1.0)
