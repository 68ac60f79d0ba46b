"""Read samples, and labels if there are any, from users' files: .npz, .npy, .csv, .csv.gz, .parquet.

This module finds the arrays or columns of samples and labels. Files in .npy and .parquet are read in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quad4fhe.errors import InputError
from quad4fhe.io.columns import ALL, Columns
from quad4fhe.io.files import open_npz, opened, read_npz
from quad4fhe.io.parquet import ParquetRows, parquet_header, read_parquet
from quad4fhe.io.rows import ArrayRows, Rows, StackedRows, as_rows, check_matrix, map_npy, npy_rows
from quad4fhe.io.tables import csv_header, read_csv
from quad4fhe.names import Names, names_of

Role = Literal["calibration", "test"]
Samples = tuple[NDArray[Any], NDArray[Any] | None]

PathLike = str | Path
Given = ArrayLike | Rows | PathLike | Sequence[PathLike]
"""Samples as an array, rows, a path, or several paths whose rows follow each other."""

_SUFFIX_OF_ROLE: dict[Role, str] = {"calibration": "cal", "test": "test"}


def read_samples(path: str | Path, role: Role, columns: Columns = ALL) -> Samples:
    """Read X (n, d) and y (n,); y is None without labels.

    An .npz archive holds X and y, or X_cal and y_cal for the role calibration, X_test and y_test for the role test; if
    X holds integers and there is an array `scale`, X is multiplied by it. The array `features` can name the columns.

    In a table, the column named y, label, target or outcome holds the labels, and every other column is a feature.
    `columns` names them instead, and the features are put in its order.
    """
    name = Path(path).name.lower()
    readers: dict[str, Callable[[Path], Samples]] = {
        ".npz": lambda file: _read_npz(file, role, columns),
        ".npy": lambda file: (map_npy(file), None),
        ".csv": lambda file: read_csv(file, columns),
        ".csv.gz": lambda file: read_csv(file, columns),
        ".parquet": lambda file: read_parquet(file, columns),
    }
    for suffix, read in readers.items():
        if name.endswith(suffix):
            with opened(path) as file:
                return _checked(*read(file))
    raise InputError(f"{path}: not a samples file, wanted {', '.join(readers)}; save the samples as one of these")


def read_feature_names(path: str | Path, label: str | None = None) -> list[str] | None:
    """The names of the features, from the header of a table or the array `features` of an .npz; None without them."""
    name = Path(path).name.lower()
    columns = Columns(label=label)
    with opened(path) as file:
        if name.endswith(".npz"):
            return _npz_names(file, "features")
        if name.endswith((".csv", ".csv.gz")):
            header = csv_header(file, columns)
        else:
            header = parquet_header(file) if name.endswith(".parquet") else []
        return [header[index] for index in columns.pick(header)[0]] if header else None


def sample_names(given: Any, features: int, classes: int, label: str | None = None) -> Names:
    """The names in a file, the first of several files, or a DataFrame; lists of another length are left out."""
    if isinstance(given, list | tuple) and given and all(isinstance(each, str | Path) for each in given):
        given = given[0]
    if isinstance(given, str | Path):
        columns, labels = read_feature_names(given, label), read_class_names(given)
    else:
        header, labels = frame_names(given), None
        columns = None if header is None else [header[index] for index in Columns(label=label).pick(header)[0]]
    return names_of(
        columns if columns is not None and len(columns) == features else None,
        labels if labels is not None and len(labels) == classes else None,
    )


def read_class_names(path: str | Path) -> list[str] | None:
    """The class names in the array `classes` of an .npz archive; None without such an array of text."""
    if not Path(path).name.lower().endswith(".npz"):
        return None
    with opened(path) as file:
        return _npz_names(file, "classes")


def _npz_names(file: Path, key: str) -> list[str] | None:
    """The text in an array of an .npz archive; None without such an array of text."""
    with open_npz(file, f"write it with numpy.savez(path, X=..., y=..., {key}=...)") as archive:
        if key not in archive:
            return None
        names = read_npz(archive, key)
    return [str(name) for name in names.tolist()] if names.ndim == 1 and names.dtype.kind == "U" else None


def rows_of(
    name: str,
    given: Given,
    columns: int,
    role: Role = "calibration",
    memory: int | None = None,
    named: Columns = ALL,
) -> Rows:
    """The samples (n, columns) in any form; files that can be read in parts are opened and checked, but not read.

    Columns of tables and DataFrames are taken by name if `named` has names.

    Other files are read whole, if together they take at most half of `memory` bytes.
    """
    if isinstance(given, str | Path):
        _refuse_larger([given], role, memory)
        return as_rows(str(given), open_rows(given, role, named), columns)
    if isinstance(given, list | tuple) and given and all(isinstance(each, str | Path) for each in given):
        paths = cast("Sequence[PathLike]", given)
        _refuse_larger(paths, role, memory)
        return StackedRows([rows_of(name, path, columns, role, named=named) for path in paths])
    return labelled(as_rows(name, cast("ArrayLike | Rows", ordered(name, given, named)), columns), given, named)


def labelled(rows: Rows, given: Any, columns: Columns) -> Rows:
    """The rows of a DataFrame with the labels of its label column; anything else is returned unchanged."""
    header = frame_names(given)
    at = None if header is None else columns.pick(header)[1]
    return (
        ArrayRows(rows.array, given.iloc[:, at].to_numpy()) if isinstance(rows, ArrayRows) and at is not None else rows
    )


def ordered(name: str, given: Any, columns: Columns) -> Any:
    """A DataFrame with the features of `columns` alone, in their order; anything else is returned unchanged."""
    header = None if columns == ALL else frame_names(given)
    if header is None:
        return given
    try:
        return given.iloc[:, columns.pick(header)[0]]
    except InputError as error:
        raise InputError(f"{name} {error}") from None


def frame_names(given: Any) -> list[str] | None:
    """The column names of a DataFrame; None for anything else, or if a name is not text."""
    found = getattr(given, "columns", None)
    if found is None or not hasattr(given, "iloc"):
        return None
    names = list(found)
    return names if names and all(isinstance(each, str) for each in names) else None


def open_rows(path: PathLike, role: Role, columns: Columns = ALL) -> Rows:
    """The samples of a file: .npy and .parquet in parts, any other whole."""
    name = Path(path).name.lower()
    if name.endswith(".npy"):
        return npy_rows(path)
    if name.endswith(".parquet"):
        with opened(path) as file:
            return ParquetRows(file.resolve(), columns)
    return ArrayRows(*read_samples(path, role, columns))


def _refuse_larger(paths: Sequence[PathLike], role: Role, memory: int | None) -> None:
    """Raise InputError for files that are read whole and would take more than half of the memory."""
    sizes = {} if memory is None else {path: _whole_bytes(Path(path), role) for path in paths}
    size = sum(sizes[path] for path in paths if path in sizes)
    if memory is not None and 2 * size > memory:
        large = max(sizes, key=lambda path: sizes[path])
        others = sum(sizes[path] > 0 for path in paths) - 1
        raise InputError(
            f"{large}{f' and {others} more' if others else ''}: {size / 1e6:.3g} MB that can't be read in parts, with "
            f"{memory / 1e6:.3g} MB of memory; save the samples as .npy or .parquet, or allow more memory"
        )


def _whole_bytes(path: Path, role: Role) -> int:
    """The bytes of the samples in a file that can't be read in parts; 0 if it can, or does not exist."""
    if path.suffix.lower() in (".npy", ".parquet") or not path.is_file():
        return 0
    if path.suffix.lower() != ".npz":
        return path.stat().st_size
    with opened(path) as file, open_npz(file, "write it with numpy.savez(path, X=..., y=...)") as archive:
        assert archive.zip is not None
        inside = {info.filename.removesuffix(".npy"): info.file_size for info in archive.zip.infolist()}
    return next((inside[key] for key in (f"X_{_SUFFIX_OF_ROLE[role]}", "X") if key in inside), 0)


