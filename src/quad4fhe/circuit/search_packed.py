"""The search for layout packed: two chains, and as many samples a request as are cheapest.

Decides scales from the forecast error of that layout. Where things lie is in `packing`; what counts as kept in
`target`.
"""

from __future__ import annotations

import math

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.circuit.bounds import bound
from quad4fhe.circuit.chain import Chain, chain
from quad4fhe.circuit.error import COEFFICIENT_VARIANCE, Errors
from quad4fhe.circuit.fold import Circuit, centred, fold
from quad4fhe.circuit.forecast import Forecast, Machine, packed_forecast
from quad4fhe.circuit.packing import Packing, split_steps
from quad4fhe.circuit.quantise import Scales
from quad4fhe.circuit.target import GUARD, Choice, Question, Target
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

    Empty if the network does not fit. T y is one more plaintext product with y, so nothing has to be completed.
    """
    circuit = fold(question.model, question.box, "skip")
    target = Target.of(question, circuit, bound(circuit, question.box), centred(question.model)[1])
    out: list[Choice] = []
    for ring, sizes, special in PACKED_CHAINS:
        made = chain(ring, sizes, special)
        choices = [_packed(target, made, 1 << i) for i in range(made.slots.bit_length())]
        fitting = [choice for choice in choices if choice is not None]
        if fitting:
            out.append(min(fitting, key=lambda choice: choice.cost.seconds))
            if not out[-1].missed:
                break
    return out


def packed_errors(packing: Packing, scales: Scales, made: Chain) -> Errors:
    """Layout packed: key switching on the turned inputs and blocks, the rescale's rounding, and V's plaintexts.

    Dividing by a prime rounds both polynomials, 1/12 (1 + 2N/3) on a coefficient for a ternary key. Key switching adds
    one noisy product for each prime q of the ciphertext before it divides by the special prime. A plaintext's
    coefficients are rounded, so its slots err by sqrt(N / 24) whatever their number: vector plaintexts need a far
    larger scale than integers do.
    """
    ring, half = made.ring, made.ring / 2
    rounding = (1 + 2 * ring / 3) / 12
    digit = ring * COEFFICIENT_VARIANCE / 12 * (max(made.primes) / made.special) ** 2
    high, low = len(made.primes), len(made.primes) - 1
    switch_high, switch_low = high * digit + rounding, low * digit + rounding
    baby, small = split_steps(packing.diagonals)[0], split_steps(packing.columns)[0]
    fresh = COEFFICIENT_VARIANCE + (1 - 1 / baby) * switch_high
    hidden = packing.blocks * rounding + (packing.blocks - 1) * switch_low + (1 - 1 / small) * switch_low / 2
    return Errors(
        x=math.sqrt(fresh * half) * 2.0**-scales.x,
        v=math.sqrt(half / 12) * 2.0**-scales.v,
        hidden=math.sqrt(hidden * half) * 2.0**-scales.x,
    )


def packed_slot_bound(model: QuadraticModel, circuit: Circuit, hidden: Array) -> float:
    """Every slot of a packed reply sums one window of products of any classes: at most the largest of each unit."""
    _, T, _ = centred(model)
    units = np.abs(circuit.V).max(axis=0) * hidden**2 + np.abs(T).max(axis=0) * hidden
    return float(units.sum() + np.abs(model.c).max() + np.abs(circuit.c).max())


def _packed(target: Target, made: Chain, per_request: int) -> Choice | None:
    question, circuit = target.question, target.circuit
    shape, samples = question.shape, question.samples
    try:
        packing = Packing(made.slots, per_request, shape.features, shape.units, shape.outputs)
    except InputError:
        return None
    slot_bound = packed_slot_bound(question.model, circuit, target.bound.hidden) * GUARD
    room = math.floor(math.log2(math.prod(made.primes[:-1])) - math.log2(2 * slot_bound))
    # Values are encoded from float64: beyond these scales there is nothing to gain, below them no precision.
    tried = [Scales(x, 0, min(52, room - 2 * x)) for x in range(20, 53) if room - 2 * x >= 20]
    if not tried:
        return None
    scales = min(tried, key=lambda s: float(target.at.deviation(packed_errors(packing, s, made)).mean()))
    errors = packed_errors(packing, scales, made)
    error, missed, _ = target.forecast(circuit, None, errors, errors)
    plains = packing.diagonals * packing.chunks + 2 * packing.columns

    def forecast(machine: Machine) -> Forecast:
        keys = len(packing.steps()) + 1
        return packed_forecast(made, samples, per_request, packing.chunks, packing.rotations(), plains, keys, machine)

    return Choice(
        layout="packed",
        circuit=circuit,
        bound=target.bound,
        slot_bound=slot_bound,
        chain=made,
        scales=scales,
        per_request=per_request,
        products=(1.0, 1.0, 0.0),
        error=error,
        missed=missed,
        forecast=forecast,
    )
