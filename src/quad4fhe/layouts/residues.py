"""Exact integer matrix products on ciphertext residues, with float64 BLAS.

`planning.exactness` proves that the products are exact; this module computes them, with numba or numpy kernels.
"""

from __future__ import annotations

from types import ModuleType
from typing import Literal

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.errors import MissingExtraError
from quad4fhe.layouts import _kernels_numpy
from quad4fhe.planning.exactness import ExactMatrix
from quad4fhe.planning.fold import BigInts

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


def multiply(matrix: ExactMatrix, operand: Array, out: Array, kernel: ModuleType) -> None:
    """out (r, n) = matrix times operand (c, n), exact integers congruent to the product mod q.

    `operand` holds centred residues; `out` is left unreduced, at most 2^53 with room for the matrix's `extra` terms.
    """
    carried: Array | None = None
    carried_rows = matrix.limbs[-1].rows
    for limb in reversed(matrix.limbs[1:]):
        product = limb.weights @ operand
        if carried is not None:
            # Rows of a higher limb are a subset of this one's; both are sorted.
            kernel.raise_limb(carried, np.searchsorted(limb.rows, carried_rows), product, matrix.q, matrix.step)
        carried, carried_rows = product, limb.rows
    np.matmul(matrix.limbs[0].weights, operand, out=out)
    if carried is not None:
        kernel.raise_limb(carried, carried_rows, out, matrix.q, matrix.step)


def residues(integers: BigInts, q: int) -> Array:
    """Integers of any size to centred float64 residues mod q."""
    half = q // 2
    flat = [float((int(n) + half) % q - half) for n in integers.ravel().tolist()]
    return np.array(flat).reshape(integers.shape)
