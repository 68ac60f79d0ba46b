"""Stand-ins for fits, random networks and hypothesis strategies for the encrypted side, named after the domain."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from quad4fhe import PolynomialModel

Floats = NDArray[np.float64]

# The shared coefficients (alpha, beta, eta) that were fitted for the trained models.
SHARED = {
    "breast_cancer": (0.3971317, 0.9177616, 0.7710231),
    "diabetes": (0.10990840, 0.99394172, -5.20193687),
    "otto": (0.05485, 0.41926, 0.16503),
    "shuttle": (0.018756, 0.073574, 0.034892),
    "sst5": (0.17795, 0.45363, 0.16099),
}


@dataclass(frozen=True)
class StandInFit:
    """What a plan needs to know of a fit."""

    model: PolynomialModel
    box: Floats
    margins: Floats

    @property
    def model_id(self) -> str:
        return hashlib.sha256(b"stand-in" + self.model.sha256.encode()).hexdigest()


def stand_in(model: PolynomialModel, X: Floats, box: Floats | None = None) -> StandInFit:
    """A fit of `model` calibrated on X."""
    X = np.asarray(X, dtype=np.float64)
    logits = model.logits(X)
    ordered = np.sort(logits, axis=1)
    margins = np.abs(logits[:, 0]) if model.outputs == 1 else ordered[:, -1] - ordered[:, -2]
    return StandInFit(model, np.stack([X.min(axis=0), X.max(axis=0)]) if box is None else box, margins)


def random_model(d: int, m: int, K: int, seed: int = 0, *, free: bool = False, alpha: float = 0.08) -> PolynomialModel:
    """A network whose pre-activations have a spread of about 2; `free` draws S and T apart, as a head does."""
    rng = np.random.default_rng(seed)
    W1 = rng.normal(size=(m, d)) * 2.0 / np.sqrt(d)
    b1 = rng.normal(size=m) * 0.5
    W2 = rng.normal(size=(K, m)) / np.sqrt(m)
    T = rng.normal(size=(K, m)) / np.sqrt(m) if free else 0.5 * W2
    return PolynomialModel.quadratic(W1, b1, alpha * W2, T, rng.normal(size=K) * 0.3)


def random_samples(n: int, d: int, seed: int = 1) -> Floats:
    """Standardised samples, clipped at three."""
    return np.clip(np.random.default_rng(seed).normal(size=(n, d)), -3.0, 3.0)


@st.composite
def heads(draw: Callable[[st.SearchStrategy[int]], int]) -> PolynomialModel:
    """Small models of every family, with some alphas exactly zero or tiny."""
    seed = draw(st.integers(0, 2**31))
    rng = np.random.default_rng(seed)
    d, m, K = draw(st.integers(1, 6)), draw(st.integers(1, 8)), draw(st.integers(1, 5))
    W2 = rng.normal(size=(K, m))
    alpha = rng.normal(size=m) * rng.choice([0.0, 1e-12, 1e-3, 1.0, 10.0], size=m)
    beta = rng.normal(size=m)
    family = draw(st.integers(0, 2))
    if family == 0:
        S, T = 0.3 * W2, 0.7 * W2
    elif family == 1:
        S, T = W2 * alpha, W2 * beta
    else:
        S, T = rng.normal(size=(K, m)), rng.normal(size=(K, m))
    return PolynomialModel.quadratic(rng.normal(size=(m, d)), rng.normal(size=m), S, T, rng.normal(size=K))
