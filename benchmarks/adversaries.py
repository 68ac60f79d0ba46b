"""Models and samples chosen by an enemy of `strict`: what the error bound has to survive.

Each case is a model, its calibration samples and how many samples a plan is for. `benchmarks/strict.py` runs all of
them, a test runs a part. Margins are made small on purpose: an honest model rarely meets its bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quad4fhe import PolynomialModel

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A model, its calibration set, its box, and the number of samples the plan is made for."""

    name: str
    model: PolynomialModel
    X: Floats
    box: Floats
    samples: int

    @property
    def model_id(self) -> str:
        """A name for the model, as a fit gives it."""
        return self.model.sha256

    @property
    def margins(self) -> Floats:
        """As a fit keeps them."""
        logits = self.model.logits(self.X)
        ordered = np.sort(logits, axis=1)
        out: Floats = np.abs(logits[:, 0]) if self.model.outputs == 1 else ordered[:, -1] - ordered[:, -2]
        return out


def cases(rounds: int = 10) -> Iterator[Case]:
    """Every kind of attack, `rounds` times with other numbers."""
    for seed in range(rounds):
        for name, make in KINDS.items():
            yield make(name, np.random.default_rng([seed, *name.encode()]), seed)


def _case(name: str, model: PolynomialModel, X: Floats, samples: int | None = None, box: Floats | None = None) -> Case:
    inside = np.stack([X.min(axis=0), X.max(axis=0)]) if box is None else box
    return Case(name, model, X, inside, len(X) if samples is None else samples)


def _outputs(seed: int) -> int:
    return (1, 2, 10)[seed % 3]


def _head(rng: np.random.Generator, W1: Floats, b1: Floats, K: int, alpha: float = 0.1) -> PolynomialModel:
    m = len(W1)
    W2 = rng.normal(size=(K, m)) / np.sqrt(m)
    return PolynomialModel.quadratic(W1, b1, alpha * W2, 0.5 * W2, rng.normal(size=K) * 0.1)


def _network(rng: np.random.Generator, d: int, m: int, K: int, alpha: float = 0.1) -> PolynomialModel:
    return _head(rng, rng.normal(size=(m, d)) * 2 / np.sqrt(d), rng.normal(size=m) * 0.5, K, alpha)


def _equal_weights(name: str, rng: np.random.Generator, seed: int) -> Case:
    """256 equal weights and one sample: every coefficient would round to zero, for every feature alike."""
    d = (256, 64, 1024, 2000)[seed % 4]
    W1 = np.full((1, d), 1 / np.sqrt(d))
    model = PolynomialModel.quadratic(W1, [0.0], [[0.01]], [[1.0]], [0.0])
    X = np.outer(np.tile([1.0, -1.0], 10), np.full(d, 0.05))
    return _case(name, model, X, samples=1, box=np.stack([np.full(d, -0.06), np.full(d, 0.06)]))


def _identical_features(name: str, rng: np.random.Generator, seed: int) -> Case:
    """A request whose features are all the same column."""
    d, n = (16, 93, 300)[seed % 3], (2048, 40)[seed % 2]
    model = _head(rng, np.abs(rng.normal(size=(24, d))) / d, rng.normal(size=24) * 0.3, _outputs(seed))
    return _case(name, model, np.repeat(rng.uniform(-1, 1, size=(n, 1)), d, axis=1))


def _correlated_features(name: str, rng: np.random.Generator, seed: int) -> Case:
    """Features of rank two, weights along them."""
    d, n = (30, 200)[seed % 2], 300
    basis = rng.normal(size=(2, d))
    X = rng.normal(size=(n, 2)) @ basis
    W1 = rng.normal(size=(32, 2)) @ basis / d
    return _case(name, _head(rng, W1, rng.normal(size=32) * 0.1, _outputs(seed)), X)


def _identical_units(name: str, rng: np.random.Generator, seed: int) -> Case:
    """Every hidden unit the same: noise that reaches one reaches all, with the same sign."""
    d, m = (5, 40, 93)[seed % 3], (64, 256)[seed % 2]
    W1 = np.repeat(rng.normal(size=(1, d)) / np.sqrt(d), m, axis=0)
    K = _outputs(seed)
    W2 = np.abs(rng.normal(size=(K, m))) / m
    if K > 1:
        W2[1::2] *= -1
    return _case(name, PolynomialModel.quadratic(W1, np.zeros(m), 0.2 * W2, W2, np.zeros(K)), rng.normal(size=(100, d)))


