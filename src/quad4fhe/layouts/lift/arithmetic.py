"""Polynomials of residues modulo the primes of a chain: the operations of layout lift, exact, in two versions.

`Compiled` runs them in numba; where it is not installed, `SealArithmetic` of `he.seal` uses SEAL's own calls. Both
return the same words.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import IntArray
from quad4fhe.planning.chains import Chain

if TYPE_CHECKING:
    from quad4fhe.layouts.lift.monomials import Placement

Words = NDArray[np.uint64]
MOST_BITS = 60  # of a switched reply


class Arithmetic(Protocol):
    """Exact arithmetic on polynomials (..., primes, N)."""

    def to_ntt(self, words: Words) -> Words:
        """Coefficients (r, primes, N) to values in SEAL's order."""

    def from_ntt(self, words: Words) -> Words:
        """Values (r, primes, N) to coefficients."""

    def rebased(self, made: Iterable[Words], masks: Words, secret: Words) -> Words:
        """First halves (r, primes, N) of ciphertexts (2, primes, N) with other masks: c0 + (c1 - mask) secret."""

    def linear(self, weights: IntArray, place: Placement) -> Linear:
        """The map with these whole weights (R, J, N), ready to be applied."""


class Linear(Protocol):
    """The server's linear map on the two halves of a request."""

    def masks(self, masks: Words) -> Words:
        """Second halves (J, primes, N) in NTT form to those of the replies (R, primes, N), as coefficients."""

    def answers(self, used: Words) -> Words:
        """Used coefficients (primes, n) of the first halves to those that are read, (places, rows, primes)."""

    def replies(self, masks: Words, zeros: Words | None, bits: int) -> Words:
        """`masks` of second halves, plus those of encryptions of zero (R, primes, N), switched to 2^bits: (R, N)."""

    @property
    def spans(self) -> bool:
        """Whether the weights leave no value of any mask out: then a reply's second half is as even as the mask."""


def compiled(chain: Chain) -> Arithmetic | None:
    """The compiled arithmetic, or None where numba is not installed."""
    try:
        from quad4fhe.layouts.lift._compiled import Compiled
    except ImportError:
        return None
    return Compiled(chain)


def residues(integers: IntArray, primes: tuple[int, ...]) -> Words:
    """Whole numbers (..., N) to canonical residues (..., primes, N)."""
    return np.stack([np.mod(integers, np.int64(q)).astype(np.uint64) for q in primes], axis=-2)


def add(a: Words, b: Words, primes: tuple[int, ...]) -> Words:
    """Sums of residues (..., primes, N)."""
    if (kernels := _kernels()) is not None and a.ndim > 1:
        out = np.empty(a.shape, dtype=np.uint64)
        for at in np.ndindex(a.shape[:-1]):
            kernels[1].add(a[at], b[at], primes[at[-1]], out[at])
        return out
    modulus = np.array(primes, dtype=np.uint64)[:, None]
    total = a + b
    return np.where(total >= modulus, total - modulus, total)


def add_whole(a: Words, whole: IntArray, primes: tuple[int, ...]) -> Words:
    """Sums of residues (primes, n) with whole numbers (n,) below 2^62 in size."""
    if (kernels := _kernels()) is None:
        return add(a, residues(whole, primes), primes)
    out = np.empty(a.shape, dtype=np.uint64)
    for place, q in enumerate(primes):
        kernels[1].add_whole(a[place], whole, q, out[place])
    return out


def subtract(a: Words, b: Words, primes: tuple[int, ...]) -> Words:
    """Differences of residues (..., primes, N)."""
    modulus = np.array(primes, dtype=np.uint64)[:, None]
    return np.where(a >= b, a - b, a + (modulus - b))


def switched(words: Words, chain: Chain, bits: int) -> Words:
    """Residues (..., primes, n) to the numbers they stand for modulo Q, switched to the modulus 2^bits; (..., n).

    x becomes the sum over the primes of round((x_p (Q / q_p)^-1 mod q_p) 2^bits / q_p): off by half a unit at most for
    each prime.
    """
    kernels = _kernels()
    out = np.zeros((*words.shape[:-2], words.shape[-1]), dtype=np.uint64)
    for place, q in enumerate(chain.primes):
        factor = inverse_of_others(chain, q)
        values = np.ascontiguousarray(words[..., place, :])
        if kernels is None:
            out += _switch(values, q, factor, bits)
        else:
            kernels[0 if q < kernels[0].LARGEST else 1].switch(values, q, factor, bits, out)
    out &= np.uint64((1 << bits) - 1)
    return out


def switched_masks(linear: Linear, masks: Words, zeros: Words | None, chain: Chain, bits: int) -> Words:
    """`Linear.replies`, step by step."""
    found = linear.masks(masks)
    return switched(found if zeros is None else add(found, zeros, chain.primes), chain, bits)


def products_at(polynomials: Words, secret: NDArray[np.int8], positions: IntArray) -> Words:
    """Single coefficients of the products of polynomials (R, N) with a secret (N,), modulo 2^64: (R, positions)."""
    kernels = _kernels()
    if kernels is not None:
        found: Words = kernels[1].read(polynomials, secret.astype(np.int64).view(np.uint64), positions)
        return found
    ring = secret.size
    at = positions[:, None] - np.arange(ring)
    turned = np.where(at < 0, -secret[at % ring], secret[at % ring]).astype(np.int64).view(np.uint64)
    out: Words = polynomials @ turned.T
    return out


@cache
def inverse_of_others(chain: Chain, q: int) -> int:
    """(Q / q)^-1 modulo q."""
    return pow(chain.modulus // q, -1, q)


@cache
def _kernels() -> Any:
    try:
        from quad4fhe.layouts.lift import _kernels_narrow, _kernels_numba
    except ImportError:
        return None
    return _kernels_narrow, _kernels_numba


def _switch(values: Words, q: int, factor: int, bits: int) -> Words:
    """The same for one prime without compiled kernels."""
    if factor != 1:
        flat = [int(x) * factor % q for x in values.ravel().tolist()]
        values = np.array(flat, dtype=np.uint64).reshape(values.shape)
    high, left = _quotient(values, q, bits // 2, 0)
    low, _ = _quotient(left, q, bits - bits // 2, q // 2)
    return (high << np.uint64(bits - bits // 2)) + low


def _quotient(values: Words, q: int, bits: int, extra: int) -> tuple[Words, Words]:
    """Quotient and remainder of values 2^bits + extra by q, for at most 32 bits.

    The quotient in float64 is off by one at most, and what is left fits a word whatever wraps on the way.
    """
    found = np.floor(values.astype(np.float64) * (2.0**bits / q)).astype(np.uint64)
    left = ((values << np.uint64(bits)) + np.uint64(extra) - found * np.uint64(q)).astype(np.int64)
    for _ in range(2):
        over, under = left >= q, left < 0
        found = found + over.astype(np.uint64) - under.astype(np.uint64)
        left = left - np.where(over, q, 0) + np.where(under, q, 0)
    return found, left.astype(np.uint64)