def _read_npz(file: Path, role: Role, columns: Columns) -> Samples:
    with open_npz(file, "write it with numpy.savez(path, X=..., y=...)") as archive:
        suffix = _SUFFIX_OF_ROLE[role]
        ending = next((end for end in (f"_{suffix}", "") if f"X{end}" in archive), None)
        if ending is None:
            held = ", ".join(repr(key) for key in archive.files[:8]) or "no arrays"
            raise InputError(f"holds {held}, wanted 'X' or 'X_{suffix}' for the {role} samples; rename the array")
        X = read_npz(archive, f"X{ending}")
        if "scale" in archive and X.dtype.kind in "iu":
            scale = read_npz(archive, "scale")
            if scale.dtype.kind not in "iuf" or (scale.size != 1 and scale.shape != X.shape[1:]):
                raise InputError(f"scale has shape {scale.shape}, wanted one number, or one per column of X {X.shape}")
            X = X.astype(np.float32) * scale.reshape(-1).astype(np.float32)
        y = read_npz(archive, f"y{ending}") if f"y{ending}" in archive else None
    if columns.label is not None:
        raise InputError("is not a table; --label-column is for .csv and .parquet files, so leave it out")
    names = _npz_names(file, "features")
    if columns.features is None or names is None or X.ndim != 2 or len(names) != X.shape[1]:
        return X, y
    picked, _ = columns.pick(names)
    return (X if picked == list(range(X.shape[1])) else X[:, picked]), y


def _checked(X: NDArray[Any], y: NDArray[Any] | None) -> Samples:
    check_matrix(X.dtype, X.shape)
    if y is None:
        return X, None
    labels = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if labels.shape != X.shape[:1]:
        raise InputError(f"y has shape {y.shape}, wanted one label for each of the {X.shape[0]} samples")
    if labels.dtype.kind == "f" and (np.isfinite(labels) & (labels == np.rint(labels))).all():
        labels = labels.astype(np.int64)
    return X, labels
