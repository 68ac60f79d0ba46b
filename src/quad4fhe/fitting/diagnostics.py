"""What a fit records of itself: the paper's diagnostics, and the optimality figures that the paper leaves out.

The types say which values a fit file may hold: numbers within their range and words of a fixed list, no free text. In a
fit that was read from a file they are claims of its author, except where `file.check_stated` can compare them with the
certificate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Size = Annotated[float, msgspec.Meta(ge=0)]
FamilyName = Annotated[str, msgspec.Meta(pattern=r"\A[a-z_]{1,30}\Z")]
"""A name that may be in the registry of families; `file.check_stated` looks it up."""


class SoftStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one weight (C, or c in the plane) of the soft problem gave on the calibration set.

    Margins and slacks are those of the homogeneous coefficients of norm `norm`; `gap` is the relative duality gap.
    """

    weight: Size
    agreement: Share
    slack_count: Count
    slack_sum: Size
    slack_max: Size
    margin: float
    norm: Size
    gap: float


def best_step(trace: Sequence[SoftStep]) -> SoftStep:
    """Largest agreement, then smaller sum of slacks, larger worst margin, smaller norm, earlier step.

    Different weights often have the same solution but for rounding, which must not choose between them.
    """
    return min(trace, key=lambda step: (-step.agreement, *map(_digits, (step.slack_sum, -step.margin, step.norm))))


def _digits(value: float) -> float:
    return float(f"{value:.8e}")


class FamilyStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One setting tried in cross-validation.

    `sharpness` multiplies the ReLU logits before their softmax, `strength` is the number of rows the prior is worth,
    `agreement` is that of held-out calibration rows. Settings are compared by `score` (the mean of that and of the
    agreement on made rows, where there are any); `spread` is its standard error. `finish`, a finish on the decision
    hinge, is true only in files of earlier versions.
    """

    family: FamilyName
    sharpness: Size
    strength: Size
    finish: bool = False
    agreement: Share
    score: Share
    spread: Size
    degree: Count = 2


class FamilyTrial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What cross-validation says of a family at its chosen setting.

    Sharpness and strength are None for shared at degree 2, and where the prior itself was taken.

    `agreement` is the share of `rows` calibration decisions kept by a fit that had not seen them, `spread` its standard
    error, `made_agreement` the same on rows made from two of a fold (None without them).
    """

    family: FamilyName
    agreement: Share
    spread: Size
    made_agreement: Share | None
    rows: Count
    folds: Count
    sharpness: Size | None
    strength: Size | None
    finish: bool = False
    degree: Count = 2


class Conditioning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much a replacement must cancel: what scales and precision under encryption have to cover.

    `largest` is the largest entry of S, T and c in magnitude, `amplification` the largest sum of the magnitudes of all
    terms of a logit on the calibration set, over the largest logit.
    """

    family: FamilyName
    largest: Size
    amplification: Size


class KeptShare(float):
    """A float between 0 and 1: compare it, format it, calculate with it.

    `mismatches` of `samples` decisions differ. It prints as the number alone.
    """

    __slots__ = ("mismatches", "samples")

    mismatches: int
    samples: int

    def __new__(cls, mismatches: int, samples: int) -> KeptShare:
        """The share that is kept, from the number of mismatches among the samples."""
        made = super().__new__(cls, (samples - mismatches) / samples)
        made.mismatches, made.samples = mismatches, samples
        return made

    def __getnewargs__(self) -> tuple[int, int]:  # type: ignore[override]  # float's own has one argument
        return self.mismatches, self.samples

    def __repr__(self) -> str:
        return f"KeptShare({float(self)!r}, mismatches={self.mismatches}, samples={self.samples})"

    def __str__(self) -> str:
        return repr(float(self))


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

    @classmethod
    def of(cls, samples: int, mismatches: int) -> Agreement:
        """The agreement, from the number of mismatches among the samples; 0 without samples."""
        share = (samples - mismatches) / samples if samples else 0.0
        return cls(samples=samples, agreement=share, mismatches=mismatches)


class Accuracy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """On how many of `samples` labels the network is right, and its replacement."""

    samples: Count
    network: Count
    replacement: Count


class Diagnostics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything the paper asks a run to record, and the duality gap and critical cap.

    `hard` says what the exact test found. `margin` is that of the regime's own problem (distance of the hulls or
    reduced hulls, or the worst pairwise margin) and `normalised_margin` the same at unit norm. `weight` is C (or c in
    the plane). Seconds are wall time by stage. For unitwise and head, `margin` is the worst margin of the logits and
    `normalised_margin` that over the norm of (S, T, c); `hard`, `critical_mu` and the traces are those of the shared
    fit made first. `notes` are sentences of `fitting.notes`. `families` and `conditioning` hold one entry per
    family that was tried or fitted. `accuracy` and `test_accuracy` are there if labels are. `warnings` are sentences of
    `fitting.notes` for the headline.
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
    quantisation: Quantisation
    sweeps: Count
    notes: list[str]
    seconds: dict[Stage, Size]
    families: list[FamilyTrial] = []
    family_trace: list[FamilyStep] = []
    conditioning: list[Conditioning] = []
    accuracy: Accuracy | None = None
    test_accuracy: Accuracy | None = None
    warnings: list[str] = []
