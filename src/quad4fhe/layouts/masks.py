"""Uniform polynomials from a public seed: the half of a ciphertext that need not travel.

The seed is an AES-256 key. The stream of one ciphertext and prime is counter mode from the block (0, number of the
ciphertext, number of the prime, 0), four bytes each. It is read as words of whole bytes, cut to the bit length of
the prime; words that are not below the prime are skipped. The proof takes AES for an ideal cipher, as FrodoKEM and
Kyber-90s do for their public matrices.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from quad4fhe.errors import InputError
from quad4fhe.layouts.bits import pack, packed_bytes, unpack
from quad4fhe.layouts.lift import _kernels_numba as kernels

Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
SEED_BYTES = 32
_SPARE = 16  # words beyond the expected number, so that a second reading is rare


def expand(seed: bytes, count: int, primes: Sequence[int], ring: int) -> Words:
    """Residues (count, primes, N) in NTT form, even over each prime: the masks of the first `count` ciphertexts."""
    out = np.empty((count, len(primes), ring), dtype=np.uint64)
    expand_into(out, seed, 0, primes)
    return out


def expand_into(out: NDArray[Any], seed: bytes, first: int, primes: Sequence[int]) -> None:
    """The masks of the ciphertexts from number `first` on, into `out` (count, primes, N) of any wide enough type."""
    cipher = algorithms.AES(seed)
    for number, mask in enumerate(out, first):
        for place, q in enumerate(primes):
            _even(cipher, struct.pack(">4I", 0, number, place, 0), q, mask[place])


def _even(cipher: algorithms.AES, start: bytes, q: int, out: NDArray[Any]) -> None:
    bits = q.bit_length()
    width = -(-bits // 8)
    wanted = out.size + int(out.size * ((1 << bits) / q - 1)) + _SPARE
    while True:
        stream = Cipher(cipher, modes.CTR(start)).encryptor().update(bytes(-(-width * wanted // 8) * 8))  # whole words
        if _put_below(stream, width, bits, q, out) == out.size:
            return
        wanted *= 2


def _put_below(stream: bytes, width: int, bits: int, q: int, out: NDArray[Any]) -> int:
    """Put the words of `width` bytes, cut to `bits` bits, that are below q into `out` (n,); returns how many it got."""
    mask = (1 << bits) - 1
    if width in (4, 8) and q > 0.9 * mask:
        kind = np.dtype(f"u{width}").type
        return int(kernels.mostly_below(np.frombuffer(stream, dtype=f"<u{width}"), kind(mask), kind(q), out))
    words = np.frombuffer(stream, dtype="<u8")
    return int(kernels.below(words, 8 * width, 8 * words.size // width, np.uint64(mask), np.uint64(q), out))


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
