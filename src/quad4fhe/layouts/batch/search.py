"""The search for layout batch: tries every chain that fits, cheapest first, until one keeps the decisions.

Primes, scales and limbs are chosen together: many small primes need one limb where few large ones need two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.errors import InputError
from quad4fhe.layouts.batch.costs import batch_forecast
from quad4fhe.layouts.batch.decoding import judged_by_slots
from quad4fhe.layouts.batch.noise import BatchNoise, batch_confidence
from quad4fhe.layouts.batch.privacy import Flooding
from quad4fhe.layouts.flooding import LEAST_SECURITY, MOST_SECURITY, flood_bits, zero_noise
from quad4fhe.planning.bounds import bound, largest_scale
from quad4fhe.planning.chains import RINGS, Chain, chain, keyless_bits
from quad4fhe.planning.costs import REFERENCE, Forecast, Machine
from quad4fhe.planning.exactness import (
    EXACT,
    EXPANDED_PRIME_BITS,
    LARGEST_PRIME_BITS,
    ExactMatrix,
    NotExactError,
    exact_matrix,
    residue_bound,
)
from quad4fhe.planning.fold import Circuit, Form, fold, forms, resolution
from quad4fhe.planning.integers import IntegerCircuit, Scales, distinct_rows, quantise
from quad4fhe.planning.noise import (
    Indices,
    Sensitivity,
    box_points,
    deciding,
    evaluation_error,
    expected_changes,
    slot_noise,
)
from quad4fhe.planning.target import (
    GUARD,
    SMALLEST_BOUND,
    Choice,
    Question,
    allowed_changes,
    allowed_unseen,
    unseen_changes,
)

# Rounded weights move a margin by a known amount, checked sample by sample; while searching, so many deviations.
_ROUNDING_DEVIATIONS = 4.5
_TAIL = 9.5  # about the deviations of noise that a bound allows for
_SMALLEST_X = 4  # log2 of the scale of x
_LEAST = 2.0**-20  # a model whose logits are all equal still needs a bound above zero
_UNSEEN = 0.05  # of a logit's deviation: flooding so small that no bound changes by more than a thousandth
_FEW = 4096  # closest calibration decisions looked at while searching; all of them are in the verdict


def search_batch(question: Question, form: Form, *, private: bool = False) -> Choice | None:
    """The cheapest chain in this form that keeps the decisions, or the most precise one; None if no chain fits."""
    circuit = fold(question.model, question.box, form)
    largest = bound(circuit, question.box)
    aim = _Aim.of(question, circuit)
    reach = math.log2(2 * GUARD * max(largest.logit, SMALLEST_BOUND))
    inflate = 1.0
    nearest: Choice | None = None
    coarse: tuple[float, _Candidate, Scales] | None = None
    for candidate in sorted(_candidates(question, circuit, reach, private), key=lambda c: c.cost):
        scales = candidate.scales(aim.at, largest_scale(question.reach))
        if scales is None or not candidate.room:
            continue
        if not aim.met(scales, candidate, inflate):
            size = aim.size(scales, candidate)
            if coarse is None or size < coarse[0]:
                coarse = (size, candidate, scales)
            continue
        choice, over = _checked(question, circuit, candidate, scales)
        if choice is None:
            continue
        if not choice.missed:
            return choice
        inflate = max(inflate * 1.1, over)
        if nearest is None or choice.error.bound < nearest.error.bound:
            nearest = choice
    if nearest is None and coarse is not None:
        nearest, _ = _checked(question, circuit, coarse[1], coarse[2])
    return nearest


def why_not_batch(question: Question) -> str:
    """Why no chain fits a model, and what to do instead."""
    largest = min(bound(fold(question.model, question.box, form), question.box).logit for form in forms(question.model))
    return (
        f"no secure chain up to ring {RINGS[-1]} fits: the logits can reach {largest:.3g} over the box; "
        "standardise the features or narrow the box"
    )


@dataclass(frozen=True, eq=False)
class _Aim:
    """The closest decisions and their sensitivities: what steers the search. Nothing is proved with it."""

    question: Question
    at: Sensitivity
    close: Indices
    margins: Array

    @classmethod
    def of(cls, question: Question, circuit: Circuit) -> _Aim:
        points = box_points(question.box) if question.points is None else question.points
        order = np.argsort(question.margins, kind="stable")
        order = order[question.certain[order]][:_FEW]
        return cls(question, Sensitivity.of(circuit, points), order, question.margins[order])

    def size(self, scales: Scales, candidate: _Candidate) -> float:
        """The mean deviation."""
        return float(np.sqrt(self._variances(scales, candidate).sum(axis=0)).mean())

    def met(self, scales: Scales, candidate: _Candidate, inflate: float) -> bool:
        """Whether these scales should keep the decisions; `inflate` is what verdicts on earlier ones added."""
        question = self.question
        if not self.margins.size:
            return True
        if unseen_changes(question.margins, 1.0) * self.size(scales, candidate) > allowed_unseen(question):
            return False
        variances = self._variances(scales, candidate)
        if question.precision == "strict":
            shape = question.shape
            tail = batch_confidence(question.decisions, candidate.ring // 2, shape.outputs, shape.units).deviations
            reach = inflate * (tail * np.sqrt(variances[0]) + _ROUNDING_DEVIATIONS * np.sqrt(variances[1:].sum(axis=0)))
            if question.points is None:
                return float(np.sqrt((reach**2).mean())) < float(self.margins[0])
            return bool((reach[self.close] < self.margins).all())
        every = np.sqrt(variances.sum(axis=0))
        spread = every[self.close] if question.points is not None else float(np.sqrt((every**2).mean()))
        return expected_changes(self.margins, spread) <= allowed_changes(question.margins.size)

    def _variances(self, scales: Scales, candidate: _Candidate) -> Array:
        """Of noise, of rounded W and of rounded V at each point, (3, n)."""
        at, noise = self.at, slot_noise(candidate.ring) ** 2
        flood = self.question.sides * candidate.flood**2
        return np.stack([at.x * noise * 4.0**-scales.x + flood, at.w / 12 * 4.0**-scales.w, at.v / 12 * 4.0**-scales.v])


@dataclass(frozen=True)
class _Fixed:
    """The scales that a model of few bits brings along: of W, of V, and of the highest coefficient."""

    w: int
    v: int
    unit: int
    degree: int

    @classmethod
    def of(cls, circuit: Circuit) -> _Fixed | None:
        """None for a model that planning rounds."""
        if circuit.a is None:
            return None
        return cls(resolution(circuit.W), resolution(circuit.V), resolution(circuit.a[-1]), circuit.degree)

    def scales(self, out: int, x_most: float) -> Scales | None:
        """The largest scale of x for which the reply's stays below 2^out."""
        x = min((out - self.v - self.unit) // self.degree - self.w, math.floor(x_most))
        return Scales(x, self.w, self.v) if x >= _SMALLEST_X else None


@dataclass(frozen=True)
class _Candidate:
    """A chain of equal primes with the limbs its matrices may take, its room in bits, and its reference cost."""

    ring: int
    bits: int
    count: int
    out: int
    w_most: float
    v_most: float
    cost: float
    fixed: _Fixed | None = None
    flooding: Flooding | None = None

    @property
    def flood(self) -> float:
        """The deviation that the least flooding adds to a logit; 0 for plain replies."""
        return 0.0 if self.flooding is None else self.flooding.deviation * 2.0**-self.out

    @property
    def room(self) -> bool:
        """Whether flooding is small enough for a search: far below the largest logit."""
        return self.flood < 2.0**-10

    def scales(self, at: Sensitivity, x_most: float) -> Scales | None:
        """The integer scales of least mean error that fill the chain; that of x is 2^x_most or less."""
        if self.fixed is not None:
            return self.fixed.scales(self.out, x_most)
        noise, rounding = slot_noise(self.ring) ** 2, (_ROUNDING_DEVIATIONS / _TAIL) ** 2 / 12
        x, w = np.meshgrid(np.arange(4, 54), np.arange(2, 60), indexing="ij")
        v = self.out - 2 * (x + w)
        allowed = (x <= x_most) & (v >= 2) & (v <= self.v_most) & (w <= self.w_most)
        if not allowed.any():
            return None
        variance = (
            float(at.x.mean()) * noise * 4.0**-x
            + float(at.w.mean()) * rounding * 4.0**-w
            + float(at.v.mean()) * rounding * 4.0 ** -v.astype(np.float64)
        )
        best = int(np.argmin(np.where(allowed, variance, np.inf)))
        return Scales(int(x.flat[best]), int(w.flat[best]), int(v.flat[best]))


def _candidates(question: Question, circuit: Circuit, reach: float, private: bool) -> Iterator[_Candidate]:
    """Every ring, prime size, prime count and limb count; `reach` is log2 of twice the largest logit."""
    shape = question.shape
    w_sums, v_sums = _row_sums(circuit.W), _row_sums(circuit.V)
    fixed, hidden = _Fixed.of(circuit), _hidden(circuit)
    for made in batch_chains(private=private):
        if fixed is not None and made.primes[0].bit_length() > EXPANDED_PRIME_BITS:
            continue
        ring, bits, count = made.ring, made.primes[0].bit_length(), len(made.primes)
        skip = 0 if circuit.U is None else _limbs_for(shape.features, bits, bits - 1)
        out = math.floor(math.log2(made.modulus) - reach)
        flooding = _least_flooding(question, circuit, made) if private else None
        seen: set[tuple[float, float]] = set()
        for w_limbs in (1, 2):
            for v_limbs in (1, 2):
                most = (_most(w_sums, shape.features, bits, w_limbs), _most(v_sums, shape.units, bits, v_limbs))
                if most in seen or (fixed is not None and (fixed.w > most[0] or fixed.v > most[1])):
                    continue
                seen.add(most)
                products = (w_limbs, v_limbs, skip)
                bill = batch_forecast(
                    shape, made, question.samples, products, REFERENCE, circuit.degree, hidden, private=private
                )
                yield _Candidate(ring, bits, count, out, *most, bill.seconds, fixed, flooding)
                if fixed is not None:
                    break  # more limbs only cost more
            if fixed is not None and seen:
                break


def batch_chains(*, private: bool = False) -> Iterator[Chain]:
    """Every chain of layout batch: equal primes, as large and as many as the security table and SEAL allow.

    With private replies a public key exists modulo the special prime as well, which then counts.
    """
    for ring in RINGS:
        for bits in range(18, LARGEST_PRIME_BITS + 1):
            for count in range(2, keyless_bits(ring) // bits + 1):
                try:
                    yield batch_chain(ring, bits, count, private=private)
                except InputError:
                    break  # too few primes of this size, or too many bits


def batch_chain(ring: int, bits: int, count: int, *, private: bool) -> Chain:
    """The chain of `count` primes of `bits` bits."""
    return replace(chain(ring, (bits,) * count), keys=private)


def _least_flooding(question: Question, circuit: Circuit, made: Chain) -> Flooding:
    outputs = question.shape.outputs
    bits = flood_bits(zero_noise(made, circuit.degree), LEAST_SECURITY, outputs * made.ring)
    return Flooding(made, outputs, circuit.degree, bits)


def _free_flooding(least: Flooding, noise: BatchNoise, typical: float) -> Flooding:
    """The largest flooding that is lost in the noise a logit has anyway, and at least the least."""
    room = math.log2(typical * _UNSEEN / least.deviation) + noise.out
    most = math.floor(MOST_SECURITY - least.security)
    return replace(least, bits=least.bits + max(0, min(math.floor(room), most)))


def _hidden(circuit: Circuit) -> int | None:
    """The number of distinct rows of W above degree 2; None where no two units share one."""
    if circuit.a is None:
        return None
    count = int(distinct_rows(circuit.W)[0].size)
    return None if count == circuit.units else count


def _row_sums(matrix: Array) -> float:
    return max(float(np.abs(matrix).sum(axis=1).max()), 1e-300)


def _limbs_for(columns: int, bits: int, weight_bits: int) -> int:
    """Limbs that weights of `weight_bits` need for primes of `bits`."""
    for limbs in (1, 2, 3):
        digit = -(-weight_bits // limbs)
        largest = 2.0 ** (digit - 1 if limbs > 1 else digit)
        if (columns * largest + 2.0**digit + 2) * residue_bound(2**bits - 1) <= EXACT:
            return limbs
    return 4


def _most(row_sum: float, columns: int, bits: int, limbs: int) -> float:
    """The largest log2 scale at which weights with this row sum stay within `limbs` limbs of primes of `bits`.

    Weights beyond the prime are taken as residues, so small primes put no limit on the scale at all.
    """
    if _limbs_for(columns, bits, bits - 1) <= limbs:
        return 61.0 - math.log2(row_sum)
    room = math.log2(EXACT / residue_bound(2**bits - 1) - 4)
    if limbs == 1:
        return math.floor(room - math.log2(row_sum) - 0.01)
    return math.floor(2 * room - math.log2(columns) - math.log2(row_sum) - 1)


def _checked(question: Question, exact: Circuit, candidate: _Candidate, scales: Scales) -> tuple[Choice | None, float]:
    """The candidate as it would run: proof of exactness, bound and verdict from its integers. None if one fails.

    Where noise and rounding reach further than the guard left room for, the second weights give up a bit.
    """
    private = candidate.flooding is not None
    made = batch_chain(candidate.ring, candidate.bits, candidate.count, private=private)
    try:
        integers = quantise(exact, scales)
        proofs = prove(integers, made)
    except NotExactError:
        return None, 1.0
    shape = question.shape
    running = integers.dequantised()
    noise = noise_of(question, running, made, scales)
    if candidate.flooding is not None:
        noise = replace(noise, flooding=candidate.flooding, out=integers.out)
        noise = replace(noise, flooding=_free_flooding(candidate.flooding, noise, _typical(question, noise)))
    slot_bound = batch_slot_bound(noise)
    if made.modulus < 2 * slot_bound * 2.0**integers.out:
        if exact.a is not None and scales.x > _SMALLEST_X:
            return _checked(question, exact, candidate, replace(scales, x=scales.x - 1))
        if exact.a is not None or scales.v <= 2:
            return None, 1.0
        return _checked(question, exact, candidate, replace(scales, v=scales.v - 1))
    judged, trusted = judged_by_slots(question, running, noise, made, integers.out, slot_bound)
    samples = question.samples
    products = (
        sum(p[0].products for p in proofs) / len(proofs),
        sum(p[1].products for p in proofs) / len(proofs),
        sum(0.0 if p[2] is None else p[2].products for p in proofs) / len(proofs),
    )

    hidden = _hidden(exact)

    def forecast(machine: Machine) -> Forecast:
        return batch_forecast(shape, made, samples, products, machine, exact.degree, hidden, private=private)

    choice = Choice(
        layout="batch",
        circuit=exact,
        bound=noise.limits,
        slot_bound=slot_bound,
        chain=made,
        scales=scales,
        per_request=made.slots,
        settings=_settings(exact, integers, products, trusted, noise.flooding)
        | ({} if hidden is None else {"hidden": hidden}),
        error=judged.error,
        missed=judged.missed,
        anywhere=judged.anywhere,
        forecast=forecast,
    )
    return choice, judged.over if question.points is None else 1.0


def _settings(
    exact: Circuit,
    integers: IntegerCircuit,
    products: tuple[float, float, float],
    trusted: float | None,
    flooding: Flooding | None,
) -> dict[str, Any]:
    own: dict[str, Any] = {"form": exact.form, "products": list(products)}
    if flooding is not None:
        own |= {"replies": "private", "flood": flooding.bits, "security": flooding.security}
    if exact.a is None:
        return own
    limit = {} if trusted is None else {"trusted": trusted}
    return {**own, "degree": exact.degree, "reply": integers.out, **limit}


def _typical(question: Question, noise: BatchNoise) -> float:
    """The deviation of an average logit, without flooding."""
    points = box_points(question.box) if question.points is None else question.points[:_FEW]
    pair = deciding(noise.circuit.logits(points))
    return float(replace(noise, flooding=None).deviation(points, pair).mean())


def noise_of(question: Question, running: Circuit, made: Chain, scales: Scales) -> BatchNoise:
    """The noise of layout batch around a circuit that runs."""
    shape = question.shape
    confidence = batch_confidence(question.decisions, made.slots, shape.outputs, shape.units)
    return BatchNoise(running, bound(running, question.box), question.reach, scales, made.ring, confidence)


def batch_slot_bound(noise: BatchNoise) -> float:
    """What no slot of a reply exceeds anywhere in the box, noise included: the client refuses a reply beyond it."""
    lost = float(evaluation_error(noise.circuit, noise.reach[None]).max())
    return max((noise.limits.logit + noise.slot() + lost) * (1 + 1e-6), _LEAST)


def prove(integers: IntegerCircuit, made: Chain) -> list[tuple[ExactMatrix, ExactMatrix, ExactMatrix | None]]:
    """W, V and the skip for each prime, with the proof that their products are exact; NotExactError if one is not."""
    return [
        (
            exact_matrix(integers.W, q),
            exact_matrix(integers.V, q),
            None if integers.U is None else exact_matrix(integers.U, q),
        )
        for q in made.primes
    ]
