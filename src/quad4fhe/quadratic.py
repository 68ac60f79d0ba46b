"""The polynomial model that every family of replacement becomes: affine, square, affine.

Decides what a replaced model is and what it answers in the clear. Fitting its numbers is left to `fit`, running it
under encryption to `circuit` and `he`; both know a replacement only through this class.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from quad4fhe._arrays import Array, IntArray, row_chunks, samples, sha256, tensor
from quad4fhe.errors import InputError
from quad4fhe.mlp import MLP, decide


@dataclass(frozen=True, eq=False)
class QuadraticModel:
    """logits(x) = S (y*y) + T y + c with y = W1 x + b1.

    W1 is (m, d), b1 is (m,), S and T are (K, m), c is (K,). Decisions are taken as for `MLP`: the sign for K = 1,
    else the largest logit, the lowest index on an exact tie.
    """

    W1: Array
    b1: Array
    S: Array
    T: Array
    c: Array

    def __init__(self, W1: ArrayLike, b1: ArrayLike, S: ArrayLike, T: ArrayLike, c: ArrayLike) -> None:
        arrays = {
            "W1": tensor("W1", W1, 2),
            "b1": tensor("b1", b1, 1),
            "S": tensor("S", S, 2),
            "T": tensor("T", T, 2),
            "c": tensor("c", c, 1),
        }
        units = arrays["W1"].shape[0]
        outputs = arrays["c"].shape[0]
        for name, wanted in (("b1", (units,)), ("S", (outputs, units)), ("T", (outputs, units))):
            if arrays[name].shape != wanted:
                raise InputError(f"{name} has shape {arrays[name].shape}, wanted {wanted}")
        for name, value in arrays.items():
            object.__setattr__(self, name, value)

    @classmethod
    def shared(cls, mlp: MLP, alpha: float, beta: float, eta: float, tau: float = 0.0) -> QuadraticModel:
        """Replace every ReLU of `mlp` by alpha u^2 + beta u + eta and move the threshold tau into the constant.

        The threshold belongs to a binary decision: it is taken from the one score, or from class 1 of two.
        """
        c = mlp.b2 + eta * mlp.head_sums
        c[-1] -= tau
        return cls(mlp.W1, mlp.b1, alpha * mlp.W2, beta * mlp.W2, c)

    @classmethod
    def unitwise(cls, mlp: MLP, alpha: ArrayLike, beta: ArrayLike, eta: ArrayLike) -> QuadraticModel:
        """Replace the ReLU of hidden unit j of `mlp` by alpha_j u^2 + beta_j u + eta_j; all three are (m,).

        The constants c = b2 + W2 eta are correctly rounded sums, so that they are the same numbers on every machine.
        """
        a, b, e = tensor("alpha", alpha, 1), tensor("beta", beta, 1), tensor("eta", eta, 1)
        for name, value in (("alpha", a), ("beta", b), ("eta", e)):
            if value.shape != (mlp.units,):
                raise InputError(f"{name} has {value.size} entries, but the model has {mlp.units} hidden units")
        c = [math.fsum([bias, *row]) for bias, row in zip(mlp.b2, mlp.W2 * e, strict=True)]
        return cls(mlp.W1, mlp.b1, mlp.W2 * a, mlp.W2 * b, c)

    def __repr__(self) -> str:
        return f"QuadraticModel({self.features}-{self.units}-{self.outputs})"

    @property
    def features(self) -> int:
        """The input width d."""
        return int(self.W1.shape[1])

    @property
    def units(self) -> int:
        """The hidden width m."""
        return int(self.W1.shape[0])

    @property
    def outputs(self) -> int:
        """The number of logits: K, or 1 for a binary score."""
        return int(self.c.shape[0])

    @property
    def sha256(self) -> str:
        """A hash of the five arrays; two models with equal numbers have equal hashes."""
        return sha256("quad4fhe-quadratic-1", (self.W1, self.b1, self.S, self.T, self.c))

    def logits(self, X: ArrayLike) -> Array:
        """The polynomial model's logits, shape (n, K)."""
        checked = samples("X", X, self.features)
        out = np.empty((checked.shape[0], self.outputs))
        for rows, chunk in row_chunks("X", checked, 8 * (self.features + 2 * self.units)):
            y = chunk @ self.W1.T + self.b1
            out[rows] = (y * y) @ self.S.T + y @ self.T.T + self.c
        return out

    def decide(self, X: ArrayLike) -> IntArray:
        """The polynomial model's decisions, shape (n,)."""
        return decide(self.logits(X))
