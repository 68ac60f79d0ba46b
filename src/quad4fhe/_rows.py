"""Samples that are read a part at a time: arrays, .npy files on disk, several files one after the other.

Decides how rows start to stop are had, never all at once, and whether a file is still the one that was opened. What the
rows are for, and whether their numbers are finite, is left to whoever reads them; tables are left to `data`.
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

from quad4fhe._arrays import samples
from quad4fhe._files import opened, parsing
from quad4fhe.errors import InputError


class Rows:
    """A sample matrix of `shape` (n, d) that is read by parts.

    A source of your own gives `shape` and `read`; on an engine its workers get copies of it, so it is pickled.
    """

    shape: tuple[int, int]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """The rows start to stop, shape (stop - start, d), of any real dtype."""
        raise NotImplementedError(
            f"{type(self).__name__} does not say how its rows are read; give it read(start, stop)"
        )

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        start, stop, _ = rows.indices(self.shape[0])
        return self.part(start, stop)

    def part(self, start: int, stop: int) -> NDArray[Any]:
        """What `read` gives, if it is what `read` has to give."""
        d = self.shape[1]
        told = f"what {type(self).__name__}.read({start}, {stop}) gave"
        found = samples(told, self.read(start, stop), d)
        if found.shape[0] != stop - start:
            raise InputError(f"{told} has shape {found.shape}, wanted ({stop - start}, {d}); give the rows asked for")
        return found

    def row(self, i: int) -> NDArray[np.float64]:
        """Row i (d,) as float64."""
        return np.asarray(self.part(i, i + 1)[0], dtype=np.float64)

    def refuse_changed(self) -> None:
        """Raise InputError if what is read is no longer what was opened; without a file there is nothing to say."""


class Stamp:
    """A file as it was when it was opened: its size, when it was written, and which it was."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found = self._look()

    def refuse_changed(self) -> None:
        """Raise InputError if the file is not as it was."""
        if self._look() != self._found:
            raise InputError(f"{self._path}: was changed while it was being read; leave it alone and run again")

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_size, found.st_mtime_ns, found.st_ino


@contextmanager
def left_alone(*sources: Rows | None) -> Iterator[None]:
    """Work that holds only if no file of these sources changes meanwhile; if one did, that is what went wrong."""
    try:
        yield
    except Exception:  # whatever it is, a changed file is the likelier reason
        _refuse_changed(sources)
        raise
    _refuse_changed(sources)


def _refuse_changed(sources: Sequence[Rows | None]) -> None:
    for source in sources:
        if source is not None:
            source.refuse_changed()


