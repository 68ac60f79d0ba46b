"""Residues modulo the primes of a chain: sums, and switching to a power of two."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import IntArray
from quad4fhe.layouts.lift import _kernels_narrow as narrow
from quad4fhe.layouts.lift import _kernels_numba as wide
from quad4fhe.planning.chains import Chain

Words = NDArray[np.uint64]
MOST_BITS = 60  # of a switched reply


def residues(integers: IntArray, primes: tuple[int, ...]) -> Words:
    """Whole numbers (..., N) to canonical residues (..., primes, N)."""
    return np.stack([np.mod(integers, np.int64(q)).astype(np.uint64) for q in primes], axis=-2)


def add(a: Words, b: Words, primes: tuple[int, ...]) -> Words:
    """Sums of residues (..., primes, N)."""
    out = np.empty(a.shape, dtype=np.uint64)
    for at in np.ndindex(a.shape[:-1]):
        wide.add(a[at], b[at], primes[at[-1]], out[at])
    return out


def add_whole(a: Words, whole: IntArray, primes: tuple[int, ...]) -> Words:
    """Sums of residues (primes, n) with whole numbers (n,) below 2^62 in size."""
    out = np.empty(a.shape, dtype=np.uint64)
    for place, q in enumerate(primes):
        wide.add_whole(a[place], whole, q, out[place])
    return out


def switched(words: Words, chain: Chain, bits: int) -> Words:
    """Residues (..., primes, n) to the numbers they stand for modulo Q, switched to the modulus 2^bits; (..., n).

    x becomes the sum over the primes of round((x_p (Q / q_p)^-1 mod q_p) 2^bits / q_p): off by half a unit at most for
    each prime.
    """
    out = np.zeros((*words.shape[:-2], words.shape[-1]), dtype=np.uint64)
    for place, q in enumerate(chain.primes):
        factor = inverse_of_others(chain, q)
        values = np.ascontiguousarray(words[..., place, :])
        (narrow if q < narrow.LARGEST else wide).switch(values, q, factor, bits, out)
    out &= np.uint64((1 << bits) - 1)
    return out


def products_at(polynomials: Words, secret: NDArray[np.int8], positions: IntArray) -> Words:
    """Single coefficients of the products of polynomials (R, N) with a secret (N,), modulo 2^64: (R, positions)."""
    out: Words = wide.read(polynomials, secret.astype(np.int64).view(np.uint64), positions)
    return out


@cache
def inverse_of_others(chain: Chain, q: int) -> int:
    """(Q / q)^-1 modulo q."""
    return pow(chain.modulus // q, -1, q)
