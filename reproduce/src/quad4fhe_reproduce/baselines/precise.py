"""Precise (Lee et al., "Precise approximation of convolutional neural networks for homomorphically encrypted data").

ReLU(x) = x (1 + sign(x)) / 2, with the sign composed of odd minimax polynomials of published degrees. The stages are
computed by the exchange of `remez`; no coefficient is stored. The scale is B = max|y|.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import isfinite, log2

import numpy as np

from quad4fhe.errors import InputError
from quad4fhe_reproduce.baselines.polynomial import Polynomial, Series
from quad4fhe_reproduce.baselines.problem import Baseline, Problem
from quad4fhe_reproduce.baselines.remez import Piece, minimax

ALPHA = 11  # the precision level of the paper's tables

# The degrees of each precision level alpha: ReLU on [-1, 1] to 2^-alpha. Levels 11 and 13 were checked against sources;
# the others are recalled from the published table, and a test checks that each reaches its 2^-alpha.
DEGREES: dict[int, tuple[int, ...]] = {
    4: (5,),
    5: (13,),
    6: (3, 7),
    7: (7, 7),
    8: (7, 15),
    9: (15, 15),
    10: (7, 7, 13),
    11: (7, 7, 27),
    12: (7, 15, 27),
    13: (15, 15, 27),
    14: (15, 27, 29),
}


@dataclass(frozen=True)
class Sign:
    """A composed approximation of sign(x) on [-1, 1] outside (-gap, gap), with its largest error there."""

    stages: tuple[Series, ...]
    gap: float
    error: float


def compose_sign(degrees: tuple[int, ...], gap: float, margin: float = 0.0) -> Sign:
    """Odd minimax stages: the first on [gap, 1], each next one on the range of the one before, widened by `margin`."""
    lo, hi = gap, 1.0
    stages = []
    error = 1.0
    for degree in degrees:
        stage = minimax((Piece(lo, hi, 0.0, 1.0),), (degree + 1) // 2, odd=True)
        stages.append(stage.series)
        error = stage.error
        lo, hi = 1.0 - error - margin, 1.0 + error + margin
    return Sign(tuple(stages), gap, error)


def _error_in_gap(sign: Sign) -> float:
    """The largest x (1 - sign(x)) / 2 below the gap's edge, where the sign has not yet risen to one."""
    x = sign.gap * np.linspace(0.0, 1.0, 2001)
    value = x
    for stage in sign.stages:
        value = stage(value)
    return float(np.abs(0.5 * x * (1.0 - value)).max())


@cache
def sign_at(alpha: int) -> Sign:
    """The composed sign of precision level `alpha`, with the gap that gives ReLU its smallest error on all of [-1, 1].

    A narrower gap lowers the error inside it and raises the error of the sign outside, which costs half as much at
    x = 1; the best gap is where the two meet. One minimax composition takes some milliseconds, so bisection is cheap,
    and the result is kept for the life of the process.
    """
    if alpha not in DEGREES:
        raise InputError(f"Precise has the precision levels {min(DEGREES)} to {max(DEGREES)}, not alpha = {alpha}")
    degrees = DEGREES[alpha]
    narrow, wide = log2(0.5) - alpha, log2(0.75)
    while wide - narrow > 1e-3:
        middle = 0.5 * (narrow + wide)
        sign = compose_sign(degrees, 2.0**middle)
        if _error_in_gap(sign) > 0.5 * sign.error:
            wide = middle
        else:
            narrow = middle
    return compose_sign(degrees, 2.0 ** (0.5 * (narrow + wide)))


def precise(bound: float, alpha: int = ALPHA) -> Polynomial:
    """Precise on [-bound, bound]; values beyond are clipped, and `Polynomial.outside` tells which."""
    name = f"Precise-{alpha}"
    if not (isfinite(bound) and bound >= 0.0):
        raise InputError(f"Precise needs a finite bound B = max|y| >= 0, not {bound}")
    if bound == 0.0:
        return Polynomial(name, (Series([0.0], -1.0, 1.0),), (0.0, 0.0))  # every pre-activation is zero, and so is ReLU
    return Polynomial(name, sign_at(alpha).stages, (-bound, bound), gate=float(bound))


def _fit(problem: Problem) -> dict[str, Polynomial]:
    return {f"Precise-{ALPHA}": precise(problem.preactivations.bound)}


BASELINE = Baseline("Precise: a composed sign polynomial of degree 7, 7, 27", (f"Precise-{ALPHA}",), _fit)
