"""A .parquet table of numeric columns, read row group by row group.

Sequential reads decode each row group once; a read of earlier rows decodes their row group again.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe.errors import InputError, MissingExtraError
from quad4fhe.io.columns import ALL, Columns
from quad4fhe.io.files import one_line, parsing
from quad4fhe.io.rows import Rows, Stamp, check_matrix

_BATCH = 16_384  # rows decoded at once
_BUFFER = 2**20  # bytes of a column read at once


class ParquetRows(Rows):
    """The features of a .parquet file.

    Create it within `opened`, which adds the file's name to errors; later reads add it themselves.
    """

    def __init__(self, path: Path, columns: Columns = ALL) -> None:
        self.path, self.stamp = path, Stamp(path)
        with self._opened() as file:
            self._columns, self.label = _columns(file.schema_arrow.names, columns)
            groups = [file.metadata.row_group(g).num_rows for g in range(file.metadata.num_row_groups)]
        self._starts = [0, *np.cumsum(groups, dtype=np.int64).tolist()]
        self.shape = (self._starts[-1], len(self._columns))
        check_matrix(np.dtype(float), self.shape)
        self._begin()
        self._read(0, 1)  # rejects columns that are not numbers before any work is done

    def __getstate__(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in ("path", "shape", "label", "stamp", "_columns", "_starts")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def _begin(self) -> None:
        """Start at row 0; `_rest` holds decoded rows from `_at` on, and `_batches` yields the rows after them."""
        self._at = 0
        self._rest: NDArray[Any] = np.empty((0, self.shape[1]))
        self._batches: Iterator[NDArray[Any]] = iter(())

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """The rows start to stop; a read that starts where the last one stopped continues its decoding."""
        try:
            return self._read(start, stop)
        except InputError as error:
            self._begin()
            raise InputError(f"{self.path}: {error}") from None

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
        if found is None and self._at < self.shape[0]:  # the row group is finished, or none was begun
            self._batches = self._decoded(bisect.bisect_right(self._starts, self._at) - 1)
            found = next(self._batches, None)
        if found is None:
            raise InputError("has fewer rows than its metadata says; write it again")
        return found

    def _decoded(self, group: int) -> Iterator[NDArray[Any]]:
        at, end = self._starts[group : group + 2]
        pa, _ = _pyarrow()
        with self._opened() as file:
            batches = file.iter_batches(_BATCH, row_groups=[group], columns=self._columns, use_threads=False)
            while True:
                with parsing("the Parquet table", "write it again"):
                    batch = next(batches, None)
                if (at != end) if batch is None else (at + batch.num_rows > end):
                    raise InputError(f"row group {group} has another number of rows than its metadata; write it again")
                if batch is None:
                    return
                yield np.column_stack([_numbers(pa, name, batch.column(name), at) for name in self._columns])
                at += batch.num_rows

    def _opened(self) -> Any:
        _, pq = _pyarrow()
        with parsing("the Parquet table", "write it again"):
            return pq.ParquetFile(self.path, buffer_size=_BUFFER, pre_buffer=False)

    def labels(self) -> NDArray[Any] | None:
        """The column of labels (n,), if there is one."""
        if self.label is None:
            return None
        with self._opened() as file, parsing("the Parquet table", "write it again"):
            column = file.read([self.label]).column(self.label)
        _check_no_nulls(self.label, column, 0)
        return np.array(column.to_pylist())


def read_parquet(file: Path, columns: Columns = ALL) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Read a whole .parquet table of numeric columns: X (n, d), and the labels (n,) if there are any."""
    rows = ParquetRows(file, columns)
    return rows._read(0, rows.shape[0]), rows.labels()


def _pyarrow() -> tuple[Any, Any]:
    """The pyarrow module and its Parquet part."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError("pyarrow", "parquet", "reading a .parquet file") from None
    return pa, pq


def parquet_header(file: Path) -> list[str]:
    """The names of the columns."""
    _, pq = _pyarrow()
    with parsing("the Parquet table", "write it again"):
        return _kept(pq.read_schema(file).names)


def _kept(names: Sequence[str]) -> list[str]:
    # pandas stores a row index that is not a plain count as a column of this name.
    return [name for name in names if not name.startswith("__index_level_")]


def _columns(names: Sequence[str], columns: Columns) -> tuple[list[str], str | None]:
    """The columns of features, and the column of labels."""
    kept = _kept(names)
    features, label = columns.pick(kept)
    if twice := next((name for name in kept if kept.count(name) > 1), None):
        raise InputError(f"two columns are named {twice!r}; rename or drop one of them")
    return [kept[index] for index in features], None if label is None else kept[label]


def _numbers(pa: Any, name: str, column: Any, first_row: int = 0) -> NDArray[Any]:
    """The numbers of a column, whose first row is `first_row` of the table."""
    _check_no_nulls(name, column, first_row)
    kind = column.type
    if pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise InputError(
            f"column {name!r} has type {one_line(Exception(str(kind)))}, wanted numbers; convert or drop it"
        )
    # Only booleans need a copy, and only an array of one chunk has the option.
    array: NDArray[Any] = column.to_numpy(zero_copy_only=False) if hasattr(column, "buffers") else column.to_numpy()
    return array


def _check_no_nulls(name: str, column: Any, first_row: int) -> None:
    if column.null_count:
        row = first_row + column.is_null().to_pylist().index(True) + 1
        raise InputError(f"row {row}, column {name!r}: the cell is empty; fix or drop the row")
