"""Sweeps over the n x K score matrix at homogeneous coefficients: the unit of cost of the pairwise solvers.

A sweep finds the margins of all samples and answers with a few numbers, block by block, which are added up in the order
of the blocks, so results are independent of scheduling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from quad4fhe._arrays import Array, IntArray
from quad4fhe.fitting.design import Block, Design

_WORST = 16  # rows named by a sweep, besides the worst of each class
_EXTREME = 1e6  # coordinates of trained models have scales between 0.05 and 500


@dataclass(frozen=True)
class Worst:
    """The worst rows at theta: the smallest margin, samples (k,), rivals (k,) and their pairwise lifts (k, p + 2)."""

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
    """The hinge risk R = sum_i max(0, 1 - margin_i) at theta with its gradient (p + 2,), and counts for the trace."""

    theta: Array
    risk: float
    gradient: Array
    agreeing: int
    slack_count: int
    slack_max: float
    margin: float


class Sweeper:
    """Sweeps a design at homogeneous coefficients theta (p + 2,), the last of them lambda, and counts the sweeps."""

    def __init__(self, design: Design) -> None:
        self.design = design
        self.samples, self.sweeps = design.samples, 0
        self.scales = coordinate_scales(design)
        self.is_extreme = bool(self.scales.max() > _EXTREME or self.scales.min() < 1 / _EXTREME)
        self.units = self.scales if self.is_extreme else np.ones(self.scales.size)

    def worst(self, theta: Array) -> Worst:
        """The worst row of each target class, and the worst few of all."""
        self.sweeps += 1
        parts = self.design.map(_worst_of, theta)
        margin, target, samples, rivals, rows = (np.concatenate(part) for part in zip(*parts, strict=True))
        chosen = _worst_rows(margin, target)  # blocks come in order, so ties go to the lowest row
        chosen = chosen[np.argsort(samples[chosen])]
        return Worst(theta, float(margin.min()), samples[chosen], rivals[chosen], rows[chosen])

    def risk(self, theta: Array) -> Risk:
        """The hinge risk at theta."""
        self.sweeps += 1
        risk, agreeing, violating, lowest = 0.0, 0, 0, np.inf
        gradient, excess = np.zeros(self.design.degree), np.zeros(self.design.classes, dtype=np.int64)
        for part in self.design.map(_risk_of, theta):
            risk += part[0]
            gradient += part[1]
            excess += part[2]
            agreeing, violating, lowest = agreeing + part[3], violating + part[4], min(lowest, part[5])
        gradient = np.append(gradient, [excess @ self.design.B, excess @ self.design.b])
        return Risk(theta, risk, gradient, agreeing, violating, max(0.0, 1.0 - lowest), lowest)


def tally(design: Design, theta: Array) -> Tally:
    """How many decisions theta keeps, and the smallest margin."""
    return Tally(*design.total(_joined, _tally_of, theta))


def _margins(block: Block, theta: Array, P: Array, target: IntArray) -> tuple[Array, IntArray, IntArray]:
    """Margins of a chunk, and where the target's and the strongest rival's entries lie in its flat arrays."""
    scores = block.scores(P, theta)
    flat, first = scores.reshape(-1), np.arange(0, scores.size, scores.shape[1])
    own = first + target
    best = flat[own]
    flat[own] = -np.inf
    rival = first + np.argmax(scores, axis=1)
    return best - flat[rival], own, rival


def _worst_of(block: Block, theta: Array) -> tuple[Array, IntArray, IntArray, IntArray, Array]:
    n, K = block.samples, block.classes
    margin, rival = np.empty(n), np.empty(n, dtype=np.int64)
    for rows, P, target in block.chunks:
        margin[rows], _, at = _margins(block, theta, P, target)
        rival[rows] = at % K
    chosen = _worst_rows(margin, block.target)
    lifts = block.pair_rows(chosen, rival[chosen])
    return margin[chosen], block.target[chosen], chosen + block.first, rival[chosen], lifts


def _worst_rows(margin: Array, target: IntArray) -> IntArray:
    """The first of each class and the first few of all by margin, in ascending order."""
    order = np.argsort(margin, kind="stable")
    _, first = np.unique(target[order], return_index=True)
    return np.unique(np.concatenate([order[first], order[:_WORST]]))


def _tally_of(block: Block, theta: Array) -> tuple[int, float]:
    agreeing, lowest = 0, np.inf
    for _, P, target in block.chunks:
        margin, _, _ = _margins(block, theta, P, target)
        agreeing += int(np.count_nonzero(margin > 0))
        lowest = min(lowest, float(margin.min()))
    return agreeing, lowest


def _joined(a: tuple[int, float], b: tuple[int, float]) -> tuple[int, float]:
    return a[0] + b[0], min(a[1], b[1])


def _risk_of(block: Block, theta: Array) -> tuple[float, Array, IntArray, int, int, float]:
    risk, agreeing, violating, lowest = 0.0, 0, 0, np.inf
    K = block.classes
    gradient, excess = np.zeros(len(block.P)), np.zeros(K, dtype=np.int64)
    for _, P, target in block.chunks:
        margin, own, rival = _margins(block, theta, P, target)
        agreeing += int(np.count_nonzero(margin > 0))
        lowest = min(lowest, float(margin.min()))
        low = margin < 1
        own, rival = own[low], rival[low]
        violating += own.size
        risk += float((1.0 - margin[low]).sum())
        for k, part in enumerate(P):
            flat = part.reshape(-1)
            gradient[k] += float(flat[rival].sum()) - float(flat[own].sum())
        excess += np.bincount(rival % K, minlength=K)
        excess -= np.bincount(own % K, minlength=K)
    return risk, gradient, excess, agreeing, violating, lowest


def coordinate_scales(design: Design) -> Array:
    """A typical size of each coordinate of the pairwise lift, 1 where it is constant; shape (p + 2,)."""
    squares = np.zeros(design.degree)
    with np.errstate(over="ignore"):  # squares of coordinates beyond 1e154; such a scale is not used
        for part in design.map(_squares_of):
            squares += part
    sizes = np.sqrt(squares / (design.samples * (design.classes - 1)))
    # The variance of equal numbers is rounding, not zero; their range is exact.
    offsets = [np.sqrt(2.0) * of.std() if np.ptp(of) > 1e-12 * np.abs(of).max() else 0.0 for of in (design.B, design.b)]
    scales = np.append(sizes, offsets)
    return np.where((scales > 0) & np.isfinite(scales), scales, 1.0)


def _squares_of(block: Block) -> Array:
    sums = np.zeros(len(block.P))
    with np.errstate(over="ignore"):
        for _, P, target in block.chunks:
            at = np.arange(target.size)
            for k, part in enumerate(P):
                sums[k] += np.square(part - part[at, target][:, None]).sum()
    return sums


def largest_row(design: Design) -> float:
    """The largest norm of a pairwise lift, M of the quantisation corollary."""
    return float(np.sqrt(design.total(max, _largest_of)))


def _largest_of(block: Block) -> float:
    largest = 0.0
    for _, P, target in block.chunks:
        at = np.arange(target.size)
        square = sum(np.square(part - part[at, target][:, None]) for part in P)
        square += np.square(block.B[None, :] - block.B[target][:, None])
        square += np.square(block.b[None, :] - block.b[target][:, None])
        largest = max(largest, float(square.max()))
    return largest
