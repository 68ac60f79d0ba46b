"""Checks of arrays from outside: shape, numbers, finiteness; and their digests.

Every other module works with checked float64 arrays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quad4fhe.errors import InputError

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

CHUNK_BYTES = 4 * 2**20  # working memory of one streamed chunk; small enough to stay near the cache


class Sliceable(Protocol):
    """An array, or a source that is not in memory: anything that can be read by rows."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(samples, features)."""

    def __getitem__(self, rows: slice, /) -> Any: ...


def _numeric(name: str, value: ArrayLike) -> NDArray[Any]:
    if type(value) is not np.ndarray and np.ma.is_masked(value):  # numpy.ma is loaded only where it is needed
        raise InputError(f"{name} is a masked array with masked entries; fill or drop them first")
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InputError(f"{name} is not a rectangular array ({error})") from None
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name} has dtype {array.dtype}, wanted real numbers; convert it with .astype(float)")
    return array


def _require_finite(name: str, array: NDArray[Any], first_row: int = 0) -> None:
    bad = ~np.isfinite(array)
    if bad.any():
        where = np.argwhere(bad)[0]
        place = ", ".join(str(int(i) + (first_row if axis == 0 else 0)) for axis, i in enumerate(where))
        raise InputError(
            f"{name} has {int(bad.sum())} NaN or infinite values, the first at [{place}]; remove or impute them first"
        )


def tensor(name: str, value: ArrayLike, ndim: int) -> Array:
    """Return `value` as a finite, contiguous, read-only float64 copy with `ndim` axes."""
    array = _numeric(name, value)
    if array.ndim != ndim:
        kind = {1: "a vector", 2: "a matrix"}[ndim]
        raise InputError(f"{name} has shape {array.shape}, wanted {kind}")
    # Adding zero turns -0.0 into 0.0, so that equal numbers have equal bytes and equal hashes.
    with np.errstate(over="ignore"):
        out = np.array(array, dtype=np.float64, order="C") + 0.0
    _require_finite(name, out)
    out.setflags(write=False)
    return out


def samples(name: str, value: ArrayLike, columns: int) -> NDArray[Any]:
    """Check a sample matrix (n, columns) without copying it; a memory-mapped array stays on disk.

    Finiteness is checked chunk by chunk in `row_chunks`, so that huge inputs are read once.
    """
    array = _numeric(name, value)
    if array.ndim != 2:
        raise InputError(
            f"{name} has shape {array.shape}, wanted (samples, {columns}); for one sample use X.reshape(1, -1)"
        )
    if array.shape[1] != columns:
        raise InputError(wrong_width(name, array.shape[1], columns))
    return array


def wrong_width(name: str, found: int, columns: int) -> str:
    """The error text for samples whose number of columns is not the model's number of features."""
    fix = "give the columns that the model was trained on, in that order"
    if found == columns + 1:
        fix = "if one of them holds the labels, leave it out, or name it with --label-column"
    return f"{name} has {found} columns, but the model takes {columns} features; {fix}"


def row_chunks(
    name: str, array: Sliceable, row_bytes: int, span: slice | None = None, *, check: bool = True
) -> Iterator[tuple[slice, Array]]:
    """Yield (rows, float64 chunk) over a sample matrix, each chunk near CHUNK_BYTES at `row_bytes` per row.

    `span` selects some rows; the yielded slices count from its start, error messages from the start of the matrix.
    Without `check` the numbers are known to be finite.
    """
    first, stop = (0, array.shape[0]) if span is None else (span.start, span.stop)
    step = max(1, CHUNK_BYTES // max(1, row_bytes))
    for start in range(first, stop, step):
        end = min(start + step, stop)
        with np.errstate(over="ignore"):  # of wider floats; the check below rejects what overflows
            chunk = np.ascontiguousarray(array[start:end], dtype=np.float64)
        if check:
            _require_finite(name, chunk, first_row=start)
        yield slice(start - first, end - first), chunk


def sha256(tag: str, arrays: Iterable[Array]) -> str:
    """The SHA-256 of numbers and shapes; `tag` separates the hashes of different kinds of objects."""
    digest = hashlib.sha256(tag.encode())
    for array in arrays:
        digest.update(np.array(array.shape, dtype="<u8").tobytes())
        digest.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
    return digest.hexdigest()


def samples_sha256(name: str, array: Sliceable) -> str:
    """The SHA-256 of a sample matrix by value: the same for float32 and float64 copies of the same numbers."""
    digest = hashlib.sha256(b"quad4fhe-samples-1")
    digest.update(np.array(array.shape, dtype="<u8").tobytes())
    for _, chunk in row_chunks(name, array, 8 * max(1, array.shape[1])):
        digest.update((chunk + 0.0).astype("<f8").tobytes())
    return digest.hexdigest()
