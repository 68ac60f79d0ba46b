"""Activations: floats within the stated bound of exact values, and decisions that intervals settle."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quad4fhe import MLP, Fit, InputError, fit, verify
from quad4fhe.activations import ACTIVATIONS, Activation
from quad4fhe.activations.intervals import Interval, exp_minus, log1p, upper_tail
from quad4fhe.proof.exact import WholeNumbers, bounded_logits, decisions

NAMES = ACTIVATIONS.names()
NUMBERS = st.floats(min_value=-60, max_value=60, allow_nan=False)


def enclosure(activation: Activation, u: Fraction) -> Interval:
    return Interval.at(activation.fraction(u, 0)) if activation.is_exact else activation.interval(u, 0, 80)


def exact_exp(v: Fraction) -> tuple[Fraction, Fraction]:
    """exp(-v) from the decimal module, which rounds correctly, with an error of its last place."""
    with localcontext() as context:
        context.prec = 60
        value = Fraction((-(Decimal(v.numerator) / Decimal(v.denominator))).exp())
    return value, Fraction(1, 10**50)


@given(st.fractions(min_value=0, max_value=80, max_denominator=10**6))
@settings(max_examples=60, deadline=None)
def test_the_interval_of_exp_contains_the_decimal_modules_value(v: Fraction) -> None:
    found, (value, off) = exp_minus(v, 120), exact_exp(v)
    assert found.low - off <= value <= found.high + off
    assert found.high - found.low < Fraction(1, 2**100)


@given(st.fractions(min_value=0, max_value=1, max_denominator=10**6))
@settings(max_examples=60, deadline=None)
def test_the_interval_of_log_contains_the_decimal_modules_value(t: Fraction) -> None:
    found = log1p(Interval.at(t), 120)
    with localcontext() as context:
        context.prec = 60
        value = Fraction((1 + Decimal(t.numerator) / Decimal(t.denominator)).ln())
    assert found.low - Fraction(1, 10**50) <= value <= found.high + Fraction(1, 10**50)
    assert found.high - found.low < Fraction(1, 2**100)


@given(st.floats(min_value=0, max_value=30))
@settings(max_examples=60, deadline=None)
def test_the_interval_of_the_normal_tail_contains_that_of_the_c_library(u: float) -> None:
    found = upper_tail(Fraction(u), 200)
    value = Fraction(math.erfc(u / math.sqrt(2)) / 2)
    assert found.high - found.low < Fraction(1, 2**180)
    assert abs(found.low - value) <= abs(value) / 2**40 + Fraction(1, 2**180)


def test_pi_enters_the_normal_tail_with_all_its_digits() -> None:
    """P(Z > 1), from tables (Abramowitz and Stegun, table 26.1)."""
    found = upper_tail(Fraction(1), 200)
    assert abs(float(found.low) - 0.158655253931457) < 1e-15
    assert found.low < found.high


@pytest.mark.parametrize("name", NAMES)
@given(u=NUMBERS)
@settings(max_examples=40, deadline=None)
def test_floats_are_within_the_stated_error_of_the_exact_activation(name: str, u: float) -> None:
    activation = Activation(name)
    computed = Fraction(float(activation(np.array([u]))[0]))
    bound = Fraction(float(activation.error(np.array([u]), np.zeros(1))[0]))
    exact = enclosure(activation, Fraction(u))
    assert exact.low <= exact.high
    assert max(abs(computed - exact.low), abs(computed - exact.high)) <= bound


@pytest.mark.parametrize("name", NAMES)
@given(u=NUMBERS, step=st.floats(min_value=1e-6, max_value=1.0))
@settings(max_examples=40, deadline=None)
def test_no_step_is_steeper_than_the_stated_slope(name: str, u: float, step: float) -> None:
    activation = Activation(name)
    slope = Fraction(float(activation.kind.slope(*activation.parameters)))
    first, second = enclosure(activation, Fraction(u)), enclosure(activation, Fraction(u) + Fraction(step))
    assert max(second.low - first.high, first.low - second.high) <= slope * Fraction(step)


def network(name: str, seed: int = 0, outputs: int = 3) -> tuple[MLP, np.ndarray]:
    rng = np.random.default_rng(seed)
    parts = (rng.normal(size=(5, 4)), rng.normal(size=5), rng.normal(size=(outputs, 5)), rng.normal(size=outputs))
    return MLP(*parts, activation=name), rng.normal(size=(80, 4))


@pytest.mark.parametrize("name", NAMES)
def test_exact_arithmetic_and_intervals_agree_with_the_bounded_floats(name: str) -> None:
    mlp, X = network(name)
    found, whole = decisions(mlp, X), WholeNumbers(mlp)
    logits, error = bounded_logits(mlp, X)
    assert (error < 1e-8).all()
    for i in range(12):
        label, strict, gap, *_ = whole.decision(X[i])
        assert (label, strict) == (found.label[i], found.strict[i])
        ordered = np.sort(logits[i])
        assert abs(gap - (ordered[-1] - ordered[-2])) <= 2 * error[i].max() + 1e-12


def test_a_difference_far_below_float_rounding_is_settled_by_intervals() -> None:
    """Two classes whose logits differ by 1e-25: floats see a tie, and the sign decides."""
    tiny = 2.0**-83
    for sign in (1.0, -1.0):
        mlp = MLP([[1.0]], [0.3], [[1.0], [1.0]], [0.0, sign * tiny], activation="tanh")
        found = decisions(mlp, np.array([[0.4]]))
        assert found.label[0] == (1 if sign > 0 else 0)
        assert found.strict[0]
        assert found.rational == 1


def test_two_equal_classes_tie_and_the_first_wins() -> None:
    mlp = MLP([[1.0]], [0.3], [[-1.0], [1.0], [1.0]], [0.0, 0.1, 0.1], activation="gelu")
    found = decisions(mlp, np.array([[2.0]]))
    assert (found.label[0], bool(found.strict[0]), found.ties) == (1, False, 1)


@pytest.mark.parametrize("name", ["leaky_relu:0.2", "gelu", "tanh", "silu", "hard_swish", "softplus", "sigmoid"])
def test_a_fit_of_any_activation_verifies_and_survives_its_file(name: str) -> None:
    mlp, X = network(name, seed=3)
    found = fit(mlp, X, family="shared")
    back = Fit.from_bytes(found.to_bytes())
    assert back.mlp.activation == mlp.activation
    assert back.mlp.sha256 == mlp.sha256
    assert verify(back, mlp, X).samples == 80
    with pytest.raises(Exception, match="the model that was given"):
        verify(back, mlp.with_activation("relu"), X)


def test_slopes_of_single_units_are_kept() -> None:
    mlp, X = network("relu")
    slopes = (0.1, 0.2, 0.3, 0.4, 0.5)
    prelu = mlp.with_activation(Activation("leaky_relu", (slopes,)))
    y = mlp.hidden(X)
    wanted = np.where(y >= 0, y, np.array(slopes) * y) @ mlp.W2.T + mlp.b2
    assert np.allclose(prelu.logits(X), wanted, atol=1e-12)
    assert decisions(prelu, X).label.tolist() == wanted.argmax(axis=1).tolist()
    assert Fit.from_bytes(fit(prelu, X, family="shared").to_bytes()).mlp.activation == prelu.activation


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("swishy", "wanted 'relu'"),
        ("leaky_relu:a", "leaky_relu:0.2"),
        ("gelu:1", "wanted at most 0"),
        ("celu:-1", "wanted positive"),
        ("elu:inf", "finite"),
        ("softplus:1e-310", "its slope overflows"),
        ("selu:1e200,1e200", "its slope overflows"),
    ],
)
def test_an_unknown_activation_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        Activation.parse(text)
    assert "\n" not in str(caught.value)


def test_parameters_for_another_layer_are_refused() -> None:
    mlp, _ = network("relu")
    with pytest.raises(InputError, match="for 2 units, but the hidden layer has 5"):
        mlp.with_activation(Activation("leaky_relu", ((0.1, 0.2),)))
