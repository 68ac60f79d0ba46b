"""Integer matrix products on ciphertext residues, exactly, with float64 BLAS.

Decides how a product with an ExactMatrix is carried out, which kernels run, and what counts as residues at all; that
products are exact was proved in `circuit.exact`. What the residues mean is left to `batch` and `packed`.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array
from quad4fhe.circuit.dyadic import BigInts
from quad4fhe.circuit.exact import ExactMatrix
from quad4fhe.errors import InputError, MissingExtraError
from quad4fhe.he import _kernels_numpy

KernelName = Literal["auto", "numpy", "numba"]


def check_residues(
    name: str,
    array: NDArray[Any],
    shape: tuple[int, ...],
    primes: tuple[int, ...],
    dtype: type[np.generic],
) -> None:
    """Refuse anything but canonical residues of the given shape (..., primes, N); -1 in a shape means any length."""
    fits = array.ndim == len(shape) and all(want in (-1, got) for want, got in zip(shape, array.shape, strict=True))
    if array.dtype != dtype or not fits:
        raise InputError(
            f"{name} is {array.dtype} {array.shape}, wanted {np.dtype(dtype)} {shape}: was it made with this plan?"
        )
    for place, q in enumerate(primes):
        if array.size and int(array[..., place, :].max()) >= q:
            raise InputError(f"{name} has residues that are not below the prime {q}: it is damaged or of another plan")


def kernels(name: KernelName = "auto") -> ModuleType:
    """The kernels to run: numba where it is installed, numpy otherwise; both return the same bits."""
    if name == "numpy":
        return _kernels_numpy
    try:
        from quad4fhe.he import _kernels_numba
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
