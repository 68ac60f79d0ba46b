"""What a fit records of itself: the paper's diagnostics, and the optimality figures it leaves out.

Decides which values a fit file may hold here: numbers within their range and words of a fixed list, no free text. In a
fit that was read from a file all of it is the word of whoever made the file, except where `result` can compare it with
the certificate.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from quad4fhe.fitting.trace import Count, Share, Size, SoftStep
from quad4fhe.fitting.trials import Conditioning, FamilyStep, FamilyTrial

Stage = Annotated[
    str, msgspec.Meta(pattern=r"\A(lift|hard|rch|soft|polish|optimum|families|certificate|diagnostics)\Z")
]
Version = Annotated[str, msgspec.Meta(pattern=r"\A[0-9][0-9A-Za-z.+!-]{0,40}\Z")]
PACKAGES = ("quad4fhe", "python", "numpy", "scipy")
"""Whose versions a fit records."""


class Slack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Samples with positive slack in the soft problem, the sum of their slacks and the largest."""

    count: Count
    sum: Size
    max: Size


class Quantisation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How coarsely the coefficients may be rounded.

    `tolerance` is m*/M of the quantisation corollary: any unit-norm direction closer than this separates too (hard
    fits only). Rounding alpha, beta, eta and tau to `decimals` decimals, or to multiples of 2^-bits, was checked to
    keep exactly the same calibration decisions, at the threshold that is deployed; coarser rounding was checked not to.
    """

    tolerance: Size | None
    decimals: int | None
    bits: int | None


class Agreement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Decisions kept on a data set."""

    samples: Count
    agreement: Share
    mismatches: Count


class LineOptimum(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fewest mismatches any line in the lifted plane was found to have, and whether fewer is impossible."""

    mismatches: Count
    optimal: bool


class Diagnostics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything the paper asks a run to record, and the duality gap, critical cap and optimum it does not.

    `hard` says what the exact test found. `margin` is that of the regime's own problem (distance of the hulls or
    reduced hulls, or the worst pairwise margin) and `normalised_margin` the same at unit norm. `weight` is C (or c in
    the plane). Seconds are wall time by stage. For unitwise and head, `margin` is the worst margin of the logits and
    `normalised_margin` that over the norm of (S, T, c); `hard`, `critical_mu` and the traces are those of the shared
    fit that served as prior. `notes` are sentences of `fitting.notes`. `families` and `conditioning` hold one entry per
    family that was tried or fitted.
    """

    samples: Count
    classes: Count
    hard: Literal["feasible", "infeasible", "undecided", "not tried"]
    calibration: Agreement
    test: Agreement | None
    margin: float
    normalised_margin: float
    slack: Slack | None
    mu: Share | None
    mu_plus: Share | None
    mu_minus: Share | None
    critical_mu: Share | None
    weight: Size | None
    gap: float | None
    cap_trace: list[tuple[Share, float]]
    soft_trace: list[SoftStep]
    best_line: LineOptimum | None
    quantisation: Quantisation
    sweeps: Count
    notes: list[str]
    seconds: dict[Stage, Size]
    families: list[FamilyTrial] = []
    family_trace: list[FamilyStep] = []
    conditioning: list[Conditioning] = []
