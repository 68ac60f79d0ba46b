"""Samples for a model, from arrays and files; for a model with a feature part, the features of raw inputs.

Unlike other sample files, files of raw inputs may hold images of any shape, columns of text, or one array for each
input of the feature part. `write_features` stores features, and every command takes such a file instead of raw inputs.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import samples
from quad4fhe.errors import InputError
from quad4fhe.feature_part import FeaturePart, Features
from quad4fhe.io.columns import ALL, Columns
from quad4fhe.io.files import check_place, open_npz, opened, parsing, read_npz, write_atomically
from quad4fhe.io.parquet import read_parquet
from quad4fhe.io.rows import ArrayRows, Rows, as_rows, map_npy
from quad4fhe.io.samples import Given, PathLike, Role, Samples, read_samples, rows_of, sample_names
from quad4fhe.io.tables import read_text
from quad4fhe.mlp import MLP

_ROLE = {"calibration": "cal", "test": "test"}
_FEATURES, _PART = "feature_values", "feature_part_sha256"


def samples_for(mlp: MLP, path: PathLike, role: Role, named: Columns = ALL) -> Samples:
    """Read X and y as `read_samples` does; with a feature part, X are the features of the file's raw inputs."""
    if mlp.feature_part is None:
        return read_samples(path, role, named)
    return samples_through(mlp.feature_part, path, role, named)


def samples_through(part: FeaturePart, path: PathLike, role: Role, named: Columns = ALL) -> Samples:
    """The features (n, d) of a file of raw inputs, and its labels if it has any."""
    with opened(path) as file:
        raw, y = _read(file, role, part, named)
        X = part(raw)
        if y is not None and len(y) != len(X):
            raise InputError(f"y has {len(y)} labels, wanted one for each of the {len(X)} samples")
        return X, y


def rows_for(
    mlp: MLP,
    name: str,
    given: Any,
    role: Role = "calibration",
    memory: int | None = None,
    named: Columns = ALL,
) -> Rows:
    """The samples in any form as Rows, as `rows_of` gives them; with a feature part, features of raw inputs."""
    if mlp.feature_part is None:
        return rows_of(name, cast(Given, given), mlp.features, role, memory, named)
    if isinstance(given, str | Path):
        given = [given]
    if not (isinstance(given, list | tuple) and given and all(isinstance(each, str | Path) for each in given)):
        return as_rows(name, np.asarray(mlp.inputs(given)), mlp.features)
    parts = [samples_through(mlp.feature_part, path, role, named) for path in cast("Sequence[PathLike]", given)]
    labels = [y for _, y in parts if y is not None]
    X = samples(name, np.concatenate([np.asarray(X) for X, _ in parts]), mlp.features)
    return ArrayRows(X, np.concatenate(labels) if len(labels) == len(parts) else None)


def names_for(mlp: MLP, given: Any, label: str | None) -> MLP:
    """The model with the names of its features and classes, from the model itself or else from the samples.

    Features that a feature part computes have no names.
    """
    if mlp.feature_part is not None:
        return mlp
    return mlp.named(mlp.names.or_else(sample_names(cast(Given, given), mlp.features, mlp.classes, label)))


def write_features(path: PathLike, features: NDArray[Any], y: NDArray[Any] | None) -> None:
    """Write features, their labels if there are any, and the hash of the feature part to an .npz file."""
    place = Path(path)
    if place.suffix != ".npz":
        raise InputError(f"features are written as .npz, not {place.name!r}; choose a name such as features.npz")
    part = features.part if isinstance(features, Features) else None
    arrays: dict[str, Any] = {_FEATURES: np.asarray(features), _PART: np.array(part or "")}
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays, **({} if y is None else {"y": y}))
    write_atomically(check_place(place), buffer.getvalue())


