from __future__ import annotations

import json
from math import ceil, log2
from pathlib import Path

import numpy as np
import pytest

from quad4fhe import InputError
from quad4fhe_reproduce.baselines.precise import DEGREES, compose_sign, precise, sign_at

LEVELS = tuple(DEGREES)
NEAR_ZERO = np.logspace(-9, 0, 200001)
EVERYWHERE = np.concatenate([-NEAR_ZERO[::-1], [0.0], NEAR_ZERO, np.linspace(-1.0, 1.0, 200001)])


@pytest.mark.parametrize("alpha", LEVELS)
def test_relu_is_met_to_two_to_the_minus_alpha_gap_included(alpha):
    error = np.abs(precise(1.0, alpha)(EVERYWHERE) - np.maximum(EVERYWHERE, 0.0)).max()
    assert error <= 2.0**-alpha


@pytest.mark.parametrize("alpha", LEVELS)
def test_the_composed_sign_is_within_the_published_bound_outside_the_gap(alpha):
    # 2^-(alpha - 1): half the error of the sign is what ReLU pays at x = 1, and that may be 2^-alpha.
    sign = sign_at(alpha)
    value = x = EVERYWHERE[np.abs(EVERYWHERE) >= sign.gap]
    for stage in sign.stages:
        value = stage(value)
    error = np.abs(value - np.sign(x)).max()
    assert error <= 2.0 ** -(alpha - 1)
    assert error <= sign.error * (1.0 + 1e-9)


def test_level_eleven_has_the_published_degrees_and_depth():
    polynomial = precise(1.0, 11)
    assert tuple(stage.degree for stage in polynomial.stages) == (7, 7, 27)
    assert polynomial.degree == 7 * 7 * 27 + 1
    assert polynomial.depth == 3 + 3 + 5 + 1


@pytest.mark.parametrize("alpha", LEVELS)
def test_depth_is_that_of_the_stages_and_one_for_the_gate(alpha):
    assert precise(1.0, alpha).depth == sum(ceil(log2(d + 1)) for d in DEGREES[alpha]) + 1


def test_the_coefficients_published_for_level_thirteen_are_found_again():
    published = json.loads((Path(__file__).parents[2] / "vectors" / "precise_alpha13.json").read_text())["stages"]
    sign = compose_sign((15, 15, 27), gap=2.0**-9, margin=2.0**-22)
    for stage, coefficients in zip(sign.stages, published, strict=True):
        x = np.linspace(stage.lo, stage.hi, 1001)
        theirs = x * np.polynomial.polynomial.polyval(x * x, coefficients)
        np.testing.assert_allclose(stage(x), theirs, rtol=0.0, atol=1e-9)


@pytest.mark.parametrize("bound", [1e-3, 40.42, 1e6])
def test_the_scale_carries_the_error_with_it(bound):
    polynomial = precise(bound)
    assert polynomial.activation_error(-bound, bound) <= bound * 2.0**-11


def test_the_error_is_measured_where_it_was_asked_for():
    polynomial = precise(1.0)
    x = np.linspace(0.2, 0.4, 200001)
    away = np.abs(polynomial(x) - x).max()
    assert polynomial.activation_error(0.2, 0.4) == pytest.approx(away, rel=1e-4)
    assert away < 0.5 * polynomial.activation_error(-1.0, 1.0)


def test_values_beyond_the_bound_are_clipped_and_told():
    polynomial = precise(2.0)
    x = np.array([-5.0, -2.0, 1.0, 2.0, 5.0])
    assert polynomial.outside(x).tolist() == [True, False, False, False, True]
    assert polynomial(5.0) == polynomial(2.0)
    assert polynomial(-5.0) == polynomial(-2.0)


def test_all_zero_pre_activations_stay_zero():
    assert precise(0.0)(0.0) == 0.0


@pytest.mark.parametrize(("bound", "alpha"), [(1.0, 3), (1.0, 15), (-1.0, 11), (np.inf, 11), (np.nan, 11)])
def test_what_makes_no_sense_is_refused(bound, alpha):
    with pytest.raises(InputError, match="Precise"):
        precise(bound, alpha)
