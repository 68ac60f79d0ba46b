"""What a model is: four finite arrays of matching shapes, immutable."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from quad4fhe import MLP, InputError, PolynomialModel
from quad4fhe import _arrays as arrays
from support.strategies import float_mlps, seeds

GOOD = {"W1": np.ones((3, 2)), "b1": np.ones(3), "W2": np.ones((4, 3)), "b2": np.ones(4)}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"W1": np.ones(3)}, "W1 has shape"),
        ({"W1": np.ones((0, 2)), "b1": np.ones(0), "W2": np.ones((4, 0))}, "must not be empty"),
        ({"b1": np.ones(2)}, "b1 has 2 entries"),
        ({"W2": np.ones((3, 4))}, "pass its transpose"),
        ({"W2": np.ones((4, 5))}, "wanted (classes, 3)"),
        ({"b2": np.ones(3)}, "b2 has 3 entries"),
        ({"W1": np.full((3, 2), np.nan)}, "NaN or infinite"),
        ({"b2": np.array([1, 2, 3, np.inf])}, "the first at [3]"),
        ({"W1": np.array([["a", "b"]] * 3)}, "wanted real numbers"),
        ({"W1": np.ones((3, 2)) * 1j}, "wanted real numbers"),
        ({"W1": [[1.0, 2.0], [3.0]]}, "rectangular"),
    ],
)
def test_an_impossible_model_is_refused_in_one_line(change: dict[str, object], says: str) -> None:
    with pytest.raises(InputError) as caught:
        MLP(**{**GOOD, **change})
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_prints_as_its_sizes_and_not_as_its_numbers() -> None:
    assert repr(MLP(**GOOD)) == "MLP(2-3-4)"
    assert repr(PolynomialModel.shared(MLP(**GOOD), 1.0, 0.5, 0.0)) == "PolynomialModel(2-3-4, degree 2)"


def test_a_model_is_immutable_and_keeps_no_reference_to_its_source() -> None:
    source = {name: value.copy() for name, value in GOOD.items()}
    mlp = MLP(**source)
    source["W1"][0, 0] = 7.0
    assert mlp.W1[0, 0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        mlp.W1[0, 0] = 2.0
    with pytest.raises(AttributeError):
        mlp.W1 = source["W1"]


def test_equal_numbers_have_equal_hashes_and_a_sign_of_zero_is_no_difference() -> None:
    negative = {name: -np.zeros_like(value) for name, value in GOOD.items()}
    positive = {name: np.zeros_like(value, dtype=np.float32) for name, value in GOOD.items()}
    assert MLP(**negative).sha256 == MLP(**positive).sha256
    assert MLP(**GOOD).sha256 != MLP(**positive).sha256


@given(float_mlps(), seeds)
def test_results_do_not_depend_on_the_chunks(mlp: MLP, seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(11, mlp.features))
    quadratic = PolynomialModel.shared(mlp, 0.3, 0.5, 0.1)
    whole = mlp.hidden(X), mlp.logits(X), quadratic.logits(X)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "CHUNK_BYTES", 1)
        parts = mlp.hidden(X), mlp.logits(X), quadratic.logits(X)
    for a, b in zip(whole, parts, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12 * np.abs(a).max())


@given(float_mlps(), seeds)
def test_the_shared_quadratic_is_the_replaced_activation(mlp: MLP, seed: int) -> None:
    rng = np.random.default_rng(seed)
    alpha, beta, eta, tau = rng.normal(size=4)
    X = rng.normal(size=(5, mlp.features))
    y = mlp.hidden(X)
    expected = (alpha * y * y + beta * y + eta) @ mlp.W2.T + mlp.b2
    expected[:, -1] -= tau
    found = PolynomialModel.shared(mlp, alpha, beta, eta, tau).logits(X)
    size = 1 + np.abs(alpha * y * y).sum() * np.abs(mlp.W2).max()
    np.testing.assert_allclose(found, expected, atol=1e-12 * size)


@pytest.mark.parametrize(
    ("X", "says"),
    [
        (np.ones(2), "X.reshape(1, -1)"),
        (np.ones((5, 3)), "has 3 columns, but the model takes 2"),
        (np.array([[1.0, np.nan]]), "NaN or infinite values, the first at [0, 1]"),
        (np.array([["a", "b"]]), "wanted real numbers"),
    ],
)
def test_unusable_samples_are_refused_in_one_line(X: np.ndarray, says: str) -> None:
    with pytest.raises(InputError) as caught:
        MLP(**GOOD).decide(X)
    assert says in str(caught.value)


def test_decisions_break_ties_to_the_lowest_class() -> None:
    mlp = MLP([[1.0]], [0.0], [[1.0], [1.0], [0.5]], [0.0, 0.0, 0.0])
    assert mlp.decide([[2.0], [-1.0]]).tolist() == [0, 0]
    assert MLP([[1.0]], [0.0], [[1.0]], [0.0]).decide([[2.0], [-1.0]]).tolist() == [1, 0]
