"""Get a data set from its public source, only when asked to.

Decides how each source's rows become a file of the registry's shape, with a note of where it came from and its hash.
A fetched file is used as it is; results made with it say so, as rows and features may differ from the file the
published results of this project were made with.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from quad4fhe._progress import Progress, silent
from quad4fhe.errors import InputError, MissingExtraError
from quad4fhe.io.files import one_line, write_atomically
from quad4fhe_reproduce import missing
from quad4fhe_reproduce.data.prepared import Note, how_to_get, note_path
from quad4fhe_reproduce.data.sets import DataSet

_DIMENSIONS = 256  # principal components of the images


def can_fetch(data: DataSet) -> bool:
    """Whether the public source can be read by a program."""
    return data.source.kind != "by hand"


def fetch(data: DataSet, folder: Path, progress: Progress = silent) -> Path:
    """Fetch a data set into the folder, unless its file is there; an error is one line with where to get it by hand."""
    file = folder / data.file
    if file.exists():
        return file
    if not can_fetch(data):
        raise InputError(f"{data.title} can't be fetched by a program; {how_to_get(data)}, and put it at {file}")
    progress(f"fetching {data.title} from {data.source.kind}", 0, 0)
    try:
        content = _SOURCES[data.source.kind](data)
    except MissingExtraError:
        raise
    except Exception as error:  # whatever the network, the server and four packages can raise
        raise InputError(
            f"{data.title} could not be fetched from {data.source.kind} ({one_line(error)}); "
            f"see {data.source.page}, and put it at {file}"
        ) from error
    note = Note(f"{data.source.kind} {data.source.id}", hashlib.sha256(content).hexdigest())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(note_path(file), msgspec.json.encode(note))
        write_atomically(file, content)
    except OSError as error:
        raise InputError(f"can't write {file}: {error.strerror or error}; choose another folder with --data") from None
    return file


def _arrays(data: DataSet, X: NDArray[Any], y: NDArray[Any], **more: NDArray[Any]) -> bytes:
    """An .npz archive with class ids from 0, in the order of the labels."""
    names, ids = np.unique(y, return_inverse=True)
    if names.size != data.classes:
        raise InputError(f"{names.size} classes came, wanted {data.classes}")
    buffer = io.BytesIO()
    np.savez_compressed(buffer, X=X, y=ids.astype(np.int16), **more)  # type: ignore[arg-type]
    return buffer.getvalue()


def _scikit_learn(data: DataSet) -> bytes:
    datasets = _import("sklearn.datasets", "scikit-learn", "sklearn")
    X, y = getattr(datasets, f"load_{data.source.id}")(return_X_y=True)
    return _arrays(data, X, y)


def _openml(data: DataSet) -> bytes:
    datasets = _import("sklearn.datasets", "scikit-learn", "sklearn")
    bunch = datasets.fetch_openml(data_id=int(data.source.id), as_frame=False, parser="liac-arff")
    y = bunch.target
    labels = y.astype(np.int64) if all(str(each).lstrip("-").isdigit() for each in np.unique(y)) else y
    return _arrays(data, bunch.data.astype(np.float32), labels)


def _hugging_face(data: DataSet) -> bytes:
    datasets = _import("datasets", "datasets", "download")
    parts = datasets.load_dataset(data.source.id)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["split", "label", "label_name", "text"])
    for split in ("train", "validation", "test"):
        for row in parts.get(split, ()):
            writer.writerow([split, row["label"], row.get("label_text", row["label"]), row["text"]])
    return gzip.compress(text.getvalue().encode(), mtime=0)


def _torchvision(data: DataSet) -> bytes:
    vision = _import("torchvision.datasets", "torchvision", "download")
    reduction = _import("sklearn.decomposition", "scikit-learn", "sklearn")
    kind = getattr(vision, data.source.id)
    cache = Path.home() / ".cache" / "quad4fhe"
    pixels, labels, split = [], [], []
    for train in (True, False):
        part = kind(root=str(cache), train=train, download=True)
        pixels.append(part.data.reshape(len(part.data), -1).astype(np.float32) / 255)
        labels.append(np.asarray(part.targets))
        split.append(np.full(len(part.data), 0 if train else 1, dtype=np.int8))
    reduced = reduction.PCA(_DIMENSIONS, svd_solver="randomized", random_state=2026).fit(pixels[0])
    X = np.concatenate([reduced.transform(each) for each in pixels]).astype(np.float32)
    return _arrays(data, X, np.concatenate(labels), split=np.concatenate(split))


def _import(module: str, package: str, extra: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise missing(package, "fetching this data set", extra) from None


_SOURCES: dict[str, Callable[[DataSet], bytes]] = {
    "scikit-learn": _scikit_learn,
    "OpenML": _openml,
    "Hugging Face": _hugging_face,
    "torchvision": _torchvision,
}
