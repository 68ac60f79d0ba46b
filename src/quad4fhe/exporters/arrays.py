"""The polynomial model as an .npz archive: W1, b1, S, T, c, and where they came from as JSON text."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import numpy as np

from quad4fhe._files import open_npz, read_npz
from quad4fhe.errors import InputError
from quad4fhe.exporters._origin import NAMES, Origin, rounded
from quad4fhe.quadratic import QuadraticModel


def to_bytes(model: QuadraticModel, origin: Origin, dtype: str, labels: bool) -> bytes:
    """The content of the archive."""
    buffer = io.BytesIO()
    text = msgspec.json.encode(origin.lines(dtype)).decode()
    np.savez(buffer, allow_pickle=False, **rounded(model, dtype), origin=np.array(text))
    return buffer.getvalue()


def read(file: Path) -> QuadraticModel:
    """The model of an archive that `to_bytes` made."""
    with open_npz(file, "export the fit again") as archive:
        missing = [name for name in NAMES if name not in archive]
        if missing:
            held = ", ".join(repr(name) for name in archive.files[:8]) or "no arrays"
            raise InputError(f"holds {held}, but no {', '.join(missing)}; wanted a file made by `quad4fhe export`")
        return QuadraticModel(*(read_npz(archive, name) for name in NAMES))
