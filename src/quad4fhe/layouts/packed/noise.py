"""A proven bound on the noise of layout packed, and the choice of a slot for each hidden unit.

The bound covers key switching, rescaling and encoding; `docs/error_bound.md` has the proof. SEAL's key switching
multiplies digits in [0, q) with the key's noise. Their mean q/2 multiplies that noise by 1 + X + ... + X^(N-1), which
is 2 / (1 - zeta) in the slot of zeta: a hundred times the average in slot 0, and tens of times in a few other slots.
The units that matter least go there. Only the first rotations of the input happen at a small scale, where the digits
come from the client's uniform mask. All later noise is divided by a prime of 40 bits or more, so the bound uses its
worst case.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.layouts.packed.packing import Packing, split_steps
from quad4fhe.planning.bounds import Bound
from quad4fhe.planning.chains import Chain
from quad4fhe.planning.fold import Circuit
from quad4fhe.planning.integers import Scales
from quad4fhe.planning.noise import (
    BINOMIAL,
    DITHER,
    UNIT,
    Confidence,
    Indices,
    Pair,
    differences,
    transform_share,
)
from quad4fhe.polynomial import PolynomialModel

Arrays = tuple[Array, ...]

_ROWS = 2048
# |mean + rest|^2 <= 5 |mean|^2 + 1.25 |rest|^2, for the digits of a key switch.
_MEAN_SHARE, _REST_SHARE = 5.0, 1.25


@cache
def lever(ring: int) -> Array:
    """|2 / (1 - zeta)|^2 of every slot (slots,), read-only."""
    exponents = np.array([pow(3, j, 2 * ring) for j in range(ring // 2)])
    out: Array = (1.0 / np.sin(np.pi * exponents / ring / 2)) ** 2
    out.setflags(write=False)
    return out


def hidden_variance(packing: Packing, made: Chain, norms: Array) -> Array:
    """Of y at every position of a block and every sample, (block, samples), in units of 1/scale^2: a forecast.

    `norms` are the squared row norms of W at each position (block,): noise on turned inputs comes through them.
    """
    samples, ring = packing.samples, made.ring
    digits = sum((q / made.switching_prime) ** 2 for q in made.primes)
    turned = BINOMIAL * ring / 2 * digits * (ring / 12 + lever(ring) / 4) + _rounded(ring)
    baby, giant = split_steps(packing.diagonals)
    # A giant step carries the noise of its inputs along, so each unit sees one slot of every step.
    carried = np.mean([np.roll(turned, -g * baby * samples) for g in range(giant)], axis=0)
    fresh = (BINOMIAL + DITHER) * ring / 2 + (1 - 1 / baby) * carried
    gain = np.repeat(np.tile(norms / packing.blocks, packing.blocks), samples)
    variance = fresh * gain
    for turn in packing.turns()["blocks"]:
        variance = variance + np.roll(variance, -turn * samples)
    variance = variance + _rounded(ring)
    out: Array = variance.reshape(packing.width, samples)[: packing.block]
    return out


def _rounded(ring: int) -> float:
    """Of a slot whose two polynomials were divided and rounded, for a ternary key, in units of 1/scale^2."""
    return DITHER * ring / 2 * (1 + 2 * ring / 3)


def placement(model: PolynomialModel, packing: Packing, made: Chain) -> Indices:
    """The position of each unit in its block, (m,): the noisiest positions go to padding and to the weakest units."""
    weight = np.abs(model.A[1]).max(axis=0) * (1 + np.abs(model.b1)) + np.abs(model.A[0]).max(axis=0)
    noise = hidden_variance(packing, made, np.ones(packing.block)).max(axis=1)
    quietest_first = np.argsort(noise, kind="stable")
    heaviest_first = np.argsort(-weight, kind="stable")
    out = np.empty(model.units, dtype=np.intp)
    out[heaviest_first] = quietest_first[: model.units]
    return out


def unit_variance(model: PolynomialModel, packing: Packing, made: Chain) -> Array:
    """Of y per unit and sample, (m, samples), as placed; in units of 1/scale^2."""
    positions = placement(model, packing, made)
    norms = np.zeros(packing.block)
    norms[positions] = (model.W1 * model.W1).sum(axis=1)
    return hidden_variance(packing, made, norms)[positions]


def first_weights(W: Array, packing: Packing, positions: Indices) -> Array:
    """The weights (chunks, diagonals, width) that the first product puts into the slots of one sample."""
    met, counts = packing.first_product()
    unit = np.arange(packing.width) % packing.block
    out = np.empty((packing.chunks, packing.diagonals, packing.width))
    for chunk in range(packing.chunks):
        part = W[:, chunk * packing.span : (chunk + 1) * packing.span]
        table = np.zeros((packing.block, packing.span))
        table[positions, : part.shape[1]] = part
        out[chunk] = np.where(counts, table[unit, met], 0.0)
    return out


@dataclass(frozen=True, eq=False)
class Gains:
    """How noise on input slots reaches the units: for slopes s (m,), s' G s sums squares over slots.

    `fresh` for noise of the ciphertexts themselves, `turned` for noise of each of their first rotations, `levered` the
    same with every slot's lever, each (m, m); `row` bounds what one slot of the key or of the client's mask weighs in
    all rotations together, per unit of slope squared, and `giant` is how many units it reaches.
    """

    fresh: Array
    turned: Array
    levered: Array
    row: float
    giant: int

    @classmethod
    def of(cls, W: Array, packing: Packing, positions: Indices, ring: int) -> Gains:
        """For the packed first layer W (m, d)."""
        weights = first_weights(W, packing, positions)
        baby, giant = split_steps(packing.diagonals)
        slots, block = np.arange(packing.width), packing.block
        # Of several interleaved samples, the one in the noisiest slots counts.
        heights = lever(ring).reshape(packing.width, packing.samples).max(axis=1)
        fresh = np.zeros((block, block))
        turned, levered, row = fresh.copy(), fresh.copy(), 0.0
        for chunk in weights:
            whole, here, there = np.zeros((packing.width, block)), np.zeros(packing.width), np.zeros(packing.width)
            for step in range(baby):
                part = np.zeros((packing.width, block))
                for g in range(giant):
                    # Slot p meets the input turned by g * baby + step; the noise of that turn lay at p + g * baby.
                    part[(slots + g * baby) % packing.width, slots % block] += chunk[g * baby + step]
                whole += np.roll(part, step, axis=0)
                if step:
                    turned += part.T @ part
                    levered += part.T @ (part * heights[:, None])
                    norms = (part * part).sum(axis=1)
                    here += norms  # the key's own slot
                    there += np.roll(norms, step)  # the mask's slot, which was turned
            row = max(row, float(here.max()), float(there.max()))
            fresh += whole.T @ whole
        pick = np.ix_(positions, positions)
        # The same key turns every chunk: its noise adds up over them, by Cauchy and Schwarz at most so often.
        chunks = packing.chunks
        return cls(fresh[pick], turned[pick] * chunks, levered[pick] * chunks, row * chunks, giant)


@dataclass(frozen=True, eq=False)
class PackedNoise:
    """Layout packed: all noise between the client's samples and its logits.

    `circuit` is the folded skip form (its V, t and shift), T (K, m) what y is multiplied with and `constant` (K,) what
    is added, `limits` the bounds over the box, `reach` the largest |z_i| there.
    """

    circuit: Circuit
    T: Array
    constant: Array
    limits: Bound
    reach: Array
    gains: Gains
    packing: Packing
    chain: Chain
    scales: Scales
    confidence: Confidence

    def deviation(self, X: Array, pair: Pair) -> Array:
        """The deviation of the difference of two logits at each point, without tails and worst cases."""
        return np.concatenate([self._forecast(part) for part in self._parts(X, pair)] or [np.empty(0)])

    def bound(self, X: Array, pair: Pair) -> Array:
        """A bound on the error of the difference of two logits at each point."""
        return self.bound_of(self._parts(X, pair))

    def bound_of(self, parts: Iterable[Part]) -> Array:
        """The same from the parts of the points."""
        return np.concatenate([self._bound(part) for part in parts] or [np.empty(0)])

    def cheap(self, X: Array) -> Array:
        """The same for each logit alone, from norms."""
        V, T, out = self.circuit.V, self.T, np.empty((len(X), self.circuit.outputs))
        gains = self.gains
        norms = [float(np.linalg.norm(G, 2)) for G in (gains.fresh, gains.turned, gains.levered)]
        for start in range(0, len(X), _ROWS):
            rows = slice(start, start + _ROWS)
            z, y = self._hidden(X[rows])
            squares = 4 * (y * y) @ (V * V).T + 4 * y @ (V * T).T + (T * T).sum(axis=1)
            squares = np.maximum(squares, 0.0) + 1e-12 * (4 * (y * y) @ (V * V).T + (T * T).sum(axis=1))
            for k in range(self.circuit.outputs):
                one = squares[:, k]
                fresh, raw, levered = (norm * one for norm in norms)
                own = [(one, one)]
                part = Part(fresh, raw, levered, gains.row * one, one, own, (V[None, k],), (T[None, k],), y, z)
                out[rows, k] = self._bound(part)
        return out

    def anywhere(self) -> float:
        """A bound on the error of a logit anywhere in the box; other slots of a reply may have twice as much."""
        V = np.abs(self.circuit.V).max(axis=0, keepdims=True)
        T = np.abs(self.T).max(axis=0, keepdims=True)
        y = self.limits.hidden[None]
        slope = 2 * V * y + T
        return float(self._bound(self._part(slope, (V,), (T,), y, self.reach[None], absolute=True))[0])

    def slot(self) -> float:
        """A bound on what noise adds to the modulus of any slot of a reply, including its imaginary part."""
        return 2 * math.sqrt(2) * self.anywhere()

    def _hidden(self, X: Array) -> tuple[Array, Array]:
        z = X - self.circuit.shift
        return z, z @ self.circuit.W.T + self.circuit.t

    def parts(self, X: Array, pair: Pair) -> list[Part]:
        """What the noise at the points depends on, apart from the scales."""
        return list(self._parts(X, pair))

    def _parts(self, X: Array, pair: Pair) -> Iterator[Part]:
        circuit = self.circuit
        for start in range(0, len(X), _ROWS):
            rows = slice(start, start + _ROWS)
            mine = (pair[0][rows], pair[1][rows])
            z, y = self._hidden(X[rows])
            slope = 2 * differences(circuit.V, mine) * y + differences(self.T, mine)
            classes = mine[:1] if circuit.outputs == 1 else mine
            yield self._part(slope, tuple(circuit.V[c] for c in classes), tuple(self.T[c] for c in classes), y, z)

    def _part(self, slope: Array, V: Arrays, T: Arrays, y: Array, z: Array, *, absolute: bool = False) -> Part:
        """With `absolute`, slopes and y are bounds of absolute values, so nothing may cancel."""
        gains = self.gains
        fresh, turned, levered = (
            _form(np.abs(G) if absolute else G, slope) for G in (gains.fresh, gains.turned, gains.levered)
        )
        square = (slope * slope).sum(axis=1)
        top = gains.row * np.minimum(gains.giant * (slope * slope).max(axis=1), square)
        own = [2 * v * y + w for v, w in zip(V, T, strict=True)]
        sums = [((each * each).sum(axis=1), (each * each).max(axis=1)) for each in own]
        return Part(fresh, turned, levered, top, square, sums, V, T, y, z)

    def _forecast(self, part: Part) -> Array:
        ring, x = self.chain.ring, 4.0**-self.scales.x
        fresh = (BINOMIAL + DITHER) * ring / 2 * part.fresh
        turned = self._digits * (ring / 12 * part.raw + part.levered / 4)
        rounding = _rounded(ring) * (part.raw + sum(total for total, _ in part.own))
        out: Array = np.sqrt((fresh + turned + rounding) * x + self._encoded(part))
        return out

    def _bound(self, part: Part) -> Array:
        confidence, ring = self.confidence, self.chain.ring
        t, x = confidence.deviations, 4.0**-self.scales.x
        variance = self._input_proxy(part.fresh, part.raw, part.levered, part.top)
        # The rescale and the bias: every copy of a unit has its own error. Two classes read different copies where each
        # has its windows to itself, else the same ones with slopes that may have opposite signs.
        shared = len(part.own) if self.packing.columns > 1 else 1
        for total, most in part.own:
            own = 2 * total + 2 * ring / 3 * confidence.spread(total, most)
            variance = variance + shared * DITHER * ring / 2 * own
        random = np.sqrt(variance * x + self._encoded(part)) + self._late(part.V, part.T)
        bend = sum(np.abs(v) for v in part.V) @ self._unit_deviation**2
        out: Array = (t * random + t * t * bend + self._drift(part)) * (1 + 1e-6)
        return out

    def _input_proxy(self, fresh: Array, raw: Array, levered: Array, top: Array) -> Array:
        """The variance proxy of all noise on the inputs before they meet weights, in units of 1/scale^2."""
        ring = self.chain.ring
        spread = self.confidence.spread(raw, top)
        proxy = (BINOMIAL + DITHER) * ring / 2 * fresh
        proxy = proxy + self._digits * (_REST_SHARE * ring / 12 * spread + _MEAN_SHARE / 4 * levered)
        # Both polynomials of a switched ciphertext are rounded, one of them times the key.
        out: Array = proxy + DITHER * ring / 2 * (np.sqrt(raw) + np.sqrt(2 * ring / 3 * spread)) ** 2
        return out

    @property
    def _digits(self) -> float:
        """The variance proxy of a slot after a key switch, for digits of square norm 1 in units of q."""
        digits = sum((q / self.chain.switching_prime) ** 2 for q in self.chain.primes)
        return BINOMIAL * self.chain.ring / 2 * digits

    def _encoded(self, part: Part) -> Array:
        """The variance proxy of the dithered encodings of W, V and T."""
        z, y = part.z, part.y
        first = self._met * (z * z).sum(axis=1) * part.square / float(self.chain.primes[-1]) ** 2
        second = len(part.V) * (y * y * (y * y + 1)).sum(axis=1) * 4.0**-self.scales.v
        out: Array = DITHER * self.chain.ring / 2 * (first + second)
        return out

    @property
    def _met(self) -> int:
        """How often a unit meets each feature's slot, padding included."""
        packing = self.packing
        return -(-packing.diagonals * packing.blocks // packing.span)

    @cached_property
    def _switched(self) -> float:
        """The deviation of a key switch at its worst, in units of 1/scale.

        Digits below q: |D| <= N q at every slot. After the square they depend on the noise of keys that are used again,
        so every prime counts in full, and both parts of the noise. Roundings of half a unit: N / 2, and N / 2 times
        the key.
        """
        ring = self.chain.ring
        digits = sum(q / self.chain.switching_prime for q in self.chain.primes)
        key = math.sqrt(2 * ring / 3 * float(self.confidence.spread(np.ones(1), np.ones(1))[0]))
        return ring * digits * math.sqrt(BINOMIAL * ring) + ring / 2 * (1 + key)

    @cached_property
    def _turns(self) -> dict[str, int]:
        return {stage: len(steps) for stage, steps in self.packing.turns().items()}

    @property
    def _before(self) -> float:
        """The deviation of y from rotations between the first ones and the rescale."""
        first = self._switched / float(self.chain.primes[-1]) * 2.0**-self.scales.x
        return first * (self._turns["giant"] + self._turns["blocks"] + 1) * self.packing.blocks

    def _late(self, V: Arrays, T: Arrays) -> Array:
        """The deviation from all key switches after the first rotations, with digits and roundings at their worst."""
        packing, scales, turns = self.packing, self.scales, self._turns
        square = self._switched * 4.0**-scales.x * (2 + turns["small"])
        after = self._switched * 2.0**-scales.out * (turns["large"] + turns["window"] + 1)
        after *= packing.window * packing.columns
        total = np.zeros(1)
        for v, w in zip(V, T, strict=True):
            steep = (2 * np.abs(v) * self.limits.hidden + np.abs(w)).sum(axis=1)
            total = total + steep * self._before + (np.abs(v).sum(axis=1) + np.abs(w).sum(axis=1)) * square + after
        return total

    @cached_property
    def _unit_deviation(self) -> Array:
        """The deviation of y per unit, (m,)."""
        gains, ring = self.gains, self.chain.ring
        fresh, raw, levered = (np.diag(G) for G in (gains.fresh, gains.turned, gains.levered))
        one = np.ones(len(raw))
        proxy = self._input_proxy(fresh, raw, levered, gains.row * one)
        proxy = proxy + DITHER * ring / 2 * (2 + 2 * ring / 3 * self.confidence.spread(one, one))
        plain = DITHER * ring / 2 * self._met * float(self.reach @ self.reach) / float(self.chain.primes[-1]) ** 2
        out: Array = np.sqrt(proxy * 4.0**-self.scales.x + plain) + self._before
        return out

    def _drift(self, part: Part) -> Array:
        """The float64 error of encoding samples and weights: for every plaintext, a share of its norm."""
        packing, circuit, y = self.packing, self.circuit, part.y
        copies = math.sqrt(packing.width / packing.span) * float(np.linalg.norm(self.reach))
        lost = np.sqrt(part.fresh) * copies
        z = np.linalg.norm(part.z, axis=1)
        lost = lost + float(np.linalg.norm(circuit.W)) * math.sqrt(self._met) * z * np.sqrt(part.square)
        bias = math.sqrt(packing.blocks) * float(np.linalg.norm(circuit.t))
        head, skip, constant = (float(np.linalg.norm(each)) for each in (circuit.V, self.T, self.constant))
        for total, _ in part.own:
            lost = lost + bias * np.sqrt(total) + head * np.sqrt(((y * y) ** 2).sum(axis=1))
            lost = lost + skip * np.linalg.norm(y, axis=1) + constant
        share = transform_share(self.chain.ring) + 4 * UNIT
        out: Array = share * math.sqrt(packing.samples) * lost
        return out


@dataclass(frozen=True, eq=False)
class Part:
    """What the noise of some points depends on: forms of the slopes, each (n,), and the points themselves.

    `square` is the squared norm of the slopes of the difference, `own` that of each logit with its largest entry.
    """

    fresh: Array
    raw: Array
    levered: Array
    top: Array
    square: Array
    own: list[tuple[Array, Array]]
    V: Arrays
    T: Arrays
    y: Array
    z: Array


def _form(G: Array, s: Array) -> Array:
    """s' G s for each row of s (n, m)."""
    out: Array = np.maximum(((s @ G) * s).sum(axis=1), 0.0)
    return out


def packed_confidence(samples: int, packing: Packing, made: Chain, outputs: int, units: int) -> Confidence:
    """Per slot of every request: rivals, parts of logits and of units, each with the quadratic forms it is proved by.

    The forms are one per prime for digits, one for the key in roundings of the first rotations, and two for the key in
    the rescale. Once per slot: both parts of the noise of every evaluation key, and the key itself.
    """
    requests = max(1, -(-samples // packing.samples))
    primes, keys = len(made.primes), 1 + len(packing.steps())
    return Confidence(float(requests * made.slots) * ((3 * outputs + 2 * units) * (primes + 4) + 2 * keys * primes + 1))
