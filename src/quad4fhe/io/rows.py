"""Samples that are read in parts: arrays, .npy files on disk, several files one after the other.

A source also knows whether its file has changed since it was opened. It does not check that numbers are finite.
"""

from __future__ import annotations

import bisect
import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quad4fhe._arrays import samples, wrong_width
from quad4fhe.errors import InputError
from quad4fhe.io.files import opened, parsing


class Rows:
    """A sample matrix of `shape` (n, d) that is read in parts.

    A subclass defines `shape` and `read`, which must return the same rows every time. Workers get pickled copies.
    """

    shape: tuple[int, int]
    stamp: Stamp | None = None  # of the file behind this source

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """The rows start to stop, shape (stop - start, d), of any real dtype."""
        raise NotImplementedError(f"{type(self).__name__} has no method read(start, stop), which returns rows; add one")

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        start, stop, _ = rows.indices(self.shape[0])
        return self.part(start, stop)

    def part(self, start: int, stop: int) -> NDArray[Any]:
        """The result of `read`, checked."""
        d = self.shape[1]
        told = f"the result of {type(self).__name__}.read({start}, {stop})"
        found = samples(told, self.read(start, stop), d)
        if found.shape[0] != stop - start:
            raise InputError(f"{told} has shape {found.shape}, wanted ({stop - start}, {d}); return these rows")
        return found

    def row(self, i: int) -> NDArray[np.float64]:
        """Row i (d,) as float64."""
        return np.asarray(self.part(i, i + 1)[0], dtype=np.float64)

    def labels(self) -> NDArray[Any] | None:
        """The labels (n,) that come with the rows, if there are any."""
        return None

    def refuse_changed(self) -> None:
        """Raise InputError if the file behind this source, if any, has changed since it was opened."""
        if self.stamp is not None:
            self.stamp.refuse_changed()


class Stamp:
    """The size, modification time and inode of a file when it was opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found = self._look()

    def refuse_changed(self) -> None:
        """Raise InputError if the file has changed."""
        if self._look() != self._found:
            raise InputError(f"{self._path}: changed while it was being read; run again without changing it")

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_size, found.st_mtime_ns, found.st_ino


@contextmanager
def left_alone(*sources: Rows | None) -> Iterator[None]:
    """Raise InputError if a file of these sources changes during the block, in place of any error of the block."""
    try:
        yield
    except Exception:  # if a file has changed, that is the likely cause
        _refuse_changed(sources)
        raise
    _refuse_changed(sources)


def _refuse_changed(sources: Sequence[Rows | None]) -> None:
    for source in sources:
        if source is not None:
            source.refuse_changed()


class ArrayRows(Rows):
    """Rows of an array in memory, with their labels if there are any."""

    def __init__(self, array: NDArray[Any], labels: NDArray[Any] | None = None) -> None:
        self.array, self._labels = array, labels
        self.shape = (int(array.shape[0]), int(array.shape[1]))

    def labels(self) -> NDArray[Any] | None:
        """The labels (n,), if there are any."""
        return self._labels

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """A view of these rows."""
        return self.array[start:stop]


class FileRows(Rows):
    """Rows of numbers that follow each other in a file, as in a .npy file.

    They are read, not mapped: mapped pages count as memory of this process until the system drops them.
    """

    def __init__(
        self, path: Path, dtype: np.dtype[Any], shape: tuple[int, int], offset: int, stamp: Stamp | None = None
    ) -> None:
        self.path, self.dtype, self.shape, self.offset, self.stamp = path, dtype, shape, offset, stamp

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """The rows start to stop."""
        try:
            found = self._read(start, stop)
        except OSError as error:
            raise InputError(
                f"{self.path}: cannot be read ({error.strerror or error}); every worker must be able to read it"
            ) from None
        if found is None:
            raise InputError(f"{self.path}: ends before row {stop}; write it again")
        return found

    def _read(self, start: int, stop: int) -> NDArray[Any] | None:
        d = self.shape[1]
        wanted = (stop - start) * d
        flat = np.fromfile(
            self.path, dtype=self.dtype, count=wanted, offset=self.offset + start * d * self.dtype.itemsize
        )
        return flat.reshape(stop - start, d) if flat.size == wanted else None


class ColumnFileRows(FileRows):
    """Rows of a .npy file written column by column (Fortran order): a piece of every column for each read."""

    def _read(self, start: int, stop: int) -> NDArray[Any] | None:
        n, d = self.shape
        columns = np.empty((d, stop - start), dtype=self.dtype)
        with self.path.open("rb", buffering=0) as file:
            for k, column in enumerate(columns):
                file.seek(self.offset + (k * n + start) * self.dtype.itemsize)
                if file.readinto(column.view(np.uint8).data) != column.nbytes:
                    return None
        return columns.T


class StackedRows(Rows):
    """Several sources of the same width, one after the other."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        self.parts = list(parts)
        self._starts = [0]
        for part in parts:
            self._starts.append(self._starts[-1] + part.shape[0])
        self.shape = (self._starts[-1], parts[0].shape[1])

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """The rows start to stop, joined from their parts."""
        pieces = []
        at = bisect.bisect_right(self._starts, start) - 1
        while start < stop:
            first, last = self._starts[at], min(stop, self._starts[at + 1])
            if last > start:
                pieces.append(self.parts[at].read(start - first, last - first))
                start = last
            at += 1
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces or [np.empty((0, self.shape[1]))])

    def labels(self) -> NDArray[Any] | None:
        """The labels of all parts (n,), if every part has some."""
        found = [part.labels() for part in self.parts]
        known = [each for each in found if each is not None]
        return np.concatenate(known) if len(known) == len(found) else None

    def refuse_changed(self) -> None:
        """Raise InputError if a file of any part has changed."""
        _refuse_changed(self.parts)


