"""Families as linear subspaces: weights and constants of the features, from unknowns and back.

The weights of a stack of problems are a prior plus a subspace; `expand` and `gather` are the map and its transpose, so
one loss and one solver serve every family. Unknowns are scaled so that the problem is of order one for a descent
method.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.fitting.families import SHARED, UNITWISE
from quad4fhe.mlp import MLP

_CURVATURE = 0.25  # between the largest curvature of the softmax (1/2) and that of confident rows (near 0)
Map = Callable[[Array], Array]


class Subspace:
    """Weights = prior + forward(scale * u) and constants = constant + range c, for unknowns x = (u, c).

    `forward` takes (problems, size) to (problems, K, p m); its columns are orthonormal and `backward` is its transpose.
    `range` is (K, r), with orthonormal columns. The ridge is strength/2 times the squared distance of the weights from
    the prior. The unknowns of a family with a `spectrum` (size,) are scaled by (spectrum + strength)^(-1/2).
    """

    def __init__(
        self, prior: Array, constant: Array, forward: Map, backward: Map, range_: Array, spectrum: Array
    ) -> None:
        self._prior, self._constant = prior, constant
        self._forward, self._backward, self._range = forward, backward, range_
        self._spectrum = np.maximum(spectrum, 0.0)
        self.strengthen(1.0)

    def strengthen(self, strength: float) -> None:
        """Set the strength of the ridge."""
        self._strength = strength
        self._scale = 1.0 / np.sqrt(self._spectrum + strength)

    def expand(self, x: Array) -> tuple[Array, Array]:
        """Weights (problems, K, p m) and constants (problems, K) of the unknowns x (problems, size + r)."""
        u, c = self._split(x)
        return self._prior + self._forward(u * self._scale), self._constant + c @ self._range.T

    def gather(self, weights: Array, constant: Array) -> Array:
        """The gradient in x of a function with these gradients in weights and constants."""
        return np.concatenate([self._backward(weights) * self._scale, constant @ self._range], axis=1)

    def solve(self, weights: Array, constant: Array) -> Array:
        """The unknowns that `expand` to these weights and constants, which must belong to the family."""
        own = self._backward(weights - self._prior) / self._scale
        return np.concatenate([own, (constant - self._constant) @ self._range], axis=1)

    def penalty(self, x: Array) -> tuple[Array, Array]:
        """The ridge (problems,) and its gradient in x."""
        u, c = self._split(x)
        pull = self._strength * np.square(self._scale) * u
        return 0.5 * np.einsum("bj,bj->b", pull, u), np.concatenate([pull, np.zeros_like(c)], axis=1)

    def _split(self, x: Array) -> tuple[Array, Array]:
        return x[:, : self._scale.size], x[:, self._scale.size :]


class _Pooled(Subspace):
    """One polynomial for all units: the ridge is on its p coefficients and its constant, which need no scaling."""

    def strengthen(self, strength: float) -> None:
        """Set the strength of the ridge."""
        self._strength, self._scale = strength, np.ones(self._spectrum.size)

    def solve(self, weights: Array, constant: Array) -> Array:
        """The unknowns that `expand` to these weights and constants, which must belong to the family."""
        own = self.gather(weights - self._prior, constant - self._constant)
        unit = self._forward(np.eye(self._scale.size)[:1])
        own[:, :-1] /= max(float(np.square(unit).sum()), 1e-300)
        own[:, -1] /= max(float(np.square(self._range).sum()), 1e-300)
        return own

    def penalty(self, x: Array) -> tuple[Array, Array]:
        """The ridge (problems,) and its gradient in x."""
        pull = self._strength * x
        return 0.5 * np.einsum("bi,bi->b", pull, x), pull


def subspace(
    family: str, mlp: MLP, prior: Array, constant: Array, moments: Callable[[], Array], sharpness: float
) -> Subspace:
    """The unknowns of a family around priors (problems, K, p m) and constants (problems, K).

    `moments` gives the second moments (p m, p m) of the features; the logits are `sharpness` times those of the model
    that is wanted, as the priors are.
    """
    if family == SHARED:
        return _pooled(mlp, prior, constant, sharpness)
    return (
        _unitwise(mlp, prior, constant, moments(), sharpness)
        if family == UNITWISE
        else _head(prior, constant, moments())
    )


def _pooled(mlp: MLP, prior: Array, constant: Array, sharpness: float) -> Subspace:
    """Weights s_k W2 and constants e B: p + 1 unknowns for all units; B are the row sums of W2."""
    degree, head = prior.shape[2] // mlp.units, mlp.W2 * sharpness

    def forward(u: Array) -> Array:
        return np.concatenate([u[:, k, None, None] * head for k in range(degree)], axis=2)

    def backward(weights: Array) -> Array:
        return np.stack([np.einsum("bkj,kj->b", block, head) for block in np.split(weights, degree, axis=2)], axis=1)

    range_ = (mlp.head_sums * sharpness)[:, None]
    return _Pooled(prior, constant, forward, backward, range_, np.zeros(degree))


def _unitwise(mlp: MLP, prior: Array, constant: Array, moments: Array, sharpness: float) -> Subspace:
    """Weights own * W2, one unknown for each feature, and constants within the range of W2.

    c = b2 + W2 eta can move only within that range, which two equal classes make smaller than K.
    """
    columns = np.hstack([mlp.W2] * (prior.shape[2] // mlp.units))
    left, singular, _ = np.linalg.svd(mlp.W2, full_matrices=False)
    range_ = left[:, singular > 1e-10 * singular.max(initial=0.0)]
    bias = sharpness * mlp.b2
    constant = bias + (constant - bias) @ range_ @ range_.T
    centred = columns - columns.mean(axis=0) if mlp.outputs > 1 else columns
    sizes = np.einsum("kj,kj->j", columns, columns)
    # A unit whose column of W2 is zero must not make the ridge singular.
    norms = np.sqrt(np.maximum(sizes, 1e-12 * sizes.max(initial=1e-300)))
    unit = centred / norms
    # Moments summed in float32 are only nearly semidefinite: an eigenbasis can be mended, a Cholesky factor fails.
    spectrum, axes = np.linalg.eigh(_CURVATURE * (unit.T @ unit) * moments)

    def forward(u: Array) -> Array:
        return np.asarray(columns * ((u @ axes.T) / norms)[:, None, :])

    def backward(weights: Array) -> Array:
        return np.asarray((np.einsum("bkj,kj->bj", weights, columns) / norms) @ axes)

    return Subspace(prior, constant, forward, backward, range_, spectrum)


def _head(prior: Array, constant: Array, moments: Array) -> Subspace:
    """All weights and constants; they scale with the logits, so the sharpness does not matter."""
    spectrum, axes = np.linalg.eigh(moments)
    _, outputs, size = prior.shape

    def forward(u: Array) -> Array:
        return np.asarray(u.reshape(-1, outputs, size) @ axes.T)

    def backward(weights: Array) -> Array:
        return np.asarray((weights @ axes).reshape(len(weights), -1))

    return Subspace(prior, constant, forward, backward, np.eye(outputs), _CURVATURE * np.tile(spectrum, outputs))
