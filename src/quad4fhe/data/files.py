"""Read samples, and labels where there are any, from the files users have: .npz, .npy, .csv, .csv.gz, .parquet.

Decides which array or column is what, and which files can be read a part at a time. Whether the samples fit a model,
and are finite, is left to `_arrays`, which sees them chunk by chunk; a .npy file therefore stays on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quad4fhe._files import open_npz, opened, parsing, read_npz
from quad4fhe._rows import ArrayRows, Rows, StackedRows, as_rows, npy_rows
from quad4fhe.data._tables import read_csv, read_parquet
from quad4fhe.data.parquet_rows import ParquetRows
from quad4fhe.errors import InputError

Role = Literal["calibration", "test"]
Samples = tuple[NDArray[Any], NDArray[Any] | None]

PathLike = str | Path
Given = ArrayLike | Rows | PathLike | Sequence[PathLike]
"""How samples may be given: an array, rows, a path, or several paths whose rows follow each other."""

_SUFFIX_OF_ROLE: dict[Role, str] = {"calibration": "cal", "test": "test"}


def read_samples(path: str | Path, role: Role) -> Samples:
    """Read X (n, d) and y (n,), None without labels.

    An .npz archive holds X and y, or X_cal and y_cal for the role calibration, X_test and y_test for the role test;
    integer codes are multiplied by `scale` where there is one. In a table, the column named y, label, target or
    outcome holds the labels and every other column is a feature.
    """
    name = Path(path).name.lower()
    readers: dict[str, Callable[[Path], Samples]] = {
        ".npz": lambda file: _read_npz(file, role),
        ".npy": _read_npy,
        ".csv": read_csv,
        ".csv.gz": read_csv,
        ".parquet": read_parquet,
    }
    for suffix, read in readers.items():
        if name.endswith(suffix):
            with opened(path) as file:
                return _checked(*read(file))
    raise InputError(f"{path}: not a samples file, wanted {', '.join(readers)}; save the samples as one of these")


def read_class_names(path: str | Path) -> list[str] | None:
    """The class names that an .npz archive holds as the array `classes`; None where it or its names are not there."""
    if not Path(path).name.lower().endswith(".npz"):
        return None
    with opened(path) as file, open_npz(file, "write it with numpy.savez(path, X=..., y=..., classes=...)") as archive:
        if "classes" not in archive:
            return None
        names = read_npz(archive, "classes")
    return [str(name) for name in names.tolist()] if names.ndim == 1 and names.dtype.kind == "U" else None


def rows_of(name: str, given: Given, columns: int, role: Role = "calibration", memory: int | None = None) -> Rows:
    """The samples (n, columns), however they are given; files are opened and checked, not read.

    Those that can only be read whole are, if together they leave half of `memory` bytes to work in.
    """
    if isinstance(given, str | Path):
        _refuse_larger([given], role, memory)
        return as_rows(str(given), open_rows(given, role), columns)
    if isinstance(given, list | tuple) and given and all(isinstance(each, str | Path) for each in given):
        paths = cast("Sequence[PathLike]", given)
        _refuse_larger(paths, role, memory)
        return StackedRows([rows_of(name, path, columns, role) for path in paths])
    return as_rows(name, cast("ArrayLike | Rows", given), columns)


def open_rows(path: PathLike, role: Role) -> Rows:
    """The samples of a file: .npy and .parquet part by part, any other whole."""
    name = Path(path).name.lower()
    if name.endswith(".npy"):
        return npy_rows(path)
    if name.endswith(".parquet"):
        with opened(path) as file:
            return ParquetRows(file.resolve())
    return ArrayRows(read_samples(path, role)[0])


def _refuse_larger(paths: Sequence[PathLike], role: Role, memory: int | None) -> None:
    """Refuse, before they are read, files that are read whole and would leave less than half the memory to work in."""
    sizes = {} if memory is None else {path: _whole_bytes(Path(path), role) for path in paths}
    size = sum(sizes[path] for path in paths if path in sizes)
    if memory is not None and 2 * size > memory:
        large = max(sizes, key=lambda path: sizes[path])
        others = sum(sizes[path] > 0 for path in paths) - 1
        raise InputError(
            f"{large}{f' and {others} more' if others else ''}: {size / 1e6:.3g} MB that can't be read by parts, of "
            f"{memory / 1e6:.3g} MB of memory; save the samples as .npy or .parquet, which can, or allow more memory"
        )


def _whole_bytes(path: Path, role: Role) -> int:
    """The size of the samples in a file that can't be read by parts; 0 where it can, or is not there."""
    if path.suffix.lower() in (".npy", ".parquet") or not path.is_file():
        return 0  # what is wrong with it is said by whoever opens it
    if path.suffix.lower() != ".npz":
        return path.stat().st_size
    with opened(path) as file, open_npz(file, "write it with numpy.savez(path, X=..., y=...)") as archive:
        assert archive.zip is not None
        inside = {info.filename.removesuffix(".npy"): info.file_size for info in archive.zip.infolist()}
    return next((inside[key] for key in (f"X_{_SUFFIX_OF_ROLE[role]}", "X") if key in inside), 0)


def _read_npz(file: Path, role: Role) -> Samples:
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
                raise InputError(f"scale has shape {scale.shape}, wanted one number per column of X {X.shape}")
            X = X.astype(np.float32) * scale.reshape(-1).astype(np.float32)
        return X, read_npz(archive, f"y{ending}") if f"y{ending}" in archive else None


def _read_npy(file: Path) -> Samples:
    with parsing("the .npy array", "write it with numpy.save; object arrays are refused"):
        X = np.load(file, mmap_mode="r", allow_pickle=False)
    if not isinstance(X, np.ndarray):
        X.close()
        raise InputError("holds an archive, wanted a single array; name it .npz")
    return X, None


def _checked(X: NDArray[Any], y: NDArray[Any] | None) -> Samples:
    if X.dtype.kind not in "biuf":
        raise InputError(f"X has dtype {X.dtype}, wanted real numbers; convert it with .astype(float)")
    if X.ndim != 2 or 0 in X.shape:
        raise InputError(f"X has shape {X.shape}, wanted (samples, features) with at least one of each")
    if y is None:
        return X, None
    labels = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if labels.shape != X.shape[:1]:
        raise InputError(f"y has shape {y.shape}, wanted one label for each of the {X.shape[0]} samples")
    if labels.dtype.kind == "f" and (np.isfinite(labels) & (labels == np.rint(labels))).all():
        labels = labels.astype(np.int64)
    return X, labels
