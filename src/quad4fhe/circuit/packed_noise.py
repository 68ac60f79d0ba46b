"""The noise of layout packed, slot by slot, and where the hidden units lie because of it.

Decides which slot each unit takes. Key switching in SEAL multiplies digits in [0, q) with the key's noise; their mean
q/2 makes that noise a product with 1 + X + ... + X^(N-1), which is 2 / (1 - zeta) in the slot of zeta: a hundred times
the average in slot 0, and still tens of times in a few others. Units that matter least are put there.
"""

from __future__ import annotations

import math

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.circuit.chain import Chain
from quad4fhe.circuit.error import COEFFICIENT_VARIANCE, Indices
from quad4fhe.circuit.packing import Packing, split_steps
from quad4fhe.quadratic import QuadraticModel


def rounding_variance(ring: int) -> float:
    """Of a slot, when both polynomials are divided by a prime and rounded, for a ternary key; in units of 1/scale^2."""
    return (1 + 2 * ring / 3) / 12 * ring / 2


def switch_variance(made: Chain, primes: int) -> Array:
    """Of each slot (slots,) after key switching a ciphertext of so many primes."""
    ring = made.ring
    digits = sum((q / made.special) ** 2 for q in made.primes[:primes])
    even = ring * COEFFICIENT_VARIANCE / 12 * digits * ring / 2
    exponents = np.array([pow(5, j, 2 * ring) for j in range(ring // 2)])
    angle = np.pi * exponents / ring
    lever = (1.0 / np.sin(angle / 2)) ** 2  # |2 / (1 - zeta)|^2
    mean = digits / 4 * lever * COEFFICIENT_VARIANCE * ring / 2
    out: Array = even + mean + rounding_variance(ring)
    return out


def hidden_variance(packing: Packing, made: Chain, norms: Array) -> Array:
    """Of y at every position of a block and every sample, (block, samples), in units of 1/scale^2.

    `norms` are the squared row norms of W at each position (block,): noise on turned inputs comes through them.
    """
    samples = packing.samples
    high = switch_variance(made, len(made.primes))
    baby, giant = split_steps(packing.diagonals)
    # A giant step carries the noise of its inputs along, so each unit sees one slot of every step.
    carried = np.mean([np.roll(high, -g * baby * samples) for g in range(giant)], axis=0)
    fresh = COEFFICIENT_VARIANCE * made.ring / 2 + (1 - 1 / baby) * carried
    gain = np.repeat(np.tile(norms / packing.blocks, packing.blocks), samples)
    variance = fresh * gain
    for turn in packing.turns()["blocks"]:
        variance = variance + np.roll(variance, -turn * samples)
    variance = variance + rounding_variance(made.ring)
    out: Array = variance.reshape(packing.width, samples)[: packing.block]
    return out


def plain_deviation(ring: int) -> float:
    """Of a slot of an encoded plaintext, in units of 1/scale: all N coefficients are rounded, whatever they hold.

    Real slots have coefficients in pairs of equal size that round alike, so nothing of the error goes to the imaginary
    part: N/12, not half of it. Vector plaintexts need a far larger scale than integers do.
    """
    return math.sqrt(ring / 12)


def placement(model: QuadraticModel, packing: Packing, made: Chain) -> Indices:
    """The position of each unit in its block, (m,): the noisiest positions go to padding and to the weakest units."""
    weight = np.abs(model.S).max(axis=0) * (1 + np.abs(model.b1)) + np.abs(model.T).max(axis=0)
    noise = hidden_variance(packing, made, np.ones(packing.block)).max(axis=1)
    quietest_first = np.argsort(noise, kind="stable")
    heaviest_first = np.argsort(-weight, kind="stable")
    out = np.empty(model.units, dtype=np.intp)
    out[heaviest_first] = quietest_first[: model.units]
    return out


def unit_variance(model: QuadraticModel, packing: Packing, made: Chain) -> Array:
    """Of y per unit and sample, (m, samples), as placed; in units of 1/scale^2."""
    positions = placement(model, packing, made)
    norms = np.zeros(packing.block)
    norms[positions] = (model.W1 * model.W1).sum(axis=1)
    return hidden_variance(packing, made, norms)[positions]
