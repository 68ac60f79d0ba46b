"""The arithmetic of layout lift with SEAL's functions, for systems without numba."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from quad4fhe._arrays import IntArray
from quad4fhe.he.seal import Context, words
from quad4fhe.he.seal_bytes import Words
from quad4fhe.layouts.lift.arithmetic import add, residues, subtract, switched_masks
from quad4fhe.layouts.lift.monomials import Placement


class SealArithmetic:
    """`layouts.lift.arithmetic.Arithmetic` with SEAL's functions."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def to_ntt(self, words: Words) -> Words:
        """Transform coefficients (r, primes, N) to values in SEAL's order."""
        return self._each(words, ntt=False)

    def from_ntt(self, words: Words) -> Words:
        """Transform values (r, primes, N) to coefficients."""
        return self._each(words, ntt=True)

    def _each(self, polynomials: Words, *, ntt: bool) -> Words:
        out = np.empty(polynomials.shape, dtype=np.uint64)
        for row, words_in in enumerate(polynomials):
            # SEAL rejects a ciphertext whose second half is zero or missing.
            out[row] = self._context.transformed(np.stack([words_in, np.ones_like(words_in)]), back=ntt)[0]
        return out

    def rebased(self, made: Iterable[Words], masks: Words, secret: Words) -> Words:
        """First halves (r, primes, N) of ciphertexts (2, primes, N) with other masks: c0 + (c1 - mask) secret.

        SEAL multiplies modulo all primes but the special one; if that is among them (in a public key, once per client),
        Python's integers are used.
        """
        chain = self._context.chain
        primes, own = chain.every[: masks.shape[1]], secret[: masks.shape[1]]
        pairs = np.stack(list(made))
        moved = subtract(pairs[:, 1], masks, primes)
        if len(primes) == len(chain.primes):
            plain = self._context.plaintext(own, 1.0)
            moved = np.stack([self.product(row, plain) for row in moved])
        else:
            for row, place in np.ndindex(moved.shape[:2]):
                factors = zip(moved[row, place].tolist(), own[place].tolist(), strict=True)
                moved[row, place] = [x * y % primes[place] for x, y in factors]
        return add(pairs[:, 0], moved, primes)

    def product(self, values: Words, plain: Any) -> Words:
        """Multiply values (primes, N) with a nonzero plaintext."""
        pair = np.stack([values, np.ones_like(values)])
        found: Words = words(self._context.evaluator.multiply_plain(self._context.ciphertext(pair, 1.0), plain))[0]
        return found

    def linear(self, weights: IntArray, place: Placement) -> SealLinear:
        """Prepare the linear map with these whole weights (R, J, N)."""
        return SealLinear(self, self._context, weights, place)


class SealLinear:
    """The server's linear map with SEAL's functions: products with plaintexts, and sums."""

    def __init__(self, arithmetic: SealArithmetic, context: Context, weights: IntArray, place: Placement) -> None:
        self._arithmetic, self._context, self._place = arithmetic, context, place
        replies, inputs, ring = weights.shape
        primes = context.chain.primes
        values = arithmetic.to_ntt(residues(weights, primes).reshape(-1, len(primes), ring))
        by_reply = values.reshape(replies, inputs, len(primes), ring)
        self.spans = bool((by_reply != 0).any(axis=1).all())
        # SEAL rejects a product with a zero plaintext.
        self._plains = [[context.plaintext(w, 1.0) if w.any() else None for w in row] for row in by_reply]

    def masks(self, masks: Words) -> Words:
        """Map second halves (J, primes, N) in NTT form to those of the replies (R, primes, N), as coefficients."""
        primes, out = self._context.chain.primes, []
        for row in self._plains:
            total = np.zeros(masks.shape[1:], dtype=np.uint64)
            for values, plain in zip(masks, row, strict=True):
                if plain is not None:
                    total = add(total, self._arithmetic.product(values, plain), primes)
            out.append(total)
        return self._arithmetic.from_ntt(np.stack(out))

    def replies(self, masks: Words, zeros: Words | None, bits: int) -> Words:
        """`masks` of second halves, plus those of encryptions of zero (R, primes, N), switched to 2^bits: (R, N)."""
        return switched_masks(self, masks, zeros, self._context.chain, bits)

    def answers(self, used: Words) -> Words:
        """Map the used coefficients (primes, n) to the coefficients that clients read, (places, rows, primes)."""
        place = self._place
        whole = self.masks(self._arithmetic.to_ntt(place.uncut(used).transpose(1, 0, 2)))
        read = whole[..., place.positions]  # (R, primes, places, group)
        places, primes = place.places, whole.shape[1]
        out: Words = read.transpose(2, 0, 3, 1).reshape(places, -1, primes)[:, : place.rows]
        return out
