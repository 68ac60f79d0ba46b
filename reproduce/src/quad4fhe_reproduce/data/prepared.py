"""Read the files of the registry: hash first, then rows, labels and the official split.

Decides when a file may be trusted: its SHA-256 is the registry's, or that noted beside it by `fetch` when it came from
the public source. What the rows are used for is left to the recipes and runs.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import IntArray
from quad4fhe.errors import InputError
from quad4fhe.io.files import open_npz, opened, parsing, read_npz
from quad4fhe_reproduce.data.sets import DataSet

_BLOCK = 2**20


class Note(msgspec.Struct, frozen=True):
    """What `fetch` writes beside a file: where it came from, and its hash."""

    source: str
    sha256: str


@dataclass(frozen=True, eq=False)
class Rows:
    """A data set as read: features (n, d) in float64 or n texts, labels (n,), and the official split.

    `split` is (n,) with 0 for train and the highest value for test, None where there is no official one. `origin` is
    empty for the file of the registry, else the public source it was fetched from.
    """

    X: NDArray[np.float64] | None
    texts: list[str] | None
    y: IntArray
    split: IntArray | None
    sha256: str
    origin: str


def note_path(file: Path) -> Path:
    """Where the note of a fetched file lies."""
    return file.with_name(file.name + ".source.json")


def file_hash(data: DataSet, folder: Path) -> tuple[str, str]:
    """The SHA-256 of the file and where it came from, after checking both; raises InputError in one line."""
    file = folder / data.file
    if not file.is_file():
        raise InputError(f"{file} is missing (SHA-256 {data.sha256}); {how_to_get(data)}")
    digest = hashlib.sha256()
    with opened(file), file.open("rb") as handle:
        while block := handle.read(_BLOCK):
            digest.update(block)
    actual = digest.hexdigest()
    if actual == data.sha256:
        return actual, ""
    note = note_path(file)
    if note.is_file():
        with parsing(f"the note {note.name}", "delete it and fetch the data again"):
            fetched = msgspec.json.decode(note.read_bytes(), type=Note)
        if fetched.sha256 == actual:
            return actual, fetched.source
    raise InputError(
        f"{file} is not the file that was expected: SHA-256 {data.sha256} wanted, {actual} found; " + how_to_get(data)
    )


def how_to_get(data: DataSet) -> str:
    """One clause that says where a data set can be had."""
    source = data.source
    if source.kind == "by hand":
        return f"it is made from {source.id}: {source.page}"
    return f"it can be had from {source.kind} as {source.id} ({source.page}): add --download, or put the file there"


def read_rows(data: DataSet, folder: Path) -> Rows:
    """Read one data set of the registry from the data folder."""
    sha256, origin = file_hash(data, folder)
    file = folder / data.file
    with opened(file):
        X, texts, y, split = _read_texts(file) if data.text else _read_arrays(file)
        if not origin and (len(y), int(y.max()) + 1) != (data.rows, data.classes):
            raise InputError(
                f"holds {len(y)} rows of {int(y.max()) + 1} classes, wanted {data.rows} rows of {data.classes} classes"
            )
    return Rows(X, texts, y, split, sha256, origin)


_Read = tuple[NDArray[np.float64] | None, list[str] | None, IntArray, IntArray | None]


def _read_arrays(file: Path) -> _Read:
    with open_npz(file, "fetch the data set again") as archive:
        for key in ("X", "y"):
            if key not in archive:
                raise InputError(f"holds no array {key!r}; fetch the data set again")
        X = read_npz(archive, "X")
        if "scale" in archive:  # integer codes of float32 features
            X = X.astype(np.float32) * read_npz(archive, "scale").astype(np.float32)
        split = read_npz(archive, "split").astype(np.int64) if "split" in archive else None
        return _filled(X.astype(np.float64)), None, read_npz(archive, "y").astype(np.int64), split


def _filled(X: NDArray[Any]) -> NDArray[np.float64]:
    """Missing values become the median of their column."""
    missing = np.isnan(X)
    if missing.any():
        X = np.where(missing, np.nanmedian(X, axis=0), X)
    return X


def _read_texts(file: Path) -> _Read:
    with parsing("the table of texts", "fetch the data set again"), gzip.open(file, "rt", encoding="utf-8") as handle:
        table = list(csv.DictReader(handle))
        texts = [row["text"] for row in table]
        y = np.array([int(row["label"]) for row in table], dtype=np.int64)
        split = np.array([_SPLITS[row["split"]] for row in table], dtype=np.int64)
    return None, texts, y, split


_SPLITS = {"0": 0, "1": 1, "2": 2, "train": 0, "validation": 1, "dev": 1, "test": 2}
