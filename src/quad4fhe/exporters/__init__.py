"""Write the polynomial model of a fit for other tools: an ONNX graph, a torch state dict, or plain arrays.

A format is one file of this package and one line of `EXPORTERS`; other packages add formats by the entry-point group
`quad4fhe.exporters`. `read` gives back the model of an exported file, so that it can be compared with the fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import row_chunks
from quad4fhe._registry import Registry
from quad4fhe.errors import InputError
from quad4fhe.exporters.folding import folded
from quad4fhe.io.files import opened, write_atomically
from quad4fhe.io.formats import format_of
from quad4fhe.mlp import decide
from quad4fhe.polynomial import PolynomialModel

__all__ = ["EXPORTERS", "Exporter", "Options", "Origin", "changed_decisions", "export", "exporter_of", "folded", "read"]

QUADRATIC = ("W1", "b1", "S", "T", "c")
HIGHER = ("W1", "b1", "V", "a", "c")
"""The arrays of a model of degree 2, and of a higher one: logits = V g(y) + c, g_j(y) = a_1j y + a_2j y^2 + ..."""


@dataclass(frozen=True)
class Origin:
    """The fit behind an exported model; the hashes are of the float64 numbers of the fit."""

    family: str
    regime: str
    quadratic_sha256: str
    relu_model_sha256: str
    calibration_sha256: str
    quad4fhe: str

    def lines(self, dtype: str) -> dict[str, str]:
        """The fields as text by name, with the type of the file's numbers."""
        return {field.name: getattr(self, field.name) for field in fields(self)} | {"dtype": dtype}


@dataclass(frozen=True)
class Options:
    """How a model is written.

    Parameters
    ----------
    dtype
        The type of the numbers: "float64" or "float32".
    labels
        Whether an ONNX graph also outputs the decision.
    batch
        The number of rows that an ONNX graph takes; None for any number.
    """

    dtype: str = "float64"
    labels: bool = False
    batch: int | None = None

    def __post_init__(self) -> None:
        if self.batch is not None and self.batch < 1:
            raise InputError(f"the batch is {self.batch}, wanted at least 1 row; leave it out for any number")


@dataclass(frozen=True)
class Exporter:
    """One export format.

    Parameters
    ----------
    words
        What a file holds, for messages.
    suffixes
        The file suffixes of the format.
    write
        Makes the content of a file from (model, origin, options).
    read
        Reads the model of a file that `write` made; raises InputError for any other file.
    graph
        Whether a file is a graph, which can also output the decision and can fix the number of rows.
    higher
        What a file of a model above degree 2 holds, if that differs from `words`.
    """

    words: str
    suffixes: tuple[str, ...]
    write: Callable[[PolynomialModel, Origin, Options], bytes]
    read: Callable[[Path], PolynomialModel]
    graph: bool = False
    higher: str = ""

    def contents(self, degree: int) -> str:
        """What a file of a model of this degree holds."""
        return self.words if degree == 2 else self.higher or self.words


EXPORTERS: Registry[Exporter] = Registry(
    "export format",
    {
        "onnx": "quad4fhe.exporters.onnx:EXPORTER",
        "torch": "quad4fhe.exporters.torch:EXPORTER",
        "arrays": "quad4fhe.exporters.arrays:EXPORTER",
    },
)
_DEFAULT = Options()


def exporter_of(path: str | Path) -> Exporter:
    """The format for the suffix of `path`; raises InputError, which lists the suffixes, if there is none."""
    return format_of(path, EXPORTERS, "an exported model", "choose a name such as quadratic.onnx")


def export(model: PolynomialModel, path: str | Path, origin: Origin, options: Options = _DEFAULT) -> None:
    """Write `model` to one file, in the format of its suffix (.onnx, .pt, .npz)."""
    exporter = exporter_of(path)
    if options.labels and not exporter.graph:
        raise InputError(f"only an ONNX graph outputs labels, and {path} is not one; leave them out")
    if options.batch is not None and not exporter.graph:
        raise InputError(f"only an ONNX graph has a fixed number of rows, and {path} is not one; leave out the batch")
    write_atomically(path, exporter.write(model, origin, options))


def read(path: str | Path) -> PolynomialModel:
    """The model of a file that `export` wrote; a float32 file gives the rounded numbers."""
    exporter = exporter_of(path)
    with opened(path) as file:
        return exporter.read(file)


def changed_decisions(model: PolynomialModel, path: str | Path, X: NDArray[Any], dtype: str) -> int:
    """Count the rows of X (n, d) that an exported file, computed in its own type, decides differently."""
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


def model_of(arrays: dict[str, Any]) -> PolynomialModel:
    """The model with these exported arrays."""
    if "V" in arrays:
        return PolynomialModel.by_unit(*(arrays[name] for name in HIGHER))
    return PolynomialModel.quadratic(*(arrays[name] for name in QUADRATIC))


def rounded(model: PolynomialModel, dtype: str) -> dict[str, NDArray[Any]]:
    """The model's five arrays in `dtype`; raises InputError for a number that the type can't hold."""
    if dtype not in ("float64", "float32"):
        raise InputError(f"dtype is {dtype!r}, wanted 'float64' or 'float32'")
    quadratic = model.is_quadratic
    if not quadratic and model.V is None:
        raise InputError("a model without a polynomial per unit can't be exported; fit it as unitwise or shared")
    out = {}
    for name in QUADRATIC if quadratic else HIGHER:
        with np.errstate(over="ignore"):
            out[name] = np.ascontiguousarray(getattr(model, name), dtype=dtype)
        if not np.isfinite(out[name]).all():
            raise InputError(f"{name} holds numbers beyond the range of float32; export in float64")
    return out
