"""What a fit records of itself: the paper's diagnostics, and the optimality figures it leaves out."""

from __future__ import annotations

from typing import Literal

import msgspec

from quad4fhe.fit.trace import SoftStep
from quad4fhe.fit.trials import Conditioning, FamilyStep, FamilyTrial


class Slack(msgspec.Struct, frozen=True, kw_only=True):
    """Samples with positive slack in the soft problem, the sum of their slacks and the largest."""

    count: int
    sum: float
    max: float


class Quantisation(msgspec.Struct, frozen=True, kw_only=True):
    """How coarsely the coefficients may be rounded.

    `tolerance` is m*/M of the quantisation corollary: any unit-norm direction closer than this separates too (hard
    fits only). Rounding alpha, beta, eta and tau to `decimals` decimals, or to multiples of 2^-bits, was checked to
    keep exactly the same calibration decisions, at the threshold that is deployed; coarser rounding was checked not to.
    """

    tolerance: float | None
    decimals: int | None
    bits: int | None


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions kept on a data set."""

    samples: int
    agreement: float
    mismatches: int


class LineOptimum(msgspec.Struct, frozen=True, kw_only=True):
    """The fewest mismatches any line in the lifted plane was found to have, and whether fewer is impossible."""

    mismatches: int
    optimal: bool


class Diagnostics(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the paper asks a run to record, and the duality gap, critical cap and optimum it does not.

    `hard` says what the exact test found. `margin` is that of the regime's own problem (distance of the hulls or
    reduced hulls, or the worst pairwise margin) and `normalised_margin` the same at unit norm. `weight` is C (or c in
    the plane). Seconds are wall time by stage. For unitwise and head, `margin` is the worst margin of the logits and
    `normalised_margin` that over the norm of (S, T, c); `hard`, `critical_mu` and the traces are those of the shared
    fit that served as prior. `families` and `conditioning` hold one entry per family that was tried or fitted.
    """

    samples: int
    classes: int
    hard: Literal["feasible", "infeasible", "undecided", "not tried"]
    calibration: Agreement
    test: Agreement | None
    margin: float
    normalised_margin: float
    slack: Slack | None
    mu: float | None
    mu_plus: float | None
    mu_minus: float | None
    critical_mu: float | None
    weight: float | None
    gap: float | None
    cap_trace: list[tuple[float, float]]
    soft_trace: list[SoftStep]
    best_line: LineOptimum | None
    quantisation: Quantisation
    sweeps: int
    notes: list[str]
    seconds: dict[str, float]
    families: list[FamilyTrial] = []
    family_trace: list[FamilyStep] = []
    conditioning: list[Conditioning] = []
