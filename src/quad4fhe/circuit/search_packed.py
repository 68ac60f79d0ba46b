"""The search for layout packed: two chains, and as many samples a request as are cheapest.

Decides scales from the forecast error of that layout. Where things lie is in `packing`; what counts as kept in
`target`.
"""

from __future__ import annotations

import math

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.circuit.bounds import Bound, bound
from quad4fhe.circuit.chain import Chain, chain
from quad4fhe.circuit.error import Errors
from quad4fhe.circuit.fold import Circuit, centred, fold
from quad4fhe.circuit.forecast import REFERENCE, packed_forecast
from quad4fhe.circuit.packed_noise import plain_deviation, unit_variance
from quad4fhe.circuit.packing import Packing
from quad4fhe.circuit.quantise import Scales
from quad4fhe.circuit.target import GUARD, SMALLEST_BOUND, Choice, Question, Target
from quad4fhe.errors import InputError
from quad4fhe.quadratic import QuadraticModel

# Chains of layout packed: bits of the primes that carry the value, of the one that is rescaled away after the first
# product, and of the special prime: key switching divides its noise by how much larger that is than the others.
PACKED_CHAINS: tuple[tuple[int, tuple[int, ...], int], ...] = (
    (8192, (58, 58, 40), 60),
    (16384, (58, 58, 58, 45), 60),
)


def search_packed(question: Question) -> list[Choice]:
    """The cheapest packing of layout packed for each chain, up to the first chain that keeps the decisions.

    Empty if the network does not fit, see `why_not_packed`. T y is one more plaintext product with y, so nothing has to
    be completed.
    """
    if _constant(question.model):
        return []
    circuit = fold(question.model, question.box, "skip")
    largest = bound(circuit, question.box)
    slot_bound = max(packed_slot_bound(question.model, circuit, largest.hidden) * GUARD, SMALLEST_BOUND)
    out: list[Choice] = []
    for ring, sizes, special in PACKED_CHAINS:
        made = chain(ring, sizes, special)
        packing = _cheapest(question, made)
        if packing is None:
            continue
        choice = _packed(question, circuit, largest, slot_bound, made, packing)
        if choice is not None:
            out.append(choice)
            if not choice.missed:
                break
    return out


def why_not_packed(question: Question) -> str:
    """What keeps a model, for which nothing was found, from layout packed, and what to do instead."""
    if _constant(question.model):
        return "this model answers the same for all inputs, which layout packed can't compute; take layout='batch'"
    if all(_cheapest(question, chain(*each)) is None for each in PACKED_CHAINS):
        return f"a model of {question.shape.units} units does not fit layout packed; take layout='batch'"
    largest = bound(fold(question.model, question.box, "skip"), question.box)
    return (
        f"inputs from this box make logits of up to {largest.logit:.3g}, more than the chains of layout packed hold; "
        "take a narrower box, or layout='batch'"
    )


def _constant(model: QuadraticModel) -> bool:
    """SEAL refuses a product that is zero for everyone, so layout packed needs a weight in both layers."""
    S, T, _ = centred(model)
    return not model.W1.any() or not (S.any() or T.any())


def packed_errors(scales: Scales, made: Chain) -> Errors:
    """Layout packed: y's noise comes per unit from `packed_noise`, here is its scale; and the rounding of W and V.

    W is encoded at the scale of the prime that is dropped after its product.
    """
    plain = plain_deviation(made.ring)
    return Errors(w=plain / made.primes[-1], v=plain * 2.0**-scales.v, hidden=2.0**-scales.x)


def packed_slot_bound(model: QuadraticModel, circuit: Circuit, hidden: Array) -> float:
    """Every slot of a packed reply sums one window of products of any classes: at most the largest of each unit."""
    _, T, _ = centred(model)
    units = np.abs(circuit.V).max(axis=0) * hidden**2 + np.abs(T).max(axis=0) * hidden
    return float(units.sum() + np.abs(model.c).max() + np.abs(circuit.c).max())


def _cheapest(question: Question, made: Chain) -> Packing | None:
    """As many samples a request as make the bill for all of them smallest."""
    shape, fitting = question.shape, []
    for power in range(made.slots.bit_length()):
        try:
            fitting.append(Packing(made.slots, 1 << power, shape.features, shape.units, shape.outputs))
        except InputError:
            break
    return (
        min(fitting, key=lambda p: packed_forecast(made, question.samples, p, REFERENCE).seconds) if fitting else None
    )


def _packed(
    question: Question, circuit: Circuit, largest: Bound, slot_bound: float, made: Chain, packing: Packing
) -> Choice | None:
    room = math.floor(math.log2(math.prod(made.primes[:-1])) - math.log2(2 * slot_bound))
    # Values are encoded from float64: beyond these scales there is nothing to gain, below them no precision.
    # The first product and the features themselves must not wrap either, partial sums over features included.
    reach = np.abs(question.box - circuit.shift).max(axis=0)
    sums = float((np.abs(circuit.W) @ reach + np.abs(circuit.t)).max())
    widest = math.log2(math.prod(made.primes[:-1])) - 2 - math.log2(max(sums, float(reach.max()), 1.0))
    tried = [Scales(x, 0, min(52, room - 2 * x)) for x in range(20, 53) if room - 2 * x >= 20 and x <= widest]
    if not tried:
        return None
    variance = unit_variance(question.model, packing, made).max(axis=1)
    target = Target.of(question, circuit, largest, centred(question.model)[1], variance)
    scales = min(tried, key=lambda s: float(target.at.deviation(packed_errors(s, made)).mean()))
    errors = packed_errors(scales, made)
    error, missed, _ = target.forecast(circuit, None, errors, errors)
    return Choice(
        layout="packed",
        circuit=circuit,
        bound=largest,
        slot_bound=slot_bound,
        chain=made,
        scales=scales,
        per_request=packing.samples,
        products=(1.0, 1.0, 0.0),
        error=error,
        missed=missed,
        forecast=lambda machine: packed_forecast(made, question.samples, packing, machine),
    )
