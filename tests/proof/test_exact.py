"""The exact decisions agree with rational arithmetic written another way, and the error bound is honest."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quad4fhe import MLP, PolynomialModel
from quad4fhe.proof.exact import WholeNumbers, bounded_logits, decisions
from support.strategies import float_mlps, seeds, whole_number_mlps


def rational_logits(model: MLP | PolynomialModel, x: np.ndarray) -> list[Fraction]:
    """Logits by the definition, one fraction at a time."""

    def affine(W: np.ndarray, v: list[Fraction], b: np.ndarray) -> list[Fraction]:
        return [
            sum((Fraction(float(w)) * value for w, value in zip(row, v, strict=True)), Fraction(float(offset)))
            for row, offset in zip(W, b, strict=True)
        ]

    y = affine(model.W1, [Fraction(float(value)) for value in x], model.b1)
    if isinstance(model, MLP):
        out = affine(model.W2, [max(value, Fraction(0)) for value in y], model.b2)
    else:
        linear = affine(model.T, y, model.c)
        out = [a + b for a, b in zip(affine(model.S, [v * v for v in y], np.zeros(len(linear))), linear, strict=True)]
    return [Fraction(0), *out] if len(out) == 1 else out


def check(model: MLP | PolynomialModel, X: np.ndarray) -> None:
    found = decisions(model, X)
    for i, x in enumerate(X):
        logits = rational_logits(model, x)
        best = max(logits)
        rest = sorted(logits)[-2]
        assert found.label[i] == logits.index(best)
        assert found.strict[i] == (rest < best)
        assert abs(Fraction(float(found.gap[i])) - (best - rest)) <= Fraction(float(found.gap_error[i]))


@given(whole_number_mlps(), seeds)
def test_decisions_are_exact_on_models_full_of_ties(mlp: MLP, seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.integers(-3, 4, (6, mlp.features)).astype(float)
    check(mlp, X)
    check(PolynomialModel.shared(mlp, *rng.integers(-2, 3, 3).astype(float)), X)


@given(float_mlps(), seeds, st.integers(-8, 8))
def test_decisions_are_exact_on_any_scale(mlp: MLP, seed: int, power: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(4, mlp.features)) * 10.0**power
    check(mlp, X)
    check(PolynomialModel.shared(mlp, *rng.normal(size=3)), X)


@given(float_mlps(outputs=(2, 3)), seeds)
def test_a_sample_moved_onto_the_boundary_is_decided_exactly(mlp: MLP, seed: int) -> None:
    """Two classes whose logits differ by less than rounding: floats alone would guess."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(3, mlp.features))
    logits = mlp.logits(X)
    for i in range(3):
        shifted = MLP(mlp.W1, mlp.b1, mlp.W2, mlp.b2 - (logits[i] - logits[i].max()) * 1.0)
        check(shifted, X)


@settings(max_examples=30)
@given(float_mlps(), seeds)
def test_the_rounding_error_bound_holds_for_every_logit(mlp: MLP, seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(3, mlp.features))
    for model in (mlp, PolynomialModel.shared(mlp, *rng.normal(size=3))):
        logits, error = bounded_logits(model, X)
        for i, x in enumerate(X):
            exact = rational_logits(model, x)[-logits.shape[1] :]
            for c, value in enumerate(exact):
                assert abs(Fraction(float(logits[i, c])) - value) <= Fraction(float(error[i, c]))


def test_overflow_is_settled_in_whole_numbers() -> None:
    mlp = MLP([[1e200], [-1e200]], [0.0, 0.0], [[1e200, 0.0], [0.0, 1e200]], [0.0, 0.0])
    found = decisions(mlp, np.array([[1e-3], [-1e3], [0.0]]))
    assert found.label.tolist() == [0, 1, 0]
    assert found.strict.tolist() == [True, True, False]
    assert found.rational == 3


def test_subnormal_weights_are_not_rounded_away() -> None:
    mlp = MLP([[5e-324], [1.0]], [0.0, 0.0], [[1.0, 0.0]], [0.0])
    assert decisions(mlp, np.array([[0.25], [-0.25]])).label.tolist() == [1, 0]


def test_a_repeated_tie_is_evaluated_once() -> None:
    mlp = MLP([[1.0]], [0.0], [[1.0], [1.0]], [0.0, 0.0])
    found = decisions(mlp, np.ones((500, 1)))
    assert found.ties == 500
    assert found.rational == 1


def test_exact_lift_is_what_the_definition_says() -> None:
    mlp = MLP([[0.5], [-2.0]], [0.25, 1.0], [[3.0, -1.0]], [0.125])
    Q, L = WholeNumbers(mlp).lift(np.array([1.5]))
    y = [Fraction(1), Fraction(-2)]
    assert [0, 3 * y[0] ** 2 - y[1] ** 2] == Q
    assert [0, 3 * y[0] - y[1]] == L
    assert WholeNumbers(mlp).offsets() == ([0, 2], [0, Fraction(1, 8)])


@pytest.mark.parametrize("name", ["breast_cancer", "diabetes", "otto", "shuttle", "sst5"])
def test_trained_models_need_almost_no_exact_arithmetic(trained, name: str) -> None:
    model = trained(name)
    found = decisions(model.mlp, model.X_cal)
    assert np.array_equal(found.label, model.mlp.decide(model.X_cal))
    assert found.rational <= 5
