"""Write the polynomial model of a fit for other tools: an ONNX graph, a torch state dict, or plain arrays.

A format is one file of this package and one line of `EXPORTERS`; other packages add formats by the entry-point group
`quad4fhe.exporters`. `read` gives back the model of an exported file, so that it can be compared with the fit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import row_chunks
from quad4fhe._registry import Registry
from quad4fhe.errors import InputError
from quad4fhe.exporters._origin import Exporter, Options, Origin, rounded
from quad4fhe.exporters.folding import folded
from quad4fhe.io.files import opened, write_atomically
from quad4fhe.io.formats import format_of
from quad4fhe.mlp import decide
from quad4fhe.polynomial import PolynomialModel

__all__ = ["EXPORTERS", "Exporter", "Options", "Origin", "changed_decisions", "export", "exporter_of", "folded", "read"]

EXPORTERS: Registry[Exporter] = Registry(
    "export format",
    {
        "onnx": "quad4fhe.exporters.onnx:EXPORTER",
        "torch": "quad4fhe.exporters.torch:EXPORTER",
        "arrays": "quad4fhe.exporters.arrays:EXPORTER",
    },
    group="quad4fhe.exporters",
)


_AS_IT_IS = Options()


def exporter_of(path: str | Path) -> Exporter:
    """The format that the suffix of `path` stands for; an InputError lists the suffixes."""
    return format_of(path, EXPORTERS, "an exported model", "choose a name such as quadratic.onnx")


def export(model: PolynomialModel, path: str | Path, origin: Origin, options: Options = _AS_IT_IS) -> None:
    """Write `model` to one file; the suffix says how (.onnx, .pt, .npz)."""
    exporter = exporter_of(path)
    if options.labels and not exporter.graph:
        raise InputError(f"labels are an output of an ONNX graph, and {path} is not one; leave them out")
    if options.batch is not None and not exporter.graph:
        raise InputError(f"only an ONNX graph has a fixed number of rows, and {path} is not one; leave out the batch")
    write_atomically(path, exporter.write(model, origin, options))


def read(path: str | Path) -> PolynomialModel:
    """The model of a file that `export` wrote; in float32 files, the rounded numbers."""
    exporter = exporter_of(path)
    with opened(path) as file:
        return exporter.read(file)


def changed_decisions(model: PolynomialModel, path: str | Path, X: NDArray[Any], dtype: str) -> int:
    """The number of rows of X (n, d) on which an exported file, computed in its own type, decides otherwise."""
    own = rounded(read(path), dtype)
    changed = 0
    for _, chunk in row_chunks("X", X, 8 * (model.features + 3 * model.units)):
        with np.errstate(over="ignore", invalid="ignore"):  # an overflow in float32 counts as a changed decision
            y = chunk.astype(dtype) @ own["W1"].T + own["b1"]
            if "S" in own:
                logits = (y * y) @ own["S"].T + y @ own["T"].T + own["c"]
            else:
                g = own["a"][-1] * y
                for a in own["a"][-2::-1]:
                    g = (g + a) * y
                logits = g @ own["V"].T + own["c"]
        same = (decide(logits) == model.decide(chunk)) & np.isfinite(logits).all(axis=1)
        changed += int(np.count_nonzero(~same))
    return changed
