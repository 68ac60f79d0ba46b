"""The head family: S, T and c are free, drawn by a ridge towards a prior.

Decides how a vector of unknowns becomes weights on the standardised features, so scaled that descent sees a problem of
order one. What is minimised is left to `losses`, which strength to `families`.
"""

from __future__ import annotations

import numpy as np

from quad4fhe._arrays import Array

_CURVATURE = 0.25  # between the largest curvature of the softmax (1/2) and that of confident rows (near 0)


class Head:
    """Weights = prior + u P', P = (curvature * moments + strength)^(-1/2); a prior (K, 2m) for each of the problems."""

    name = "head"

    def __init__(self, prior: Array, constant: Array, moments: Array) -> None:
        """Prepare for priors (problems, K, 2m), their constants (problems, K) and the features' moments (2m, 2m)."""
        self._prior, self._constant = prior, constant
        spectrum, self._axes = np.linalg.eigh(moments)
        self._spectrum = np.maximum(spectrum, 0.0)
        self.strengthen(1.0)

    def strengthen(self, strength: float) -> None:
        """Set the ridge: strength/2 times the squared distance of the weights from the prior."""
        self._strength = strength
        self._scale = 1.0 / np.sqrt(_CURVATURE * self._spectrum + strength)

    def expand(self, x: Array) -> tuple[Array, Array]:
        """Weights (problems, K, 2m) and constants (problems, K) of the unknowns x (problems, size)."""
        u, c = self._split(x)
        return self._prior + (u * self._scale) @ self._axes.T, self._constant + c

    def gather(self, weights: Array, constant: Array) -> Array:
        """The gradient in x of what has these gradients in weights and constants."""
        u = (weights @ self._axes) * self._scale
        return np.concatenate([u.reshape(u.shape[0], -1), constant], axis=1)

    def solve(self, weights: Array, constant: Array) -> Array:
        """The unknowns that `expand` to these weights and constants."""
        u = ((weights - self._prior) @ self._axes) / self._scale
        return np.concatenate([u.reshape(u.shape[0], -1), constant - self._constant], axis=1)

    def penalty(self, x: Array) -> tuple[Array, Array]:
        """The ridge (problems,) and its gradient in x."""
        u, c = self._split(x)
        pull = self._strength * np.square(self._scale) * u
        value = 0.5 * np.einsum("bki,bki->b", pull, u)
        return value, np.concatenate([pull.reshape(x.shape[0], -1), np.zeros_like(c)], axis=1)

    def _split(self, x: Array) -> tuple[Array, Array]:
        problems, outputs, size = self._prior.shape
        return x[:, : outputs * size].reshape(problems, outputs, size), x[:, outputs * size :]
