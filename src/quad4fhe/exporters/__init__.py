"""Write the polynomial model of a fit for other tools: an ONNX graph, a torch state dict, or plain arrays.

Decides which exporter a file suffix belongs to and what every exported file says of its origin; each exporter, one per
file, decides how the model looks in its format. `read` gives back the model of an exported file, so that what was
written can be checked against the fit.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import row_chunks
from quad4fhe._files import opened, write_atomically
from quad4fhe.errors import InputError
from quad4fhe.exporters import arrays, onnx, torch
from quad4fhe.exporters._origin import Origin, rounded
from quad4fhe.mlp import decide
from quad4fhe.quadratic import QuadraticModel

__all__ = ["Origin", "changed_decisions", "export", "read", "suffix_of"]

_WRITERS: dict[str, Callable[[QuadraticModel, Origin, str, bool], bytes]] = {
    ".onnx": onnx.to_bytes,
    ".pt": torch.to_bytes,
    ".npz": arrays.to_bytes,
}
_READERS: dict[str, Callable[[Path], QuadraticModel]] = {
    ".onnx": onnx.read,
    ".pt": torch.read,
    ".npz": arrays.read,
}


def suffix_of(path: str | Path) -> str:
    """The suffix that says how a model is exported, or an InputError that lists those there are."""
    suffix = Path(path).suffix.lower()
    if suffix not in _WRITERS:
        came = f"the suffix {suffix!r} is not one of an exported model" if suffix else "the file name has no suffix"
        raise InputError(f"{path}: {came}, wanted {', '.join(_WRITERS)}; choose a name such as quadratic.onnx")
    return suffix


def export(
    model: QuadraticModel, path: str | Path, origin: Origin, *, dtype: str = "float64", labels: bool = False
) -> None:
    """Write `model` to one file; the suffix says how (.onnx, .pt, .npz). `labels` adds decisions to an ONNX graph."""
    suffix = suffix_of(path)
    if labels and suffix != ".onnx":
        raise InputError(f"labels are an output of an ONNX graph, and {path} is not one; leave them out")
    write_atomically(path, _WRITERS[suffix](model, origin, dtype, labels))


def read(path: str | Path) -> QuadraticModel:
    """The model of a file that `export` wrote; in float32 files, the numbers as they were rounded."""
    suffix = suffix_of(path)
    with opened(path) as file:
        return _READERS[suffix](file)


def changed_decisions(model: QuadraticModel, path: str | Path, X: NDArray[Any], dtype: str) -> int:
    """On how many rows of X (n, d) an exported file, computed in its own type, decides otherwise than `model`."""
    own = rounded(read(path), dtype)
    changed = 0
    for _, chunk in row_chunks("X", X, 8 * (model.features + 3 * model.units)):
        with np.errstate(over="ignore", invalid="ignore"):  # float32 may overflow; such a decision counts as changed
            y = chunk.astype(dtype) @ own["W1"].T + own["b1"]
            logits = (y * y) @ own["S"].T + y @ own["T"].T + own["c"]
        same = (decide(logits) == model.decide(chunk)) & np.isfinite(logits).all(axis=1)
        changed += int(np.count_nonzero(~same))
    return changed
