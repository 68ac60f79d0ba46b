from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quad4fhe import InputError, PolynomialModel
from quad4fhe._dyadic import Dyadic
from quad4fhe.planning.bounds import bound
from quad4fhe.planning.fold import FORMS, Circuit, Folding, centred, fold
from quad4fhe.planning.integers import Scales, quantise
from support.standins import heads, random_model


def centred_logits(model: PolynomialModel, X: np.ndarray) -> np.ndarray:
    logits = model.logits(X)
    return logits if model.outputs == 1 else logits - logits.mean(axis=1, keepdims=True)


@given(heads(), st.integers(0, 2**31))
@settings(max_examples=150, deadline=None)
def test_every_form_equals_the_plaintext_head_to_rounding(model: PolynomialModel, seed: int) -> None:
    rng = np.random.default_rng(seed)
    box = np.sort(rng.normal(size=(2, model.features)) * 3 + rng.normal() * 5, axis=0)
    X = box[0] + rng.random((7, model.features)) * (box[1] - box[0])
    wanted = centred_logits(model, X)
    for form in Folding(model, box).forms:
        circuit = fold(model, box, form)
        # The terms that cancel bound the rounding: completing a square with a tiny alpha makes them huge.
        y = (X - circuit.shift) @ circuit.W.T + circuit.t
        terms = (y * y) @ np.abs(circuit.V).T + np.abs(circuit.c)
        if circuit.U is not None:
            terms += np.abs(X - circuit.shift) @ np.abs(circuit.U).T
        offsets = (np.abs(circuit.t) + np.abs(model.b1)) ** 2 @ np.abs(circuit.V).T
        scale = terms + offsets + np.abs(wanted)
        assert (np.abs(circuit.logits(X) - wanted) <= 1e-12 * scale).all()


@given(heads())
@settings(max_examples=60, deadline=None)
def test_the_bound_holds_at_every_corner_and_inside(model: PolynomialModel) -> None:
    rng = np.random.default_rng(0)
    box = np.sort(rng.normal(size=(2, model.features)) * 4, axis=0)
    signs = np.array(np.meshgrid(*[[0.0, 1.0]] * model.features)).reshape(model.features, -1).T
    X = np.vstack([box[0] + signs * (box[1] - box[0]), box[0] + rng.random((200, model.features)) * (box[1] - box[0])])
    for form in Folding(model, box).forms:
        circuit = fold(model, box, form)
        found = bound(circuit, box)
        assert np.abs(circuit.logits(X)).max() <= found.logit * (1 + 1e-9)
        y = (X - circuit.shift) @ circuit.W.T + circuit.t
        assert (np.abs(y) <= found.hidden * (1 + 1e-9) + 1e-12).all()
        slopes = [2 * (circuit.V * row) @ circuit.W + (0 if circuit.U is None else circuit.U) for row in y]
        assert np.linalg.norm(np.array(slopes), axis=2).max() <= found.slope * (1 + 1e-9)


def test_the_bound_of_a_wide_network_holds_at_random_corners() -> None:
    model = random_model(300, 40, 4)
    box = np.stack([-np.ones(300), np.ones(300)])
    circuit = fold(model, box, "square")
    X = np.random.default_rng(0).choice([-1.0, 1.0], size=(500, 300))
    assert np.abs(circuit.logits(X)).max() <= bound(circuit, box).logit


def test_the_ellipsoid_is_tighter_than_intervals_on_a_trained_like_network() -> None:
    circuit = fold(random_model(40, 128, 5), np.stack([-3 * np.ones(40), 3 * np.ones(40)]), "skip")
    found = bound(circuit, np.stack([-3 * np.ones(40), 3 * np.ones(40)]))
    assert found.method == "ellipsoid"
    assert found.ellipsoid < found.interval / 2


def worst_corner(circuit: Circuit, box: np.ndarray, k: int, sign: float, rng: np.random.Generator) -> np.ndarray:
    """A corner of the box from which no single step makes a logit larger."""
    x = np.where(rng.random(circuit.features) < 0.5, *box)
    best = sign * circuit.logits(x[None])[0, k]
    for _ in range(20):
        steps = np.repeat(x[None], circuit.features, axis=0)
        np.fill_diagonal(steps, box[0] + box[1] - x)
        found = sign * circuit.logits(steps)[:, k]
        if not found.max() > best:
            break
        x, best = steps[int(found.argmax())], found.max()
    return x


def exact_circuit(circuit: Circuit, x: np.ndarray) -> list[Fraction]:
    """The logits of a folded circuit of unit polynomials, in fractions."""
    exact = circuit.exact
    assert exact is not None
    assert exact.a is not None
    z = exactly(x) - exactly(circuit.shift)
    y = fractions_of(exact.W) @ z + fractions_of(exact.t)
    values = sum(a * y ** (i + 1) for i, a in enumerate(fractions_of(exact.a)))
    return list(fractions_of(exact.V) @ values + fractions_of(exact.c))