def _read(file: Path, role: Role, part: FeaturePart, named: Columns) -> tuple[Any, NDArray[Any] | None]:
    name = file.name.lower()
    if name.endswith(".npz"):
        return _read_npz(file, role, part)
    if name.endswith(".npy"):
        return np.asarray(map_npy(file)), None
    if name.endswith((".csv", ".csv.gz")):
        return _read_table(*read_text(file), part, named.label)
    if name.endswith(".parquet"):
        return read_parquet(file, Columns(label=named.label))
    raise InputError("is not a file of raw inputs, wanted .npz, .npy, .csv, .csv.gz or .parquet; save it as one")


def _read_npz(file: Path, role: Role, part: FeaturePart) -> tuple[Any, NDArray[Any] | None]:
    with open_npz(file, "write it with numpy.savez(path, X=..., y=...)") as archive:
        suffix = _ROLE[role]
        y = next((read_npz(archive, name) for name in (f"y_{suffix}", "y") if name in archive), None)
        labels = y[:, 0] if y is not None and y.ndim == 2 and y.shape[1] == 1 else y
        if _FEATURES in archive and _PART in archive:
            made_by = str(read_npz(archive, _PART))
            return Features.of(np.asarray(read_npz(archive, _FEATURES), dtype=np.float64), made_by), labels
        for found in (f"X_{suffix}", "X"):
            if found in archive:
                return _scaled(read_npz(archive, found), archive), labels
        names = [each.name for each in part.inputs]
        if all(each in archive for each in names):
            return {each: read_npz(archive, each) for each in names}, labels
        held = ", ".join(map(repr, archive.files[:8])) or "no arrays"
        raise InputError(f"holds {held}, wanted X, or one array for each input: {', '.join(map(repr, names))}")


def _scaled(X: NDArray[Any], archive: Any) -> NDArray[Any]:
    """Integer codes times `scale`, where the archive has one."""
    if "scale" not in archive or X.dtype.kind not in "iu":
        return X
    scale = read_npz(archive, "scale")
    if scale.dtype.kind not in "iuf" or (scale.size != 1 and scale.shape != X.shape[1:]):
        raise InputError(f"scale has shape {scale.shape}, wanted one number per column of X {X.shape}")
    return X.astype(np.float32) * (scale.reshape(-1) if scale.size == 1 else scale).astype(np.float32)


def _read_table(
    names: list[str], cells: list[list[str]], part: FeaturePart, label: str | None
) -> tuple[Any, NDArray[Any] | None]:
    """The columns of a text table: by name if every input has a column, else in order."""
    columns = {name: np.array(column) for name, column in zip(names, cells, strict=True)}
    inputs = part.inputs
    by_name = tuple(each.name for each in inputs) if all(each.name in columns for each in inputs) else None
    kept, label_at = Columns(by_name, label).pick(names)
    y = None if label_at is None else columns[names[label_at]]
    if len(inputs) == 1:
        matrix = [_cells(names[k], np.array(cells[k]), inputs[0].is_text) for k in kept]
        return np.column_stack(matrix), _labels(y)
    if len(kept) != len(inputs):
        missing = [each.name for each in inputs if each.name not in columns]
        raise InputError(f"has no column {', '.join(map(repr, missing[:6]))}; the feature part takes {part.describe()}")
    ordered = zip(inputs, kept, strict=True)
    return {each.name: _cells(names[k], np.array(cells[k]), each.is_text) for each, k in ordered}, _labels(y)


def _cells(name: str, column: NDArray[Any], text: bool) -> NDArray[Any]:
    if text:
        return column
    with parsing(f"the column {name!r}", "it must hold numbers; empty cells are taken as missing"):
        return np.array([float(cell) if cell.strip() else np.nan for cell in column.tolist()])


def _labels(y: NDArray[Any] | None) -> NDArray[Any] | None:
    if y is None:
        return None
    try:
        numbers = y.astype(np.float64)
    except ValueError:
        return y
    return numbers.astype(np.int64) if (numbers == np.rint(numbers)).all() else numbers
