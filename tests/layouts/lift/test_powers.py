"""Layout lift above degree 2: monomials, the map, bounds over the box, and questions with real encryption."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations_with_replacement, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quad4fhe import InputError
from quad4fhe.layouts.lift.monomials import lift_over
from quad4fhe.layouts.lift.powers import PowerLift, count_monomials, lift_of_degree, lift_question, weights_of
from quad4fhe.layouts.planner import plan
from quad4fhe.mlp import decide
from quad4fhe.planning.noise import evaluation_error
from quad4fhe.planning.plan import Plan
from quad4fhe.planning.target import Question
from quad4fhe.polynomial import PolynomialModel
from support.exchange import connect, run
from support.standins import random_model, random_samples, stand_in

REPLIES = ("private", "logits", "plain")


def model_of(degree: int, features: int = 4, units: int = 12, outputs: int = 3) -> PolynomialModel:
    rng = np.random.default_rng(degree)
    W1 = rng.integers(-400, 400, (units, features)) / 1024
    b1 = rng.integers(-1000, 1000, units) / 8192
    a = rng.integers(-200, 200, (degree, units)) / 64
    V = rng.integers(-1000, 1000, (outputs, units)) / 512
    return PolynomialModel.by_unit(W1, b1, V, a, rng.standard_normal(outputs))


def fit_of(degree: int, samples: int = 300, **shape: int) -> tuple[Any, np.ndarray]:
    made = model_of(degree, **shape)
    X = np.random.default_rng(1).uniform(-1, 2, (samples, made.features))
    logits = np.sort(made.logits(X), axis=1)
    margins = np.abs(logits[:, 0]) if made.outputs == 1 else logits[:, -1] - logits[:, -2]
    box = np.stack([X.min(axis=0), X.max(axis=0)])
    return SimpleNamespace(model=made, model_id=made.sha256, box=box, margins=margins), X


def question_of(fit: Any, X: np.ndarray | None = None) -> Question:
    return lift_question(Question(fit.model, fit.box, fit.margins, X, "strict", 1))


def wanted(fit: Any, X: np.ndarray) -> np.ndarray:
    logits = fit.model.logits(X)
    return logits if logits.shape[1] == 1 else logits - logits.mean(axis=1, keepdims=True)


def exact_logits(model: PolynomialModel, x: np.ndarray) -> list[Fraction]:
    """In rational arithmetic, the mean over the classes taken out."""
    assert model.V is not None
    assert model.a is not None
    out = [Fraction(c) for c in model.c]
    for j in range(model.units):
        y = sum((Fraction(w) * Fraction(v) for w, v in zip(model.W1[j], x, strict=True)), Fraction(model.b1[j]))
        g = sum((Fraction(model.a[k, j]) * y ** (k + 1) for k in range(model.degree)), Fraction(0))
        out = [o + Fraction(v) * g for o, v in zip(out, model.V[:, j], strict=True)]
    mean = sum(out, Fraction(0)) / len(out) if len(out) > 1 else Fraction(0)
    return [o - mean for o in out]


@pytest.mark.parametrize(("features", "degree"), [(1, 3), (3, 3), (4, 4), (2, 8)])
def test_monomials_are_all_products_of_at_most_p_features(features: int, degree: int) -> None:
    reach = np.linspace(0.3, 20, features)
    lift = lift_of_degree(np.stack([-reach, reach]), np.zeros(features), degree)
    Z = np.random.default_rng(4).uniform(-reach, reach, (6, features))
    u = Z / lift.roots
    every = [np.prod(u[:, list(at)], axis=1) for k in range(degree + 1) for at in _products(features, k)]
    z = lift.monomials(Z)
    assert z.shape == (6, len(every)) == (6, lift.size)
    assert np.allclose(z, np.stack(every, axis=1), rtol=1e-14)
    assert np.allclose(lift.norms(Z), np.linalg.norm(z, axis=1))
    assert (lift.norms(Z) >= np.linalg.norm(z, axis=1)).all()
    assert (np.abs(z) <= lift.largest * (1 + 1e-12)).all()


def _products(features: int, degree: int) -> list[tuple[int, ...]]:
    return list(combinations_with_replacement(range(features), degree))


def test_degree_two_has_the_monomials_that_it_had() -> None:
    box = np.stack([np.full(5, -2.0), np.full(5, 7.0)])
    here, there = lift_over(box, np.zeros(5)), PowerLift.like(lift_over(box, np.zeros(5)), 2)
    Z = random_samples(9, 5)
    assert (here.monomials(Z) == there.monomials(Z)).all()
    assert np.allclose(here.norms(Z), there.norms(Z))
    assert "degree" not in plan(stand_in(random_model(5, 8, 3), Z), samples=1, layout="lift").settings


@pytest.mark.parametrize(("degree", "outputs"), [(2, 3), (3, 1), (4, 2), (4, 3), (8, 3)])
def test_the_map_is_the_model_within_the_error_that_is_counted(degree: int, outputs: int) -> None:
    fit, X = fit_of(degree, samples=12, features=3, units=5, outputs=outputs)
    circuit = question_of(fit).reference
    lift = lift_of_degree(fit.box, circuit.shift, degree)
    Z = X - circuit.shift
    weights = weights_of(lift, circuit)
    assert weights.shape == (outputs, count_monomials(3, degree))
    found = lift.monomials(Z) @ weights.T
    exact = np.array([[float(value) for value in exact_logits(fit.model, x)] for x in X])
    assert (np.abs(found - exact) <= 3 * evaluation_error(circuit, np.abs(Z))).all()
    if outputs > 1:
        assert np.abs(weights.sum(axis=0)).max() <= 1e-13 * np.abs(weights).max()


@pytest.mark.parametrize("replies", REPLIES)
@pytest.mark.parametrize(("degree", "outputs", "samples"), [(3, 1, 1), (3, 3, 40), (4, 2, 1), (4, 3, 1)])
def test_encrypted_decisions_are_the_plaintext_ones(degree: int, outputs: int, samples: int, replies: str) -> None:
    fit, X = fit_of(degree, outputs=outputs)
    made = plan(fit, samples=samples, X=X, layout="lift", replies=replies)
    assert Plan.from_dict(made.to_dict()) == made
    assert made.settings["degree"] == degree
    client, server = connect(fit, made)
    part = X[:24]
    logits = run(client, server, part)
    assert np.abs(logits - wanted(fit, part)).max() <= made.error.logit
    sure = np.ones(len(X), dtype=bool)
    sure[list(made.error.close)] = False
    assert sure.mean() > 0.97
    assert (decide(logits) == fit.model.decide(part))[sure[:24]].all()


def test_no_corner_of_the_box_overflows() -> None:
    fit, _ = fit_of(4, features=3)
    made = plan(fit, samples=1, layout="lift", replies="plain")
    corners = np.array(list(product(*made.domain.box.T)))
    client, server = connect(fit, made)
    logits = run(client, server, corners)
    assert np.abs(logits - wanted(fit, corners)).max() <= made.error.bound
    assert np.abs(logits).max() <= made.domain.bound


def test_errors_have_the_forecast_size() -> None:
    fit, X = fit_of(3)
    made = plan(fit, samples=1, X=X, layout="lift", replies="plain")
    part, exact = X[:60], wanted(fit, X[:60])
    squares = []
    for _ in range(10):  # a server rounds its weights once, and that is much of the error
        client, server = connect(fit, made)
        found = run(client, server, part) - exact
        assert np.abs(found).max() < made.error.logit
        squares.append(((found[:, 0] - found[:, 1]) ** 2).mean())
    assert 0.5 < np.sqrt(np.mean(squares)) / made.error.typical < 1.6


def test_a_model_or_a_plan_of_another_degree_is_refused() -> None:
    fit, X = fit_of(3)
    made = plan(fit, samples=1, X=X, layout="lift").to_dict()
    made["settings"]["degree"] = 4
    with pytest.raises(InputError):
        connect(fit, Plan.from_dict(made))
    made["settings"]["degree"] = 9
    with pytest.raises(InputError):
        Plan.from_dict(made)
    circuit = question_of(fit).reference
    with pytest.raises(InputError, match="another degree"):
        weights_of(lift_of_degree(fit.box, circuit.shift, 4), circuit)


def test_too_many_monomials_are_refused_with_their_number() -> None:
    fit, X = fit_of(4, samples=20, features=80)
    with pytest.raises(InputError, match=r"80 features have 1929501 monomials of degree 4 or less"):
        plan(fit, samples=1, X=X, layout="lift")


@pytest.mark.parametrize(("degree", "power"), [(3, 40), (3, 400), (3, -300), (3, -520), (6, 20), (6, 260), (6, 400)])
def test_features_too_large_or_too_small_for_floats_are_refused_in_one_line(degree: int, power: int) -> None:
    """Floats overflowed in the search, or it took scales that no plan can have."""
    fit, X = fit_of(degree, features=3)
    own = fit.model
    fit.model = PolynomialModel.by_unit(np.ldexp(own.W1, -power), own.b1, own.V, own.a, own.c)
    fit.box = np.ldexp(fit.box, power)
    with pytest.raises(InputError, match="too large over the box for layout lift; standardise the features"):
        plan(fit, samples=1, X=np.ldexp(X, power), layout="lift")


def test_features_far_from_zero_have_scales_that_a_plan_can_have() -> None:
    """A longer chain does not help against float64 errors; the search took all of its bits as the scale."""
    fit, X = fit_of(3, features=2, outputs=1)
    own, far = fit.model, 2.0**27
    fit.model = PolynomialModel.by_unit(own.W1, own.b1 - far * own.W1.sum(axis=1), own.V, own.a, own.c)
    fit.box, fit.margins = fit.box + far, np.abs(fit.model.logits(X + far)[:, 0])
    made = plan(fit, samples=1, X=X + far, layout="lift")
    assert made.settings["lift"] <= 128
