"""One step of a soft-margin grid and the paper's rule for choosing among them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class SoftStep(msgspec.Struct, frozen=True, kw_only=True):
    """What one weight (C, or c in the plane) of the soft problem gave on the calibration set.

    Margins and slacks are those of the homogeneous coefficients of norm `norm`; `gap` is the relative duality gap.
    """

    weight: float
    agreement: float
    slack_count: int
    slack_sum: float
    slack_max: float
    margin: float
    norm: float
    gap: float


def best_step(trace: Sequence[SoftStep]) -> SoftStep:
    """Largest agreement, then smaller sum of slacks, larger worst margin, smaller norm."""
    return min(trace, key=lambda step: (-step.agreement, step.slack_sum, -step.margin, step.norm))
