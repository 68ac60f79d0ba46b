"""The server's time for a model, as the planner forecasts it.

`quad4fhe.layouts` registers its forecast in `quad4fhe._forecast`, so nothing of it is imported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe._forecast import server_seconds
from quad4fhe.mlp import MLP
from quad4fhe.polynomial import PolynomialModel, QuadraticModel

if TYPE_CHECKING:
    from quad4fhe.fitting.degrees.basis import Basis


def quadratic_model(mlp: MLP, basis: Basis, weights: Array, constant: Array) -> QuadraticModel:
    """The quadratic with these weights (K, 2 m) of the basis and constants (K,)."""
    m = mlp.units
    C = basis.powers(np.zeros(m), np.ones(m))
    blocks = weights.reshape(weights.shape[0], 2, m)
    c, T, S = (np.einsum("kpj,pj->kj", blocks, C[:, i]) for i in range(3))
    return QuadraticModel(mlp.W1, mlp.b1, S, T, constant + c.sum(axis=1))


def seconds(model: PolynomialModel, box: Array, X: Array) -> float:
    """Server time of a sample; infinite if no plan fits. Its margins on X (n, d) are to be kept."""
    logits = np.sort(model.logits(X), axis=1)
    margins = np.abs(logits[:, 0]) if model.outputs == 1 else logits[:, -1] - logits[:, -2]
    return server_seconds(model, box, X, margins)
