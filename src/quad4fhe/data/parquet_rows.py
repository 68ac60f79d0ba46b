"""A .parquet table as rows that are read a part at a time, row group by row group.

Decides where the reader stands, so that reading on from the last row costs nothing twice. Which columns are features,
and which types are numbers, is `_tables`'s to say.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe._files import parsing
from quad4fhe._rows import Rows, Stamp
from quad4fhe.data._tables import feature_columns, import_pyarrow, numeric_column
from quad4fhe.errors import InputError

_BATCH = 16_384  # rows decoded at once
_BUFFER = 2**20  # bytes of a column read at once


class ParquetRows(Rows):
    """The features of a .parquet file. Going back costs decoding its row group again; going on costs nothing.

    To be made within `opened`, which names the file in what is wrong with it; later reads name it themselves.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._stamp = path, Stamp(path)
        with self._opened() as file:
            self._columns = feature_columns(file.schema_arrow.names)
            groups = [file.metadata.row_group(g).num_rows for g in range(file.metadata.num_row_groups)]
        self._starts = [0, *np.cumsum(groups, dtype=np.int64).tolist()]
        self.shape = (self._starts[-1], len(self._columns))
        if 0 in self.shape:
            raise InputError(f"X has shape {self.shape}, wanted (samples, features) with at least one of each")
        self._begin()
        self._read(0, 1)  # refuses columns that are not numbers before any work is done

    def __getstate__(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in ("path", "shape", "_stamp", "_columns", "_starts")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def _begin(self) -> None:
        """Stand at row `_at` with the decoded rows `_rest` ahead, and `_batches` of the row group after them."""
        self._at = 0
        self._rest: NDArray[Any] = np.empty((0, self.shape[1]))
        self._batches: Iterator[NDArray[Any]] = iter(())

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """These rows; decoded from where the last read ended if that is where they begin."""
        try:
            return self._read(start, stop)
        except InputError as error:
            self._begin()
            raise InputError(f"{self.path}: {error}") from None

    def refuse_changed(self) -> None:
        """Raise InputError if the file is not as it was."""
        self._stamp.refuse_changed()

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        if not self._at <= start <= self._at + self._rest.shape[0]:
            self._seek(start)
        pieces = []
        wanted = stop - start
        self._rest = self._rest[start - self._at :]
        self._at = start
        while wanted > 0:
            if self._rest.shape[0] == 0:
                self._rest = self._next()
            piece = self._rest[:wanted]
            pieces.append(piece)
            self._rest = self._rest[piece.shape[0] :]
            self._at += piece.shape[0]
            wanted -= piece.shape[0]
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.empty((0, self.shape[1]))

    def _seek(self, row: int) -> None:
        group = bisect.bisect_right(self._starts, row) - 1
        self._at = self._starts[group]
        self._batches = self._decoded(group)
        self._rest = np.empty((0, self.shape[1]))
        while self._at + self._rest.shape[0] <= row:
            self._at += self._rest.shape[0]
            self._rest = self._next()

    def _next(self) -> NDArray[Any]:
        found = next(self._batches, None)
        if found is None and self._at < self.shape[0]:  # at the end of a row group, or nothing was begun
            self._batches = self._decoded(bisect.bisect_right(self._starts, self._at) - 1)
            found = next(self._batches, None)
        if found is None:
            raise InputError("ends before the row count it states; write it again")
        return found

    def _decoded(self, group: int) -> Iterator[NDArray[Any]]:
        at, end = self._starts[group : group + 2]
        pa, _ = import_pyarrow()
        with self._opened() as file:
            batches = file.iter_batches(_BATCH, row_groups=[group], columns=self._columns, use_threads=False)
            while True:
                with parsing("the Parquet table", "write it again"):
                    batch = next(batches, None)
                if (at != end) if batch is None else (at + batch.num_rows > end):
                    raise InputError(f"row group {group} does not have the number of rows it states; write it again")
                if batch is None:
                    return
                yield np.column_stack([numeric_column(pa, name, batch.column(name), at) for name in self._columns])
                at += batch.num_rows

    def _opened(self) -> Any:
        _, pq = import_pyarrow()
        with parsing("the Parquet table", "write it again"):
            return pq.ParquetFile(self.path, buffer_size=_BUFFER, pre_buffer=False)