def _far_offsets(name: str, rng: np.random.Generator, seed: int) -> Case:
    """Features at 1e6, 1.7e9 and 1e11, each with a spread of one."""
    d, far = (1, 6, 30)[seed % 3], (1e6, 1.7e9, 1e11)[(seed // 3) % 3]
    W1 = rng.normal(size=(12, d))
    X = far + rng.uniform(-0.5, 0.5, size=(64, d))
    return _case(name, _head(rng, W1, -W1 @ np.full(d, far), _outputs(seed)), X)


def _one_far_feature(name: str, rng: np.random.Generator, seed: int) -> Case:
    """A time stamp beside standardised features."""
    d = 8
    X = rng.normal(size=(80, d))
    X[:, 0] = 1.7e9 + rng.uniform(-1e4, 1e4, size=80)
    W1 = rng.normal(size=(16, d)) / 2
    W1[:, 0] *= 1e-4
    return _case(name, _head(rng, W1, -W1[:, 0] * 1.7e9, _outputs(seed)), X)


def _tiny_and_huge(name: str, rng: np.random.Generator, seed: int) -> Case:
    """Scales of weights and inputs that differ by many orders of magnitude."""
    d, m = 10, 20
    size = 10.0 ** ((-8, -3, 3, 6)[seed % 4])
    model = _network(rng, d, m, _outputs(seed))
    W1 = np.asarray(model.W1) / size
    heads = 10.0 ** ((-6, 0, 4)[seed % 3])
    return _case(
        name,
        PolynomialModel.quadratic(W1, model.b1, model.S * heads, model.T * heads, model.c * heads),
        rng.normal(size=(60, d)) * size,
    )


def _mixed_sizes(name: str, rng: np.random.Generator, seed: int) -> Case:
    """Each feature with its own order of magnitude, each unit too."""
    d, m = 12, 16
    sizes, units = 10.0 ** rng.uniform(-5, 5, size=d), 10.0 ** rng.uniform(-3, 1, size=m)
    W1 = rng.normal(size=(m, d)) * units[:, None] / sizes
    return _case(name, _head(rng, W1, rng.normal(size=m) * units, _outputs(seed)), rng.normal(size=(60, d)) * sizes)


def _alpha_near_zero(name: str, rng: np.random.Generator, seed: int) -> Case:
    """Nearly linear: completing the square makes offsets of 1e8 that cancel."""
    alpha = (1e-9, 1e-6, 1e-3, 0.0)[seed % 4]
    return _case(name, _network(rng, 9, 24, _outputs(seed), alpha), rng.normal(size=(100, 9)))


def _corners(name: str, rng: np.random.Generator, seed: int) -> Case:
    """Every sample a corner of the box, where the quadratic is largest."""
    d = (2, 12, 93)[seed % 3]
    return _case(name, _network(rng, d, 48, _outputs(seed)), rng.choice([-3.0, 3.0], size=(128, d)))


def _same_corner(name: str, rng: np.random.Generator, seed: int) -> Case:
    """A full request of one and the same sample: the reply is a constant polynomial, the largest coefficient."""
    d = 20
    model, corner = _network(rng, d, 32, _outputs(seed)), rng.choice([-3.0, 3.0], size=d)
    return _case(name, model, np.repeat(corner[None], 512, axis=0), box=np.stack([np.full(d, -3.0), np.full(d, 3.0)]))


def _small_margins(name: str, rng: np.random.Generator, seed: int) -> Case:
    """Samples moved along the gradient until their margin is small."""
    d, K = 20, _outputs(seed)
    model = _network(rng, d, 40, K)
    X = rng.normal(size=(200, d))
    wanted = 10.0 ** rng.uniform(-4, -1, size=200)
    for _ in range(30):
        y = X @ model.W1.T + model.b1
        logits = model.logits(X)
        order = np.argsort(-logits, axis=1)
        rows = np.arange(len(X))
        first = order[:, 0]
        if K == 1:
            V, T, gap = model.S[[0] * 200], model.T[[0] * 200], logits[:, 0]
        else:
            second = order[:, 1]
            V, T = model.S[first] - model.S[second], model.T[first] - model.T[second]
            gap = logits[rows, first] - logits[rows, second]
        gradient = (2 * V * y + T) @ model.W1
        step = (gap - np.where(gap >= 0, 1, -1) * wanted) / np.maximum((gradient * gradient).sum(axis=1), 1e-9)
        X = X - np.clip(step, -0.3, 0.3)[:, None] * gradient
    return _case(name, model, X)


def _one_feature(name: str, rng: np.random.Generator, seed: int) -> Case:
    """One feature, one unit: nothing to average over."""
    model = PolynomialModel.quadratic([[1.0 + seed]], [0.3], [[0.7]], [[-1.1]], [0.05])
    return _case(name, model, rng.uniform(-1, 1, size=((1, 7, 300)[seed % 3], 1)))


def _wide(name: str, rng: np.random.Generator, seed: int) -> Case:
    """Up to 2,000 features, few samples, as pixels: constant, sparse or dense."""
    d, n = (784, 1024, 2000)[seed % 3], 24
    kind = seed % 4
    X = rng.uniform(0, 1, size=(n, d))
    if kind == 1:
        X = (X > 0.95).astype(float)
    if kind == 2:
        X = np.repeat(rng.uniform(0, 1, size=(n, 1)), d, axis=1)
    W1 = np.abs(rng.normal(size=(32, d))) / d if kind == 2 else rng.normal(size=(32, d)) / np.sqrt(d)
    box = np.stack([np.zeros(d), np.ones(d)])
    return _case(name, _head(rng, W1, rng.normal(size=32) * 0.1, _outputs(seed)), X, samples=(1, n)[seed % 2], box=box)


def _many_classes(name: str, rng: np.random.Generator, seed: int) -> Case:
    """Classes that differ by little: every rival is near."""
    d, K = 16, 40
    base = _network(rng, d, 32, 1)
    S = base.S + rng.normal(size=(K, 32)) * 1e-2
    T = base.T + rng.normal(size=(K, 32)) * 1e-2
    return _case(name, PolynomialModel.quadratic(base.W1, base.b1, S, T, np.zeros(K)), rng.normal(size=(100, d)))


def _constant_features(name: str, rng: np.random.Generator, seed: int) -> Case:
    """Most features never move; one of them lies far away."""
    d = 25
    X = np.repeat(rng.normal(size=(1, d)), 50, axis=0)
    X[:, :3] = rng.normal(size=(50, 3))
    X[:, 5] = 1e5
    model = _network(rng, d, 20, _outputs(seed))
    W1 = np.array(model.W1)
    W1[:, 5] *= 1e-5
    return _case(name, PolynomialModel.quadratic(W1, model.b1, model.S, model.T, model.c), X)


def _cancelling_head(name: str, rng: np.random.Generator, seed: int) -> Case:
    """Large squares that cancel between two units: the sum is far smaller than its terms."""
    d, m = 8, 16
    W1 = rng.normal(size=(m, d))
    W1[1::2] = W1[::2] * (1 + 1e-6)
    K = _outputs(seed)
    S = np.repeat(rng.normal(size=(K, m // 2)), 2, axis=1) * 100
    S[:, 1::2] *= -1
    return _case(
        name,
        PolynomialModel.quadratic(W1, np.zeros(m), S, np.zeros((K, m)), rng.normal(size=K)),
        rng.normal(size=(60, d)),
    )


def _ties(name: str, rng: np.random.Generator, seed: int) -> Case:
    """Some exact ties among honest samples."""
    d, K = 6, max(2, _outputs(seed))
    model = _network(rng, d, 12, K)
    S, T, c = np.array(model.S), np.array(model.T), np.array(model.c)
    S[1], T[1], c[1] = S[0], T[0], c[0]
    return _case(name, PolynomialModel.quadratic(model.W1, model.b1, S, T, c), rng.normal(size=(60, d)))


KINDS = {
    function.__name__.lstrip("_").replace("_", " "): function
    for function in (
        _equal_weights,
        _identical_features,
        _correlated_features,
        _identical_units,
        _far_offsets,
        _one_far_feature,
        _tiny_and_huge,
        _mixed_sizes,
        _alpha_near_zero,
        _corners,
        _same_corner,
        _small_margins,
        _one_feature,
        _wide,
        _many_classes,
        _constant_features,
        _cancelling_head,
        _ties,
    )
}
