"""The search for layout batch: every chain that fits, cheapest first, until one keeps the decisions.

Decides primes, scales and limbs together: many small primes need one limb where few large ones need two. What counts
as kept is decided in `target`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.circuit.bounds import bound
from quad4fhe.circuit.chain import RINGS, SECURE_BITS, Chain, chain, smallest_prime
from quad4fhe.circuit.error import Errors, Sensitivity, batch_errors, box_error, difference, slot_noise
from quad4fhe.circuit.exact import EXACT, LARGEST_PRIME_BITS, ExactMatrix, NotExactError, exact_matrix, residue_bound
from quad4fhe.circuit.fold import Circuit, Form, fold
from quad4fhe.circuit.forecast import REFERENCE, Forecast, Machine, batch_forecast
from quad4fhe.circuit.quantise import IntegerCircuit, Scales, quantise
from quad4fhe.circuit.target import GUARD, SMALLEST_BOUND, Choice, Question, Target
from quad4fhe.errors import InputError


def search_batch(question: Question, form: Form) -> Choice:
    """The cheapest chain for layout batch in this form that keeps the decisions, or the most precise one."""
    circuit = fold(question.model, question.box, form)
    largest = bound(circuit, question.box)
    target = Target.of(question, circuit, largest)
    reach = math.log2(2 * GUARD * max(largest.logit, SMALLEST_BOUND))
    inflate = 1.0
    nearest: Choice | None = None
    coarse: tuple[float, _Candidate, Scales] | None = None
    for candidate in sorted(_candidates(question, circuit, reach), key=lambda c: c.cost):
        scales = candidate.scales(target.at)
        if scales is None:
            continue
        errors = batch_errors(scales, candidate.ring)
        if not target.met(errors, inflate):
            size = float(target.at.deviation(errors).mean())
            if coarse is None or size < coarse[0]:
                coarse = (size, candidate, scales)
            continue
        choice, over = _checked(target, candidate, scales)
        if choice is None:
            continue
        if not choice.missed:
            return choice
        inflate = max(inflate * 1.1, over)
        if nearest is None or choice.error.bound < nearest.error.bound:
            nearest = choice
    if nearest is None and coarse is not None:
        nearest, _ = _checked(target, coarse[1], coarse[2])
    if nearest is not None:
        return nearest
    raise InputError(
        f"no secure chain up to ring {RINGS[-1]} fits: the logits can reach {largest.logit:.3g} over the box; "
        "standardise the features or narrow the box"
    )


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

    def scales(self, at: Sensitivity) -> Scales | None:
        """The integer scales of least mean variance that fill the chain."""
        noise, twelfth = slot_noise(self.ring) ** 2, 1 / 12
        x, w = np.meshgrid(np.arange(4, 54), np.arange(2, 60), indexing="ij")
        v = self.out - 2 * (x + w)
        allowed = (v >= 2) & (v <= self.v_most) & (w <= self.w_most)
        if not allowed.any():
            return None
        variance = (
            float(at.x.mean()) * noise * 4.0**-x
            + float(at.w.mean()) * twelfth * 4.0**-w
            + float(at.v.mean()) * twelfth * 4.0 ** -v.astype(np.float64)
        )
        best = int(np.argmin(np.where(allowed, variance, np.inf)))
        return Scales(int(x.flat[best]), int(w.flat[best]), int(v.flat[best]))


def _candidates(question: Question, circuit: Circuit, reach: float) -> Iterator[_Candidate]:
    """Every ring, prime size, prime count and limb count; `reach` is log2 of twice the largest logit."""
    shape = question.shape
    w_sums, v_sums = _row_sums(circuit.W), _row_sums(circuit.V)
    for ring in RINGS:
        room = SECURE_BITS[ring] - smallest_prime(ring).bit_length()
        for bits in range(18, LARGEST_PRIME_BITS + 1):
            skip = 0 if circuit.U is None else _limbs_for(shape.features, bits, bits - 1)
            for count in range(2, room // bits + 1):
                try:
                    made = chain(ring, (bits,) * count)
                except InputError:
                    continue  # too few primes of this size
                out = math.floor(math.log2(made.modulus) - reach)
                seen: set[tuple[float, float]] = set()
                for w_limbs in (1, 2):
                    for v_limbs in (1, 2):
                        most = (_most(w_sums, shape.features, bits, w_limbs), _most(v_sums, shape.units, bits, v_limbs))
                        if most in seen:
                            continue
                        seen.add(most)
                        bill = batch_forecast(shape, made, question.samples, (w_limbs, v_limbs, skip), REFERENCE)
                        yield _Candidate(ring, bits, count, out, *most, bill.seconds)


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


def _checked(target: Target, candidate: _Candidate, scales: Scales) -> tuple[Choice | None, float]:
    """The candidate with its weights rounded: proof of exactness, bound and error as they are. None if one fails.

    Where noise and rounding reach further than the guard left room for, the second weights give up a bit.
    """
    question, exact = target.question, target.circuit
    made = chain(candidate.ring, (candidate.bits,) * candidate.count)
    integers = quantise(exact, scales)
    try:
        proofs = prove(integers, made)
    except NotExactError:
        return None, 1.0
    rounded = integers.dequantised()
    moved = bound(difference(rounded, exact), question.box, rounds=1)
    errors = batch_errors(scales, candidate.ring)
    random = Errors(x=errors.x)
    # Every slot, anywhere in the box, noise and rounding included: the client refuses a reply beyond it.
    slot_bound = (target.bound.logit + box_error(rounded, target.bound, moved, random)) * (1 + 1e-6)
    if made.modulus < 2 * slot_bound * 2.0**scales.out:
        return _checked(target, candidate, replace(scales, v=scales.v - 1)) if scales.v > 2 else (None, 1.0)
    error, missed, over = target.forecast(rounded, moved, errors, random)
    shape, samples = question.shape, question.samples
    products = (
        sum(p[0].products for p in proofs) / len(proofs),
        sum(p[1].products for p in proofs) / len(proofs),
        sum(0.0 if p[2] is None else p[2].products for p in proofs) / len(proofs),
    )

    def forecast(machine: Machine) -> Forecast:
        return batch_forecast(shape, made, samples, products, machine)

    choice = Choice(
        layout="batch",
        circuit=exact,
        bound=target.bound,
        slot_bound=slot_bound,
        chain=made,
        scales=scales,
        per_request=made.slots,
        products=products,
        error=error,
        missed=missed,
        forecast=forecast,
    )
    return choice, over


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
