"""Proves that float64 matrix products on residues are exact, and splits weights into limbs where they would not be.

The limbs follow from the actual weights, row by row, and the matrix carries the proof. `layouts.residues` multiplies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array
from quad4fhe.errors import Quad4FHEError

LARGEST_PRIME_BITS = 31  # products of two centred residues must stay below 2^62, and residues travel in 32 bits
# Integers up to 2^53 are exact in float64. One prime less is used, because centring v forms the multiple of q nearest
# to v, which may be larger than v by q/2 and must be exact too.
EXACT = 2**53 - 2**LARGEST_PRIME_BITS
# A residue is centred by a float64 quotient that may be off by a little, and a product's by its rounding error:
# |r| <= q/2 + 2^11 covers every kernel for every q < 2^31.
RESIDUE_SLACK = 2**11


class NotExactError(Quad4FHEError):
    """No split into limbs makes this product exact; the plan must take smaller scales or primes."""


def largest_prime_bits(degree: int) -> int:
    """Of a prime for polynomials of this degree: sums of degree + 1 centred residues, times another one, reach 2^62."""
    return LARGEST_PRIME_BITS if degree <= 3 else LARGEST_PRIME_BITS - 1


def residue_bound(q: int) -> int:
    """The largest |r| a centred residue can have."""
    return q // 2 + RESIDUE_SLACK


def limbs_for(columns: int, bits: int, weight_bits: int) -> int:
    """How many limbs weights of `weight_bits` need for primes of `bits`; 4 means more than 3."""
    for limbs in (1, 2, 3):
        digit = -(-weight_bits // limbs)
        largest = 2.0 ** (digit - 1 if limbs > 1 else digit)
        if (columns * largest + 2.0**digit + 2) * residue_bound(2**bits - 1) <= EXACT:
            return limbs
    return 4


def largest_weight_scale(row_sum: float, columns: int, bits: int, limbs: int) -> float:
    """The largest log2 scale at which weights with this row sum stay within `limbs` limbs of primes of `bits`.

    Weights larger than the prime are reduced modulo it, so small primes do not limit the scale at all.
    """
    if limbs_for(columns, bits, bits - 1) <= limbs:
        return 61.0 - math.log2(row_sum)
    room = math.log2(EXACT / residue_bound(2**bits - 1) - 4)
    if limbs == 1:
        return math.floor(room - math.log2(row_sum) - 0.01)
    return math.floor(2 * room - math.log2(columns) - math.log2(row_sum) - 1)


@dataclass(frozen=True, eq=False)
class Limb:
    """One float64 slice of an integer matrix: the rows it touches, and the weights there."""

    rows: NDArray[np.intp]
    weights: Array


@dataclass(frozen=True, eq=False)
class ExactMatrix:
    """An integer matrix A (r, n) for products A X mod q, exact in float64 for centred X.

    A = sum_i step^i limb_i modulo q. The lowest limb has every row; a higher one only the rows that need it. The
    product is Horner's rule with a reduction mod q between limbs, and `headroom` is the proof: the smallest, over
    rows and limbs, of log2(2^53 / largest possible |partial sum|), never negative. Every partial sum is an integer
    below 2^53, so the order of summation, blocking and fused operations of the BLAS can't change a bit.
    """

    q: int
    step: float
    limbs: tuple[Limb, ...]
    headroom: float

    @property
    def products(self) -> float:
        """How many full matrix products this costs: 1 for one limb, less than 2 where few rows need a second."""
        return sum(limb.rows.size for limb in self.limbs) / max(1, self.limbs[0].rows.size)


def exact_matrix(weights: NDArray[Any], q: int) -> ExactMatrix:
    """The matrix of one prime; see `exact_matrices`."""
    return exact_matrices(weights, (q,))[0]


def exact_matrices(weights: NDArray[Any], primes: Sequence[int], *, extra: int = 2) -> list[ExactMatrix]:
    """Cut an integer matrix (int64 or Python integers) into the fewest limbs whose products are provably exact.

    Returns one matrix per prime. `extra` counts further centred residues that are added to the same sum (a bias, a
    skip).
    """
    for q in primes:
        if not 2 < q < 2**LARGEST_PRIME_BITS:
            raise NotExactError(f"the prime {q} is not below 2^{LARGEST_PRIME_BITS}")
    least = _shortest(weights, min(primes))
    # Weights below half of the smallest prime are their own residues modulo every prime.
    shared = _Reduced(least) if weights.dtype != object and np.array_equal(least, weights) else None
    return [_split(shared or _Reduced(_shortest(weights, q)), q, extra) for q in primes]


@dataclass(frozen=True, eq=False)
class _Reduced:
    """Integer weights, their sums of absolute values by row, and the same weights in float64."""

    integers: NDArray[np.int64]

    @cached_property
    def sums(self) -> NDArray[np.int64]:
        return np.asarray(np.abs(self.integers).sum(axis=1))

    @cached_property
    def doubles(self) -> Array:
        return self.integers.astype(np.float64)


def _split(reduced: _Reduced, q: int, extra: int) -> ExactMatrix:
    weights, sums = reduced.integers, reduced.sums
    room = EXACT // residue_bound(q) - extra
    if (sums <= room).all():
        return _proved(q, 1.0, [Limb(np.arange(weights.shape[0]), reduced.doubles)], extra)
    for count in (2, 3):
        bits = -(-int(np.abs(weights).max()).bit_length() // count)
        for width in range(bits, bits + 3):
            limbs = _cut(weights, sums > room, count, 1 << width)
            try:
                return _proved(q, float(1 << width), limbs, extra)
            except NotExactError:
                continue
    raise NotExactError(f"rows of {weights.shape[1]} weights below {q} need more than three limbs")


def _shortest(weights: NDArray[Any], q: int) -> NDArray[np.int64]:
    """Each weight, or its centred residue where that is smaller."""
    if weights.dtype == object:
        flat = [((int(n) + q // 2) % q) - q // 2 if abs(int(n)) > q // 2 else int(n) for n in weights.ravel().tolist()]
        return np.array(flat, dtype=np.int64).reshape(weights.shape)
    if weights.size and max(int(weights.max()), -int(weights.min())) >= 2**62:
        raise NotExactError("a weight of 2^62 or more does not fit; the plan must take smaller scales")
    whole: NDArray[np.int64] = np.asarray(weights, dtype=np.int64)
    wide = np.abs(whole) > q // 2
    return np.where(wide, (whole + q // 2) % q - q // 2, whole) if wide.any() else whole


def _cut(weights: NDArray[np.int64], wide: NDArray[np.bool_], count: int, step: int) -> list[Limb]:
    """Balanced digits base `step`; rows that need no cut keep their whole weight in the lowest limb."""
    every = np.arange(weights.shape[0])
    limbs = []
    rest, rows = weights, every
    for place in range(count):
        if place == count - 1:
            limbs.append(Limb(rows, rest.astype(np.float64)))
            break
        quotient = (rest + step // 2) // step
        if place == 0:
            quotient = np.where(wide[:, None], quotient, 0)
        limbs.append(Limb(rows, (rest - quotient * step).astype(np.float64)))
        used = np.flatnonzero((quotient != 0).any(axis=1))
        rest, rows = quotient[used], rows[used]
    return limbs


def _proved(q: int, step: float, limbs: list[Limb], extra: int) -> ExactMatrix:
    """The matrix with its proof, or NotExactError. Sums are Python integers: the proof itself must not round."""
    bound = residue_bound(q)
    worst = 1
    for place, limb in enumerate(limbs):
        raised = int(step) if place + 1 < len(limbs) else 0
        added = extra if place == 0 else 0
        sums = np.abs(limb.weights).sum(axis=1)  # exact: fewer than 2^22 weights, each below 2^31
        widest = int(sums.max()) if sums.size else 0
        worst = max(worst, (widest + raised + added) * bound)
    if worst > EXACT:
        raise NotExactError(f"a partial sum can reach 2^{np.log2(float(worst)):.1f}, more than float64 holds exactly")
    kept = tuple(limb for place, limb in enumerate(limbs) if place == 0 or limb.rows.size)
    return ExactMatrix(q, step, kept, float(np.log2(EXACT / worst)))
