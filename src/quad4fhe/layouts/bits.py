"""Integers packed to their bit length: what residues and replies travel as."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
_GROUP = 64  # so many values of b bits are b whole words


def packed_bytes(count: int, bits: int) -> int:
    """How many bytes `count` values of `bits` bits take."""
    return -(-count * bits // 8)


def pack(values: Words, bits: int) -> bytes:
    """Values below 2^bits without gaps, the first value in the lowest bits; at most 63 bits."""
    flat = np.ascontiguousarray(values, dtype=np.uint64).reshape(-1)
    compiled = kernels()
    words: Words = _pack(flat, bits) if compiled is None else compiled.pack(flat, bits)
    return words.astype("<u8", copy=False).tobytes()[: packed_bytes(flat.size, bits)]


def unpack(data: bytes | memoryview, bits: int, count: int) -> Words:
    """What `pack` packed; `data` has exactly the bytes of `count` values."""
    padded = bytes(data) + bytes(-len(data) % 8)
    words = np.frombuffer(padded, dtype="<u8").astype(np.uint64, copy=False)
    compiled = kernels()
    out: Words = _unpack(words, bits, count) if compiled is None else compiled.unpack(words, bits, count)
    return out


@cache
def kernels() -> ModuleType | None:
    """The compiled kernels, or None where numba is not installed."""
    try:
        from quad4fhe.layouts.lift import _kernels_numba
    except ImportError:
        return None
    return _kernels_numba


def _pack(flat: Words, bits: int) -> Words:
    groups = -(-flat.size // _GROUP)
    values = np.zeros((groups, _GROUP), dtype=np.uint64)
    values.reshape(-1)[: flat.size] = flat
    out = np.zeros((groups, bits), dtype=np.uint64)
    for i in range(_GROUP):
        word, low = divmod(i * bits, 64)
        out[:, word] |= values[:, i] << np.uint64(low)
        if low + bits > 64:
            out[:, word + 1] |= values[:, i] >> np.uint64(64 - low)
    return out.reshape(-1)


def _unpack(words: Words, bits: int, count: int) -> Words:
    groups = -(-count // _GROUP)
    padded = np.zeros((groups, bits), dtype=np.uint64)
    padded.reshape(-1)[: words.size] = words
    out = np.empty((groups, _GROUP), dtype=np.uint64)
    for i in range(_GROUP):
        word, low = divmod(i * bits, 64)
        out[:, i] = padded[:, word] >> np.uint64(low)
        if low + bits > 64:
            out[:, i] |= padded[:, word + 1] << np.uint64(64 - low)
    return out.reshape(-1)[:count] & np.uint64((1 << bits) - 1)
