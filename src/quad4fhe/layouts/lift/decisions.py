"""Replies that tell a decision between two classes, and of the score little more than its sign.

The server multiplies the score, still encrypted, by a fresh random factor r and adds a number below r. docs/lift.md
says what this gives away.
"""

from __future__ import annotations

import math
import secrets

import numpy as np
from numpy.typing import NDArray

from quad4fhe.layouts.lift.arithmetic import subtract
from quad4fhe.planning.chains import Chain

Words = NDArray[np.uint64]
LEAST_FACTOR = 8  # log2 of the smallest factor: with 1 allowed, the smallest of some repeats would be the score itself
SPREAD = 16  # log2 of the largest over the smallest
LARGEST_FACTOR = LEAST_FACTOR + SPREAD
_UNIFORM = 64  # bits


def draw_factor() -> int:
    """A fresh factor: its logarithm is uniform between the smallest and the largest."""
    share = secrets.randbits(_UNIFORM) / 2.0**_UNIFORM
    return min(math.floor(math.exp2(LEAST_FACTOR + SPREAD * share)), (1 << LARGEST_FACTOR) - 1)


def blinded_masks(second: Words, zeros: Words, factor: int, chain: Chain) -> Words:
    """The masks (2, primes, N) of a reply that tells a decision, for a fresh factor r.

    Row 0 of `second` is the mask of the score y, re-randomised; row 1 of `zeros` is another encryption of zero, which
    nothing else that is sent contains.
    """
    out = np.empty_like(second)
    for p, q in enumerate(chain.primes):
        out[0, p] = _times(second[0, p], factor, q)
    out[1] = subtract(zeros[1], out[0], chain.primes)
    return out


def blinded_answers(first: Words, zeros: Words, factor: int, offset: int, flood: int, chain: Chain) -> Words:
    """The answers (1, 2, primes) that belong to `blinded_masks`: offset + v with v = r y + h, and offset - v.

    h is uniform below r. The client checks the sum of the two.

    Parameters
    ----------
    first
        The score y in row 0, re-randomised and flooded, (1, 2, primes).
    zeros
        The answers of the encryptions of zero, (1, 2, primes); row 1 re-randomises offset - v.
    factor
        r, as `blinded_masks` was given it.
    offset
        What is added to both answers.
    flood
        log2 of the flooding of offset - v.
    chain
        The chain of the plan.
    """
    below = secrets.randbelow(factor)
    noise = secrets.randbits(flood + 1) - (1 << flood)
    out = np.empty_like(first)
    for p, q in enumerate(chain.primes):
        score = (int(first[0, 0, p]) * factor + below) % q
        out[0, 0, p] = (offset + score) % q
        out[0, 1, p] = (offset - score + int(zeros[0, 1, p]) + noise) % q
    return out


def _times(values: Words, factor: int, q: int) -> Words:
    """values times a factor below 2^24, modulo q below 2^61: in two halves, which fit a word."""
    modulus = np.uint64(q)
    high, low = values >> np.uint64(32), values & np.uint64(2**32 - 1)
    top = high * np.uint64(factor) % modulus  # below q
    for _ in range(4):  # times 2^32, eight bits at a time where q leaves few
        top = _shifted(top, modulus)
    out: Words = (top + low * np.uint64(factor) % modulus) % modulus
    return out


def _shifted(values: Words, modulus: np.uint64) -> Words:
    for _ in range(8):
        values = values + values
        values = np.where(values >= modulus, values - modulus, values)
    return values
