"""Sweeps over the n x K score matrix S = alpha Q + beta L + eta B + lambda b: the unit of cost of multiclass solvers.

A sweep finds the margins of all samples at homogeneous coefficients and reduces them to what a solver needs. Each block
answers with a few numbers, which are added up in the order of the blocks, so the result is independent of scheduling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from quad4fhe._arrays import Array, IntArray
from quad4fhe.calibration.lift import Lift, Statistics

_WORST = 16  # rows named by a sweep, besides the worst of each class


@dataclass(frozen=True)
class Worst:
    """The worst rows at theta: the smallest margin, and samples (k,), rivals (k,), their pairwise lifts rows (k, 4)."""

    theta: Array
    margin: float
    samples: IntArray
    rivals: IntArray
    rows: Array


class Tally(NamedTuple):
    """How many margins are positive, and the smallest."""

    agreeing: int
    margin: float


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


class Sweeps(Protocol):
    """What the pairwise solvers see of the data: margins at homogeneous coefficients theta, the last of them lambda.

    `samples` counts the rows, `sweeps` the passes over them; `start` is the theta to begin with.
    """

    samples: int
    sweeps: int
    start: Array

    def scales(self) -> Array:
        """A typical size of each coordinate."""

    def worst(self, theta: Array) -> Worst:
        """The rows with the smallest margins."""

    def risk(self, theta: Array) -> Risk:
        """The hinge risk."""


class Sweeper:
    """Sweeps statistics and counts the sweeps."""

    def __init__(self, lift: Statistics) -> None:
        self.lift = lift
        self._B, self._b = lift.B, lift.b
        self.samples, self.sweeps = lift.samples, 0
        self.start = np.array([0.0, 0.5, 0.0, 1.0])  # ReLU is nearly u / 2 and a constant

    def scales(self) -> Array:
        """A typical size of each coordinate."""
        return coordinate_scales(self.lift)

    def worst(self, theta: Array) -> Worst:
        """The worst row of each target class, and the worst few of all, at theta = (alpha, beta, eta, lambda)."""
        self.sweeps += 1
        parts = self.lift.map(_worst_of, theta)
        margin, target, samples, rivals, rows = (np.concatenate(part) for part in zip(*parts, strict=True))
        chosen = worst_rows(margin, target)  # blocks come in order, so ties go to the lowest row
        chosen = chosen[np.argsort(samples[chosen])]
        return Worst(theta, float(margin.min()), samples[chosen], rivals[chosen], rows[chosen])

    def risk(self, theta: Array) -> Risk:
        """The hinge risk at theta."""
        self.sweeps += 1
        risk, agreeing, violating, lowest = 0.0, 0, 0, np.inf
        gradient, excess = np.zeros(2), np.zeros(self._B.size, dtype=np.int64)
        for part in self.lift.map(_risk_of, theta):
            risk += part[0]
            gradient += part[1]
            excess += part[2]
            agreeing, violating, lowest = agreeing + part[3], violating + part[4], min(lowest, part[5])
        gradient = np.append(gradient, [excess @ self._B, excess @ self._b])
        return Risk(theta, risk, gradient, agreeing, violating, max(0.0, 1.0 - lowest), lowest)


def tally(lift: Statistics, theta: Array) -> Tally:
    """How many decisions theta keeps, and the smallest margin."""
    return Tally(*lift.total(_joined, _tally_of, theta))


def _margins(block: Lift, theta: Array, Q: Array, L: Array, target: IntArray) -> tuple[Array, IntArray, IntArray]:
    """Margins of a chunk, and where the target's and the strongest rival's entries lie in its flat arrays."""
    scores = Q * theta[0]
    scores += L * theta[1]
    scores += theta[2] * block.B + theta[3] * block.b
    flat, first = scores.reshape(-1), np.arange(0, scores.size, scores.shape[1])
    own = first + target
    best = flat[own]
    flat[own] = -np.inf
    rival = first + np.argmax(scores, axis=1)
    return best - flat[rival], own, rival


def _worst_of(block: Lift, theta: Array) -> tuple[Array, IntArray, IntArray, IntArray, Array]:
    n, K = block.Q.shape
    margin, rival = np.empty(n), np.empty(n, dtype=np.int64)
    for rows, Q, L, target in block.chunks:
        margin[rows], _, at = _margins(block, theta, Q, L, target)
        rival[rows] = at % K
    chosen = worst_rows(margin, block.target)
    lifts = block.pair_rows(chosen, rival[chosen])
    return margin[chosen], block.target[chosen], chosen + block.first, rival[chosen], lifts


def worst_rows(margin: Array, target: IntArray) -> IntArray:
    """The first of each class and the first few of all by margin, in ascending order."""
    order = np.argsort(margin, kind="stable")
    _, first = np.unique(target[order], return_index=True)
    return np.unique(np.concatenate([order[first], order[:_WORST]]))


def _tally_of(block: Lift, theta: Array) -> tuple[int, float]:
    agreeing, lowest = 0, np.inf
    for _, Q, L, target in block.chunks:
        margin, _, _ = _margins(block, theta, Q, L, target)
        agreeing += int(np.count_nonzero(margin > 0))
        lowest = min(lowest, float(margin.min()))
    return agreeing, lowest


def _joined(a: tuple[int, float], b: tuple[int, float]) -> tuple[int, float]:
    return a[0] + b[0], min(a[1], b[1])


def _risk_of(block: Lift, theta: Array) -> tuple[float, Array, IntArray, int, int, float]:
    risk, agreeing, violating, lowest = 0.0, 0, 0, np.inf
    K = block.Q.shape[1]
    gradient, excess = np.zeros(2), np.zeros(K, dtype=np.int64)
    for _, Q, L, target in block.chunks:
        margin, own, rival = _margins(block, theta, Q, L, target)
        agreeing += int(np.count_nonzero(margin > 0))
        lowest = min(lowest, float(margin.min()))
        low = margin < 1
        own, rival = own[low], rival[low]
        violating += own.size
        risk += float((1.0 - margin[low]).sum())
        for k, flat in enumerate((Q.reshape(-1), L.reshape(-1))):
            gradient[k] += float(flat[rival].sum()) - float(flat[own].sum())
        excess += np.bincount(rival % K, minlength=K)
        excess -= np.bincount(own % K, minlength=K)
    return risk, gradient, excess, agreeing, violating, lowest


def coordinate_scales(lift: Statistics) -> Array:
    """A typical size of each coordinate of the pairwise lift, 1 where it is constant; shape (4,)."""
    squares = np.zeros(2)
    with np.errstate(over="ignore"):  # squares of statistics beyond 1e154; such a scale is not used
        for part in lift.map(_squares_of):
            squares += part
    return usable_scales(np.sqrt(squares / (lift.samples * (lift.classes - 1))), lift.B, lift.b)


def usable_scales(sizes: Array, B: Array, b: Array) -> Array:
    """The sizes of the powers with those of B and b, 1 where a coordinate is constant."""
    # The variance of equal numbers is rounding, not zero; their range is exact.
    offsets = [np.sqrt(2.0) * of.std() if np.ptp(of) > 1e-12 * np.abs(of).max() else 0.0 for of in (B, b)]
    scales = np.append(sizes, offsets)
    return np.where((scales > 0) & np.isfinite(scales), scales, 1.0)


def _squares_of(block: Lift) -> Array:
    sums = np.zeros(2)
    with np.errstate(over="ignore"):
        for _, Q, L, target in block.chunks:
            at = np.arange(target.size)
            sums[0] += np.square(Q - Q[at, target][:, None]).sum()
            sums[1] += np.square(L - L[at, target][:, None]).sum()
    return sums


def largest_row(lift: Statistics) -> float:
    """The largest norm of a pairwise lift, M of the quantisation corollary."""
    return float(np.sqrt(lift.total(max, _largest_of)))


def _largest_of(block: Lift) -> float:
    largest = 0.0
    for _, Q, L, target in block.chunks:
        at = np.arange(target.size)
        square = np.square(Q - Q[at, target][:, None]) + np.square(L - L[at, target][:, None])
        square += np.square(block.B[None, :] - block.B[target][:, None])
        square += np.square(block.b[None, :] - block.b[target][:, None])
        largest = max(largest, float(square.max()))
    return largest
