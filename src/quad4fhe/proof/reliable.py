"""Decisions one may rely on: a margin above which at least a given share of decisions is kept, with a confidence.

Decides which thresholds are tried, in an order that rests on the calibration margins alone, and how far down the walk
goes (fixed-sequence testing, `guarantee.fixed_sequence`). Thresholds and margins are rounded to 20 bits, so that the
last bits of a sum, which depend on the machine, decide nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated

import msgspec
import numpy as np

from quad4fhe._arrays import Array, BoolArray
from quad4fhe.errors import InputError
from quad4fhe.proof.guarantee import delta_of, fixed_sequence

Count = Annotated[int, msgspec.Meta(ge=0)]
Margin = Annotated[float, msgspec.Meta(ge=0)]
Step = tuple[Margin, Count, Count]
_STEPS = 100
_BITS = 20


class Reliable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Decisions whose margin is at least `threshold` are kept in at least the share `level` of cases.

    `accepted` hold-out rows have such a margin, and `lost` of them lost their decision; without a threshold no decision
    is called reliable. `curve` has (threshold, accepted, lost) of every threshold, the strictest first.
    """

    level: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    threshold: Margin | None
    accepted: Count
    lost: Count
    curve: list[Step]


def check_level(level: float) -> None:
    """Refuse a level that is no share."""
    if isinstance(level, bool) or not (isinstance(level, float | int) and 0 < level < 1):
        raise InputError(f"reliable is {level!r}, wanted a share between 0 and 1, such as 0.995")


def thresholds(margins: Array) -> list[float]:
    """Margins to try, strictest first: the percentiles of the calibration margins, and 0, which accepts everything."""
    ordered = np.sort(margins)
    places = [(len(ordered) * step) // _STEPS for step in range(_STEPS - 1, 0, -1)]
    return [*(rounded(float(ordered[place]), up=True) for place in places), 0.0]


def walk(curve: Sequence[Step], samples: int, level: float, confidence: float) -> Reliable:
    """The last threshold that fixed-sequence testing passes, from (threshold, accepted, lost) of all of them.

    The walk starts where twice as many of the `samples` hold-out rows are expected as a test without losses needs: with
    fewer, the first test could fail for want of rows alone. Neither number depends on what the rows say.
    """
    check_level(level)
    delta, share = delta_of(confidence), delta_of(level)
    needed = 2 * math.log(float(delta)) / math.log1p(-float(share))
    first = next((j for j in range(_STEPS) if samples * (j + 1) >= needed * _STEPS), _STEPS - 1)
    passed = fixed_sequence([(accepted, lost) for _, accepted, lost in curve[first:]], share, delta)
    threshold, accepted, lost = curve[first + passed - 1] if passed else (None, 0, 0)
    return Reliable(level=float(level), threshold=threshold, accepted=accepted, lost=lost, curve=list(curve))


def curve(margins: Array, gaps: Array, kept: BoolArray) -> list[Step]:
    """(threshold, accepted, lost) of every threshold, for hold-out rows with these gaps (n,), `kept` or not."""
    return [
        (threshold, int(np.count_nonzero(above)), int(np.count_nonzero(above & ~kept)))
        for threshold in thresholds(margins)
        for above in [gaps >= threshold]
    ]


def is_above(logits: Array, threshold: float | None) -> BoolArray:
    """Which rows of logits (n, K), or scores (n, 1), have a margin of at least the threshold; none without one."""
    if threshold is None:
        return np.zeros(len(logits), dtype=np.bool_)
    if logits.shape[1] == 1:
        out: BoolArray = np.abs(logits[:, 0]) >= threshold
        return out
    best = np.partition(logits, -2, axis=1)
    above: BoolArray = best[:, -1] - best[:, -2] >= threshold
    return above


def rounded(value: float, *, up: bool) -> float:
    """A margin to 20 bits, never below zero."""
    if value <= 0:
        return 0.0
    mantissa, exponent = math.frexp(value)
    scaled = mantissa * 2**_BITS
    whole = math.ceil(scaled) if up else math.floor(scaled)
    return float(Fraction(whole) * Fraction(2) ** (exponent - _BITS))
