"""One step of a soft-margin grid and the paper's rule for choosing among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Size = Annotated[float, msgspec.Meta(ge=0)]
FamilyName = Annotated[str, msgspec.Meta(pattern=r"\A(shared|unitwise|head)\Z")]


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
    """Largest agreement, then smaller sum of slacks, larger worst margin, smaller norm."""
    return min(trace, key=lambda step: (-step.agreement, step.slack_sum, -step.margin, step.norm))
