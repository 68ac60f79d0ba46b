"""The error bound under attack, with real encryption. `benchmarks/strict.py` runs ten times as many cases."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from scipy.stats import binom

from adversaries import Case, cases
from quad4fhe import InputError, PolynomialModel, plan
from quad4fhe.he.seal import Context
from quad4fhe.he.session import Server
from quad4fhe.layouts import layout_of
from quad4fhe.layouts.batch.search import search_batch
from quad4fhe.layouts.encoding import embedded, values_of
from quad4fhe.mlp import decide
from quad4fhe.planning import bounds
from quad4fhe.planning.chains import chain
from quad4fhe.planning.fold import fold
from quad4fhe.planning.noise import Confidence, evaluation_error, transform_share
from quad4fhe.planning.target import Question
from strict import attack
from support.exchange import connect, run
from support.standins import random_model, random_samples, stand_in

# Wide models take most of the time; the benchmark has them all.
CHOSEN = {case.name: case for case in cases(2) if case.model.features <= 200}


@pytest.mark.parametrize("layout", ["batch", "lift"])
@pytest.mark.parametrize("name", CHOSEN)
def test_no_decision_that_a_plan_calls_kept_changes_and_no_honest_reply_is_refused(name: str, layout: str) -> None:
    for with_samples in (True, False):
        found = attack(CHOSEN[name], layout, with_samples)
        assert "honest" not in found.outcome, found
        assert found.changed == 0, found
        assert found.worst < 1, found


def test_one_sample_with_equal_weights_keeps_its_decision() -> None:
    """Encoded by SEAL alone, the coefficients of all 256 features rounded to zero together."""
    W1 = np.full((1, 256), 1 / 16)
    model = PolynomialModel.quadratic(W1, [0.0], [[0.01]], [[1.0]], [0.0])
    X = np.outer(np.tile([1.0, -1.0], 10), np.full(256, 0.05))
    box = np.stack([np.full(256, -0.06), np.full(256, 0.06)])
    case = Case("equal weights", model, X, box, 1)
    made = plan(case, samples=1, layout="batch", X=X, box=box)
    assert made.kept
    client, server = connect(case, made)
    found = np.concatenate([run(client, server, x[None]) for x in X])
    assert (decide(found) == model.decide(X)).all()
    assert np.abs(found - model.logits(X)).max() < made.error.bound


@pytest.mark.parametrize("layout", ["batch", "lift"])
def test_features_far_from_zero_keep_their_exact_decisions(layout: str) -> None:
    """b1 + W1 shift in float64 lost digits that decisions depended on."""
    rng = np.random.default_rng(3)
    for far in (1e6, 1.7e9, 1e11):
        W1 = rng.normal(size=(1, 3))
        model = PolynomialModel.quadratic(W1, -W1 @ np.full(3, far), [[0.1]], [[1.0]], [0.0])
        X = far + rng.uniform(-0.5, 0.5, size=(40, 3))
        case = Case("far", model, X, np.stack([X.min(axis=0), X.max(axis=0)]), len(X))
        made = plan(case, samples=len(X), layout=layout, X=X)
        client, server = connect(case, made)
        found = decide(run(client, server, X))
        for i, row in enumerate(X):
            if i not in made.error.close:
                assert found[i] == exact_decision(model, row)


def exact_decision(model: PolynomialModel, x: np.ndarray) -> int:
    y = [
        sum((Fraction(w) * Fraction(v) for w, v in zip(row, x.tolist(), strict=True)), Fraction(b))
        for row, b in zip(model.W1.tolist(), model.b1.tolist(), strict=True)
    ]
    score = Fraction(model.c[0]) + sum(
        Fraction(s) * u * u + Fraction(t) * u for s, t, u in zip(model.S[0], model.T[0], y, strict=True)
    )
    return int(score > 0)


@pytest.mark.parametrize("alpha", [1e-9, 1e-6, 1e-3])
def test_a_forced_square_form_with_a_tiny_alpha_calls_nothing_kept_that_changes(alpha: float) -> None:
    from quad4fhe.layouts.planner import made_plan

    model, X = random_model(4, 8, 3, alpha=alpha), random_samples(60, 4)
    fit = stand_in(model, X)
    question = Question(model, fit.box, fit.margins, X, "strict", len(X))
    made = made_plan(fit, question, search_batch(question, "square"))
    client, server = connect(fit, made)
    changed = np.flatnonzero(decide(run(client, server, X)) != model.decide(X))
    assert set(changed.tolist()) <= set(made.error.close)


def test_rounding_at_random_has_mean_zero_and_no_memory_of_the_values() -> None:
    context = Context(chain(4096, (30, 30)))
    values = np.zeros((400, 2048))
    values[:, 0] = 0.05  # one sample: coefficients near 2 scale / N, far below one
    whole, added = context.dithering.encode(values, 2.0**9)
    exact = embedded(values[:1]) * 2.0**9
    assert np.abs(exact).max() < 0.5  # the nearest integer is zero for every coefficient
    np.testing.assert_allclose(whole - added, np.repeat(exact, 400, axis=0), atol=1e-12)
    chance = np.abs(exact[0])  # of rounding away from zero
    often = (whole * np.sign(exact)).sum(axis=0)
    # Binomial counts; many have a mean far below one, so their quantiles, not deviations, say what is too much.
    assert (binom.ppf(1e-13, 400, chance) <= often).all()
    assert (often <= binom.isf(1e-13, 400, chance)).all()
    assert abs(often.sum() / (400 * chance.sum()) - 1) < 0.07  # eight deviations
    between = (added[::2] * added[1::2]).mean() / (added * added).mean()
    assert abs(between) < 0.01


@pytest.mark.parametrize("size", [1.0, 2.0**14, 2.0**17, 2.0**30, 2.0**45])
def test_encoded_plaintexts_are_exactly_the_whole_coefficients_at_every_size(size, monkeypatch) -> None:
    context = Context(chain(4096, (31, 31, 31)))
    values = np.random.default_rng(0).normal(size=(5, 2048)) * size
    seen = []
    inner = context.dithering.encode
    monkeypatch.setattr(context.dithering, "encode", lambda *given: seen.append(inner(*given)) or seen[-1])
    encoded = context.encoded(values, 2.0**24, reach=float(np.abs(values).max()))
    whole = seen[0][0]
    for row, words in zip(whole, encoded, strict=True):
        for place, q in enumerate(context.chain.primes):
            for slot in (0, 1, 2, 3, 2048, 4095):
                assert int(words[place, slot]) == value_at(row, q, slot)


def value_at(whole: np.ndarray, q: int, slot: int) -> int:
    """A residue by integers alone: the polynomial at an odd power of a root, in SEAL's bit-reversed order."""
    ring = len(whole)
    bits = ring.bit_length() - 1
    power = 2 * int(f"{slot:0{bits}b}"[::-1], 2) + 1
    at, value = pow(smallest_root(ring, q), power, q), 0
    for c in whole[::-1].tolist():
        value = (value * at + int(c)) % q
    return value


