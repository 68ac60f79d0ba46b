"""The polynomial model as an .npz archive: W1, b1, S, T, c (above degree 2: W1, b1, V, a, c), and its origin."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import numpy as np

from quad4fhe.errors import InputError
from quad4fhe.exporters import HIGHER, QUADRATIC, Exporter, Options, Origin, model_of, rounded
from quad4fhe.io.files import open_npz, read_npz
from quad4fhe.polynomial import PolynomialModel


def to_bytes(model: PolynomialModel, origin: Origin, options: Options) -> bytes:
    """The content of the archive."""
    buffer = io.BytesIO()
    text = msgspec.json.encode(origin.lines(options.dtype)).decode()
    np.savez(buffer, allow_pickle=False, **rounded(model, options.dtype), origin=np.array(text))
    return buffer.getvalue()


def read(file: Path) -> PolynomialModel:
    """The model of an archive that `to_bytes` made."""
    with open_npz(file, "export the fit again") as archive:
        names = HIGHER if "V" in archive else QUADRATIC
        missing = [name for name in names if name not in archive]
        if missing:
            held = ", ".join(repr(name) for name in archive.files[:8]) or "no arrays"
            raise InputError(f"holds {held}, but no {', '.join(missing)}; wanted a file made by `quad4fhe export`")
        return model_of({name: read_npz(archive, name) for name in names})


EXPORTER = Exporter("arrays W1, b1, S, T, c", (".npz",), to_bytes, read, higher="arrays W1, b1, V, a, c")