class ArrayRows(Rows):
    """Rows of an array in memory."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        self.shape = (int(array.shape[0]), int(array.shape[1]))

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """A view of these rows."""
        return self.array[start:stop]


class FileRows(Rows):
    """Rows of numbers that lie one after the other in a file, as in a .npy file.

    They are read, not mapped: mapped pages would count as this process's memory for as long as the system likes.
    """

    def __init__(
        self, path: Path, dtype: np.dtype[Any], shape: tuple[int, int], offset: int, stamp: Stamp | None = None
    ) -> None:
        self.path, self.dtype, self.shape, self.offset = path, dtype, shape, offset
        self._stamp = stamp

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """These rows, fresh from the file."""
        try:
            found = self._read(start, stop)
        except OSError as error:
            raise InputError(
                f"{self.path}: cannot be read ({error.strerror or error}); it must be readable for every worker"
            ) from None
        if found is None:
            raise InputError(f"{self.path}: ends before row {stop}; write it again")
        return found

    def refuse_changed(self) -> None:
        """Raise InputError if the file is not as it was."""
        if self._stamp is not None:
            self._stamp.refuse_changed()

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
        """These rows, from as many parts as they are in."""
        pieces = []
        at = bisect.bisect_right(self._starts, start) - 1
        while start < stop:
            first, last = self._starts[at], min(stop, self._starts[at + 1])
            if last > start:
                pieces.append(self.parts[at].read(start - first, last - first))
                start = last
            at += 1
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces or [np.empty((0, self.shape[1]))])

    def refuse_changed(self) -> None:
        """Raise InputError if a file of any part is not as it was."""
        _refuse_changed(self.parts)


class ChosenRows(Rows):
    """Some rows of another source; `at` (k,) are their places, in rising order."""

    def __init__(self, rows: Rows, at: NDArray[np.int64]) -> None:
        self.rows, self.at = rows, at
        self.shape = (int(at.size), rows.shape[1])

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """These rows, read in spans of the source that are no longer than what was asked for."""
        places, pieces = self.at[start:stop], []
        while places.size:
            first = int(places[0])
            inside = int(np.searchsorted(places, first + max(1, stop - start)))
            part = self.rows.part(first, int(places[inside - 1]) + 1)
            pieces.append(part[places[:inside] - first])
            places = places[inside:]
        return np.concatenate(pieces) if pieces else np.empty((0, self.shape[1]))

    def refuse_changed(self) -> None:
        """Raise InputError if the source is not as it was."""
        self.rows.refuse_changed()


def held_bytes(rows: Rows, given: object = None) -> int:
    """What rows take in memory beyond `given`, the array they may be a view of."""
    if isinstance(rows, StackedRows):
        return sum(held_bytes(part) for part in rows.parts)
    if isinstance(rows, ChosenRows):
        return held_bytes(rows.rows, given) + rows.at.nbytes
    if not isinstance(rows, ArrayRows):
        return 0
    return 0 if isinstance(given, np.ndarray) and np.may_share_memory(rows.array, given) else rows.array.nbytes


def npy_rows(path: str | Path) -> FileRows:
    """The rows of a .npy file, left on disk."""
    with opened(path) as file:
        stamp = Stamp(file.resolve())
        with parsing("the .npy array", "write it with numpy.save; object arrays are refused"):
            mapped = np.load(file, mmap_mode="r", allow_pickle=False)
        if not isinstance(mapped, np.memmap):
            if not isinstance(mapped, np.ndarray):
                mapped.close()
            raise InputError("holds an archive, wanted a single array; name it .npz")
        return _mapped_rows(mapped, file.resolve(), stamp)


def _mapped_rows(mapped: np.memmap[Any, Any], path: Path, stamp: Stamp) -> FileRows:
    if mapped.dtype.kind not in "biuf":
        raise InputError(f"X has dtype {mapped.dtype}, wanted real numbers; convert it with .astype(float)")
    if mapped.ndim != 2 or 0 in mapped.shape:
        raise InputError(f"X has shape {mapped.shape}, wanted (samples, features) with at least one of each")
    kind = FileRows if mapped.flags.c_contiguous else ColumnFileRows
    return kind(path, mapped.dtype, (int(mapped.shape[0]), int(mapped.shape[1])), int(mapped.offset), stamp)


def as_rows(name: str, value: ArrayLike | Rows, columns: int) -> Rows:
    """Check a sample matrix (n, columns) as `samples` does, without reading it, and give it as Rows."""
    if isinstance(value, Rows):
        shape = getattr(value, "shape", None)
        if not (isinstance(shape, tuple) and len(shape) == 2 and all(isinstance(k, int) and k >= 0 for k in shape)):
            raise InputError(f"{name} has shape {shape!r}, wanted two whole numbers: (samples, {columns})")
        if shape[1] != columns:
            raise InputError(f"{name} has {shape[1]} columns, but the model takes {columns} features")
        return value
    array = samples(name, value, columns)
    if (mapped := _whole_map(value)) is not None:
        mapped.flush()  # what was written to it is then in the file, and the time of that does not change later
        path = Path(str(mapped.filename))
        return _mapped_rows(mapped, path, Stamp(path))
    return ArrayRows(array)


def _whole_map(array: object) -> np.memmap[Any, Any] | None:
    """The array if it maps a file and says what is in it.

    A view of a map remembers the offset of the whole, and what is written to a copy-on-write map is not in its file.
    """
    if not isinstance(array, np.memmap) or array.mode == "c":
        return None
    base: object = array.base
    return array if isinstance(base, mmap.mmap) and array.filename and array.size else None