class ChosenRows(Rows):
    """Some rows of another source; `at` (k,) are their indices, in ascending order."""

    def __init__(self, rows: Rows, at: NDArray[np.int64]) -> None:
        self.rows, self.at = rows, at
        self.shape = (int(at.size), rows.shape[1])

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """The rows start to stop, read from the source in spans of at most as many rows."""
        places, pieces = self.at[start:stop], []
        while places.size:
            first = int(places[0])
            inside = int(np.searchsorted(places, first + max(1, stop - start)))
            part = self.rows.part(first, int(places[inside - 1]) + 1)
            pieces.append(part[places[:inside] - first])
            places = places[inside:]
        return np.concatenate(pieces) if pieces else np.empty((0, self.shape[1]))

    def refuse_changed(self) -> None:
        """Raise InputError if the source has changed."""
        self.rows.refuse_changed()


def held_bytes(rows: Rows, given: object = None) -> int:
    """The bytes that rows take in memory, not counting `given`, of which they may be a view."""
    if isinstance(rows, StackedRows):
        return sum(held_bytes(part) for part in rows.parts)
    if isinstance(rows, ChosenRows):
        return held_bytes(rows.rows, given) + rows.at.nbytes
    if not isinstance(rows, ArrayRows):
        return 0
    return 0 if isinstance(given, np.ndarray) and np.may_share_memory(rows.array, given) else rows.array.nbytes


def npy_rows(path: str | Path) -> FileRows:
    """The rows of a .npy file, which stay on disk."""
    with opened(path) as file:
        stamp = Stamp(file.resolve())
        return _mapped_rows(map_npy(file), file.resolve(), stamp)


def check_matrix(dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Raise InputError unless this is the dtype and shape of samples: real numbers (n, d), n and d at least 1."""
    if dtype.kind not in "biuf":
        raise InputError(f"X has dtype {dtype}, wanted real numbers; convert it with .astype(float)")
    if len(shape) != 2 or 0 in shape:
        raise InputError(f"X has shape {shape}, wanted (samples, features) with at least one of each")


def map_npy(file: Path) -> np.memmap[Any, Any]:
    """The array of a .npy file, mapped for reading."""
    with parsing("the .npy array", "write it with numpy.save; object arrays are rejected"):
        mapped = np.load(file, mmap_mode="r", allow_pickle=False)
    if not isinstance(mapped, np.memmap):
        if not isinstance(mapped, np.ndarray):
            mapped.close()
        raise InputError("holds an archive, wanted a single array; name it .npz")
    return mapped


def _mapped_rows(mapped: np.memmap[Any, Any], path: Path, stamp: Stamp) -> FileRows:
    check_matrix(mapped.dtype, mapped.shape)
    kind = FileRows if mapped.flags.c_contiguous else ColumnFileRows
    return kind(path, mapped.dtype, (int(mapped.shape[0]), int(mapped.shape[1])), int(mapped.offset), stamp)


def as_rows(name: str, value: ArrayLike | Rows, columns: int) -> Rows:
    """Check a sample matrix (n, columns) as `samples` does, without reading it, and return it as Rows."""
    if isinstance(value, Rows):
        shape = getattr(value, "shape", None)
        if not (isinstance(shape, tuple) and len(shape) == 2 and all(isinstance(k, int) and k >= 0 for k in shape)):
            raise InputError(f"{name} has shape {shape!r}, wanted two whole numbers: (samples, {columns})")
        if shape[1] != columns:
            raise InputError(wrong_width(name, shape[1], columns))
        return value
    array = samples(name, value, columns)
    if (mapped := _whole_map(value)) is not None:
        mapped.flush()  # so that the file has all changes, and keeps its modification time from here on
        path = Path(str(mapped.filename))
        return _mapped_rows(mapped, path, Stamp(path))
    return ArrayRows(array)


def _whole_map(array: object) -> np.memmap[Any, Any] | None:
    """The array if it maps a whole file, else None.

    A view of a map has the offset of the whole map, and the file of a copy-on-write map does not have its changes.
    """
    if not isinstance(array, np.memmap) or array.mode == "c":
        return None
    base: object = array.base
    return array if isinstance(base, mmap.mmap) and array.filename and array.size else None
