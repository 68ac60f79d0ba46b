"""Reliable decisions: a margin above which at least a given share of decisions is kept, with a confidence.

The margin may be a relative one, divided by a power of the norm of the logits: a quadratic grows where the ReLU model
does not, so the largest plain margins are not the safest. The power and the thresholds that are tried rest on the
calibration rows alone; the hold-out says how far the walk over them goes (`guarantee.fallback`). Thresholds are rounded
to 20 bits, so that the last bits of a sum, which depend on the machine, do not matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Annotated

import msgspec
import numpy as np

from quad4fhe._arrays import Array, BoolArray
from quad4fhe.errors import InputError
from quad4fhe.proof.guarantee import delta_of, fallback

Count = Annotated[int, msgspec.Meta(ge=0)]
Margin = Annotated[float, msgspec.Meta(ge=0)]
Step = tuple[Margin, Count, Count]
STEPS = 100
"""How many thresholds are tried."""
POWERS = (0.0, 0.5, 1.0, 1.5, 2.0)
"""Powers of the norm that a margin may be divided by."""
_BITS = 20


class Reliable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Decisions whose relative margin is at least `threshold` are kept in at least the share `level` of cases.

    The relative margin is the margin divided by the norm of the centred logits to the `power`; with power 0 it is the
    margin. `accepted` hold-out rows have such a margin, and `lost` of them lost their decision; without a threshold no
    decision is called reliable. `curve` has (threshold, accepted, lost) of every threshold, the strictest first.
    """

    level: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    power: Annotated[float, msgspec.Meta(ge=0, le=2)]
    threshold: Margin | None
    accepted: Count
    lost: Count
    curve: list[Step]


def check_level(level: float) -> None:
    """Raise InputError unless `level` is a share."""
    if isinstance(level, bool) or not (isinstance(level, float | int) and 0 < level < 1):
        raise InputError(f"reliable is {level!r}, wanted a share between 0 and 1, such as 0.995")


def best_power(gaps: Array, norms: Array, kept: BoolArray) -> float:
    """The power that best tells kept decisions from lost ones on calibration rows, by the area under the ROC curve.

    With two classes every power below 1 gives the same order, so `norms` are all 0 and the margin stays as it is. With
    no decision lost, or none kept, there is nothing to learn, and 1 is the choice.
    """
    if not norms.any():
        return 0.0
    if kept.all() or not kept.any():
        return 1.0
    return max(POWERS, key=lambda power: _wins(relative(gaps, norms, power), kept))


def _wins(scores: Array, kept: BoolArray) -> int:
    """Pairs of a kept and a lost row in which the kept one scores higher, twice; ties count once."""
    above, below = np.sort(scores[kept]), scores[~kept]
    places = np.searchsorted(above, below, "left") + np.searchsorted(above, below, "right")
    return int(2 * len(above) * len(below) - places.sum())


def relative(gaps: Array, norms: Array, power: float) -> Array:
    """Margins (n,) divided by a power of the norms of their logits; 0 where a norm is 0 or beyond float64."""
    if power == 0:
        return gaps
    fine = (norms > 0) & np.isfinite(norms)
    out: Array = np.where(fine, gaps, 0.0) / np.where(fine, norms, 1.0) ** power
    return out


def norms_of(logits: Array) -> Array:
    """The norm of each row of centred logits (n, K); 0 for two classes, whose margin says as much."""
    if logits.shape[1] < 3:
        return np.zeros(len(logits))
    with np.errstate(over="ignore", invalid="ignore"):
        centred = logits - logits.mean(axis=1, keepdims=True)
        out: Array = np.sqrt((centred * centred).sum(axis=1))
    return out


def margins_of(logits: Array) -> Array:
    """The margin of each row of logits (n, K) or scores (n, 1): the largest minus the next, or the score's size."""
    if logits.shape[1] == 1:
        size: Array = np.abs(logits[:, 0])
        return size
    best = np.partition(logits, -2, axis=1)
    gap: Array = best[:, -1] - best[:, -2]
    return gap


def is_above(logits: Array, threshold: float | None, power: float) -> BoolArray:
    """Which rows of logits (n, K), or scores (n, 1), have a relative margin of at least the threshold; none without."""
    if threshold is None:
        return np.zeros(len(logits), dtype=np.bool_)
    above: BoolArray = relative(margins_of(logits), norms_of(logits), power) >= threshold
    return above


def margin_word(power: float) -> str:
    """What a threshold is compared with, in words."""
    return "margin" if power == 0 else "relative margin"


def thresholds(scores: Array) -> list[float]:
    """The thresholds to try, strictest first: percentiles of calibration scores, and 0, which accepts everything."""
    ordered = np.sort(scores)
    places = [(len(ordered) * step) // STEPS for step in range(STEPS - 1, 0, -1)]
    return [*(rounded(float(ordered[place]), up=True) for place in places), 0.0]


def walk(curve: Sequence[Step], samples: int, level: float, confidence: float, power: float = 0.0) -> Reliable:
    """The last threshold that passes, from (threshold, accepted, lost) of all of them."""
    check_level(level)
    delta, share = delta_of(confidence), delta_of(level)
    weights = _weights(len(curve), samples, float(delta), float(share))
    passed = fallback([(accepted, lost) for _, accepted, lost in curve], weights, share, delta)
    threshold, accepted, lost = curve[passed[-1]] if passed else (None, 0, 0)
    return Reliable(
        level=float(level), power=power, threshold=threshold, accepted=accepted, lost=lost, curve=list(curve)
    )


def _weights(steps: int, samples: int, delta: float, share: float) -> list[Decimal]:
    """Where walks begin: at 2, 4, 8 and 16 times the rows that a test without losses needs; each has half the weight.

    A few lost rows with the largest margins end the first walk, but not the next. Starts beyond three quarters of the
    rows are left out; where that leaves none, the one start is there. None of this depends on the content of the rows.
    """
    needed = math.log(delta) / math.log1p(-share)
    rows = [times * needed for times in (2, 4, 8, 16) if 4 * times * needed <= 3 * samples]
    rows = rows or [max(0.75 * samples, 1.05 * needed)]
    out, left = [Decimal(0)] * steps, Decimal(1)
    for i, count in enumerate(rows):
        part = left if i == len(rows) - 1 else left / 2
        left -= part
        out[min(max(math.ceil(steps * count / samples), 1), steps) - 1] += part
    return out


def curve(seen: Array, scores: Array, kept: BoolArray) -> list[Step]:
    """(threshold, accepted, lost) at the percentiles of scores `seen` on calibration rows, for hold-out rows."""
    return [
        (threshold, int(np.count_nonzero(above)), int(np.count_nonzero(above & ~kept)))
        for threshold in thresholds(seen)
        for above in [scores >= threshold]
    ]


def rounded(value: float, *, up: bool) -> float:
    """A margin to 20 bits, never below zero."""
    if value <= 0:
        return 0.0
    mantissa, exponent = math.frexp(value)
    scaled = mantissa * 2**_BITS
    whole = math.ceil(scaled) if up else math.floor(scaled)
    return float(Fraction(whole) * Fraction(2) ** (exponent - _BITS))
