"""The inputs a plan was made for: the box, the bound that follows from it, and the check every client makes.

Decides what is inside. Overflow under encryption is silent and a sample outside the box may cause it, so a client
refuses such a sample and says which feature is to blame.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from quad4fhe._arrays import Array, row_chunks, samples
from quad4fhe.errors import InputError

ENCODED_BITS = 62  # of an encoded input: one word of SEAL's encoder, with a bit to spare


@dataclass(frozen=True)
class Domain:
    """The inputs a client may encrypt, and how large a slot of the reply can get for them.

    `bound` holds for every slot of a reply, padding and partial sums included; `logit` for the logits themselves, by
    `method`. `outlier_bits` says how much the outermost thousandth of the samples costs everyone, where samples were
    at hand.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    bound: float
    logit: float
    method: str
    interval: float
    ellipsoid: float
    outlier_bits: float | None = None

    @property
    def box(self) -> Array:
        """The box as an array (2, d)."""
        return np.array([self.low, self.high])


def check_inside(X: ArrayLike, domain: Domain, first_row: int = 0) -> Array:
    """The samples as float64 (n, d), or InputError naming the first feature outside the box.

    `first_row` is the number of the first sample, where X is a part of more.
    """
    checked = samples("X", X, len(domain.low))
    low, high = domain.box
    out = np.empty(checked.shape)
    for rows, chunk in row_chunks("X", checked, 8 * max(1, len(domain.low))):
        outside = (chunk < low) | (chunk > high)
        if outside.any():
            row, feature = (int(i) for i in np.argwhere(outside)[0])
            raise InputError(
                f"X[{first_row + rows.start + row}, {feature}] = {chunk[row, feature]:.6g} is outside the box of this "
                f"plan: feature {feature} must lie in [{low[feature]:.6g}, {high[feature]:.6g}]; "
                "clip it (--clip), drop the sample, or plan with a wider box (--widen 0.2)"
            )
        out[rows] = chunk
    return out


def widened(box: Array, share: float) -> Array:
    """The box (2, d) with `share` of each feature's range added on both sides."""
    if not (np.isfinite(share) and share >= 0):
        raise InputError(f"a box can be widened by a share of its range, 0 or more, not by {share}")
    spread = share * (box[1] - box[0])
    return np.stack([box[0] - spread, box[1] + spread])


def largest_scale(reach: Array) -> float:
    """log2 of the largest scale at which every |x - shift| up to `reach` (d,) can be encoded."""
    return ENCODED_BITS - float(np.log2(max(1.0, float(reach.max(initial=0.0)))))