@given(
    st.integers(1, 9),
    st.integers(1, 12),
    st.integers(1, 3),
    st.sampled_from([2, 3, 4, 8]),
    st.sampled_from([0.0, 1.0, 1e4]),
    st.integers(0, 2**31),
)
@settings(max_examples=150, deadline=None)
def test_the_bound_of_unit_polynomials_holds_at_corners_an_enemy_finds(
    d: int, m: int, K: int, degree: int, away: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    W, b, V = rng.normal(size=(m, d)), rng.normal(size=m), rng.integers(-64, 65, size=(K, m)) / 64
    W[rng.random(W.shape) < 0.2] = 0.0
    W[-1] = W[0]  # a unit twice: eigenvalues tie, and with opposite head weights the logits cancel
    model = PolynomialModel.by_unit(W, b, V, rng.integers(-99, 100, (degree, m)) / 64, rng.normal(size=K))
    box = np.sort(rng.normal(size=(2, d)), axis=0) + away
    still = rng.random(d) < 0.2
    box[1, still] = box[0, still]
    circuit = fold(model, box, "units")
    found = bound(circuit, box)
    for k in range(K):
        for sign in (1.0, -1.0):
            x = worst_corner(circuit, box, k, sign, rng)
            reached = exact_circuit(circuit, x)[k]
            assert abs(reached) <= Fraction(found.logit)


@pytest.mark.parametrize("form", ["square", "skip", "units"])
@pytest.mark.parametrize(("far", "width"), [(1e16, 2.0), (1e16, 4.0), (1.7e9, 2.0**-20), (1.7e12, 60.0)])
def test_the_bound_holds_in_a_narrow_box_far_from_zero(form: Any, far: float, width: float) -> None:
    for step in range(20):
        low = far + 2 * step * np.spacing(far)
        if form == "units":
            model: PolynomialModel = PolynomialModel.by_unit([[1.0]], [-low], [[1.0]], [[0.0], [1.0]], [0.0])
        else:
            model = PolynomialModel.quadratic([[1.0]], [-low], [[1.0]], [[0.0]], [0.0])
        box = np.array([[low], [low + width]])
        found = bound(fold(model, box, form), box)
        width_exact = Fraction(float(box[1, 0])) - Fraction(float(low))
        assert width_exact**2 <= Fraction(found.logit)
        assert 2 * width_exact <= Fraction(found.slope)


def test_the_bound_does_not_depend_on_the_order_of_units_where_eigenvalues_tie() -> None:
    """Servers compute the bound of a plan again, on other machines."""
    rng = np.random.default_rng(5)
    for _ in range(20):
        n, d, m = rng.integers(2, 6, 3)
        W = np.kron(np.eye(n), rng.normal(size=(m + d, d)))
        V = np.tile(rng.integers(-64, 65, size=(3, m + d)) / 64, n)
        a = np.tile(rng.integers(-99, 100, (4, m + d)) / 64, n)
        box = np.stack([-np.ones(n * d), np.ones(n * d)])
        units, features = rng.permutation(n * (m + d)), rng.permutation(n * d)
        one = PolynomialModel.by_unit(W, np.zeros(len(W)), V, a, np.zeros(3))
        other = PolynomialModel.by_unit(W[units][:, features], np.zeros(len(W)), V[:, units], a[:, units], np.zeros(3))
        limits = [bound(fold(model, box, "units"), box).logit for model in (one, other)]
        assert limits[0] == pytest.approx(limits[1], rel=1e-9)


@pytest.mark.parametrize("power", [-30, -10, 10, 30])
def test_bounds_do_not_depend_on_the_scale_of_pre_activations(power: int) -> None:
    rng = np.random.default_rng(6)
    W, V, a = rng.normal(size=(32, 20)), rng.integers(-64, 65, (3, 32)) / 64, rng.integers(-99, 100, (8, 32)) / 64
    box = np.stack([-np.ones(20), np.ones(20)])
    scaled = np.ldexp(a, -power * np.arange(1, 9)[:, None])
    one, other = (
        bound(fold(PolynomialModel.by_unit(w, np.zeros(32), V, c, np.zeros(3)), box, "units"), box)
        for w, c in ((W, a), (np.ldexp(W, power), scaled))
    )
    assert other.logit == pytest.approx(one.logit, rel=1e-9)
    assert other.slope == pytest.approx(one.slope, rel=1e-9)


def test_the_ellipsoid_is_tighter_than_intervals_above_degree_two_as_well() -> None:
    rng = np.random.default_rng(3)
    W, V = rng.normal(size=(128, 40)) / 40**0.5, rng.integers(-64, 65, size=(5, 128)) / 64
    model = PolynomialModel.by_unit(W, rng.normal(size=128), V, rng.integers(-99, 100, (4, 128)) / 64, np.zeros(5))
    box = np.stack([-3 * np.ones(40), 3 * np.ones(40)])
    found = bound(fold(model, box, "units"), box)
    assert found.method == "ellipsoid"
    assert found.ellipsoid < found.interval / 2


def test_a_free_head_has_no_square_form_and_says_so() -> None:
    model = random_model(3, 4, 3, free=True)
    box = np.stack([-np.ones(3), np.ones(3)])
    assert Folding(model, box).forms == ("skip",)
    with pytest.raises(InputError, match="form='skip'"):
        fold(model, box, "square")


def test_a_zero_alpha_with_a_linear_term_has_no_square_form() -> None:
    model = PolynomialModel.quadratic(np.eye(2), np.zeros(2), [[1.0, 0.0]], [[1.0, 1.0]], [0.0])
    box = np.stack([-np.ones(2), np.ones(2)])
    assert Folding(model, box).forms == ("skip",)
    zero = PolynomialModel.quadratic(np.eye(2), np.zeros(2), [[1.0, 0.0]], [[1.0, 0.0]], [0.0])
    assert Folding(zero, box).forms == FORMS


def test_a_folding_folds_each_form_once_and_as_fold_does() -> None:
    model = random_model(3, 4, 3)
    box = np.array([[1.0, -2.0, -1.0], [3.0, -1.0, 1.0]])
    folding = Folding(model, box)
    assert folding.forms == FORMS
    for form in folding.forms:
        made, alone = folding.circuit(form), fold(model, box, form)
        assert folding.circuit(form) is made
        for one, other in ((made.W, alone.W), (made.t, alone.t), (made.V, alone.V), (made.c, alone.c)):
            np.testing.assert_array_equal(one, other)


def exactly(array: np.ndarray) -> np.ndarray:
    out = np.empty(array.shape, dtype=object)
    out.ravel()[:] = [Fraction(value) for value in array.ravel().tolist()]
    return out


def fractions_of(numbers: Dyadic) -> np.ndarray:
    return numbers.integers * Fraction(2) ** numbers.exponent


def test_centring_keeps_every_difference_between_classes_exactly() -> None:
    model = random_model(5, 6, 4, free=True)
    for numbers, array in zip(centred(model), (model.S, model.T, model.c), strict=True):
        exact, wanted = fractions_of(numbers), exactly(array)
        assert np.all(exact[1:] - exact[:-1] == wanted[1:] - wanted[:-1])


@pytest.mark.parametrize("far", [0.0, 1e6, 1.7e9, 1e11])
def test_folding_is_exact_however_far_the_features_lie_from_zero(far: float) -> None:
    model = random_model(5, 6, 3, free=True)
    box = np.stack([far - np.ones(5), far + np.ones(5)])
    circuit = fold(model, box, "skip")
    assert circuit.exact is not None
    assert circuit.exact.U is not None
    x = exactly(far + np.random.default_rng(0).normal(size=5))
    z = x - exactly(circuit.shift)
    y = exactly(circuit.W).dot(z) + fractions_of(circuit.exact.t)
    found = fractions_of(circuit.exact.V).dot(y * y) + fractions_of(circuit.exact.U).dot(z)
    found = found + fractions_of(circuit.exact.c)
    plain = exactly(model.W1).dot(x) + exactly(model.b1)
    wanted = exactly(model.S).dot(plain * plain) + exactly(model.T).dot(plain) + exactly(model.c)
    assert np.all(found[1:] - found[:-1] == wanted[1:] - wanted[:-1])


def test_features_far_from_zero_are_shifted_to_the_box() -> None:
    model = random_model(3, 4, 2)
    circuit = fold(model, [[290.0, -1.0, -7.0], [310.0, 1.0, -5.0]], "skip")
    assert circuit.shift.tolist() == [290.0, 0.0, -5.0]


def test_a_box_upside_down_is_refused_by_feature() -> None:
    with pytest.raises(InputError, match="feature 1"):
        fold(random_model(2, 3, 2), [[0.0, 1.0], [1.0, 0.0]], "skip")


@given(heads(), st.integers(1, 40), st.integers(1, 30), st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_integers_are_the_nearest_to_scale_times_weight(model: PolynomialModel, x: int, w: int, v: int) -> None:
    circuit = fold(model, np.stack([-np.ones(model.features), np.ones(model.features)]), "skip")
    integers = quantise(circuit, Scales(x, w, v))
    assert circuit.exact is not None
    for exact, rounded, bits in (
        (Dyadic.of(circuit.W), integers.W, w),
        (circuit.exact.V, integers.V, v),
        (circuit.exact.t, integers.t, x + w),
        (circuit.exact.c, integers.c, 2 * (x + w) + v),
        (circuit.exact.U, integers.U, x + 2 * w + v),
    ):
        assert exact is not None
        assert rounded is not None
        for value, integer in zip(fractions_of(exact).ravel().tolist(), rounded.ravel().tolist(), strict=True):
            assert abs(Fraction(value) * 2**bits - integer) <= Fraction(1, 2)
    back = integers.dequantised()
    np.testing.assert_allclose(back.W, circuit.W, atol=2.0**-w)
    np.testing.assert_allclose(back.c, circuit.c, rtol=1e-15, atol=2.0 ** -(2 * (x + w) + v))
