"""Noise that hides noise: how much of it makes a reply tell its values and nothing else, and how it is drawn.

A private reply has encryptions of zero added, under the client's public key. Their noise depends on secrets of the
server, so every coefficient that the client can read also gets a number that is even on [-2^flood, 2^flood).
docs/private_replies.md has the proofs.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
LARGEST_NOISE = 21  # of one coefficient of SEAL's noise: a difference of two counts among 21 bits
LEAST_SECURITY = 40
MOST_SECURITY = 128
_TAIL = 14.5  # deviations
_LIMB = 24  # bits; with a prime of 32 bits, 2^8 products fit a word


def blinding_deviation(ring: int, degree: int = 1) -> float:
    """The largest deviation of a coefficient that the server's own encryption of zero decrypts to.

    That is e1 s - e u. Whatever the client's s (ternary) and e (21 at most) are, the server draws u and e1 after them,
    with mean zero and variances 2/3 and 10.5. An encryption of `degree` is the sum of s^i times encryptions of degree
    1, and s^i multiplies noise by at most N^i.
    """
    one = math.sqrt(ring * (LARGEST_NOISE**2 * 2 / 3 + LARGEST_NOISE / 2))
    return one * sum(float(ring) ** i for i in range(degree))


def zero_noise(ring: int, degree: int = 1) -> float:
    """What no such coefficient exceeds, but for 2^-150: u and e1 are strictly sub-Gaussian."""
    return _TAIL * blinding_deviation(ring, degree)


def flood_bits(hidden: float, security: float, reads: int) -> int:
    """log2 of the flooding that hides noise of deviation `hidden` in `reads` coefficients but for 2^-security.

    A shift by n changes the even distribution on 2^(flood + 1) numbers by |n| / 2^(flood + 1) in total variation. What
    counts is the mean over the noise, which is at most its deviation.
    """
    return math.ceil(security - 1 + math.log2(reads * hidden))


def flood_security(hidden: float, flood: int, reads: int) -> float:
    """The security in bits that a flooding gives: the inverse of `flood_bits`."""
    return flood + 1 - math.log2(reads * hidden)


def draw_flood(flood: int, count: int, primes: Sequence[int]) -> Words:
    """Residues (primes, count) of fresh numbers, each even on [-2^flood, 2^flood)."""
    limbs = -(-(flood + 1) // _LIMB)
    raw = np.frombuffer(secrets.token_bytes(3 * limbs * count), dtype=np.uint8).reshape(limbs, count, 3)
    parts = np.zeros((limbs, count, 4), dtype=np.uint8)
    parts[:, :, :3] = raw
    words = parts.view("<u4")[:, :, 0].astype(np.uint64)
    words[-1] &= np.uint64((1 << (flood + 1 - _LIMB * (limbs - 1))) - 1)
    out = np.empty((len(primes), count), dtype=np.uint64)
    for place, q in enumerate(primes):
        total = np.full(count, q - pow(2, flood, q), dtype=np.uint64)
        for i, limb in enumerate(words):
            total += limb * np.uint64(pow(2, _LIMB * i, q))
        out[place] = total % np.uint64(q)
    return out
