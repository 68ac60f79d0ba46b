"""The model that replaces the ReLU network: affine, a polynomial of every hidden unit, affine.

Fitting makes such a model. Plaintext evaluation, certificates, planning, encryption and export see a replacement only
through this class. The paper's quadratic is the case A = (T, S).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from quad4fhe._arrays import Array, IntArray, row_chunks, samples, sha256, tensor
from quad4fhe.errors import InputError
from quad4fhe.mlp import MLP, decide


@dataclass(frozen=True, eq=False)
class PolynomialModel:
    """logits(x) = A_1 y + A_2 y^2 + ... + A_p y^p + c with y = W1 x + b1, powers taken unit by unit.

    W1 is (m, d), b1 is (m,), A is (p, K, m) with A[k - 1] = A_k, c is (K,). If every unit has one polynomial for all
    classes (A_k = V * a_k exactly), V (K, m) and a (p, m) are attributes too; otherwise both are None. Decisions are
    made as in `MLP`: the sign for K = 1, else the largest logit, with the lowest index on an exact tie.
    """

    W1: Array
    b1: Array
    A: Array
    c: Array
    V: Array | None
    a: Array | None

    def __init__(self, W1: ArrayLike, b1: ArrayLike, A: ArrayLike, c: ArrayLike) -> None:
        blocks = [tensor(f"A[{k}]", each, 2) for k, each in enumerate(np.asarray(A))]
        self._set(W1, b1, blocks, c, None, None)

    @classmethod
    def by_unit(cls, W1: ArrayLike, b1: ArrayLike, V: ArrayLike, a: ArrayLike, c: ArrayLike) -> PolynomialModel:
        """The model V g(y) + c with g_j(y) = a_1j y + ... + a_pj y^p; V (K, m) and a (p, m) have exact products."""
        head, own = tensor("V", V, 2), tensor("a", a, 2)
        if head.shape[1] != own.shape[1]:
            raise InputError(f"V has shape {head.shape}, a {own.shape}: both need a column per hidden unit")
        blocks = [head * each for each in own]
        if _bits(head) + _bits(own) > 53 or not np.isfinite(blocks).all():
            raise InputError("the products of V and a are not exact in float64; round both to fewer bits")
        model = cls.__new__(cls)
        model._set(W1, b1, blocks, c, head, own)
        return model

    @classmethod
    def quadratic(cls, W1: ArrayLike, b1: ArrayLike, S: ArrayLike, T: ArrayLike, c: ArrayLike) -> PolynomialModel:
        """The model S (y*y) + T y + c, with S and T (K, m)."""
        squares, linear = tensor("S", S, 2), tensor("T", T, 2)
        wanted = (tensor("c", c, 1).shape[0], tensor("W1", W1, 2).shape[0])
        for name, value in (("S", squares), ("T", linear)):
            if value.shape != wanted:
                raise InputError(f"{name} has shape {value.shape}, wanted {wanted}")
        return cls(W1, b1, np.stack([linear, squares]), c)

    @classmethod
    def shared(cls, mlp: MLP, alpha: float, beta: float, eta: float, tau: float = 0.0) -> PolynomialModel:
        """Replace every ReLU of `mlp` with alpha u^2 + beta u + eta and move the threshold tau into the constant.

        The threshold belongs to a binary decision: it is subtracted from the one score, or from class 1 of two.
        """
        c = mlp.b2 + eta * mlp.head_sums
        c[-1] -= tau
        return cls.quadratic(mlp.W1, mlp.b1, alpha * mlp.W2, beta * mlp.W2, c)

    @classmethod
    def unitwise(cls, mlp: MLP, alpha: ArrayLike, beta: ArrayLike, eta: ArrayLike) -> PolynomialModel:
        """Replace the ReLU of hidden unit j of `mlp` with alpha_j u^2 + beta_j u + eta_j; all three are (m,).

        The constants c = b2 + W2 eta are correctly rounded sums and so the same on every machine.
        """
        a, b, e = tensor("alpha", alpha, 1), tensor("beta", beta, 1), tensor("eta", eta, 1)
        for name, value in (("alpha", a), ("beta", b), ("eta", e)):
            if value.shape != (mlp.units,):
                raise InputError(f"{name} has {value.size} entries, but the model has {mlp.units} hidden units")
        c = [math.fsum([bias, *row]) for bias, row in zip(mlp.b2, mlp.W2 * e, strict=True)]
        return cls.quadratic(mlp.W1, mlp.b1, mlp.W2 * a, mlp.W2 * b, c)

    def _set(
        self, W1: ArrayLike, b1: ArrayLike, blocks: list[Array], c: ArrayLike, V: Array | None, a: Array | None
    ) -> None:
        first, bias, constant = tensor("W1", W1, 2), tensor("b1", b1, 1), tensor("c", c, 1)
        wanted = (constant.shape[0], first.shape[0])
        if bias.shape != (first.shape[0],):
            raise InputError(f"b1 has shape {bias.shape}, wanted {(first.shape[0],)}")
        if len(blocks) < 2 or any(block.shape != wanted for block in blocks):
            raise InputError(f"A has shapes {[block.shape for block in blocks]}, wanted two or more of {wanted}")
        A = np.stack(blocks) + 0.0
        A.setflags(write=False)
        for name, value in (("W1", first), ("b1", bias), ("A", A), ("c", constant), ("V", V), ("a", a)):
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.features}-{self.units}-{self.outputs}, degree {self.degree})"

    @property
    def degree(self) -> int:
        """The degree p."""
        return int(self.A.shape[0])

    @property
    def is_quadratic(self) -> bool:
        """Whether this is S (y*y) + T y + c, with products that need not be exact."""
        return self.degree == 2 and self.V is None

    @property
    def S(self) -> Array:
        """Weights of the squares, (K, m), of a model of degree 2."""
        return np.asarray(self._quadratic[1])

    @property
    def T(self) -> Array:
        """Weights of the pre-activations, (K, m), of a model of degree 2."""
        return np.asarray(self._quadratic[0])

    @property
    def _quadratic(self) -> Array:
        if self.degree > 2:
            raise InputError(f"S and T belong to degree 2, and this model has degree {self.degree}; see A")
        return self.A

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

    @cached_property
    def sha256(self) -> str:
        """A hash of the arrays; two models with equal numbers have equal hashes."""
        return sha256("quad4fhe-polynomial-1", (self.W1, self.b1, self.A, self.c))

    def logits(self, X: ArrayLike) -> Array:
        """The polynomial model's logits, shape (n, K)."""
        checked = samples("X", X, self.features)
        out = np.empty((checked.shape[0], self.outputs))
        for rows, chunk in row_chunks("X", checked, 8 * (self.features + 2 * self.units)):
            out[rows] = self.head(chunk @ self.W1.T + self.b1)
        return out

    def head(self, y: Array) -> Array:
        """The logits (n, K) of pre-activations y (n, m)."""
        if self.V is not None and self.a is not None:
            g = self.a[-1] * y
            for a in self.a[-2::-1]:
                g = (g + a) * y
            return np.asarray(g @ self.V.T + self.c)
        power, out = y, y @ self.A[0].T + self.c
        for block in self.A[1:]:
            power = power * y
            out += power @ block.T
        return np.asarray(out)

    def decide(self, X: ArrayLike) -> IntArray:
        """The polynomial model's decisions, shape (n,)."""
        return decide(self.logits(X))


def _bits(array: Array) -> int:
    """The largest number of significant bits of an entry."""
    mantissa = np.ldexp(np.abs(np.frexp(array)[0]), 53).astype(np.int64)
    lowest = (mantissa & -mantissa)[mantissa > 0]
    return 53 - int(np.log2(float(lowest.min()))) if lowest.size else 0
