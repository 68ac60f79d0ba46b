"""What a worker remembers of its shards: in memory while a stated number of bytes lasts, in a scratch file beyond.

Decides where arrays are kept, never what is in them. The scratch file has no name: it is gone when its process is,
however that ends. It lies where TMPDIR says.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe.errors import InputError

Arrays = tuple[NDArray[Any], ...]


@dataclass(frozen=True)
class _Place:
    offset: int
    kinds: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]


class Store:
    """Arrays by key, made once. First come, first kept in memory: passes go round, so the oldest is as good as any."""

    def __init__(self, capacity: int | None) -> None:
        self.capacity = capacity
        self.used = 0
        self._memory: dict[Hashable, Arrays] = {}
        self._places: dict[Hashable, _Place] = {}
        self._file: IO[bytes] | None = None
        self._end = 0

    def keep(self, key: Hashable, make: Callable[[], Arrays]) -> Arrays:
        """The arrays under this key; made now if they are not there."""
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


def _bytes_of(array: NDArray[Any]) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8).data)
