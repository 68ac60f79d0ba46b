"""The coarsest rounding of shared coefficients that changes no calibration decision, found by trying."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from quad4fhe._arrays import BoolArray
from quad4fhe.fit.sweep import Sweeper
from quad4fhe.lift import Lift

_DECIMALS, _BITS = 17, 52  # beyond these a float64 of order one does not change


def kept(lift: Lift, alpha: float, beta: float, eta: float, tau: float) -> BoolArray:
    """Which samples keep their decision at these coefficients; the threshold tau is taken from the last class."""
    if tau:
        shifted = lift.b.copy()
        shifted[-1] -= tau
        lift = replace(lift, b=shifted)
    return Sweeper(lift).margins(np.array([alpha, beta, eta, 1.0])).margin > 0


def coarsest(lift: Lift, alpha: float, beta: float, eta: float, tau: float) -> tuple[int | None, int | None]:
    """The fewest decimals, and the fewest bits after the point, to which all coefficients can be rounded."""
    before = kept(lift, alpha, beta, eta, tau)

    def first(limit: int, rounded: Callable[[float, int], float]) -> int | None:
        for places in range(limit + 1):
            near = [rounded(value, places) for value in (alpha, beta, eta, tau)]
            if np.array_equal(kept(lift, *near), before):
                return places
        return None

    decimals = first(_DECIMALS, lambda value, places: round(value, places))
    return decimals, first(_BITS, lambda value, bits: float(np.ldexp(np.rint(np.ldexp(value, bits)), -bits)))
