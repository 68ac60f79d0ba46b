"""Residues of integers, and the kernels that work on them: compiled with numba, or in numpy."""

from __future__ import annotations

from types import ModuleType
from typing import Literal

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe._dyadic import BigInts
from quad4fhe.errors import MissingExtraError
from quad4fhe.layouts import _kernels_numpy

KernelName = Literal["auto", "numpy", "numba"]


def kernels(name: KernelName = "auto") -> ModuleType:
    """The kernels to run: numba where it is installed, numpy otherwise; both return the same bits."""
    if name == "numpy":
        return _kernels_numpy
    try:
        from quad4fhe.layouts import _kernels_numba
    except ImportError:
        if name == "numba":
            raise MissingExtraError("numba", "fast", "the compiled residue kernels") from None
        return _kernels_numpy
    return _kernels_numba


def residues(integers: BigInts, q: int) -> Array:
    """Integers of any size to centred float64 residues mod q."""
    half = q // 2
    flat = [float((int(n) + half) % q - half) for n in integers.ravel().tolist()]
    return np.array(flat).reshape(integers.shape)
