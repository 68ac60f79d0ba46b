"""The coarsest rounding of shared coefficients that changes no calibration decision, found by trying."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from quad4fhe.fit.run import Run, Solution

_DECIMALS, _BITS = 17, 52  # beyond these a float64 of order one does not change


def coarsest(run: Run, solution: Solution) -> tuple[int | None, int | None]:
    """The fewest decimals, and the fewest bits after the point, to which alpha, beta, eta and tau can be rounded."""
    before = run.margins(solution) > 0

    def first(limit: int, rounded: Callable[[float, int], float]) -> int | None:
        for places in range(limit + 1):
            exact = (solution.alpha, solution.beta, solution.eta, solution.tau)
            alpha, beta, eta, tau = (rounded(value, places) for value in exact)
            near = replace(solution, alpha=alpha, beta=beta, eta=eta, tau=tau)
            if np.array_equal(run.margins(near) > 0, before):
                return places
        return None

    decimals = first(_DECIMALS, round)
    return decimals, first(_BITS, lambda value, bits: float(np.ldexp(np.rint(np.ldexp(value, bits)), -bits)))
