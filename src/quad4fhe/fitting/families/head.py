"""The head family: S, T and c are free, pulled by a ridge towards a prior."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.fitting.families.base import Curves, LearnedFamily, Replacement, times_power
from quad4fhe.mlp import MLP
from quad4fhe.polynomial import QuadraticModel

if TYPE_CHECKING:
    from quad4fhe.fitting.result import Fit

_CURVATURE = 0.25  # between the largest curvature of the softmax (1/2) and that of confident rows (near 0)


class HeadProblem:
    """Weights = prior + u P', P = (curvature * moments + strength)^(-1/2); a prior (K, p m) for each of the problems.

    So scaled, the problem is of order one for a descent method.
    """

    def __init__(self, prior: Array, constant: Array, moments: Array) -> None:
        """Prepare for priors (problems, K, p m), their constants (problems, K) and the features' moments (p m, p m)."""
        self._prior, self._constant = prior, constant
        spectrum, self._axes = np.linalg.eigh(moments)
        self._spectrum = np.maximum(spectrum, 0.0)
        self.strengthen(1.0)

    def strengthen(self, strength: float) -> None:
        """Set the ridge: strength/2 times the squared distance of the weights from the prior."""
        self._strength = strength
        self._scale = 1.0 / np.sqrt(_CURVATURE * self._spectrum + strength)

    def expand(self, x: Array) -> tuple[Array, Array]:
        """Weights (problems, K, p m) and constants (problems, K) of the unknowns x (problems, size)."""
        u, c = self._split(x)
        return self._prior + (u * self._scale) @ self._axes.T, self._constant + c

    def gather(self, weights: Array, constant: Array) -> Array:
        """The gradient in x of a function with these gradients in weights and constants."""
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


class Head(LearnedFamily):
    """S and T (K, m), and c (K,)."""

    name = "head"
    is_free = True
    replaced = "a free quadratic head on the hidden layer"
    drawn = "the median of the quadratics nearest to the free head, with the middle 80% as a band"
    remark = (
        "A free head has no quadratic per unit: drawn is the nearest in least squares over the classes, "
        "shifted to meet ReLU on average."
    )

    def numbers(self, mlp: MLP) -> int:
        """Two for each unit and class, one more for each class."""
        return (2 * mlp.units + 1) * mlp.outputs

    def formula(self, mlp: MLP) -> str:
        """The logits."""
        return "The logits become S (y·y) + T y + c, with y the pre-activations and S, T, c all free."

    def coefficients(self, fit: Fit) -> str:
        """Their shapes: there are too many to print."""
        K, m = fit.S.shape
        return f"S and T ({K} x {m}) and c ({K}), all free"

    def values(self, fit: Fit) -> dict[str, float | Array]:
        """The arrays of the model."""
        return {"S": fit.S, "T": fit.T, "c": fit.c}

    def curves(self, fit: Fit) -> Curves:
        """The projections of S and T on the columns of W2."""
        size = np.square(fit.mlp.W2).sum(axis=0)
        used = size > 0
        W2, size = fit.mlp.W2[:, used], size[used]
        alpha = (W2 * fit.S[:, used]).sum(axis=0) / size
        beta = (W2 * fit.T[:, used]).sum(axis=0) / size
        return Curves(alpha, beta, None, size)

    def problem(self, mlp: MLP, prior: Array, constant: Array, moments: Array, sharpness: float) -> HeadProblem:
        """The free weights; they scale with the logits, so the sharpness does not matter."""
        return HeadProblem(prior, constant, moments)

    def replacement(self, mlp: MLP, scaled: MLP, S: Array, T: Array, c: Array, power: int) -> Replacement:
        """The model as it was fitted, back on the scale of the logits."""
        return Replacement(times_power(QuadraticModel(mlp.W1, mlp.b1, S, T, c), power))


FAMILY = Head()
