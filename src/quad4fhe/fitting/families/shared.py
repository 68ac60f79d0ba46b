"""The shared family: one polynomial replaces every ReLU.

At degree 2 the cascade solves it; above, it is also learned, with p + 1 unknowns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.fitting.families.base import Curves, Family
from quad4fhe.mlp import MLP

if TYPE_CHECKING:
    from quad4fhe.fitting.result import Fit


class PooledProblem:
    """Weights = prior + s_k W2, constants = prior + e B: p + 1 unknowns for all units; B are the row sums of W2."""

    def __init__(self, mlp: MLP, prior: Array, constant: Array, sharpness: float) -> None:
        self._prior, self._constant = prior, constant
        self._degree = prior.shape[2] // mlp.units
        self._head = mlp.W2 * sharpness
        self._sums = mlp.head_sums * sharpness
        self._strength = 1.0

    def strengthen(self, strength: float) -> None:
        """Set the ridge: strength/2 times the squared distance of the unknowns from the prior."""
        self._strength = strength

    def expand(self, x: Array) -> tuple[Array, Array]:
        """Weights (problems, K, p m) and constants (problems, K) of the unknowns x (problems, p + 1)."""
        blocks = [x[:, k, None, None] * self._head for k in range(self._degree)]
        return self._prior + np.concatenate(blocks, axis=2), self._constant + x[:, -1:] * self._sums

    def gather(self, weights: Array, constant: Array) -> Array:
        """The gradient in x of a function with these gradients in weights and constants."""
        blocks = np.split(weights, self._degree, axis=2)
        own = [np.einsum("bkj,kj->b", block, self._head) for block in blocks]
        return np.stack([*own, constant @ self._sums], axis=1)

    def solve(self, weights: Array, constant: Array) -> Array:
        """The unknowns that `expand` to these weights and constants, which must belong to the family."""
        size, sums = float(np.square(self._head).sum()), float(np.square(self._sums).sum())
        own = self.gather(weights - self._prior, constant - self._constant)
        own[:, :-1] /= max(size, 1e-300)
        own[:, -1] /= max(sums, 1e-300)
        return own

    def penalty(self, x: Array) -> tuple[Array, Array]:
        """The ridge (problems,) and its gradient in x."""
        pull = self._strength * x
        return 0.5 * np.einsum("bi,bi->b", pull, x), pull


class Shared(Family):
    """alpha, beta and eta (and tau, if the threshold is free)."""

    name = "shared"
    replaced = "one quadratic in place of every ReLU"
    drawn = "the one quadratic that replaces it"
    remark = "It need not be close to ReLU: only the decisions count, and they fix neither scale nor offset."

    def numbers(self, mlp: MLP) -> int:
        """Three, whatever the model."""
        return 3

    def formula(self, mlp: MLP) -> str:
        """The activation."""
        return "Every ReLU becomes q(u) = alpha u² + beta u + eta."

    def coefficients(self, fit: Fit) -> str:
        """All of them."""
        tau = f", tau {fit.tau:.6g}" if fit.tau else ""
        return f"alpha {fit.alpha:.6g}, beta {fit.beta:.6g}, eta {fit.eta:.6g}{tau}"

    def values(self, fit: Fit) -> dict[str, float | Array]:
        """Floats; tau only if there is one."""
        values: dict[str, float | Array] = {"alpha": fit.alpha, "beta": fit.beta, "eta": fit.eta}
        return values | ({"tau": fit.tau} if fit.tau else {})

    def curves(self, fit: Fit) -> Curves:
        """One curve."""
        alpha, beta, eta = np.array([[fit.alpha], [fit.beta], [fit.eta]], dtype=np.float64)
        return Curves(alpha, beta, eta, np.ones(1))


FAMILY = Shared()
