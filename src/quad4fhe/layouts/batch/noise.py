"""A proven bound on the error of logits in layout batch; `docs/error_bound.md` has the proof."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.layouts.batch.privacy import Flooding
from quad4fhe.planning.bounds import Bound
from quad4fhe.planning.fold import Circuit
from quad4fhe.planning.integers import Scales
from quad4fhe.planning.noise import ROWS, UNIT, Confidence, Pair, gradient_of, slot_noise, transform_error


@dataclass(frozen=True, eq=False)
class BatchNoise:
    """Layout batch: noise of encryption and dither on every feature, through the circuit that runs.

    With noise n on the features the reply is F(z + n), a polynomial: the linear part is sub-Gaussian in independent
    coefficients, higher powers of the noise at each unit are bounded by its own tail. `limits` are the bounds of the
    running circuit over the box, `reach` is the largest |z_i| there. `flooding` is that of private replies, whose scale
    is 2^out.
    """

    circuit: Circuit
    limits: Bound
    reach: Array
    scales: Scales
    ring: int
    confidence: Confidence
    flooding: Flooding | None = None
    out: float = 0.0

    @property
    def _flood(self) -> tuple[float, float]:
        """What private replies add to a logit: its deviation, and a bound that always holds."""
        if self.flooding is None:
            return 0.0, 0.0
        return self.flooding.deviation * 2.0**-self.out, self.flooding.hard * 2.0**-self.out

    @property
    def sigma(self) -> float:
        """The deviation of an encrypted feature."""
        return slot_noise(self.ring) * 2.0**-self.scales.x

    def deviation(self, X: Array, pair: Pair) -> Array:
        """The deviation of the difference of two logits at each point."""
        out = np.empty(len(X))
        for start in range(0, len(X), ROWS):
            rows = slice(start, start + ROWS)
            gradient, _, _ = gradient_of(self.circuit, X[rows], (pair[0][rows], pair[1][rows]))
            out[rows] = self.sigma * np.linalg.norm(gradient, axis=1)
        return np.hypot(out, math.sqrt(self._sides) * self._flood[0])

    @property
    def _sides(self) -> int:
        return 1 if self.circuit.outputs == 1 else 2

    def bound(self, X: Array, pair: Pair) -> Array:
        """A bound on the error of the difference of two logits at each point."""
        deviation, rest, drift = self._at(X, pair)
        return self._sum(deviation, rest, drift, self._sides)

    def cheap(self, X: Array) -> Array:
        """The same for each logit alone, from the norm of W."""
        circuit, out = self.circuit, np.empty((len(X), self.circuit.outputs))
        norm = float(np.linalg.norm(circuit.W, 2))
        still = 0.0 if circuit.U is None else np.linalg.norm(circuit.U, axis=1)
        size = np.abs(circuit.V).T
        for start in range(0, len(X), ROWS):
            rows = slice(start, start + ROWS)
            y = (X[rows] - circuit.shift) @ circuit.W.T + circuit.t
            around = circuit.taylor(y)
            slope = norm * np.sqrt((around[1] * around[1]) @ (circuit.V * circuit.V).T) + still
            rest = self._rest(np.abs(around)) @ size
            out[rows] = self._sum(slope * self.sigma, rest, self._lost * slope * np.linalg.norm(self.reach))
        return out * (1 + 1e-9)

    def anywhere(self) -> float:
        """A bound on the error of a logit anywhere in the box."""
        slope = self.limits.slope
        drift = self._lost * slope * float(np.linalg.norm(self.reach))
        return float(self._sum(np.array(slope * self.sigma), np.array(self._furthest), np.array(drift)))

    def slot(self) -> float:
        """A bound on what noise adds to the modulus of any slot of a reply, including its imaginary part."""
        return math.sqrt(2) * self.anywhere() + 2 * self._furthest

    @property
    def _lost(self) -> float:
        """The float64 error of the client: of x - shift, and of the transform of the encoding."""
        return transform_error(self.ring) + UNIT

    @property
    def _furthest(self) -> float:
        """A bound on what higher powers of the noise add to a logit anywhere in the box."""
        curves = self.limits.curves
        if curves is None:
            curves = self.circuit.taylor(np.zeros((1, self.circuit.units)))[:, 0]
        return float((np.abs(self.circuit.V) @ self._rest(np.abs(curves))).max())

    def _rest(self, around: Array) -> Array:
        """A bound on what higher powers of the noise add to each unit, for Taylor coefficients (p + 1, ..., m).

        Both parts of the noise stay below r, so the real part of its square stays below r^2, and every higher power
        below that of sqrt(2) r.
        """
        r = self.confidence.deviations * self.sigma * np.linalg.norm(self.circuit.W, axis=1)
        out: Array = around[2] * (r * r)
        for i in range(3, len(around)):
            out = out + around[i] * (math.sqrt(2) * r) ** i
        return out

    def _sum(self, deviation: Array, rest: Array, drift: Array, sides: int = 1) -> Array:
        """The bound of a difference of `sides` logits, including the flooding of each."""
        flood, hard = self._flood
        spread = np.hypot(deviation, math.sqrt(sides) * flood)
        out: Array = (self.confidence.deviations * spread + rest + drift + sides * hard) * (1 + 1e-6)
        return out

    def _at(self, X: Array, pair: Pair) -> tuple[Array, Array, Array]:
        circuit = self.circuit
        deviation, rest, drift = np.empty(len(X)), np.empty(len(X)), np.empty(len(X))
        for start in range(0, len(X), ROWS):
            rows = slice(start, start + ROWS)
            gradient, V, y = gradient_of(circuit, X[rows], (pair[0][rows], pair[1][rows]))
            deviation[rows] = self.sigma * np.linalg.norm(gradient, axis=1)
            rest[rows] = np.einsum("nj,nj->n", np.abs(V), self._rest(np.abs(circuit.taylor(y))))
            drift[rows] = self._lost * (np.abs(gradient) @ self.reach)
        return deviation, rest, drift


def batch_confidence(samples: int, slots: int, outputs: int, units: int) -> Confidence:
    """Per slot of every request: K - 1 rivals and K logits in two parts, and every unit's noise in two parts."""
    requests = max(1, -(-samples // slots))
    return Confidence(float(requests * slots) * (3 * outputs + 2 * units))
