"""The error of logits under encryption: the parts of the bound that all layouts share.

These are the failure probability of a plan, the float64 errors of both sides, and common terms of the bounds. Each
layout has its own noise. `docs/error_bound.md` has the proofs, in the same letters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array
from quad4fhe.planning.chains import Chain
from quad4fhe.planning.fold import Circuit

Indices = NDArray[np.intp]
Pair = tuple[Indices, Indices]

# The probability, over keys, encryption noise and dither, that a plan is wrong about its calibration set.
FAILURE = 2.0**-40
# Variance proxies of one coefficient. SEAL's noise is centred binomial, a sum of 42 independent +-1/2; the dithered
# rounding of an encoding lies in an interval of length 1 and has mean zero (Hoeffding).
BINOMIAL, DITHER = 10.5, 0.25
UNIT = 2.0**-53  # unit roundoff of float64
ROWS = 4096


@dataclass(frozen=True)
class Confidence:
    """A failure probability split among `events`, none of which may happen."""

    events: float
    failure: float = FAILURE

    @property
    def log(self) -> float:
        """ln(events / failure), the exponent of a one-sided tail bound."""
        return math.log(self.events / self.failure)

    @property
    def deviations(self) -> float:
        """How many deviations a sub-Gaussian variable may move, in either direction."""
        return math.sqrt(2 * (math.log(2) + self.log))

    def spread(self, total: Array, largest: Array) -> Array:
        """A bound of sum_p w_p |g_p|^2 for complex sub-Gaussian g_p of proxy 1/2 in each part; total and largest of w.

        Hsu, Kakade and Zhang (2012), Theorem 2.1: trace + 2 sqrt(trace of the square * l) + 2 norm * l.
        """
        out: Array = total + np.sqrt(2 * self.log * total * largest) + self.log * largest
        return out


class Noise(Protocol):
    """The noise of a layout around one circuit."""

    @property
    def confidence(self) -> Confidence:
        """The events its bounds are for."""

    def deviation(self, X: Array, pair: Pair) -> Array:
        """An estimate of the standard deviation of the difference of two logits at each point."""

    def bound(self, X: Array, pair: Pair) -> Array:
        """A bound on the error of the difference of two logits at each point; for K = 1, of the one logit."""

    def cheap(self, X: Array) -> Array:
        """A bound on the error of each logit at each point, (n, K); looser than `bound`, and faster."""

    def anywhere(self) -> float:
        """A bound on the error of a logit anywhere in the box."""

    def slot(self) -> float:
        """A bound on what noise adds to the modulus of any slot of a reply, including its imaginary part."""


def transform_share(ring: int) -> float:
    """The float64 error of a transform between slots and coefficients, relative to the norm of the slots.

    A radix-2 transform loses at most 8 log2(N) units (Higham 2002, Theorem 24.2, twiddle factors good to one unit).
    """
    return 8 * math.log2(ring) * UNIT


def transform_error(ring: int) -> float:
    """The same error at one slot, relative to the largest slot."""
    return math.sqrt(ring / 2) * transform_share(ring)


def decoding_error(chain: Chain, log2_scale: int, slot_bound: float) -> float:
    """A bound on the error at a slot when SEAL decodes a reply at this scale.

    The transform is one part of it. SEAL also composes negative coefficients word by word: where the highest word only
    borrows, it rounds the sum at the size of that word, in every coefficient.
    """
    highest = 64 * ((chain.modulus.bit_length() - 1) // 64)
    return transform_error(chain.ring) * slot_bound + chain.ring * 3 * 2.0 ** min(1023, highest - 52 - log2_scale)


def evaluation_error(circuit: Circuit, reach: Array) -> Array:
    """A bound on the float64 error of the circuit at |z| <= reach (n, d), per logit, (n, K)."""
    y = reach @ np.abs(circuit.W).T + np.abs(circuit.t)
    terms = circuit.sizes(y) @ np.abs(circuit.V).T + np.abs(circuit.c)
    if circuit.U is not None:
        terms += reach @ np.abs(circuit.U).T
    count = circuit.degree * circuit.features + circuit.units + 8 * circuit.degree
    out: Array = count * UNIT / (1 - count * UNIT) * terms
    return out


def slot_noise(ring: int) -> float:
    """The deviation (the root of the variance proxy) of a freshly encrypted slot, in units of 1/scale.

    A slot's real part sums N coefficients with cosine weights of mean square 1/2.
    """
    return math.sqrt((BINOMIAL + DITHER) * ring / 2)


def deciding(logits: Array) -> Pair:
    """Indices of the largest and second largest logit, each (n,); for K = 1 both are zero."""
    if logits.shape[1] == 1:
        zero = np.zeros(len(logits), dtype=np.intp)
        return zero, zero
    first = np.argmax(logits, axis=1)
    rest = logits.copy()
    rest[np.arange(len(rest)), first] = -np.inf
    return first, np.argmax(rest, axis=1)


def between(logits: Array, pair: Pair) -> Array:
    """The difference of two logits of each row, (n,); for K = 1 the one logit."""
    rows = np.arange(len(logits))
    first, second = pair
    out: Array = logits[:, 0] if logits.shape[1] == 1 else logits[rows, first] - logits[rows, second]
    return out


def box_points(box: Array) -> Array:
    """512 points drawn uniformly from the box, which replace samples if none are given."""
    rng = np.random.default_rng(2026)
    out: Array = box[0] + rng.random((512, box.shape[1])) * (box[1] - box[0])
    return out


def differences(matrix: Array, pair: Pair) -> Array:
    """Rows of the first class minus rows of the second, (n, ...); for K = 1 the one row."""
    first, second = pair
    out: Array = matrix[first] if len(matrix) == 1 else matrix[first] - matrix[second]
    return out


def gradient_of(circuit: Circuit, X: Array, pair: Pair) -> tuple[Array, Array, Array]:
    """The gradient of the difference of two logits at each point, (n, d), its row of V, and y, both (n, m)."""
    y = (X - circuit.shift) @ circuit.W.T + circuit.t
    V = differences(circuit.V, pair)
    gradient = ((2.0 * V * y) if circuit.a is None else V * circuit.taylor(y)[1]) @ circuit.W
    if circuit.U is not None:
        gradient += differences(circuit.U, pair)
    return gradient, V, y


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """Variance of the deciding difference per unit of variance in x, in the weights of W and in those of V; each (n,).

    It guides the search for scales; no proof uses it.
    """

    x: Array
    w: Array
    v: Array

    @classmethod
    def of(cls, circuit: Circuit, X: Array) -> Sensitivity:
        """At the points X (n, d), of the difference of the two largest logits."""
        pair = deciding(circuit.logits(X))
        twice = 1.0 if circuit.outputs == 1 else 2.0
        parts: list[list[Array]] = [[], [], []]
        for start in range(0, len(X), ROWS):
            rows = slice(start, start + ROWS)
            gradient, V, y = gradient_of(circuit, X[rows], (pair[0][rows], pair[1][rows]))
            z = X[rows] - circuit.shift
            parts[0].append((gradient * gradient).sum(axis=1))
            if circuit.a is not None:  # nothing is rounded
                parts[1].append(np.zeros(len(z)))
                parts[2].append(np.zeros(len(z)))
                continue
            # Rounded weights: z_i slope_j each, and the rounding of t is one more feature of size 1.
            parts[1].append((1.0 + (z * z).sum(axis=1)) * ((2.0 * V * y) ** 2).sum(axis=1))
            parts[2].append(twice * ((y * y) ** 2).sum(axis=1))
        return cls(*(np.concatenate(part) for part in parts))


def expected_changes(margins: Array, deviation: Array | float) -> float:
    """The expected number of decisions whose difference crosses zero, for Gaussian errors."""
    from scipy.special import ndtr  # not at the top: this import takes longer than commands that do not need it

    spread = np.broadcast_to(np.asarray(deviation, dtype=np.float64), margins.shape)
    quiet = spread <= 0
    ratio = np.where(quiet, np.inf, margins / np.where(quiet, 1.0, spread))
    return float(ndtr(-ratio).sum())


def moved_by_rounding(rounded: Circuit, exact: Circuit, curves: Array) -> float:
    """A bound on how far rounding t and c moves a logit, for unit polynomials with these bounds; see `Bound`."""
    t, c = np.abs(rounded.t - exact.t), np.abs(rounded.c - exact.c)
    powers = sum(curves[i] * t**i for i in range(1, len(curves)))
    return float((np.abs(exact.V) @ powers + c).max()) * (1 + 1e-9)


def difference(rounded: Circuit, exact: Circuit) -> Circuit:
    """The circuit of the rounding error of each logit; it is a quadratic too, so the same bounds apply."""
    U: Array | None = None
    if rounded.U is not None or exact.U is not None:
        none = np.zeros((exact.outputs, exact.features))
        U = (none if rounded.U is None else rounded.U) - (none if exact.U is None else exact.U)
    return Circuit(
        W=np.vstack([rounded.W, exact.W]),
        t=np.concatenate([rounded.t, exact.t]),
        V=np.hstack([rounded.V, -exact.V]),
        U=U,
        c=rounded.c - exact.c,
        shift=exact.shift,
    )


@dataclass(frozen=True)
class ErrorForecast:
    """The error of the encrypted circuit in the deciding difference; `logit` bounds it for any single logit.

    `typical` is its root mean square over the points. `bound` holds at every calibration sample, or anywhere in the box
    if no samples were given, and `close` lists the calibration decisions that are not proved to stay. Both may be wrong
    with the probability `failure`, over keys, encryption noise and dither, for the whole calibration set. `changes` is
    the expected number of changed calibration decisions.
    """

    typical: float
    bound: float
    logit: float
    changes: float
    close: tuple[int, ...]
    source: str
    failure: float
