"""The server's own encryptions of zero, which make a reply tell its answers and nothing else.

An encryption of zero under the client's public key (pk0, pk1) is (pk0 u, pk1 u + e1), with u even on {-1, 0, 1} and e1
the noise that SEAL uses: the difference of two counts among 21 bits. SEAL adds an e0 to the first half as well. Here
that half gets flooding, which hides e0 and everything else that would be added to it.

The numbers come from AES-256 in counter mode under a key that the operating system draws for each reply (in layout
batch, for each output of a reply) and that is forgotten with it, so no two replies share any of them. They blind the
weights of the server; what protects the client's data is SEAL's. docs/private_replies.md has the proof.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from quad4fhe.layouts import _kernels_blinding as kernels

Words = NDArray[np.uint64]
Small = NDArray[np.int8]
NOISE_BITS = 21  # of each of the two counts, as in SEAL


@dataclass(frozen=True, eq=False)
class PublicKey:
    """A client's public key modulo Q: pk0 (primes, N) as coefficients, pk1 (primes, N) as values in SEAL's order.

    pk1 has to be expanded from a seed: under a key with pk1 = 0 an encryption of zero hides nothing.
    """

    first: Words
    second: Words


@dataclass(frozen=True, eq=False)
class Draws:
    """What the encryptions of zero of one reply are made with: u and e1, (ciphertexts, N) each. They are used once."""

    u: Small
    noise: Small


def draw(ring: int, count: int) -> Draws:
    """Fresh numbers for `count` encryptions of zero, under a key of their own."""
    return drawn(os.urandom(32), ring, count)


def drawn(key: bytes, ring: int, count: int) -> Draws:
    """The numbers that follow from a key of 32 bytes, which only `draw` and tests may choose."""
    spare = ring // 5 + ring // 40 + 64  # bytes for one u: 13 deviations more than it takes on average
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    words = np.frombuffer(stream.update(bytes(8 * count * ring)), dtype="<u8")
    noise, u = np.empty((count, ring), dtype=np.int8), np.empty((count, ring), dtype=np.int8)
    kernels.binomial(words, NOISE_BITS, noise.reshape(-1))
    for row in u:
        while not kernels.ternary(np.frombuffer(stream.update(bytes(spare)), dtype=np.uint8), kernels.TRITS, row):
            pass
    return Draws(u, noise)
