"""Hypothesis strategies, named after the things they make."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from quad4fhe import MLP
from quad4fhe.fitting.design import Block

seeds = st.integers(0, 2**32 - 1)


@st.composite
def whole_number_mlps(draw: st.DrawFn, outputs: tuple[int, int] = (1, 4)) -> MLP:
    """Tiny models with small whole weights: their logits are exact in floats, and ties are common."""
    d, m = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    K = draw(st.integers(*outputs))
    rng = np.random.default_rng(draw(seeds))
    return MLP(rng.integers(-2, 3, (m, d)), rng.integers(-2, 3, m), rng.integers(-2, 3, (K, m)), rng.integers(-2, 3, K))


@st.composite
def float_mlps(draw: st.DrawFn, outputs: tuple[int, int] = (1, 4)) -> MLP:
    """Small random models with float weights of very different sizes."""
    d, m = draw(st.integers(1, 5)), draw(st.integers(1, 8))
    K = draw(st.integers(*outputs))
    rng = np.random.default_rng(draw(seeds))
    size = 10.0 ** draw(st.integers(-8, 8))
    return MLP(rng.normal(size=(m, d)) * size, rng.normal(size=m) * size, rng.normal(size=(K, m)), rng.normal(size=K))


@st.composite
def grid_points(draw: st.DrawFn, most: int = 12) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Points on a small grid with labels: duplicates, collinear runs and touching hulls are common."""
    points = draw(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=2, max_size=most))
    positive = np.array(draw(st.lists(st.booleans(), min_size=len(points), max_size=len(points))))
    positive[0], positive[-1] = True, False
    return np.array(points, dtype=float), positive


@st.composite
def overlapping_clouds(draw: st.DrawFn) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Two Gaussian clouds in the plane, more or less apart."""
    rng = np.random.default_rng(draw(seeds))
    n = draw(st.integers(3, 40)), draw(st.integers(3, 40))
    shift = draw(st.floats(0.0, 6.0))
    scale = np.array([10.0 ** draw(st.integers(-2, 2)), 1.0])
    return rng.normal((shift, 0.5), size=(n[0], 2)) * scale, rng.normal(size=(n[1], 2)) * scale


@st.composite
def blocks(draw: st.DrawFn, separable: bool | None = None, degree: int = 2) -> Block:
    """Coordinates of a random model, powers p to 1; `separable` asks for targets that some shared polynomial gives."""
    rng = np.random.default_rng(draw(seeds))
    n, K, m = draw(st.integers(4, 60)), draw(st.integers(2, 6)), draw(st.integers(2, 8))
    head, b = rng.normal(size=(K, m)), rng.normal(size=K) * 0.3
    y = rng.normal(size=(n, m)) * draw(st.floats(0.3, 3.0))
    P, B = np.stack([y**k @ head.T for k in range(degree, 0, -1)]), head.sum(axis=1)
    logits = np.maximum(y, 0) @ head.T + b
    if separable:
        *coefficients, eta = rng.normal(size=degree + 1)
        logits = np.tensordot(np.array(coefficients), P, 1) + eta * B + b
    return Block(P, B, b, np.argmax(logits, axis=1))
