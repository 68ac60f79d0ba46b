"""One sweep over the n x K score matrix: the unit in which the multiclass solvers pay.

Decides the margins of every sample at given homogeneous coefficients, S = alpha Q + beta L + eta B + lambda b, and
what the solvers need of them. Chunks are summed in their order, so the result does not depend on the machine's mood.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quad4fhe._arrays import Array, IntArray
from quad4fhe.lift import Lift


@dataclass(frozen=True)
class Margins:
    """theta.z of each sample against its strongest rival: margin (n,), rival (n,)."""

    theta: Array
    margin: Array
    rival: IntArray


@dataclass(frozen=True)
class Risk:
    """The hinge risk R = sum_i max(0, 1 - margin_i) at theta with its gradient (4,), and counts for the trace."""

    theta: Array
    risk: float
    gradient: Array
    agreeing: int
    slack_count: int
    slack_max: float
    margin: float


class Sweeper:
    """Sweeps a lift and counts the sweeps."""

    def __init__(self, lift: Lift) -> None:
        self.lift = lift
        self.sweeps = 0

    def _chunk(self, theta: Array, Q: Array, L: Array, target: IntArray) -> tuple[Array, IntArray, IntArray]:
        """Margins of a chunk, and where the target's and the strongest rival's entries lie in its flat arrays."""
        scores = Q * theta[0]
        scores += L * theta[1]
        scores += theta[2] * self.lift.B + theta[3] * self.lift.b
        flat, first = scores.reshape(-1), np.arange(0, scores.size, scores.shape[1])
        own = first + target
        best = flat[own]
        flat[own] = -np.inf
        rival = first + np.argmax(scores, axis=1)
        return best - flat[rival], own, rival

    def margins(self, theta: Array) -> Margins:
        """All margins at theta = (alpha, beta, eta, lambda)."""
        self.sweeps += 1
        margin = np.empty(self.lift.samples)
        rival = np.empty(self.lift.samples, dtype=np.int64)
        for rows, Q, L, target in self.lift.chunks():
            margin[rows], _, at = self._chunk(theta, Q, L, target)
            rival[rows] = at % self.lift.classes
        return Margins(theta, margin, rival)

    def risk(self, theta: Array) -> Risk:
        """The hinge risk at theta."""
        self.sweeps += 1
        lift = self.lift
        risk, agreeing, violating, lowest = 0.0, 0, 0, np.inf
        gradient, excess = np.zeros(2), np.zeros(lift.classes, dtype=np.int64)
        for _, Q, L, target in lift.chunks():
            margin, own, rival = self._chunk(theta, Q, L, target)
            agreeing += int(np.count_nonzero(margin > 0))
            lowest = min(lowest, float(margin.min()))
            low = margin < 1
            own, rival = own[low], rival[low]
            violating += own.size
            risk += float((1.0 - margin[low]).sum())
            for k, flat in enumerate((Q.reshape(-1), L.reshape(-1))):
                gradient[k] += float(flat[rival].sum()) - float(flat[own].sum())
            excess += np.bincount(rival % lift.classes, minlength=lift.classes)
            excess -= np.bincount(own % lift.classes, minlength=lift.classes)
        gradient = np.append(gradient, [excess @ lift.B, excess @ lift.b])
        return Risk(theta, risk, gradient, agreeing, violating, max(0.0, 1.0 - lowest), lowest)


def coordinate_scales(lift: Lift) -> Array:
    """A typical size of each coordinate of the pairwise lift, 1 where it is constant; shape (4,)."""
    scales = np.zeros(4)
    with np.errstate(over="ignore"):  # squares of statistics beyond 1e154; such a scale is not used
        for _, Q, L, target in lift.chunks():
            at = np.arange(target.size)
            scales[0] += np.square(Q - Q[at, target][:, None]).sum()
            scales[1] += np.square(L - L[at, target][:, None]).sum()
    scales[:2] /= lift.samples * (lift.classes - 1)
    scales = np.sqrt(scales)
    for k, offset in ((2, lift.B), (3, lift.b)):
        # The variance of equal numbers is rounding, not zero; their range is exact.
        if np.ptp(offset) > 1e-12 * np.abs(offset).max():
            scales[k] = np.sqrt(2.0) * offset.std()
    usable = (scales > 0) & np.isfinite(scales)
    return np.where(usable, scales, 1.0)


def largest_row(lift: Lift) -> float:
    """The largest norm of a pairwise lift, M of the quantisation corollary."""
    largest = 0.0
    for _, Q, L, target in lift.chunks():
        at = np.arange(target.size)
        square = np.square(Q - Q[at, target][:, None]) + np.square(L - L[at, target][:, None])
        square += np.square(lift.B[None, :] - lift.B[target][:, None])
        square += np.square(lift.b[None, :] - lift.b[target][:, None])
        largest = max(largest, float(square.max()))
    return float(np.sqrt(largest))
