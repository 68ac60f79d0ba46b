"""Polynomials of units under encryption: kernels, bounds, noise, plans and real runs."""

from __future__ import annotations

from math import comb
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quad4fhe import Client, Plan, describe, plan
from quad4fhe.errors import InputError
from quad4fhe.he.session import Server
from quad4fhe.layouts import _kernels_numba as kernels
from quad4fhe.mlp import decide
from quad4fhe.planning.bounds import bound
from quad4fhe.planning.chains import largest_primes
from quad4fhe.planning.exactness import largest_prime_bits, residue_bound
from quad4fhe.planning.fold import fold, resolution
from quad4fhe.polynomial import PolynomialModel
from support.exchange import run

RNG = np.random.default_rng(8)


def model(degree: int, features: int = 6, units: int = 16, outputs: int = 3) -> PolynomialModel:
    rng = np.random.default_rng(degree)
    W1 = rng.integers(-100, 100, (units, features)) / 1024
    b1 = rng.integers(-1000, 1000, units) / 8192
    a = rng.integers(-200, 200, (degree, units)) / 64
    V = rng.integers(-1000, 1000, (outputs, units)) / 512
    return PolynomialModel.by_unit(W1, b1, V, a, rng.standard_normal(outputs))


def fitted(degree: int, samples: int = 300, **shape: int) -> tuple[Any, np.ndarray]:
    made = model(degree, **shape)
    X = np.random.default_rng(1).uniform(-2, 2, (samples, made.features))
    logits = np.sort(made.logits(X), axis=1)
    margins = np.abs(logits[:, 0]) if made.outputs == 1 else logits[:, -1] - logits[:, -2]
    box = np.stack([X.min(axis=0), X.max(axis=0)])
    return SimpleNamespace(model=made, model_id=made.sha256, box=box, margins=margins), X


@pytest.mark.parametrize("degree", [2, 3, 4, 8])
def test_expansion_is_that_of_whole_numbers(degree: int) -> None:
    q = largest_primes(8192, largest_prime_bits(degree), 1)[0]
    half = q // 2
    units = 50
    values = RNG.integers(-half, half, (units, 2, 4)).astype(np.float64)
    bias = RNG.integers(-half, half, units).astype(np.float64)
    a = RNG.integers(-half, half, (degree, units)).astype(np.float64)
    values[0], a[:, 0], bias[0] = half, half, half  # the largest there are
    values[1:25], a[:, 1:25], bias[1:25] = (half * RNG.choice([-1, 1], s) for s in ((24, 2, 4), (degree, 24), 24))
    out = np.empty((units, degree + 1, 4))
    kernels.expand(values.copy(), bias, a, q, out)
    assert np.abs(out).max() <= residue_bound(q)
    for j in range(units):
        for t in range(4):
            x, y = int(values[j, 0, t] + bias[j]), int(values[j, 1, t])
            for i in range(degree + 1):
                terms = (comb(k, i) * int(a[k - 1, j]) * x ** (k - i) * y**i for k in range(max(i, 1), degree + 1))
                assert int(out[j, i, t]) % q == sum(terms) % q


@pytest.mark.parametrize(("degree", "fine"), [(3, True), (4, False)])
def test_plans_with_primes_that_are_too_large_for_the_degree_are_refused(degree: int, fine: bool) -> None:
    fit, X = fitted(degree)
    fields = plan(fit, samples=4096, layout="batch", X=X).to_dict()
    chain = fields["chain"]
    chain["primes"] = list(largest_primes(chain["ring"], 31, len(chain["primes"])))
    if fine:
        Plan.from_dict(fields)
        return
    with pytest.raises(InputError, match="degree 4 has primes of at most 30 bits"):
        Plan.from_dict(fields)


@pytest.mark.parametrize("degree", [3, 8])
def test_bounds_hold_everywhere_in_the_box(degree: int) -> None:
    made = model(degree)
    box = np.stack([np.full(6, -3.0), np.full(6, 2.0)])
    circuit = fold(made, box, "units")
    limits = bound(circuit, box)
    corners = np.array(np.meshgrid(*box.T)).reshape(6, -1).T
    points = np.vstack([RNG.uniform(box[0], box[1], (2000, 6)), corners])
    assert np.abs(circuit.logits(points)).max() <= limits.logit
    y = (points - circuit.shift) @ circuit.W.T + circuit.t
    around = np.abs(circuit.taylor(y))
    assert limits.curves is not None
    assert (around.max(axis=1) <= limits.curves).all()
    gradients = np.einsum("kj,nj,jd->nkd", circuit.V, circuit.taylor(y)[1], circuit.W)
    assert np.linalg.norm(gradients, axis=2).max() <= limits.slope


