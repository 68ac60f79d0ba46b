"""Uniform polynomials from a public seed: the half of a ciphertext that need not travel.

SHAKE128 of the seed, the purpose, the number of the ciphertext and the number of the prime, read as words of whole
bytes, cut to the bit length of the prime; words that are not below the prime are skipped. The argument for it treats
SHAKE128 as a random oracle, as for the seeded keys of Kyber (FIPS 203): the seed is public.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quad4fhe.errors import InputError
from quad4fhe.layouts.bits import kernels, pack, packed_bytes, unpack

Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
Purpose = Literal["request", "key"]
SEED_BYTES = 32
_SPARE = 16  # words beyond the expected number, so that a second reading is rare


def expand(seed: bytes, purpose: Purpose, count: int, primes: Sequence[int], ring: int) -> Words:
    """Residues (count, primes, N) in NTT form, even over each prime: the masks of the first `count` ciphertexts."""
    out = np.empty((count, len(primes), ring), dtype=np.uint64)
    for number in range(count):
        expand_into(out[number], seed, purpose, number, primes)
    return out


def expand_into(out: NDArray[Any], seed: bytes, purpose: Purpose, number: int, primes: Sequence[int]) -> None:
    """The mask of one ciphertext, by its number; `out` (primes, N) may have any unsigned type that is wide enough."""
    for place, q in enumerate(primes):
        name = f"quad4fhe-mask-1 {purpose} {number} {place} {q} ".encode()
        out[place] = _even(name + seed, q, out.shape[-1])


def _even(name: bytes, q: int, ring: int) -> NDArray[Any]:
    bits = q.bit_length()
    width = -(-bits // 8)
    wanted = ring + int(ring * ((1 << bits) / q - 1)) + _SPARE
    compiled = kernels()
    while True:
        stream = hashlib.shake_128(name).digest(-(-width * wanted // 8) * 8)  # whole words
        if compiled is not None:
            out = np.empty(ring, dtype=np.uint64)
            if compiled.below(stream, width, bits, q, out) == ring:
                return out
            wanted *= 2
            continue
        stream = stream[: width * wanted]
        words: NDArray[Any]
        if width in (4, 8):
            words = np.frombuffer(stream, dtype=f"<u{width}")
        else:
            padded = np.zeros((wanted, 8), dtype=np.uint8)
            padded[:, :width] = np.frombuffer(stream, dtype=np.uint8).reshape(wanted, width)
            words = padded.reshape(-1).view("<u8")
        found: NDArray[Any] = words & words.dtype.type((1 << bits) - 1)
        if int(found[:ring].max()) >= q:
            found = found[found < q]
        if found.size >= ring:
            return found[:ring]
        wanted *= 2


def seeded_bytes(primes: Sequence[int], count: int) -> int:
    """How many bytes `as_bytes` returns for `count` residues of each prime."""
    return SEED_BYTES + sum(packed_bytes(count, q.bit_length()) for q in primes)


def as_bytes(seed: bytes, words: Words, primes: tuple[int, ...]) -> Bytes:
    """A seed and residues (primes, n), each packed to the bit length of its prime."""
    parts = [seed, *(pack(row, q.bit_length()) for row, q in zip(words, primes, strict=True))]
    return np.frombuffer(b"".join(parts), dtype=np.uint8)


def from_bytes(name: str, data: Bytes, primes: tuple[int, ...], count: int) -> tuple[bytes, Words]:
    """What `as_bytes` wrote; raises InputError for a residue that is not below its prime."""
    raw = data.tobytes()
    words = np.empty((len(primes), count), dtype=np.uint64)
    start = SEED_BYTES
    for place, q in enumerate(primes):
        end = start + packed_bytes(count, q.bit_length())
        words[place] = unpack(raw[start:end], q.bit_length(), count)
        start = end
        if int(words[place].max()) >= q:
            raise InputError(f"{name} has a residue that is not below its prime {q}: it is damaged or of another plan")
    return raw[:SEED_BYTES], words
