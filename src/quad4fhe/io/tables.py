"""Tables of text with one sample per row: .csv and .csv.gz.

If the first row holds names, it is a header, and tells which column holds the labels. Errors name the row, the line and
the column of a bad cell.
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

from quad4fhe.errors import InputError
from quad4fhe.io.columns import ALL, LABEL_NAMES, Columns
from quad4fhe.io.files import parsing

Table = tuple[NDArray[Any], NDArray[Any] | None]

_FIX = "write it with commas between the cells, in UTF-8"


def read_csv(file: Path, columns: Columns = ALL) -> Table:
    """Read a .csv or .csv.gz table; only labels need a header."""
    with parsing("the CSV table", _FIX), _text(file) as handle:
        first = next(_rows(handle), (0, []))[1]
        header = _header(first, columns)
        features, label = columns.pick(header) if header else (list(range(len(first))), None)
        if not header:
            columns.check_no_header()
        handle.seek(0)
        try:
            cells = _read_fast(handle, len(first), skip_header=bool(header))
        except ValueError:
            # Text labels, or a bad cell: this reader is slower, but names the cell.
            handle.seek(0)
            return _read_slow(handle, len(first), header, features, label)
    if features == list(range(len(first))):
        return cells, None
    return np.ascontiguousarray(cells[:, features]), None if label is None else cells[:, label]


def csv_header(file: Path, columns: Columns = ALL) -> list[str]:
    """The column names of a .csv or .csv.gz table, empty without a header."""
    with parsing("the CSV table", _FIX), _text(file) as handle:
        return _header(next(_rows(handle), (0, []))[1], columns)


def read_text(file: Path) -> tuple[list[str], list[list[str]]]:
    """The names and the columns of a table, as text; without a header the names are 1, 2, ..."""
    with parsing("the CSV table", _FIX), _text(file) as handle:
        rows = list(_rows(handle))
    if not rows:
        raise InputError("the table has no rows; write it again, with one sample per row")
    width = len(rows[0][1])
    for line, row in rows:
        if len(row) != width:
            raise InputError(f"line {line} has {len(row)} cells, but the first row has {width}; fix or drop the line")
    first = [cell.strip() for cell in rows[0][1]]
    has_header = all(_number(name) is None and name for name in first)
    names = first if has_header else [str(k + 1) for k in range(width)]
    if len(set(names)) != width:
        raise InputError("two columns have the same name; rename one of them")
    body = [[cell.strip() for cell in row] for _, row in rows[1 if has_header else 0 :]]
    return names, [list(column) for column in zip(*body, strict=True)] if body else [[] for _ in names]


def _text(file: Path) -> TextIO:
    if file.name.lower().endswith(".gz"):
        return gzip.open(file, "rt", encoding="utf-8-sig", newline="")
    return file.open(encoding="utf-8-sig", newline="")


def _rows(handle: TextIO) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, each with the number of its last line."""
    reader = csv.reader(handle)
    for row in reader:
        if len(row) > 1 or "".join(row).strip():
            yield reader.line_num, row


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _header(first: Sequence[str], columns: Columns) -> list[str]:
    """The column names, empty if the first row is a sample."""
    names = [cell.strip() for cell in first]
    words = [name for name in names if _number(name) is None]
    if not words:
        return []
    # Names beside numbers: a header such as 0,1,2,target, or a sample with a text label such as 5.1,3.5,setosa.
    named = any(name.lower() in LABEL_NAMES or name == columns.label for name in names)
    if len(words) < len(names) and not named and not set(columns.features or [None]) <= set(names):
        raise InputError(f"row 1 has numbers and the text {words[0]!r}; wanted a header of names, or numbers only")
    if "" in names:
        raise InputError(f"column {names.index('') + 1} has no name; name it, or drop it if it is a saved row index")
    return names


def _read_fast(handle: TextIO, width: int, *, skip_header: bool) -> NDArray[np.float64]:
    # skiprows counts blank lines before a header, so skip the header by hand.
    lines = (line for line in handle if line.strip())
    if skip_header:
        next(lines)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a table without rows, which `check_matrix` rejects
        cells = np.loadtxt(lines, delimiter=",", dtype=np.float64, comments=None, quotechar='"', ndmin=2)
    if cells.shape[1] != width:
        raise ValueError("the samples are not as wide as the header")
    return cells


def _read_slow(handle: TextIO, width: int, header: Sequence[str], features: Sequence[int], label: int | None) -> Table:
    rows: list[list[float]] = []
    labels: list[str] = []
    for index, (line, row) in enumerate(_rows(handle), start=0 if header else 1):
        if index == 0:
            continue
        if len(row) != width:
            raise InputError(
                f"row {index} (line {line}) has {len(row)} cells, but the first row has {width}; fix or drop the row"
            )
        numbers = []
        if label is not None:
            labels.append(row[label].strip())
        for column in features:
            cell = row[column]
            value = _number(cell)
            if value is None:
                name = repr(header[column]) if header else str(column + 1)
                came = f"{cell!r} is not a number" if cell.strip() else "the cell is empty"
                if width == 1 and ";" in cell:
                    came += " (columns are separated by commas here, not semicolons)"
                raise InputError(f"row {index} (line {line}), column {name}: {came}; fix or drop the row")
            numbers.append(value)
        rows.append(numbers)
    X = np.array(rows, dtype=np.float64).reshape(len(rows), len(features))
    return X, None if label is None else np.array(labels)
