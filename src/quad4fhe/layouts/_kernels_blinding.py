"""Small numbers from random bytes, compiled: what encryptions of zero are drawn with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

BELOW = 243  # 3^5: a byte below it holds five even trits
TRITS = np.array([[byte // 3**k % 3 - 1 for k in range(5)] for byte in range(BELOW)], dtype=np.int8)


def _typed_ones(typing: Any, a: Any) -> Any:
    """The number of ones in a word."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


_ones: Any = intrinsic(_typed_ones)


@njit(nogil=True, cache=True)
def binomial(words: Any, count: Any, out: Any) -> None:
    """Differences of the ones among the lowest `count` bits of each word and those among the next `count`."""
    mask = (np.uint64(1) << np.uint64(count)) - np.uint64(1)
    for i in range(out.size):
        word = words[i]
        out[i] = np.int64(_ones(word & mask)) - np.int64(_ones((word >> np.uint64(count)) & mask))


@njit(nogil=True, cache=True)
def ternary(raw: Any, trits: Any, out: Any) -> Any:
    """Fill out (N,) with the trits of the bytes that have some; returns whether there were enough."""
    at = 0
    for byte in raw:
        if byte >= trits.shape[0]:
            continue
        for k in range(min(5, out.size - at)):
            out[at + k] = trits[byte, k]
        at += 5
        if at >= out.size:
            return True
    return False
