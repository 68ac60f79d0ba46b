"""The search for layout packed: tries two chains, and the number of samples per request that is cheapest.

The scales follow from the layout's error forecast.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from quad4fhe.errors import InputError
from quad4fhe.layouts.packed.costs import packed_forecast
from quad4fhe.layouts.packed.noise import Gains, PackedNoise, packed_confidence, placement
from quad4fhe.layouts.packed.packing import Packing
from quad4fhe.planning.bounds import largest_scale
from quad4fhe.planning.chains import Chain, chain
from quad4fhe.planning.costs import REFERENCE
from quad4fhe.planning.integers import Scales
from quad4fhe.planning.noise import box_points, deciding, decoding_error
from quad4fhe.planning.target import GUARD, SMALLEST_BOUND, Choice, Question, verdict

# Chains of layout packed: bits of the primes that carry the value, of the one that is rescaled away after the first
# product, and of the special prime: key switching divides its noise by how much larger that is than the others.
PACKED_CHAINS: tuple[tuple[int, tuple[int, ...], int], ...] = (
    (8192, (57, 57, 40), 60),
    (16384, (58, 58, 58, 45), 60),
)


_SURE = 64.0
_FEW = 256  # points that scales are chosen by


def search_packed(question: Question) -> list[Choice]:
    """The cheapest packing of layout packed for each chain, up to the first chain that keeps the decisions.

    Empty if the network does not fit, see `why_not_packed`. T y is one more plaintext product with y, so nothing has to
    be completed.
    """
    if question.reference.a is not None or _constant(question):
        return []
    slot_bound = noiseless_bound(question)
    out: list[Choice] = []
    for ring, sizes, special in PACKED_CHAINS:
        made = chain(ring, sizes, special)
        packing = _cheapest(question, made)
        if packing is None:
            continue
        choice = _packed(question, slot_bound, made, packing)
        if choice is not None:
            out.append(choice)
            if not choice.missed:
                break
    return out


def why_not_packed(question: Question) -> str:
    """Why `search_packed` found nothing for a model, and what to do instead."""
    if question.model.degree > 2:
        degree = question.model.degree
        return f"layout packed takes models of degree 2, and this one has degree {degree}; take layout='batch'"
    if _constant(question):
        return "this model answers the same for all inputs, which layout packed can't compute; take layout='batch'"
    if all(_cheapest(question, chain(*each)) is None for each in PACKED_CHAINS):
        return f"a model of {question.shape.units} units does not fit layout packed; take layout='batch'"
    if not any(_visible(question, chain(*each), [Scales(20, 0, 52)]) for each in PACKED_CHAINS):
        return "the weights of this model are too small for layout packed; take layout='batch', or scale the features"
    return (
        f"inputs from this box make logits of up to {question.limits.logit:.3g}, more than the chains of layout packed "
        "hold; take a narrower box, or layout='batch'"
    )


def _constant(question: Question) -> bool:
    """Whether a layer has no weight: SEAL refuses a product that is always zero, so layout packed can't compute it."""
    S, T, _ = question.folding.head
    return not question.model.W1.any() or not (S.integers.any() or T.integers.any())


def packed_slot_bound(question: Question, made: Chain, packing: Packing, scales: Scales) -> float:
    """A bound on every slot of a reply, including noise, except with the failure probability of the plan."""
    noise = noises_of(question, made, packing, [scales])[0]
    return (noiseless_bound(question) + noise.slot()) * (1 + 1e-6)


def noiseless_bound(question: Question) -> float:
    """A bound without noise: a slot of a reply sums products of any classes, at most the largest of each unit."""
    _, T, c = question.folding.doubles
    hidden = question.limits.hidden
    units = np.abs(question.reference.V).max(axis=0) * hidden**2 + np.abs(T).max(axis=0) * hidden
    return float(units.sum() + np.abs(c).max()) * (1 + 1e-9)


def _visible(question: Question, made: Chain, tried: list[Scales]) -> list[Scales]:
    """The scales at which both layers keep a weight that is not rounded to zero; SEAL would refuse all zeros.

    A plaintext with a slot of size s has coefficients that sum to s at least; rounded at random, all of them become
    zero with probability e^-s at most.
    """
    _, T, _ = question.folding.doubles
    first = float(np.abs(question.model.W1).max()) * made.primes[-1]
    second = max(float(np.abs(question.reference.V).max()), float(np.abs(T).max()))
    return [scales for scales in tried if min(first, second * 2.0**scales.v) >= _SURE]


def _cheapest(question: Question, made: Chain) -> Packing | None:
    """The packing whose number of samples per request costs least for all samples."""
    shape, fitting = question.shape, []
    for power in range(made.slots.bit_length()):
        try:
            fitting.append(Packing(made.slots, 1 << power, shape.features, shape.units, shape.outputs))
        except InputError:
            break
    return (
        min(fitting, key=lambda p: packed_forecast(made, question.samples, p, REFERENCE).seconds) if fitting else None
    )


def _packed(question: Question, slot_bound: float, made: Chain, packing: Packing) -> Choice | None:
    circuit, limits = question.reference, question.limits
    room = math.floor(math.log2(math.prod(made.primes[:-1])) - math.log2(2 * max(GUARD * slot_bound, SMALLEST_BOUND)))
    # Values are encoded from float64: beyond these scales there is nothing to gain, below them no precision.
    # The first product and the features themselves must not wrap either, partial sums over features included.
    sums = float((np.abs(circuit.W) @ question.reach + np.abs(circuit.t)).max())
    widest = math.log2(math.prod(made.primes[:-1])) - 2 - math.log2(max(sums, float(question.reach.max()), 1.0))
    widest = min(widest, largest_scale(question.reach))
    tried = [Scales(x, 0, min(52, room - 2 * x)) for x in range(20, 53) if room - 2 * x >= 20 and x <= widest]
    tried = _visible(question, made, tried)
    if not tried:
        return None
    noises = noises_of(question, made, packing, tried)
    points = box_points(question.box) if question.points is None else question.points
    few = points[:: max(1, len(points) // _FEW)]
    pair = deciding(circuit.logits(few))
    parts = noises[0].parts(few, pair)  # which no scale changes
    noise = min(noises, key=lambda each: float(each.bound_of(parts).mean()))
    reached = (slot_bound + noise.slot()) * (1 + 1e-6)
    if math.prod(made.primes[:-1]) < 2 * max(reached, SMALLEST_BOUND) * 2.0**noise.scales.out:
        return None
    carried = replace(made, primes=made.primes[:-1])
    judged = verdict(question, circuit, noise, decoding_error(carried, noise.scales.out, reached))
    return Choice(
        layout="packed",
        circuit=circuit,
        bound=limits,
        slot_bound=max(reached, SMALLEST_BOUND),
        chain=made,
        scales=noise.scales,
        per_request=packing.samples,
        settings={},
        error=judged.error,
        missed=judged.missed,
        anywhere=judged.anywhere,
        forecast=lambda machine: packed_forecast(made, question.samples, packing, machine),
    )


def noises_of(question: Question, made: Chain, packing: Packing, tried: list[Scales]) -> list[PackedNoise]:
    """The noise of layout packed at each of the scales."""
    model, shape = question.model, question.shape
    positions = placement(model, packing, made)
    gains = Gains.of(model.W1, packing, positions, made.ring)
    confidence = packed_confidence(question.decisions, packing, made, shape.outputs, shape.units)
    _, T, c = question.folding.doubles
    reference, limits, reach = question.reference, question.limits, question.reach
    return [PackedNoise(reference, T, c, limits, reach, gains, packing, made, each, confidence) for each in tried]
