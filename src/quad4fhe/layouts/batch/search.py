"""The search for layout batch: tries every chain that fits, cheapest first, until one keeps the decisions.

Primes, scales and limbs are chosen together: many small primes need one limb where few large ones need two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.errors import InputError
from quad4fhe.layouts.batch.costs import batch_forecast, batch_seconds
from quad4fhe.layouts.batch.decoding import judged_by_slots
from quad4fhe.layouts.batch.noise import BatchNoise, batch_confidence
from quad4fhe.layouts.batch.privacy import Flooding
from quad4fhe.layouts.flooding import LEAST_SECURITY, MOST_SECURITY, blinding_deviation, flood_bits
from quad4fhe.planning.bounds import bound, largest_scale
from quad4fhe.planning.chains import RINGS, Chain, chain, most_bits
from quad4fhe.planning.costs import REFERENCE
from quad4fhe.planning.exactness import (
    LARGEST_PRIME_BITS,
    ExactMatrix,
    NotExactError,
    exact_matrices,
    largest_prime_bits,
    largest_weight_scale,
    limbs_for,
)
from quad4fhe.planning.fold import Circuit, Form, resolution
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
_GRID = np.meshgrid(np.arange(_SMALLEST_X, 54), np.arange(2, 60), indexing="ij")  # log2 of scales of x and W


def search_batch(question: Question, form: Form, *, private: bool = False) -> Choice | None:
    """The cheapest chain in this form that keeps the decisions, or the most precise one; None if no chain fits."""
    circuit = question.folding.circuit(form)
    reach = math.log2(2 * GUARD * max(question.bound_of(circuit).logit, SMALLEST_BOUND))
    aim = _Aim.of(question, circuit)
    inflate = 1.0
    nearest: Choice | None = None
    coarse: tuple[float, _Candidate, Scales] | None = None
    for candidate in _candidates(question, circuit, reach, private):
        scales = aim.scales(candidate)
        if scales is None or not candidate.room:
            continue
        variances = aim.variances(scales, candidate)
        size = float(np.sqrt(variances.sum(axis=0)).mean())
        if not aim.met(variances, size, candidate, inflate):
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
    folding = question.folding
    largest = min(question.bound_of(folding.circuit(form)).logit for form in folding.forms)
    return (
        f"no secure chain up to ring {RINGS[-1]} fits: the logits can reach {largest:.3g} over the box; "
        "standardise the features or narrow the box"
    )


@dataclass(frozen=True, eq=False)
class _Aim:
    """The closest decisions and their sensitivities. They guide the search; no proof uses them.

    `means` are those of the sensitivities, `x_most` is log2 of the largest scale of x, `changes` the expected changes
    among unseen samples for a deviation of 1, and `allowed` how many there may be.
    """

    question: Question
    at: Sensitivity
    means: tuple[float, float, float]
    close: Indices
    margins: Array
    x_most: float
    changes: float
    allowed: float

    @classmethod
    def of(cls, question: Question, circuit: Circuit) -> _Aim:
        points = box_points(question.box) if question.points is None else question.points
        order = np.argsort(question.margins, kind="stable")
        order = order[question.certain[order]][:_FEW]
        at = Sensitivity.of(circuit, points)
        means = (float(at.x.mean()), float(at.w.mean()), float(at.v.mean()))
        changes, allowed = unseen_changes(question.margins, 1.0), allowed_unseen(question)
        x_most = largest_scale(question.reach)
        return cls(question, at, means, order, question.margins[order], x_most, changes, allowed)

    def scales(self, candidate: _Candidate) -> Scales | None:
        """The integer scales of least mean error that fill the chain; that of x is 2^x_most or less."""
        if candidate.fixed is not None:
            return candidate.fixed.scales(candidate.out, self.x_most)
        x, w = _GRID
        v = candidate.out - 2 * (x + w)
        allowed = (x <= self.x_most) & (v >= 2) & (v <= candidate.v_most) & (w <= candidate.w_most)
        if not allowed.any():
            return None
        x, w, v = x[allowed], w[allowed], v[allowed]
        noise, rounding = _slot_variance(candidate.chain.ring), (_ROUNDING_DEVIATIONS / _TAIL) ** 2 / 12
        variance = (
            np.ldexp(self.means[0] * noise, -2 * x)
            + np.ldexp(self.means[1] * rounding, -2 * w)
            + np.ldexp(self.means[2] * rounding, -2 * v)
        )
        best = int(np.argmin(variance))
        return Scales(int(x[best]), int(w[best]), int(v[best]))

    def met(self, variances: Array, size: float, candidate: _Candidate, inflate: float) -> bool:
        """Whether errors of these variances and this mean deviation should keep the decisions.

        `inflate` is what verdicts on earlier candidates added.
        """
        question = self.question
        if not self.margins.size:
            return True
        if self.changes * size > self.allowed:
            return False
        if question.precision == "strict":
            shape = question.shape
            tail = batch_confidence(question.decisions, candidate.chain.slots, shape.outputs, shape.units).deviations
            reach = inflate * (tail * np.sqrt(variances[0]) + _ROUNDING_DEVIATIONS * np.sqrt(variances[1:].sum(axis=0)))
            if question.points is None:
                return float(np.sqrt((reach**2).mean())) < float(self.margins[0])
            return bool((reach[self.close] < self.margins).all())
        every = np.sqrt(variances.sum(axis=0))
        spread = every[self.close] if question.points is not None else float(np.sqrt((every**2).mean()))
        return expected_changes(self.margins, spread) <= allowed_changes(question.margins.size)

    def variances(self, scales: Scales, candidate: _Candidate) -> Array:
        """Of noise, of rounded W and of rounded V at each point, (3, n)."""
        at, noise = self.at, _slot_variance(candidate.chain.ring)
        flood = self.question.sides * candidate.flood**2
        return np.stack([at.x * noise * 4.0**-scales.x + flood, at.w / 12 * 4.0**-scales.w, at.v / 12 * 4.0**-scales.v])


@cache
def _slot_variance(ring: int) -> float:
    return slot_noise(ring) ** 2


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
    """A chain of equal primes with the limbs its matrices may take, and its room in bits."""

    chain: Chain
    out: int
    w_most: float
    v_most: float
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


def _candidates(question: Question, circuit: Circuit, reach: float, private: bool) -> list[_Candidate]:
    """Every chain and number of limbs, the cheapest first; `reach` is log2 of twice the largest logit."""
    fixed, found, products = _Fixed.of(circuit), list[_Candidate](), list[tuple[int, int, int]]()
    limbs: dict[int, dict[tuple[float, float], tuple[int, int, int]]] = {}
    largest = largest_prime_bits(circuit.degree)
    for made in batch_chains():
        bits = made.primes[0].bit_length()
        if bits > largest:
            continue
        if bits not in limbs:
            limbs[bits] = _limbs(circuit, fixed, bits)
        out = math.floor(math.log2(made.modulus) - reach)
        flooding = _least_flooding(question, circuit, made) if private else None
        found += [_Candidate(made, out, *most, fixed, flooding) for most in limbs[bits]]
        products += limbs[bits].values()
    if not found:
        return []
    rings = np.array([each.chain.ring for each in found])
    primes = np.array([len(each.chain.primes) for each in found])
    first, second, skip = np.array(products).T
    client, server = batch_seconds(
        question.shape,
        rings,
        primes,
        question.samples,
        (first, second, skip),
        REFERENCE,
        circuit.degree,
        _hidden(circuit),
        private=private,
    )
    return [found[i] for i in np.argsort(client + server, kind="stable").tolist()]


def _limbs(circuit: Circuit, fixed: _Fixed | None, bits: int) -> dict[tuple[float, float], tuple[int, int, int]]:
    """The largest scales of W and V with the limbs of W, V and the skip that they take, for primes of `bits`.

    Limbs that allow no larger scales are left out; so are all but the first for fixed scales: more only cost more.
    """
    skip = 0 if circuit.U is None else limbs_for(circuit.features, bits, bits - 1)
    w_sum, v_sum = _row_sums(circuit.W), _row_sums(circuit.V)
    found: dict[tuple[float, float], tuple[int, int, int]] = {}
    for w_limbs in (1, 2):
        for v_limbs in (1, 2):
            most = (
                largest_weight_scale(w_sum, circuit.features, bits, w_limbs),
                largest_weight_scale(v_sum, circuit.units, bits, v_limbs),
            )
            if fixed is None:
                found.setdefault(most, (w_limbs, v_limbs, skip))
            elif fixed.w <= most[0] and fixed.v <= most[1]:
                return {most: (w_limbs, v_limbs, skip)}
    return found


@cache
def batch_chains() -> tuple[Chain, ...]:
    """Every chain of layout batch: equal primes, as large and as many as the security table and SEAL allow."""
    found: list[Chain] = []
    for ring in RINGS:
        for bits in range(18, LARGEST_PRIME_BITS + 1):
            for count in range(2, most_bits(ring) // bits + 1):
                try:
                    found.append(chain(ring, (bits,) * count))
                except InputError:
                    break  # too few primes of this size, or too many bits
    return tuple(found)


def _least_flooding(question: Question, circuit: Circuit, made: Chain) -> Flooding:
    outputs = question.shape.outputs
    bits = flood_bits(blinding_deviation(made.ring, circuit.degree), LEAST_SECURITY, outputs * made.ring)
    return Flooding(made, outputs, circuit.degree, bits)


def _free_flooding(least: Flooding, noise: BatchNoise, typical: float) -> Flooding:
    """The largest flooding that is lost in the noise a logit has anyway, and at least the least."""
    if typical == 0:  # equal second weights: no noise reaches a decision
        return least
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


def _checked(question: Question, exact: Circuit, candidate: _Candidate, scales: Scales) -> tuple[Choice | None, float]:
    """The candidate as it would run: proof of exactness, bound and verdict from its integers. None if one fails.

    Where noise and rounding reach further than the guard left room for, the second weights give up a bit.
    """
    private, made = candidate.flooding is not None, candidate.chain
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
        cost=batch_forecast(shape, made, samples, products, REFERENCE, exact.degree, hidden, private=private),
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
    """A bound on every slot of a reply anywhere in the box, including noise; clients reject a reply beyond it."""
    lost = float(evaluation_error(noise.circuit, noise.reach[None]).max())
    return max((noise.limits.logit + noise.slot() + lost) * (1 + 1e-6), _LEAST)


def prove(integers: IntegerCircuit, made: Chain) -> list[tuple[ExactMatrix, ExactMatrix, ExactMatrix | None]]:
    """W, V and the skip for each prime, with the proof that their products are exact; NotExactError if one is not."""
    first, second = exact_matrices(integers.W, made.primes), exact_matrices(integers.V, made.primes)
    skips = [None] * len(first) if integers.U is None else exact_matrices(integers.U, made.primes)
    return list(zip(first, second, skips, strict=True))
