"""The arithmetic of layout lift in numba; imported only where that is installed."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import IntArray
from quad4fhe.layouts.lift import _kernels_narrow as narrow
from quad4fhe.layouts.lift import _kernels_numba as wide
from quad4fhe.layouts.lift.arithmetic import inverse_of_others, residues, switched_masks
from quad4fhe.layouts.lift.monomials import Placement
from quad4fhe.planning.chains import Chain

Words = NDArray[np.uint64]


def _kernel(q: int) -> ModuleType:
    return narrow if q < narrow.LARGEST else wide


def _negated(words: Words, q: int) -> Words:
    return np.where(words == 0, words, np.uint64(q) - words)


class Compiled:
    """Exact arithmetic on polynomials, prime by prime: in float64 below 2^50, in words above."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain

    def to_ntt(self, words: Words) -> Words:
        """Coefficients (r, primes, N) to values in SEAL's order."""
        return self._each(words, "to_ntt")

    def from_ntt(self, words: Words) -> Words:
        """Values (r, primes, N) to coefficients."""
        return self._each(words, "from_ntt")

    def _each(self, words: Words, step: str) -> Words:
        out = words.copy()
        for place, q in enumerate(self.chain.every[: words.shape[1]]):
            rows = np.ascontiguousarray(out[:, place])
            getattr(_kernel(q), step)(rows, q)
            out[:, place] = rows
        return out

    def rebased(self, made: Iterable[Words], masks: Words, secret: Words) -> Words:
        """First halves (r, primes, N) of ciphertexts (2, primes, N) with other masks: c0 + (c1 - mask) secret."""
        out = np.empty(masks.shape, dtype=np.uint64)
        for pair, mask, row in zip(made, masks, out, strict=True):
            for place, q in enumerate(self.chain.every[: len(mask)]):
                _kernel(q).rebase(pair[0, place], pair[1, place], mask[place], secret[place], q, row[place])
        return out

    def linear(self, weights: IntArray, place: Placement) -> CompiledLinear:
        """The map with these whole weights (R, J, N), ready to be applied."""
        return CompiledLinear(self, weights, place)


class CompiledLinear:
    """The server's linear map: masks are multiplied in NTT form, answers are scalar products of coefficients."""

    def __init__(self, arithmetic: Compiled, weights: IntArray, place: Placement) -> None:
        chain = arithmetic.chain
        self._chain, self._place = chain, place
        replies, inputs, ring = weights.shape
        words = arithmetic.to_ntt(residues(weights, chain.primes).reshape(-1, len(chain.primes), ring))
        readers = residues(place.readers(weights), chain.primes)
        by_prime = words.reshape(replies, inputs, len(chain.primes), ring)
        self.spans = bool((by_prime != 0).any(axis=1).all())
        self._weights: list[NDArray[Any]] = []
        self._readers: list[NDArray[Any]] = []
        for p, q in enumerate(chain.primes):
            own, reads = np.ascontiguousarray(by_prime[:, :, p]), np.ascontiguousarray(readers[:, p])
            if place.windowed:  # `answers` has the other sign there
                reads[:, : place.lead] = _negated(reads[:, : place.lead], q)
            small = q < narrow.LARGEST
            self._weights.append(narrow.prepared(own, q) if small else own)
            self._readers.append(narrow.prepared(reads, q) if small else reads)

    def masks(self, masks: Words) -> Words:
        """Second halves (J, primes, N) in NTT form to those of the replies (R, primes, N), as coefficients."""
        primes = self._chain.primes
        out = np.empty((len(self._weights[0]), len(primes), masks.shape[-1]), dtype=np.uint64)
        for p, q in enumerate(primes):
            found = _kernel(q).combine(self._weights[p], np.ascontiguousarray(masks[:, p]), q)
            _kernel(q).from_ntt(found, q)
            out[:, p] = found
        return out

    def replies(self, masks: Words, zeros: Words | None, bits: int) -> Words:
        """`masks` of second halves, plus those of encryptions of zero (R, primes, N), switched to 2^bits: (R, N)."""
        chain = self._chain
        if bits > narrow.MOST_BITS or max(chain.primes) >= narrow.LARGEST:
            return switched_masks(self, masks, zeros, chain, bits)
        out = np.zeros((len(self._weights[0]), chain.ring), dtype=np.uint64)
        for p, q in enumerate(chain.primes):
            added = None if zeros is None else np.ascontiguousarray(zeros[:, p])
            factor = inverse_of_others(chain, q)
            narrow.replies(self._weights[p], np.ascontiguousarray(masks[:, p]), added, q, factor, bits, out)
        return out

    def answers(self, used: Words) -> Words:
        """Used coefficients (primes, n) to the coefficients that are read, (places, rows, primes)."""
        place, primes = self._place, self._chain.primes
        starts = np.ascontiguousarray(place.positions[:, 0])
        out = np.empty((place.places, place.rows, len(primes)), dtype=np.uint64)
        for p, q in enumerate(primes):
            values = np.ascontiguousarray(used[p])
            if place.windowed:  # a negative power X^-k is -X^(N - k)
                values = np.concatenate([_negated(values[: place.lead], q), values[place.lead :]])
            elif place.group > 1 and place.samples > 1:  # a product wraps around with the other sign
                values = np.concatenate([values, _negated(values, q)])
            out[:, :, p] = _kernel(q).dots(self._readers[p], values, starts, q)
        return out
