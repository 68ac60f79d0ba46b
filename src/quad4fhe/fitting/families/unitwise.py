"""The unitwise family: a quadratic for every hidden unit, W2 unchanged, pulled by a ridge towards a prior."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.fitting.families.base import Curves, LearnedFamily, Replacement
from quad4fhe.mlp import MLP
from quad4fhe.polynomial import QuadraticModel

if TYPE_CHECKING:
    from quad4fhe.fitting.result import Fit

_CURVATURE = 0.25


class UnitwiseProblem:
    """Weights = prior + columns * (P u), constants = prior + range of W2; a prior for each of the problems.

    P = (curvature + strength * sizes)^(-1/2), with `sizes` the squared norms of the columns. So scaled, the problem is
    of order one for a descent method.
    """

    def __init__(self, mlp: MLP, prior: Array, constant: Array, moments: Array, sharpness: float) -> None:
        """Prepare for priors (problems, K, p m) that are unitwise, constants (problems, K) and moments (p m, p m)."""
        self._prior = prior
        self._columns = np.hstack([mlp.W2] * (prior.shape[2] // mlp.units))
        # c = b2 + W2 eta can move only within the range of W2, which two equal classes make smaller than K.
        left, singular, _ = np.linalg.svd(mlp.W2, full_matrices=False)
        self._range = left[:, singular > 1e-10 * singular.max(initial=0.0)]
        bias = sharpness * mlp.b2
        self._constant = bias + (constant - bias) @ self._range @ self._range.T
        centred = self._columns - self._columns.mean(axis=0) if mlp.outputs > 1 else self._columns
        sizes = np.einsum("kj,kj->j", self._columns, self._columns)
        # A unit whose column of W2 is zero must not make the ridge singular.
        self._norms = np.sqrt(np.maximum(sizes, 1e-12 * sizes.max(initial=1e-300)))
        unit = centred / self._norms
        # Moments summed in float32 are only nearly semidefinite: an eigenbasis can be mended, a Cholesky factor fails.
        spectrum, self._axes = np.linalg.eigh(_CURVATURE * (unit.T @ unit) * moments)
        self._spectrum = np.maximum(spectrum, 0.0)
        self.strengthen(1.0)

    def strengthen(self, strength: float) -> None:
        """Set the ridge: strength/2 times the squared distance of the weights from the prior."""
        self._strength = strength
        self._scale = 1.0 / np.sqrt(self._spectrum + strength)

    def expand(self, x: Array) -> tuple[Array, Array]:
        """Weights (problems, K, p m) and constants (problems, K) of the unknowns x (problems, size)."""
        u, c = x[:, : self._norms.size], x[:, self._norms.size :]
        own = ((u * self._scale) @ self._axes.T) / self._norms
        return self._prior + self._columns * own[:, None, :], self._constant + c @ self._range.T

    def gather(self, weights: Array, constant: Array) -> Array:
        """The gradient in x of a function with these gradients in weights and constants."""
        own = np.einsum("bkj,kj->bj", weights, self._columns) / self._norms
        return np.concatenate([(own @ self._axes) * self._scale, constant @ self._range], axis=1)

    def solve(self, weights: Array, constant: Array) -> Array:
        """The unknowns that `expand` to these weights and constants, which must be of the family."""
        own = np.einsum("bkj,kj->bj", weights - self._prior, self._columns) / self._norms
        return np.concatenate([(own @ self._axes) / self._scale, (constant - self._constant) @ self._range], axis=1)

    def penalty(self, x: Array) -> tuple[Array, Array]:
        """The ridge (problems,) and its gradient in x."""
        u = x[:, : self._norms.size]
        pull = self._strength * np.square(self._scale) * u
        rest = np.zeros((x.shape[0], self._range.shape[1]))
        return 0.5 * np.einsum("bj,bj->b", pull, u), np.concatenate([pull, rest], axis=1)


def per_unit(mlp: MLP, S: Array, T: Array, c: Array) -> tuple[Array, Array, Array]:
    """alpha, beta, eta (m,) of a unitwise S, T, c: the projections on the columns of W2, eta of the smallest norm."""
    sizes = np.einsum("kj,kj->j", mlp.W2, mlp.W2)
    used = sizes > 0
    alpha, beta = np.zeros(mlp.units), np.zeros(mlp.units)
    alpha[used] = np.einsum("kj,kj->j", S, mlp.W2)[used] / sizes[used]
    beta[used] = np.einsum("kj,kj->j", T, mlp.W2)[used] / sizes[used]
    eta: Array = np.linalg.lstsq(mlp.W2, c - mlp.b2, rcond=None)[0].astype(np.float64)
    return alpha, beta, eta


class Unitwise(LearnedFamily):
    """alpha, beta and eta, (m,) each."""

    name = "unitwise"
    replaced = "a quadratic of its own for every hidden unit"
    drawn = "the median of the quadratics of all units, with the middle 80% as a band"
    remark = "Units count by the size of their head weights."

    def numbers(self, mlp: MLP) -> int:
        """Three for each unit."""
        return 3 * mlp.units

    def formula(self, mlp: MLP) -> str:
        """The activation of one unit."""
        return f"The ReLU of hidden unit j becomes alpha_j u² + beta_j u + eta_j, for {mlp.units:,} units."

    def coefficients(self, fit: Fit) -> str:
        """Their number: there are too many to print."""
        return f"alpha, beta and eta for each of {fit.mlp.units} hidden units"

    def values(self, fit: Fit) -> dict[str, float | Array]:
        """Arrays (m,)."""
        return {"alpha": fit.alpha, "beta": fit.beta, "eta": fit.eta}

    def curves(self, fit: Fit) -> Curves:
        """One curve for each unit."""
        return Curves(fit.alpha, fit.beta, fit.eta, np.square(fit.mlp.W2).sum(axis=0))

    def problem(self, mlp: MLP, prior: Array, constant: Array, moments: Array, sharpness: float) -> UnitwiseProblem:
        """One unknown for each feature, and constants within the range of W2."""
        return UnitwiseProblem(mlp, prior, constant, moments, sharpness)

    def replacement(self, mlp: MLP, scaled: MLP, S: Array, T: Array, c: Array, power: int) -> Replacement:
        """The coefficients, which are the same for every scale of the head."""
        alpha, beta, eta = per_unit(scaled, S, T, c)
        return Replacement(QuadraticModel.unitwise(mlp, alpha, beta, eta), alpha, beta, eta)


FAMILY = Unitwise()
