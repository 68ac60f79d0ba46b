"""A free head above degree 2 as units that share a first layer: some hidden units get several polynomials.

A head weighs every power of every unit for every class. For one unit that is a matrix of classes by powers; its
singular vectors turn it into a sum of (weights of classes) times (a polynomial). So a head is a model with one
polynomial for each unit again, in which a hidden unit stands once for each of its polynomials. Most units need one or
two. The server computes equal rows of the first layer once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quad4fhe._arrays import Array, IntArray
from quad4fhe.fitting.families.basis import Basis
from quad4fhe.mlp import MLP

SHARES = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0)
"""Polynomials per hidden unit on average that are tried, fewest first; then all of them."""
_NOTHING = 1e-12  # of the largest singular value


@dataclass(frozen=True, eq=False)
class Copies:
    """All polynomials of a head: unit `of` (r,), weights V (K, r), coefficients `own` (p, r) in the basis.

    They are in the order of their size, largest first.
    """

    of: IntArray
    V: Array
    own: Array

    @classmethod
    def split(cls, weights: Array, units: int) -> Copies:
        """The polynomials of weights (K, p m) of phi_k, block k at (k - 1) m.

        For K > 1 the mean over the classes is left out: no difference of logits depends on it.
        """
        K = weights.shape[0]
        blocks = weights.reshape(K, -1, units)
        if K > 1:
            blocks = blocks - blocks.mean(axis=0)
        left, sizes, right = np.linalg.svd(blocks.transpose(2, 0, 1), full_matrices=False)
        flat = np.argsort(-sizes, axis=None, kind="stable")
        flat = flat[sizes.ravel()[flat] > _NOTHING * sizes.max(initial=0.0)]
        j, r = np.unravel_index(flat, sizes.shape)
        return cls(j.astype(np.int64), (left[j, :, r] * sizes[j, r, None]).T, right[j, r].T)

    def __len__(self) -> int:
        return int(self.of.size)

    def first(self, count: int) -> Copies:
        """The largest ones, with those of one unit next to each other."""
        order = np.argsort(self.of[:count], kind="stable")
        return Copies(self.of[order], self.V[:, order], self.own[:, order])

    def network(self, mlp: MLP) -> MLP:
        """The network whose hidden units are those of `mlp`, each as often as it has polynomials, under the head V."""
        return MLP(mlp.W1[self.of], mlp.b1[self.of], self.V, np.zeros(len(self.V)))

    def basis(self, basis: Basis) -> Basis:
        """The basis of these units."""
        parts = (basis.mean, basis.spread, basis.centre, basis.back, basis.scale)
        return Basis(*(part[..., self.of] for part in parts))
