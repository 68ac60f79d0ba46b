from __future__ import annotations

from math import erf, exp, pi, sqrt

import numpy as np
import pytest
from numpy.polynomial import hermite_e

from quad4fhe import MLP, InputError
from quad4fhe.report.preactivations import PreActivations, preactivations
from quad4fhe_reproduce.baselines.least_squares import Projection, least_squares
from quad4fhe_reproduce.baselines.ola import fit_ola, gaussian, ola, ola_of

MODELS = ("breast_cancer", "diabetes", "shuttle", "otto", "sst5")


def weighted_norm(polynomial, data, bandwidth):
    """The norm of p - relu under the Gaussian of this bandwidth, by the trapezoid rule on two scales."""
    width = bandwidth * data.deviation
    x = np.union1d(np.linspace(data.lo, data.hi, 200001), data.mean + width * np.linspace(-8.0, 8.0, 200001))
    x = x[(x >= data.lo) & (x <= data.hi)]
    density = np.exp(-0.5 * ((x - data.mean) / width) ** 2) / width
    return sqrt(np.trapezoid(density * (polynomial(x) - np.maximum(x, 0.0)) ** 2, x))


@pytest.mark.parametrize("name", MODELS)
def test_it_stays_finite_and_beats_least_squares_in_its_own_norm(trained, name):
    model = trained(name)
    data = preactivations(model.mlp, model.X_cal)
    chosen = fit_ola(data)
    lo, hi = data.lo, data.hi
    assert np.isfinite(chosen.polynomial(model.mlp.hidden(model.X_test))).all()
    # Nowhere on the interval is it further from ReLU than ReLU is large; the published run was out by 3e6.
    assert chosen.polynomial.activation_error(lo, hi) <= 2.0 * data.bound
    even = least_squares(chosen.degree, lo, hi)
    ours = weighted_norm(chosen.polynomial, data, chosen.bandwidth)
    assert ours <= weighted_norm(even, data, chosen.bandwidth) * (1.0 + 1e-6)


@pytest.mark.parametrize("degree", [3, 7, 15, 31])
@pytest.mark.parametrize("bandwidth", [1.0, 2.0, 8.0, 64.0])
def test_every_degree_and_bandwidth_beats_least_squares_in_its_norm(degree, bandwidth):
    data = PreActivations.of(np.random.default_rng(0).normal(0.3, 1.0, 20000))
    projection = Projection(gaussian(data, bandwidth), 31).series(degree)
    even = least_squares(degree, data.lo, data.hi)
    assert weighted_norm(projection, data, bandwidth) <= weighted_norm(even, data, bandwidth) * (1.0 + 1e-6)


@pytest.mark.parametrize("mean", [-0.7, 0.0, 1.3])
def test_on_a_wide_interval_it_is_the_hermite_expansion(mean):
    # E[relu(mean + z)], E[relu'] and E[relu''] He_k in closed form: the coefficients of the expansion.
    density, above = exp(-0.5 * mean * mean) / sqrt(2.0 * pi), 0.5 * (1.0 + erf(mean / sqrt(2.0)))
    closed = [mean * above + density, above, density / 2.0, -mean * density / 6.0, (mean * mean - 1.0) * density / 24.0]
    data = PreActivations(-15.0, 15.0, mean, 1.0, np.array([0.0]), np.array([1.0]))
    x = np.linspace(-4.0, 4.0, 101)
    found = Projection(gaussian(data, 1.0), 4).series(4)(x)
    np.testing.assert_allclose(found, hermite_e.hermeval(x - mean, closed), rtol=0.0, atol=1e-9)


def test_the_loss_is_the_mean_squared_error_on_the_data():
    y = np.random.default_rng(1).normal(0.0, 2.0, 50000)
    chosen = fit_ola(PreActivations.of(y))
    measured = np.square(chosen.polynomial(y) - np.maximum(y, 0.0)).mean()
    assert chosen.loss == pytest.approx(measured, rel=1e-2)


def test_an_outlier_a_million_deviations_away_leaves_it_finite():
    y = np.append(np.random.default_rng(2).normal(0.0, 1.0, 10000), 1e6)
    assert np.isfinite(ola(PreActivations.of(y))(y)).all()


@pytest.mark.parametrize("depth", [2, 3, 4, 5])
def test_the_depth_budget_holds(depth):
    data = PreActivations.of(np.random.default_rng(3).normal(size=5000))
    assert ola(data, depth).depth <= depth


def test_degenerate_pre_activations_are_met_exactly():
    positive, constant = np.linspace(1.0, 2.0, 9), np.full(9, -3.0)
    np.testing.assert_allclose(ola(PreActivations.of(positive))(positive), positive, rtol=1e-15)
    assert np.all(ola(PreActivations.of(constant))(constant) == 0.0)


@pytest.mark.parametrize("depth", [1, 6])
def test_a_depth_out_of_reach_is_refused(depth):
    with pytest.raises(InputError, match="depth from 2 to 5"):
        ola(PreActivations.of([-1.0, 1.0]), depth)


def test_ola_of_a_degree_is_at_most_as_far_as_least_squares_under_any_tried_weight() -> None:
    """Its loss on the pre-activations is that of the best weight, and the widest weight is nearly even."""
    rng = np.random.default_rng(3)
    mlp = MLP(rng.standard_normal((8, 4)), rng.standard_normal(8), rng.standard_normal((2, 8)), np.zeros(2))
    X = rng.standard_normal((500, 4))
    seen = preactivations(mlp, X)
    y = mlp.hidden(X)
    lost = []
    for degree in (2, 4, 8):
        made = ola_of(degree, seen)
        assert made.degree == degree
        lost.append(float(np.mean((made(y) - np.maximum(y, 0)) ** 2)))
        plain = least_squares(degree, seen.lo, seen.hi)
        assert lost[-1] <= 1.001 * float(np.mean((plain(y) - np.maximum(y, 0)) ** 2))
    assert lost[0] > lost[1] > lost[2]
