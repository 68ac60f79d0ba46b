"""Scratch files of a calibration: samples for worker processes to read, and arrays that exceed the memory.

Both files are in TMPDIR. If the system allows it they have no name, so that they are gone when their process ends,
however it ends.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe.errors import InputError
from quad4fhe.io.rows import ArrayRows, FileRows, Rows, StackedRows

Arrays = tuple[NDArray[Any], ...]

_BLOCK = 2**22  # bytes made contiguous at once


@dataclass(frozen=True)
class _Place:
    offset: int
    kinds: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]


class Store:
    """Arrays by key, computed once: the first `capacity` bytes in memory, the rest in a scratch file.

    There is no eviction: every pass reads all shards, so no arrays are better candidates than others.
    """

    def __init__(self, capacity: int | None) -> None:
        self.capacity = capacity
        self.used = 0
        self._memory: dict[Hashable, Arrays] = {}
        self._places: dict[Hashable, _Place] = {}
        self._file: IO[bytes] | None = None
        self._end = 0

    def keep(self, index: int, name: Hashable, make: Callable[[], Arrays]) -> Arrays:
        """The arrays with this name of a shard, computed by `make` if they are not stored."""
        key = index, name
        if key in self._memory:
            return self._memory[key]
        if key in self._places:
            return self._read(self._places[key])
        arrays = tuple(np.ascontiguousarray(array) for array in make())
        size = sum(array.nbytes for array in arrays)
        if self.capacity is None or self.used + size <= self.capacity:
            self.used += size
            self._memory[key] = arrays
        else:
            self._places[key] = self._write(arrays)
        return arrays

    def close(self) -> None:
        """Forget everything."""
        self._memory.clear()
        self._places.clear()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, arrays: Arrays) -> _Place:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="quad4fhe-", buffering=0)  # noqa: SIM115 - lives as long as its process
            self._file.seek(self._end)
            for array in arrays:
                left = _bytes_of(array)
                while left:
                    left = left[self._file.write(left) :]
        except OSError as error:
            raise InputError(
                f"the scratch file in {tempfile.gettempdir()} can't be written ({error.strerror or error}); "
                "set TMPDIR to a folder with room, or allow more memory"
            ) from None
        place = _Place(self._end, tuple((array.dtype, array.shape) for array in arrays))
        self._end += sum(array.nbytes for array in arrays)
        return place

    def _read(self, place: _Place) -> Arrays:
        assert self._file is not None
        self._file.seek(place.offset)
        out = []
        for dtype, shape in place.kinds:
            array = np.empty(shape, dtype=dtype)
            left = _bytes_of(array)
            while left:
                count = self._file.readinto(left)  # type: ignore[attr-defined]  # an unbuffered file has it
                if not count:
                    raise InputError("the scratch file is shorter than what was written to it; is the disk damaged?")
                left = left[count:]
            out.append(array)
        return tuple(out)


class Staged:
    """`rows` in a form that workers can read: arrays in memory are copied to one file, other sources stay as they are.

    With `nameless`, workers on this machine open the file through /proc, so that it needs no name (Linux).
    """

    def __init__(self, rows: Rows, *, nameless: bool) -> None:
        self._file: IO[bytes] | None = None
        self._named: Path | None = None
        self._end = 0
        self._nameless = nameless and sys.platform == "linux" and Path("/proc/self/fd").is_dir()
        try:
            self.rows = self._staged(rows)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._named is not None:
            self._named.unlink(missing_ok=True)
            self._named = None

    def _staged(self, rows: Rows) -> Rows:
        if isinstance(rows, StackedRows):
            return StackedRows([self._staged(part) for part in rows.parts])
        if not isinstance(rows, ArrayRows):
            return rows
        folder = "TMPDIR"
        try:
            folder = tempfile.gettempdir()
            return self._written(rows)
        except OSError as error:
            raise InputError(
                f"the samples can't be written to {folder} for the workers ({error.strerror or error}); "
                "set TMPDIR to a folder with room, or give a .npy file"
            ) from None

    def _written(self, rows: ArrayRows) -> FileRows:
        path, file = self._place()
        array, offset = rows.array, self._end
        dtype = array.dtype.newbyteorder("=")
        step = max(1, _BLOCK // max(1, dtype.itemsize * rows.shape[1]))
        for start in range(0, rows.shape[0], step):
            file.write(_bytes_of(np.ascontiguousarray(array[start : start + step], dtype=dtype)))
        file.flush()
        self._end += array.size * dtype.itemsize
        return FileRows(path, dtype, rows.shape, offset)

    def _place(self) -> tuple[Path, IO[Any]]:
        if self._file is None and self._nameless:
            self._file = tempfile.TemporaryFile(prefix="quad4fhe-")  # noqa: SIM115 - open as long as workers read it
        elif self._file is None:
            handle, name = tempfile.mkstemp(prefix="quad4fhe-", suffix=".rows")
            self._named, self._file = Path(name), os.fdopen(handle, "wb")
        # A worker that opens this path gets its own file position.
        return self._named or Path(f"/proc/{os.getpid()}/fd/{self._file.fileno()}"), self._file


def _bytes_of(array: NDArray[Any]) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8).data)
