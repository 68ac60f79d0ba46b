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
_WIDEST = 60  # bits of a prime


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
    size = 3 * -(-(flood + 1) // 24)  # bytes of a number, as whole limbs of three
    raw = np.frombuffer(secrets.token_bytes(size * count), dtype=np.uint8).reshape(size, count).astype(np.uint64)
    whole, rest = divmod(flood + 1, 8)
    raw[whole + (rest > 0) :] = 0
    if rest:
        raw[whole] &= np.uint64((1 << rest) - 1)
    three = raw[0::3] | raw[1::3] << np.uint64(8) | raw[2::3] << np.uint64(16)
    out = np.empty((len(primes), count), dtype=np.uint64)
    for place, q in enumerate(primes):
        # By Horner's rule, so that a residue and the next limb always fit a word: 40 + 24 bits, 56 + 8, or 60 + 4.
        if q.bit_length() > _WIDEST:
            raise AssertionError(f"a prime of {q.bit_length()} bits, wanted at most {_WIDEST}")
        if q.bit_length() <= 40:
            limbs, bits = three, 24
        elif q.bit_length() <= 56:
            limbs, bits = raw, 8
        else:
            limbs, bits = np.stack((raw & np.uint64(15), raw >> np.uint64(4)), axis=1).reshape(-1, count), 4
        total = np.zeros(count, dtype=np.uint64)
        for limb in limbs[::-1]:
            total = (total << np.uint64(bits) | limb) % np.uint64(q)
        out[place] = (total + np.uint64(q - pow(2, flood, q))) % np.uint64(q)
    return out
