"""The coarsest rounding of shared coefficients that changes no calibration decision, found by trying."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from quad4fhe.exact import shard_decisions
from quad4fhe.fitting.run import Run, Solution
from quad4fhe.lift import offsets, shard_lift
from quad4fhe.mlp import MLP
from quad4fhe.quadratic import QuadraticModel
from quad4fhe.shards import Shard

_DECIMALS, _BITS = 17, 52  # beyond these a float64 of order one does not change
_Four = tuple[float, float, float, float]


def coarsest(run: Run, solution: Solution) -> tuple[int | None, int | None]:
    """The fewest decimals, and the fewest bits after the point, to which alpha, beta, eta and tau can be rounded.

    Every decision is kept, those that disagree with the ReLU model included.
    """
    exact = (solution.alpha, solution.beta, solution.eta, solution.tau)
    model, B_b = run.model(solution), offsets(run.mlp)

    def first(limit: int, rounded: Callable[[float, int], float]) -> int | None:
        for places in range(limit + 1):
            alpha, beta, eta, tau = (rounded(value, places) for value in exact)
            near = replace(solution, alpha=alpha, beta=beta, eta=eta, tau=tau)
            # The statistics tell quickly which rounding fails; the model itself has the last word.
            if run.shards.total(operator.and_, _seems_same, model, (alpha, beta, eta, tau), *B_b) and run.shards.total(
                operator.and_, _is_same, model, run.model(near)
            ):
                return places
        return None

    decimals = first(_DECIMALS, round)
    return decimals, first(_BITS, lambda value, bits: float(np.ldexp(np.rint(np.ldexp(value, bits)), -bits)))


def _labels(shard: Shard, model: QuadraticModel) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The decisions of the unrounded model, which its certificate left here; found again where a worker was lost."""
    mlp: MLP = shard.subject
    small = np.min_scalar_type(mlp.classes - 1)
    (labels,) = shard.keep(("labels", model.sha256), lambda: (shard_decisions(model, shard).label.astype(small),))
    return labels


def _seems_same(shard: Shard, model: QuadraticModel, near: _Four, B: np.ndarray, b: np.ndarray) -> bool:
    labels = _labels(shard, model)
    alpha, beta, eta, tau = near
    block = shard_lift(shard, B, b).shifted(tau)
    for rows, Q, L, _ in block.chunks():
        scores = Q * alpha
        scores += L * beta
        scores += eta * block.B + block.b
        if not np.array_equal(np.argmax(scores, axis=1), labels[rows]):
            return False
    return True


def _is_same(shard: Shard, model: QuadraticModel, near: QuadraticModel) -> bool:
    return np.array_equal(shard_decisions(near, shard).label, _labels(shard, model))