@cache
def smallest_root(ring: int, q: int) -> int:
    """The smallest primitive 2N-th root of unity modulo q, which is SEAL's."""
    step = (q - 1) // (2 * ring)
    root = next(pow(g, step, q) for g in range(2, q) if pow(g, step * ring, q) == q - 1)
    return min(pow(root, e, q) for e in range(1, 2 * ring, 2))


def test_slots_and_coefficients_are_each_other_s_inverse_within_the_bound() -> None:
    for ring in (2048, 8192):
        values = np.random.default_rng(1).normal(size=(3, ring // 2)) * 1e6
        back = values_of(embedded(values))
        lost = 2 * transform_share(ring) * np.linalg.norm(values, axis=1)
        assert (np.linalg.norm(back - values, axis=1) < lost).all()


def test_the_failure_probability_is_shared_out_over_all_events() -> None:
    one, many = Confidence(1.0), Confidence(1e9)
    assert 2 * np.exp(-(one.deviations**2) / 2) == pytest.approx(2.0**-40)
    assert 1e9 * 2 * np.exp(-(many.deviations**2) / 2) == pytest.approx(2.0**-40)
    assert many.deviations < 11


def test_a_plan_states_its_failure_probability_and_the_server_can_check_its_bound() -> None:
    model, X = random_model(8, 24, 4), random_samples(600, 8)
    for layout in ("batch", "lift"):
        made = plan(stand_in(model, X), samples=50, layout=layout, X=X)
        assert made.error.failure == 2.0**-40
        assert layout_of(made).reply_bound(made, model) <= made.domain.bound


def test_what_float64_loses_in_a_circuit_is_within_its_bound() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        model = random_model(6, 5, 3, seed=int(rng.integers(1 << 30)), free=True)
        box = np.stack([-np.ones(6), np.ones(6)]) * 10.0 ** rng.uniform(-3, 6)
        circuit = fold(model, box, "skip")
        X = rng.uniform(box[0], box[1], size=(4, 6))
        exact = circuit.exact
        assert exact is not None
        assert exact.U is not None
        z = np.array([[Fraction(a) - Fraction(b) for a, b in zip(row, circuit.shift, strict=True)] for row in X])
        W = np.array([[Fraction(w) for w in row] for row in circuit.W])
        t, V, U, c = (part.integers * Fraction(2) ** part.exponent for part in (exact.t, exact.V, exact.U, exact.c))
        y = z.dot(W.T) + t
        wanted = (y * y).dot(V.T) + z.dot(U.T) + c
        lost = np.abs(circuit.logits(X) - wanted).astype(float)
        assert (lost <= evaluation_error(circuit, np.abs(X - circuit.shift))).all()


@pytest.mark.parametrize("heavy", [False, True])
@pytest.mark.parametrize("d", [2, 5])
def test_the_bound_over_the_box_holds_where_units_cancel(d: int, heavy: bool, monkeypatch) -> None:
    """Pairs of nearly equal units with opposite signs: norms taken through the Gram matrix came out as zero."""
    if heavy:
        monkeypatch.setattr(bounds, "_EIGEN_WORK", 0.0)
    rng = np.random.default_rng(0)
    for trial in range(20):
        W1 = np.repeat(rng.normal(size=(2, d)), 2, axis=0)
        W1[1::2] += 2.0 ** -float(rng.integers(20, 40))
        S = np.array([[1.0, -1.0, 1.0, -1.0], [-1.0, 1.0, -1.0, 1.0]]) * 2.0 ** float(rng.integers(0, 26))
        model = PolynomialModel.quadratic(W1, np.zeros(4), S, np.zeros((2, 4)), [0.0, 0.0])
        circuit = fold(model, np.stack([-np.ones(d), np.ones(d)]), "skip")
        found = bounds.bound(circuit, np.stack([-np.ones(d), np.ones(d)]))
        for _ in range(8):
            x = rng.choice([-1.0, 1.0], size=d)
            y = [sum(Fraction(w) * Fraction(v) for w, v in zip(row, x, strict=True)) for row in W1.tolist()]
            logits = [sum(Fraction(s) * u * u for s, u in zip(row, y, strict=True)) for row in S.tolist()]
            middle = sum(logits) / 2
            assert max(abs(each - middle) for each in logits) <= found.logit, trial
            slope = [
                sum(2 * Fraction(s) * u * Fraction(w) for s, u, w in zip(S[0], y, W1[:, i].tolist(), strict=True))
                for i in range(d)
            ]
            assert float(sum(part * part for part in slope)) ** 0.5 <= found.slope, trial


def test_a_server_whose_processor_sums_in_another_order_accepts_the_plan() -> None:
    model, X = random_model(8, 24, 4), random_samples(100, 8)
    fit = stand_in(model, X)
    made = plan(fit, samples=50, layout="batch", X=X)
    needed = layout_of(made).reply_bound(made, model)
    Server(fit, replace(made, domain=replace(made.domain, bound=needed * (1 - 1e-12))))
    with pytest.raises(InputError, match="could overflow"):
        Server(fit, replace(made, domain=replace(made.domain, bound=needed * (1 - 1e-4))))
