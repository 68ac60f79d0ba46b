"""How far an encrypted decision can move: noise of encryption, rounding of weights, and the margins they meet.

Decides the error forecast, for points at hand (per sample) and for the whole box (rigorous but for the noise's tail).
Choosing scales by it is left to `plan`; drawing noise to `simulate`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array, BoolArray
from quad4fhe.circuit.bounds import Bound
from quad4fhe.circuit.fold import Circuit
from quad4fhe.circuit.quantise import Scales

Indices = NDArray[np.intp]

# SEAL draws the noise of a coefficient from a centred binomial distribution of variance 10.5, and encoding rounds it
# once more (1/12). A slot sums N coefficients with cosine weights of mean square 1/2.
COEFFICIENT_VARIANCE = 10.5 + 1.0 / 12.0
# A Gaussian leaves eight deviations with probability 1.2e-15: one decision in 8e14.
DEVIATIONS = 8.0


def slot_noise(ring: int) -> float:
    """The standard deviation of a freshly encrypted slot, in units of 1/scale."""
    return math.sqrt(COEFFICIENT_VARIANCE * ring / 2)


@dataclass(frozen=True)
class Errors:
    """Deviations of an encrypted feature, of a weight of W, of a weight of V, and of a hidden value."""

    x: float = 0.0
    w: float = 0.0
    v: float = 0.0
    hidden: float = 0.0


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """Variance of a difference of logits per unit of error in x, W, V and y; each (n,).

    `bend` and `hidden_bend` are the sizes of what errors of x and y do by their squares, whatever their signs.
    """

    x: Array
    w: Array
    v: Array
    hidden: Array
    bend: Array
    hidden_bend: Array

    def deviation(self, errors: Errors) -> Array:
        """The standard deviation of the difference at each point, (n,); DEVIATIONS times it is a bound.

        Squares are not Gaussian, so they count with what DEVIATIONS make of them outright.
        """
        variance = self.x * errors.x**2 + self.w * errors.w**2 + self.v * errors.v**2 + self.hidden * errors.hidden**2
        squares = self.bend * errors.x**2 + self.hidden_bend * errors.hidden**2
        out: Array = np.sqrt(variance) + DEVIATIONS * squares
        return out


def deciding(logits: Array) -> tuple[Indices, Indices]:
    """Indices of the largest and second largest logit, each (n,); for K = 1 both are zero."""
    if logits.shape[1] == 1:
        zero = np.zeros(len(logits), dtype=np.intp)
        return zero, zero
    order = np.argpartition(-logits, 1, axis=1)[:, :2]
    pair = np.take_along_axis(logits, order, axis=1)
    swap = pair[:, 0] < pair[:, 1]
    return np.where(swap, order[:, 1], order[:, 0]), np.where(swap, order[:, 0], order[:, 1])


def sensitivity(
    circuit: Circuit,
    X: Array,
    T: Array | None = None,
    hidden: Array | None = None,
    pair: tuple[Indices, Indices] | None = None,
) -> Sensitivity:
    """The sensitivities at the points X (n, d) of the difference of two logits, by default the two largest.

    T (K, m) where a hidden value also enters linearly; `hidden` (m,) where its error differs from unit to unit.
    """
    share = np.ones(circuit.units) if hidden is None else hidden
    first, second = deciding(circuit.logits(X)) if pair is None else pair
    single = circuit.outputs == 1
    norms = (circuit.W * circuit.W).sum(axis=1)
    parts: list[list[Array]] = [[], [], [], [], [], []]
    for start in range(0, len(X), 4096):
        rows = slice(start, start + 4096)
        z = X[rows] - circuit.shift
        y = z @ circuit.W.T + circuit.t
        V = circuit.V[first[rows]] - (0.0 if single else circuit.V[second[rows]])
        slope = 2.0 * V * y
        gradient = slope @ circuit.W
        if circuit.U is not None:
            gradient += circuit.U[first[rows]] - (0.0 if single else circuit.U[second[rows]])
        parts[0].append((gradient * gradient).sum(axis=1))
        if T is not None:
            slope = slope + T[first[rows]] - (0.0 if single else T[second[rows]])
        # Rounded weights: z_i slope_j each, and the rounding of t is one more feature of size 1.
        parts[1].append((1.0 + (z * z).sum(axis=1)) * (slope * slope).sum(axis=1))
        # T's plaintexts are rounded like V's where y enters linearly.
        carried = y**4 if T is None else y**4 + y**2
        parts[2].append((1.0 if single else 2.0) * carried.sum(axis=1))
        parts[3].append((slope * slope) @ share)
        parts[4].append(np.abs(V) @ norms)
        parts[5].append(np.abs(V) @ share)
    return Sensitivity(*(np.concatenate(part) for part in parts))


def box_points(box: Array, count: int = 512) -> Array:
    """Points spread evenly over the box: what stands in for samples when none are at hand."""
    rng = np.random.default_rng(2026)
    out: Array = box[0] + rng.random((count, box.shape[1])) * (box[1] - box[0])
    return out


def batch_errors(scales: Scales, ring: int) -> Errors:
    """Layout batch: encryption noise on x, and weights rounded once, evenly over one unit of their scale."""
    unit = 1 / math.sqrt(12)
    return Errors(x=slot_noise(ring) * 2.0**-scales.x, w=unit * 2.0**-scales.w, v=unit * 2.0**-scales.v)


def expected_changes(margins: Array, deviation: Array | float) -> float:
    """The expected number of decisions whose difference crosses zero, for Gaussian errors."""
    from scipy.special import ndtr  # here: its import takes as long as a command that needs none of it

    spread = np.broadcast_to(np.asarray(deviation, dtype=np.float64), margins.shape)
    quiet = spread <= 0
    ratio = np.where(quiet, np.inf, margins / np.where(quiet, 1.0, spread))
    return float(ndtr(-ratio).sum())


def closer(margins: Array, error: Array | float) -> BoolArray:
    """Which decisions lie closer than the error (an exact tie always does)."""
    out: BoolArray = margins <= np.maximum(error, 0.0)
    return out


def difference(rounded: Circuit, exact: Circuit) -> Circuit:
    """The circuit of what rounding did to each logit: a quadratic itself, so the same bounds apply to it."""
    U: Array | None = None
    if rounded.U is not None and exact.U is not None:
        U = rounded.U - exact.U
    return Circuit(
        W=np.vstack([rounded.W, exact.W]),
        t=np.concatenate([rounded.t, exact.t]),
        V=np.hstack([rounded.V, -exact.V]),
        U=U,
        c=rounded.c - exact.c,
        shift=exact.shift,
    )


def box_error(
    rounded: Circuit,
    largest: Bound,
    moved: Bound | None,
    random: Errors,
    hidden_slope: float = 0.0,
    weight_slope: float = 0.0,
    hidden_bend: float = 0.0,
) -> float:
    """A bound of the error of the deciding difference anywhere in the box, for random errors of these deviations.

    `largest` bounds the exact circuit and `moved` what rounding its weights did to it (None where nothing is rounded),
    so their sums bound the rounded circuit. Rounding counts outright; each random error by DEVIATIONS times its largest
    deviation, noise on x also through the curvature, noise on y through `hidden_slope` and `hidden_bend`, and weights
    that are rounded at random through `weight_slope`. Two logits may err in opposite
    directions: K >= 2 counts twice.
    """
    logit, slope = (0.0, largest.slope) if moved is None else (moved.logit, largest.slope + moved.slope)
    noise = DEVIATIONS * random.x
    bend = float((np.abs(rounded.V) @ (rounded.W * rounded.W).sum(axis=1)).max())
    logit += noise * slope + noise * noise * bend
    logit += DEVIATIONS * random.hidden * hidden_slope + (DEVIATIONS * random.hidden) ** 2 * hidden_bend
    logit += DEVIATIONS * random.w * weight_slope
    logit += DEVIATIONS * random.v * float(np.sqrt((largest.hidden**4 + largest.hidden**2).sum()))
    return logit * (1 if rounded.outputs == 1 else 2)


@dataclass(frozen=True)
class ErrorForecast:
    """What the encrypted circuit adds to the deciding difference.

    `typical` is its root mean square over the points, `bound` what no point exceeds but for the tail of the noise
    beyond DEVIATIONS (its own bound per sample where samples were at hand, else over the whole box), `changes` the
    expected number of changed calibration decisions, `close` the calibration decisions that lie closer than their
    bound, for strict plans by any rival. All else looks at the two largest logits only.
    """

    typical: float
    bound: float
    changes: float
    close: tuple[int, ...]
    source: str
