"""How far encryption can move a logit in layout lift, as a theorem; docs/lift.md has the proof, in the same letters.

The reply's coefficient is w . (m + r + e) + f + n, switched to 2^bits: noise e of SEAL and dither r of the client on
every coefficient, dithered weights w, and, where replies are private, flooding f and the noise n of an encryption of
zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.layouts.flooding import zero_noise
from quad4fhe.layouts.lift.monomials import Lift, Placement
from quad4fhe.planning.chains import Chain
from quad4fhe.planning.fold import Circuit
from quad4fhe.planning.noise import BINOMIAL, DITHER, UNIT, Confidence, Pair, evaluation_error

_CLIENT = 3.0  # evaluation errors: of M itself, of the monomials, of the products with rounded weights


@dataclass(frozen=True)
class Scales:
    """2^lift multiplies the monomials, `weights` the map; replies have `bits` bits; f is even in [-2^flood, 2^flood).

    Monomials are rounded at 2^grain, which is less than 2^lift where a coefficient would not fit a word. `flood` is
    None for plain replies.
    """

    lift: int
    grain: int
    weights: float
    bits: int
    flood: int | None

    @property
    def out(self) -> float:
        """The scale of the coefficients that are read."""
        return math.ldexp(self.weights, self.lift)


@dataclass(frozen=True, eq=False)
class Norms:
    """|V_k| of each row (rows,), and of differences of two rows (rows, rows); `size` is the number of weights of a row.

    V_k holds the weights that the noise of a request reaches the answer of row k with.
    """

    alone: Array
    between: Array
    size: int

    @classmethod
    def of(cls, weights: Array, group: int) -> Norms:
        """Of weights (rows, D), `group` rows a reply: its polynomial is dense, so each row lets in the noise of all."""
        rows, size = weights.shape
        squares = (weights * weights).sum(axis=1)
        if group > 1:
            padded = np.zeros(-(-rows // group) * group)
            padded[:rows] = squares
            squares = np.repeat(padded.reshape(-1, group).sum(axis=1), group)[:rows]
        alone = np.sqrt(squares) * (1 + 1e-9)
        between = alone[:, None] + alone[None, :]
        if group == 1:
            gram = weights @ weights.T
            slack = 4 * (size + 8) * UNIT * between**2
            apart = np.maximum(squares[:, None] + squares - 2 * gram, 0.0)
            between = np.minimum(between, np.sqrt(apart + slack))
        return cls(alone, between, size)


@dataclass(frozen=True, eq=False)
class LiftNoise:
    """Noise around the exact circuit: rounded weights are part of it, since they are rounded at random."""

    circuit: Circuit
    lift: Lift
    norms: Norms
    place: Placement
    chain: Chain
    scales: Scales
    confidence: Confidence

    @property
    def sides(self) -> int:
        """How many logits a margin lies between."""
        return 1 if self.circuit.outputs == 1 else 2

    def _variance(self, norm: Array | float, length: Array | float, sides: int) -> Array:
        """The variance proxy of a difference of `sides` logits, for |V| = norm and |z| = length."""
        scales, chain = self.scales, self.chain
        out = scales.out
        spread = math.sqrt(sides * self.norms.size * self.place.group)  # of what rounding adds to the weights
        noise = (BINOMIAL * 4.0**-scales.lift + DITHER * 4.0**-scales.grain) * (norm + spread / scales.weights) ** 2
        rounding = sides * DITHER * (np.asarray(length) / scales.weights) ** 2
        flood = 0.0 if scales.flood is None else sides * 4.0**scales.flood / 3 / out**2
        switching = len(chain.primes) * chain.ring / 12 * (sides * self._unit) ** 2
        total: Array = noise + rounding + flood + switching
        return total

    @property
    def _unit(self) -> float:
        """One unit of the switched modulus, as a logit."""
        return math.ldexp(float(self.chain.modulus), -self.scales.bits) / self.scales.out

    def _hard(self, sides: int) -> float:
        """What is bounded without a probability: rounding of the first half, noise of the encryption of zero."""
        zero = 0.0 if self.scales.flood is None else zero_noise(self.chain.ring) + 0.5
        return sides * (len(self.chain.primes) / 2 * self._unit + zero / self.scales.out)

    def deviation(self, X: Array, pair: Pair) -> Array:
        """The standard deviation of the difference of two logits at each point, about."""
        return self.deviation_at(self.lift.norms(X), pair)

    def deviation_at(self, lengths: Array, pair: Pair) -> Array:
        """The same from |z| (n,)."""
        # A dithered weight whose fraction is even in [0, 1) has the variance 1/6, not the 1/4 of the worst fraction.
        return np.sqrt(self._variance(self._pair(pair), lengths * math.sqrt(2 / 3), self.sides))

    def typical(self, length: float) -> float:
        """The deviation of an average logit at |z| = length: what scales are chosen by."""
        average = float(np.sqrt((self.norms.alone**2).mean()))
        return math.sqrt(float(self._variance(average * math.sqrt(self.sides), length * math.sqrt(2 / 3), self.sides)))

    def bound(self, X: Array, pair: Pair) -> Array:
        """What the difference of two logits moves at most at each point; for K = 1 the one logit."""
        return self.bound_at(self.lift.norms(X), evaluation_error(self.circuit, np.abs(X - self.lift.shift)), pair)

    def bound_at(self, lengths: Array, lost: Array, pair: Pair) -> Array:
        """The same from |z| (n,) and the evaluation errors (n, K) of the points."""
        variance = self._variance(self._pair(pair), lengths, self.sides)
        return self._sum(variance, self.sides, self.sides * _CLIENT * lost.max(axis=1))

    def cheap(self, X: Array) -> Array:
        """What each logit moves at most at each point, (n, K)."""
        norms, lengths = self.norms.alone[: self.circuit.outputs], self.lift.norms(X)
        # A square loses little even at the worst corner of the box; a polynomial of higher degree would there.
        reach = self.lift.reach[None] if self.circuit.a is None else np.abs(X - self.lift.shift)
        lost = _CLIENT * evaluation_error(self.circuit, reach).max(axis=1, keepdims=True)
        return self._sum(self._variance(norms[None], lengths[:, None], 1), 1, lost)

    def alone(self, X: Array) -> Array:
        """The standard deviation of each logit at each point, (n, K), about."""
        norms, lengths = self.norms.alone[: self.circuit.outputs], self.lift.norms(X) * math.sqrt(2 / 3)
        return np.sqrt(self._variance(norms[None], lengths[:, None], 1))

    def anywhere(self) -> float:
        """What a logit moves at most anywhere in the box."""
        lost = _CLIENT * float(evaluation_error(self.circuit, self.lift.reach[None]).max())
        variance = self._variance(float(self.norms.alone.max()), self.lift.largest_norm, 1)
        return float(self._sum(variance, 1, lost))

    def slot(self) -> float:
        """The same: only the answers have a meaning."""
        return self.anywhere()

    def _pair(self, pair: Pair) -> Array:
        out: Array = self.norms.alone[pair[0]] if self.sides == 1 else self.norms.between[pair]
        return out

    def _sum(self, variance: Array, sides: int, lost: Array | float) -> Array:
        out: Array = (self.confidence.deviations * np.sqrt(variance) + self._hard(sides) + lost) * (1 + 1e-6)
        return out


def lift_confidence(decisions: int, place: Placement) -> Confidence:
    """For every answer of every request: K - 1 rivals and K logits; and the sum that the client checks."""
    requests = max(1, -(-decisions // place.samples))
    return Confidence(float(requests) * place.samples * (2 * place.rows + 1))


def check_tolerance(noise: LiftNoise) -> float:
    """What the sum of all rows of an honest reply moves at most from its known value; 0 for one row, which has none."""
    return noise.place.rows * noise.anywhere() if noise.place.rows > 1 else 0.0
