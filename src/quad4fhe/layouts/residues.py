"""Integers to the residues that kernels work on."""

from __future__ import annotations

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe._dyadic import BigInts


def residues(integers: BigInts, q: int) -> Array:
    """Integers of any size to centred float64 residues mod q."""
    half = q // 2
    flat = [float((int(n) + half) % q - half) for n in integers.ravel().tolist()]
    return np.array(flat).reshape(integers.shape)