def test_folding_takes_one_function_from_all_logits_and_nothing_else() -> None:
    made = model(4)
    box = np.stack([np.full(6, -1.0), np.full(6, 2.0)])
    circuit = fold(made, box, "units")
    X = RNG.uniform(-1, 2, (50, 6))
    difference = made.logits(X) - circuit.logits(X)
    assert np.ptp(difference, axis=1).max() < 1e-11
    assert resolution(circuit.V) <= resolution(made.V)  # no bit was added


@pytest.mark.parametrize(("degree", "outputs"), [(2, 3), (3, 1), (4, 3), (8, 2)])
def test_encrypted_decisions_are_the_model_s(degree: int, outputs: int) -> None:
    fit, X = fitted(degree, outputs=outputs)
    made = plan(fit, samples=len(X), X=X, layout="batch")
    assert Plan.from_dict(made.to_dict()) == made
    client, server = Client(made), Server(fit, made)
    logits = run(client, server, X)
    exact = fit.model.logits(X)
    if outputs > 1:
        logits, exact = logits - logits.mean(axis=1)[:, None], exact - exact.mean(axis=1)[:, None]
    assert np.abs(logits - exact).max() <= made.error.logit
    sure = np.ones(len(X), dtype=bool)
    sure[list(made.error.close)] = False
    assert (decide(logits) == decide(exact))[sure].all()
    assert sure.mean() > 0.95


def test_units_that_share_a_row_are_multiplied_once() -> None:
    one = model(4, outputs=3)
    assert one.V is not None
    assert one.a is not None
    which = np.repeat(np.arange(one.units), 3)
    rng = np.random.default_rng(1)
    V, a = rng.integers(-500, 500, (3, which.size)) / 256, rng.integers(-200, 200, (4, which.size)) / 64
    made = PolynomialModel.by_unit(one.W1[which], one.b1[which], V, a, one.c)
    X = rng.uniform(-1, 1, (200, made.features))
    logits = np.sort(made.logits(X), axis=1)
    subject = SimpleNamespace(
        model=made,
        model_id=made.sha256,
        box=np.stack([X.min(axis=0), X.max(axis=0)]),
        margins=logits[:, -1] - logits[:, -2],
    )
    planned = plan(subject, samples=len(X), X=X, layout="batch")
    assert planned.settings["hidden"] == one.units
    client, server = Client(planned), Server(subject, planned)
    found = run(client, server, X)
    exact = made.logits(X)
    found, exact = found - found.mean(axis=1)[:, None], exact - exact.mean(axis=1)[:, None]
    assert np.abs(found - exact).max() <= planned.error.logit


def test_a_plan_of_another_degree_is_refused() -> None:
    fit, X = fitted(3)
    made = plan(fit, samples=len(X), X=X, layout="batch").to_dict()
    made["settings"]["degree"] = 4
    with pytest.raises(InputError):
        Server(fit, Plan.from_dict(made))


def test_a_reply_too_large_for_the_error_bound_is_rejected_by_name() -> None:
    """Degree 8 over a box 30 times as wide as the data: one far sample would ruin the precision of all others."""
    fit, X = fitted(8, outputs=2)
    fit.box = 30 * fit.box
    made = plan(fit, samples=len(X), X=X, layout="batch")
    limit = made.settings["trusted"]
    assert 16 * 0.99 * np.abs(fit.model.logits(X)).max() / 2 <= limit < made.domain.bound
    assert f"{limit:.4g}" in describe(made)
    client, server = Client(made), Server(fit, made)
    far = X.copy()
    far[7] = fit.box[1]
    exact = fit.model.logits(far)
    assert np.abs(np.diff(exact[7])) / 2 > limit
    with pytest.raises(InputError, match="logits of sample 7 of the request reach"):
        run(client, server, far)
    other = Client(made)
    near = run(other, server, X)
    exact = fit.model.logits(X)
    assert np.abs(np.diff(near) - np.diff(exact)).max() <= made.error.bound


@pytest.mark.parametrize("degree", [3, 4])
def test_a_bound_over_the_box_needs_no_limit(degree: int) -> None:
    """If the box is hardly wider than the calibration data, the bound holds for every sample of the box."""
    fit, X = fitted(degree)
    made = plan(fit, samples=len(X), X=X, layout="batch")
    assert "trusted" not in made.settings
    corners = np.where(np.random.default_rng(0).random((64, X.shape[1])) < 0.5, *made.domain.box)
    client, server = Client(made), Server(fit, made)
    found = run(client, server, np.vstack([X[:64], corners]))[:64]
    exact = fit.model.logits(X[:64])
    found, exact = found - found.mean(axis=1)[:, None], exact - exact.mean(axis=1)[:, None]
    assert np.abs(found - exact).max() <= made.error.logit
