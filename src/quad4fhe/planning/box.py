"""The box: the inputs that a plan allows, and the samples that lie outside it.

The default box is the calibration range with room on both sides (`default_share`). Samples outside are counted, and
the error names the smallest option that would hold them all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quad4fhe._arrays import Array, row_chunks, samples
from quad4fhe.errors import InputError

if TYPE_CHECKING:
    from quad4fhe.planning.plan import Plan

_STEPS = 100  # advice names a share in hundredths


@dataclass(frozen=True)
class Room:
    """How much wider a plan's box is than the calibration range, and its cost.

    `share` of the range of each feature is added on both sides; None where the box was given. `bits` is how much larger
    that makes the bound of the logits, as a power of two.
    """

    share: float | None
    bits: float

    @property
    def possible(self) -> bool:
        """Whether the numbers are ones that a plan can have."""
        return self.share is None or self.share >= 0


def box_of(X: ArrayLike, features: int) -> Array:
    """The range (2, d) of the samples X (n, d): two rows are enough to state a box."""
    checked = samples("the samples of the box", X, features)
    if not len(checked):
        raise InputError("the samples of the box have no rows; give at least one, or the lowest and highest values")
    low, high = np.full(features, np.inf), np.full(features, -np.inf)
    for _, chunk in row_chunks("the samples of the box", checked, 8 * features):
        low, high = np.minimum(low, chunk.min(axis=0)), np.maximum(high, chunk.max(axis=0))
    return np.stack([low, high])


def moved(before: NDArray[Any], after: NDArray[Any]) -> int:
    """How many samples differ."""
    return int(np.count_nonzero(np.any(before != after, axis=1)))


@dataclass
class Outside:
    """Counts samples outside a box (2, d), part by part.

    `share` says how much of each feature's range the box has on both sides, for the advice; None if the box was given.
    """

    box: Array
    share: float | None = None
    names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        self._seen, self._outside, self._first = 0, 0, ""
        self._beyond = np.zeros(self.box.shape[1])  # the furthest that a sample lies outside, per feature

    def add(self, X: NDArray[Any]) -> None:
        """Count the next finite samples (n, d)."""
        low, high = self.box
        with np.errstate(over="ignore"):
            beyond = np.maximum(low - X, X - high)
        rows = np.flatnonzero((beyond > 0).any(axis=1))
        if rows.size and not self._outside:
            row, i = int(rows[0]), int(np.argmax(beyond[rows[0]] > 0))
            name = f" ({self.names[i]})" if self.names is not None else ""
            self._first = (
                f"X[{self._seen + row}, {i}] = {X[row, i]:.6g}, and feature {i}{name} must lie in "
                f"[{low[i]:.6g}, {high[i]:.6g}]"
            )
        self._seen += len(X)
        self._outside += rows.size
        self._beyond = np.maximum(self._beyond, beyond.max(axis=0, initial=0.0))

    def check(self, of: str = "the box of this plan") -> None:
        """Raise InputError if any sample was outside."""
        if not self._outside:
            return
        features, needed = int(np.count_nonzero(self._beyond)), self._share()
        first = "the first is " if self._outside > 1 else ""
        option = "--box FILE and these samples in FILE" if needed is None else f"--widen {needed:g}"
        raise InputError(
            f"{self._outside} of {self._seen} samples {'lies' if self._outside == 1 else 'lie'} outside {of}, in "
            f"{features} of {self._beyond.size} features: {first}{self._first}; plan with {option}, which "
            "holds them all, move them to the edge (--clip), or drop them"
        )

    def _share(self) -> float | None:
        """The smallest share, in hundredths, whose box holds all samples; None where no share does."""
        reached = self._beyond > 0
        with np.errstate(over="ignore"):
            spread = (self.box[1] - self.box[0])[reached]
            if self.share is None or not (spread > 0).all():
                return None
            needed = self.share + float((self._beyond[reached] / (spread / (1 + 2 * self.share))).max())
        return math.ceil(_STEPS * needed * (1 + 1e-9)) / _STEPS if math.isfinite(_STEPS * needed) else None


def check_inside(X: ArrayLike, plan: Plan) -> Array:
    """The samples as float64 (n, d), or InputError that counts those outside the plan's box."""
    checked = samples("X", X, plan.shape.features)
    with np.errstate(over="ignore"):  # of wider floats
        out = np.array(checked, dtype=np.float64, order="C")
    low, high = plan.domain.box
    if not ((out >= low) & (out <= high)).all():  # also if one is not a number
        outside = outside_of(plan)
        for _, chunk in row_chunks("X", out, 8 * plan.shape.features):
            outside.add(chunk)
        outside.check()
    return out


def outside_of(plan: Plan) -> Outside:
    """A count of the samples outside the plan's box."""
    return Outside(plan.domain.box, None if plan.room is None else plan.room.share, plan.feature_names)
