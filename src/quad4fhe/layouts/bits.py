"""Integers packed to their bit length: what residues and replies travel as."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quad4fhe.layouts.lift import _kernels_numba as kernels

Words = NDArray[np.uint64]


def packed_bytes(count: int, bits: int) -> int:
    """How many bytes `count` values of `bits` bits take."""
    return -(-count * bits // 8)


def pack(values: Words, bits: int) -> bytes:
    """Values below 2^bits without gaps, the first value in the lowest bits; at most 63 bits."""
    flat = np.ascontiguousarray(values, dtype=np.uint64).reshape(-1)
    words: Words = kernels.pack(flat, bits)
    return words.astype("<u8", copy=False).tobytes()[: packed_bytes(flat.size, bits)]


def unpack(data: bytes | memoryview, bits: int, count: int) -> Words:
    """What `pack` packed; `data` has exactly the bytes of `count` values."""
    padded = bytes(data) + bytes(-len(data) % 8)
    words = np.frombuffer(padded, dtype="<u8").astype(np.uint64, copy=False)
    out: Words = kernels.unpack(words, bits, count)
    return out
