from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quad4fhe import MLP, InputError, _arrays
from quad4fhe.report.preactivations import PreActivations, preactivations

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)


def small_mlp():
    rng = np.random.default_rng(0)
    return MLP(rng.normal(size=(7, 4)), rng.normal(size=7), rng.normal(size=(3, 7)), rng.normal(size=3))


@given(VALUES)
def test_the_summary_is_that_of_numpy(values):
    data = PreActivations.of(values)
    scale = max(1.0, data.bound)
    assert (data.lo, data.hi) == (min(values), max(values))
    assert data.mean == pytest.approx(np.mean(values), abs=1e-9 * scale)
    if data.deviation > 1e-6 * scale:
        assert data.deviation == pytest.approx(np.std(values), rel=1e-6)
    assert data.counts.sum() == len(values)
    assert data.values @ data.counts == pytest.approx(np.sum(values), abs=1e-8 * scale * len(values))


def test_chunks_do_not_change_the_summary(monkeypatch):
    mlp, X = small_mlp(), np.random.default_rng(1).normal(size=(1000, 4))
    whole = preactivations(mlp, X)
    monkeypatch.setattr(_arrays, "CHUNK_BYTES", 4096)
    steps = []
    chunked = preactivations(mlp, X, lambda text, done, total: steps.append((text, done, total)))
    assert (chunked.lo, chunked.hi) == (whole.lo, whole.hi)
    assert chunked.mean == pytest.approx(whole.mean, rel=1e-12)
    assert chunked.deviation == pytest.approx(whole.deviation, rel=1e-12)
    assert len(steps) > 2
    assert steps[-1][1] == steps[-1][2]


@pytest.mark.parametrize("value", [0.0, -3.0, 7.5])
def test_a_constant_has_no_deviation(value):
    data = PreActivations.of(np.full((3, 5), value))
    assert (data.lo, data.hi, data.mean, data.deviation) == (value, value, value, 0.0)


def test_tiny_values_keep_a_deviation_though_their_squares_underflow():
    assert PreActivations.of([-1e-200, 1e-200]).deviation > 0.0


@pytest.mark.parametrize("weight", [1e120, 1e308])
def test_pre_activations_too_large_to_square_are_refused(weight):
    mlp = MLP(np.full((2, 1), weight), np.zeros(2), np.ones((1, 2)), np.zeros(1))
    with pytest.raises(InputError, match="scale the features"):
        preactivations(mlp, np.array([[1e10], [-1e10]]))


def test_no_samples_are_refused():
    with pytest.raises(InputError, match="X_cal has no rows"):
        preactivations(small_mlp(), np.empty((0, 4)))
    with pytest.raises(InputError, match="at least one sample"):
        PreActivations.of([])
