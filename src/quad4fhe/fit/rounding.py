"""The coarsest rounding of shared coefficients that changes no calibration decision, found by trying."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from quad4fhe._arrays import IntArray
from quad4fhe.exact import decisions
from quad4fhe.fit.run import Run, Solution, shifted

_DECIMALS, _BITS = 17, 52  # beyond these a float64 of order one does not change


def coarsest(run: Run, solution: Solution, labels: IntArray) -> tuple[int | None, int | None]:
    """The fewest decimals, and the fewest bits after the point, to which alpha, beta, eta and tau can be rounded.

    `labels` (n,) are the decisions to keep, those that disagree with the ReLU model included.
    """

    def first(limit: int, rounded: Callable[[float, int], float]) -> int | None:
        for places in range(limit + 1):
            exact = (solution.alpha, solution.beta, solution.eta, solution.tau)
            alpha, beta, eta, tau = (rounded(value, places) for value in exact)
            near = replace(solution, alpha=alpha, beta=beta, eta=eta, tau=tau)
            # The statistics tell quickly which rounding fails; the model itself has the last word.
            if np.array_equal(_labels(run, near), labels) and np.array_equal(
                decisions(run.model(near), run.X, "X_cal").label, labels
            ):
                return places
        return None

    decimals = first(_DECIMALS, round)
    return decimals, first(_BITS, lambda value, bits: float(np.ldexp(np.rint(np.ldexp(value, bits)), -bits)))


def _labels(run: Run, solution: Solution) -> IntArray:
    lift = shifted(run.lift, solution.tau)
    labels = np.empty(lift.samples, dtype=np.int64)
    for rows, Q, L, _ in lift.chunks():
        scores = Q * solution.alpha
        scores += L * solution.beta
        scores += solution.eta * lift.B + lift.b
        labels[rows] = np.argmax(scores, axis=1)
    return labels
