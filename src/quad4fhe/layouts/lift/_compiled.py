"""The arithmetic of layout lift: exact, compiled by numba."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import IntArray
from quad4fhe.layouts.blinding import Draws, PublicKey
from quad4fhe.layouts.lift import _kernels_narrow as narrow
from quad4fhe.layouts.lift import _kernels_numba as wide
from quad4fhe.layouts.lift import _kernels_replies as replies
from quad4fhe.layouts.lift._kernels_replies import Blind
from quad4fhe.layouts.lift.arithmetic import inverse_of_others, residues
from quad4fhe.layouts.lift.monomials import Placement
from quad4fhe.planning.chains import Chain

Words = NDArray[np.uint64]
MOST_DOTS = 3  # answers of a reply that are scalar products


def _kernel(q: int) -> ModuleType:
    return narrow if q < narrow.LARGEST else wide


def _negated(words: Words, q: int) -> Words:
    return np.where(words == 0, words, np.uint64(q) - words)


def _to_ntt(values: NDArray[Any], q: int) -> Words:
    """Values in SEAL's order of polynomials (r, N) of whole numbers or residues."""
    words = values.copy() if values.dtype == np.uint64 else residues(values.astype(np.int64), (q,))[:, 0]
    _kernel(q).to_ntt(words, q)
    return words


def _zeros(blind: Blind, q: int) -> Words:
    """Encryptions of zero modulo one prime, (2, R, N) in NTT form."""
    u = _to_ntt(blind.u, q)[:, None]
    weights = narrow.prepared(u, q) if q < narrow.LARGEST else u
    first = _kernel(q).combine(weights, _to_ntt(blind.first[None], q), q)
    second = _kernel(q).combine(weights, blind.second[None], q)
    for row, noise in zip(second, _to_ntt(blind.noise, q), strict=True):
        wide.add(row, noise, q, row)
    return np.stack([first, second])


def add_zeros(parts: NDArray[Any], flood: Words, keys: Words, draws: Draws, primes: tuple[int, ...]) -> None:
    """Re-randomise a ciphertext (d + 1, primes, N) in NTT form in place, with flooding (primes, N) as coefficients.

    `keys` (2, primes, N) are the halves of a public key in NTT form; all primes are below 2^49.
    """
    for p, q in enumerate(primes):
        own = np.ascontiguousarray(parts[:, p])
        replies.add_zeros(own, flood[p], np.ascontiguousarray(keys[:, p]), draws.u, draws.noise, q)
        parts[:, p] = own


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
        # Answers by transforms take J transforms and one for each reply; else each takes as many products as monomials.
        self._transforms = place.places * place.group > MOST_DOTS
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

    def apply(
        self, masks: Words, used: Words, key: PublicKey | None, draws: Draws | None, bits: int
    ) -> tuple[Words, Words]:
        """A request's two halves to those of its reply: answers (places, rows, primes), second halves (R, N).

        `masks` (J, primes, N) are in NTT form, `used` (primes, n) are coefficients. Encryptions of zero under the key
        are added to both, if there is one. Second halves are switched to 2^bits; answers still need flooding.
        """
        chain, place = self._chain, self._place
        positions = np.ascontiguousarray(place.positions.reshape(-1))
        out = np.zeros((place.replies, chain.ring), dtype=np.uint64)
        reads = np.empty((place.replies, positions.size, len(chain.primes)), dtype=np.uint64)
        firsts = place.uncut(used) if self._transforms else None
        for p, q in enumerate(chain.primes):
            reads[:, :, p] = self._one(
                p,
                q,
                np.ascontiguousarray(masks[:, p]),
                None if firsts is None else firsts[p],
                None if key is None or draws is None else Blind(key.first[p], key.second[p], draws.u, draws.noise),
                positions,
                bits,
                out,
            )
        out &= np.uint64((1 << bits) - 1)
        answers = reads.reshape(place.replies, place.places, place.group, -1).transpose(1, 0, 2, 3)
        found = np.ascontiguousarray(answers.reshape(place.places, -1, len(chain.primes))[:, : place.rows])
        if not self._transforms:
            modulus = np.array(chain.primes, dtype=np.uint64)
            found = np.mod(found + self.answers(used), modulus)
        return found, out

    def _one(
        self,
        p: int,
        q: int,
        masks: Words,
        firsts: Words | None,
        blind: Blind | None,
        positions: IntArray,
        bits: int,
        out: Words,
    ) -> Words:
        """What one prime adds to the second halves, and its residues of the coefficients that are read."""
        factor = inverse_of_others(self._chain, q)
        if q < narrow.LARGEST and bits <= narrow.MOST_BITS:
            return replies.blinded(self._weights[p], masks, firsts, blind, positions, q, factor, bits, out)
        second = _kernel(q).combine(self._weights[p], masks, q)
        first = np.zeros_like(second)
        if firsts is not None:
            first = _kernel(q).combine(self._weights[p], _to_ntt(firsts, q), q)
        if blind is not None:
            for half, zeros in zip((first, second), _zeros(blind, q), strict=True):
                for row, zero in zip(half, zeros, strict=True):
                    wide.add(row, zero, q, row)
        _kernel(q).from_ntt(first, q)
        _kernel(q).from_ntt(second, q)
        _kernel(q).switch(second, q, factor, bits, out)
        read: Words = first[:, positions]
        return read

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


@cache
def exact(chain: Chain) -> Compiled:
    """The arithmetic of a chain."""
    return Compiled(chain)
