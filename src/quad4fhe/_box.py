"""The range of inputs that clients may send by default: that of the calibration set, with room on both sides.

A fit counts its promise about new inputs for this box, and a plan has it unless another is asked for.
"""

from __future__ import annotations

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.errors import InputError

_ROOM_BITS = 2  # that the default room adds to the bound of the logits, at any degree


def default_share(degree: int) -> float:
    """The share of each feature's range that the default box adds on both sides: 0.5 for degree 2.

    A box that is wider by the factor f lets a polynomial of degree p grow by f^p. The share is such that f^p = 4.
    """
    return float((2.0 ** (_ROOM_BITS / degree) - 1) / 2)


def filled(box: Array) -> Array:
    """The box (2, d) in which no feature is narrower than it should be, judged by the others.

    If half of the features have the same two limits (pixels, categories as 0 and 1), so have those that stayed between
    these limits in calibration. Another constant c gets the median range of the other features, or |c| where that is
    smaller and not zero, with c in the middle.
    """
    low, high = box
    common = [_most_frequent(side) for side in box]
    if all(count >= box.shape[1] / 2 for _, count in common) and common[0][0] < common[1][0]:
        between = (low >= common[0][0]) & (high <= common[1][0])
        low, high = np.where(between, common[0][0], low), np.where(between, common[1][0], high)
    spread = high - low
    constant = spread == 0
    usual = float(np.median(spread[~constant])) if not constant.all() else 1.0
    size = np.abs(low)
    own = np.where(constant, np.where(size > 0, np.minimum(size, usual), usual), 0.0) / 2
    return np.stack([low - own, high + own])


def _most_frequent(values: Array) -> tuple[float, int]:
    found, counts = np.unique(values, return_counts=True)
    best = int(np.argmax(counts))
    return float(found[best]), int(counts[best])


def widened(box: Array, share: float) -> Array:
    """The box (2, d), `filled`, with `share` of each feature's range added on both sides."""
    if not (np.isfinite(share) and share >= 0):
        raise InputError(f"a box can be widened by a share of its range, 0 or more, not by {share}")
    with np.errstate(over="ignore", invalid="ignore"):  # `plan` rejects a box that is not finite
        low, high = filled(box)
        spread = share * (high - low)
        return np.stack([low - spread, high + spread])
