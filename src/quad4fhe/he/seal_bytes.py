"""SEAL 4.4's byte format: the headers of ciphertexts and plaintexts, and the residues of whole numbers."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array

Words = NDArray[np.uint64]

WANTED = (4, 4)  # the SEAL release whose byte layout this library knows
HEADER, PLAIN_HEADER = 113, 88
MAGIC = 0xA15E


def plain_header(parms_id: Any, count: int, scale: float) -> bytes:
    """The header that SEAL writes before the residues of a plaintext."""
    outer = struct.pack("<HBBBBHQ", MAGIC, 16, *WANTED, 0, 0, PLAIN_HEADER + 8 * count)
    inner = struct.pack("<HBBBBHQQ", MAGIC, 16, *WANTED, 0, 0, 24 + 8 * count, count)
    return outer + struct.pack("<4QQd", *parms_id, count, scale) + inner


def ciphertext_header(parms_id: Any, size: int, primes: int, ring: int, scale: float, *, ntt: bool = True) -> bytes:
    """The header that SEAL writes before the residues of a ciphertext."""
    count = size * primes * ring
    outer = struct.pack("<HBBBBHQ", MAGIC, 16, *WANTED, 0, 0, HEADER + 8 * count)
    fields = struct.pack("<4Q?QQQdQ", *parms_id, ntt, size, ring, primes, scale, 1)
    inner = struct.pack("<HBBBBHQQ", MAGIC, 16, *WANTED, 0, 0, 24 + 8 * count, count)
    return outer + fields + inner


def modulo(coefficients: Array, primes: tuple[int, ...], size: float) -> Words:
    """Reduce whole doubles (r, N), none larger than `size`, to canonical residues (r, primes, N)."""
    out = np.empty((len(coefficients), len(primes), coefficients.shape[1]), dtype=np.uint64)
    exact = size < 2.0**52
    for place, q in enumerate(primes):
        if exact and q >= 2**52:
            left = coefficients.astype(np.int64)
            out[:, place] = np.where(left < 0, left + q, left)
        elif exact:
            # The quotient may be off by one, but the difference is exact: every number here is below 2^53.
            rest = coefficients - np.floor(coefficients * (1.0 / q)) * float(q)
            rest += np.where(rest < 0, float(q), 0.0)
            rest -= np.where(rest >= q, float(q), 0.0)
            out[:, place] = rest
        elif size < 2.0**63:
            out[:, place] = np.mod(coefficients.astype(np.int64), np.int64(q))
        else:
            flat = [int(c) % q for c in coefficients.ravel().tolist()]
            out[:, place] = np.array(flat, dtype=np.uint64).reshape(coefficients.shape)
    return out
