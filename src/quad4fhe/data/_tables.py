"""Tables with one sample per row: .csv, .csv.gz and .parquet.

Decides whether a first row is a header, which column holds the labels, and where exactly a cell is wrong. Shapes are
left to `files`.
"""

from __future__ import annotations

import csv
import gzip
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from quad4fhe._files import one_line, parsing
from quad4fhe.errors import InputError, MissingExtraError

Table = tuple[NDArray[Any], NDArray[Any] | None]

_LABEL_NAMES = ("y", "label", "target", "outcome")
_FIX = "write it with commas between the cells, in UTF-8"


def read_csv(file: Path) -> Table:
    """Read a .csv or .csv.gz table; the header is optional, labels need one."""
    with parsing("the CSV table", _FIX), _text(file) as handle:
        first = next(_rows(handle), (0, []))[1]
        header = _header(first)
        label = _label(header)
        handle.seek(0)
        try:
            cells = _read_fast(handle, len(first), skip_header=bool(header))
        except ValueError:
            # Text labels, or a bad cell: slower, but it can say which.
            handle.seek(0)
            return _read_slow(handle, len(first), header, label)
    if label is None:
        return cells, None
    return np.delete(cells, label, axis=1), cells[:, label]


def _text(file: Path) -> TextIO:
    if file.name.lower().endswith(".gz"):
        return gzip.open(file, "rt", encoding="utf-8-sig", newline="")
    return file.open(encoding="utf-8-sig", newline="")


def _rows(handle: TextIO) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, each with the line it ends on."""
    reader = csv.reader(handle)
    for row in reader:
        if len(row) > 1 or "".join(row).strip():
            yield reader.line_num, row


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _header(first: Sequence[str]) -> list[str]:
    """The column names, empty if the first row is a sample."""
    names = [cell.strip() for cell in first]
    words = [name for name in names if _number(name) is None]
    if not words:
        return []
    # Names next to numbers: a header such as 0,1,2,target, or a sample with a text label such as 5.1,3.5,setosa.
    if len(words) < len(names) and not any(name.lower() in _LABEL_NAMES for name in names):
        raise InputError(f"row 1 has numbers and the text {words[0]!r}; wanted a header of names, or numbers only")
    if "" in names:
        raise InputError(f"column {names.index('') + 1} has no name; if it is a saved row index, write without it")
    return names


def _label(names: Sequence[str]) -> int | None:
    found = [index for index, name in enumerate(names) if name.lower() in _LABEL_NAMES]
    if len(found) > 1:
        listed = " and ".join(repr(names[index]) for index in found)
        raise InputError(f"the columns {listed} may both hold the labels; keep one of them")
    return found[0] if found else None


def _read_fast(handle: TextIO, width: int, *, skip_header: bool) -> NDArray[np.float64]:
    # Blank lines before a header count for skiprows, so the reader is moved past it instead.
    lines = (line for line in handle if line.strip())
    if skip_header:
        next(lines)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a table without rows, which is refused by its shape
        cells = np.loadtxt(lines, delimiter=",", dtype=np.float64, comments=None, quotechar='"', ndmin=2)
    if cells.shape[1] != width:
        raise ValueError("the samples are not as wide as the header")
    return cells


def _read_slow(handle: TextIO, width: int, header: Sequence[str], label: int | None) -> Table:
    rows: list[list[float]] = []
    labels: list[str] = []
    for index, (line, row) in enumerate(_rows(handle), start=0 if header else 1):
        if index == 0:
            continue
        if len(row) != width:
            raise InputError(f"row {index} (line {line}) has {len(row)} cells, but the first row has {width}")
        numbers = []
        for column, cell in enumerate(row):
            if column == label:
                labels.append(cell.strip())
                continue
            value = _number(cell)
            if value is None:
                name = repr(header[column]) if header else str(column + 1)
                came = f"{cell!r} is not a number" if cell.strip() else "the cell is empty"
                if width == 1 and ";" in cell:
                    came += " (columns are separated by commas here, not semicolons)"
                raise InputError(f"row {index} (line {line}), column {name}: {came}; fix or drop the row")
            numbers.append(value)
        rows.append(numbers)
    features = width - (label is not None)
    return np.array(rows, dtype=np.float64).reshape(len(rows), features), np.array(
        labels
    ) if label is not None else None


def import_pyarrow() -> tuple[Any, Any]:
    """The pyarrow module and its Parquet part."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError("pyarrow", "parquet", "reading a .parquet file") from None
    return pa, pq


def feature_columns(names: Sequence[str]) -> list[str]:
    """The columns that are neither labels nor a row index."""
    # pandas stores a row index that is not a plain count as a column of this name.
    kept = [name for name in names if not name.startswith("__index_level_")]
    label = _label(kept)
    if twice := next((name for name in kept if kept.count(name) > 1), None):
        raise InputError(f"two columns are named {twice!r}; rename or drop one of them")
    return [name for index, name in enumerate(kept) if index != label]


def read_parquet(file: Path) -> Table:
    """Read a .parquet table of numeric columns."""
    pa, pq = import_pyarrow()
    with parsing("the Parquet table", "write it again"):
        table = pq.read_table(file, memory_map=True)
    features = feature_columns(table.column_names)
    labels = [n for n in table.column_names if n not in features and not n.startswith("__index_level_")]
    columns = [numeric_column(pa, name, table.column(name)) for name in features]
    X = np.column_stack(columns) if columns else np.empty((table.num_rows, 0))
    if not labels:
        return X, None
    column = table.column(labels[0])
    _refuse_empty_cells(labels[0], column, 0)
    return X, np.array(column.to_pylist())


def numeric_column(pa: Any, name: str, column: Any, first_row: int = 0) -> NDArray[Any]:
    """The numbers of a column; an error counts its rows from `first_row` on."""
    _refuse_empty_cells(name, column, first_row)
    kind = column.type
    if pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise InputError(
            f"column {name!r} has type {one_line(Exception(str(kind)))}, wanted numbers; convert or drop it"
        )
    # Only bits need a copy, and only a single chunk knows the option.
    array: NDArray[Any] = column.to_numpy(zero_copy_only=False) if hasattr(column, "buffers") else column.to_numpy()
    return array


def _refuse_empty_cells(name: str, column: Any, first_row: int) -> None:
    if column.null_count:
        row = first_row + column.is_null().to_pylist().index(True) + 1
        raise InputError(f"row {row}, column {name!r}: the cell is empty; fix or drop the row")
