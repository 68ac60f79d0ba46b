"""What every exporter shares: the description of an export format, its options, the origin of a file, and rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe.errors import InputError
from quad4fhe.polynomial import PolynomialModel, QuadraticModel

QUADRATIC = ("W1", "b1", "S", "T", "c")
HIGHER = ("W1", "b1", "V", "a", "c")
"""The arrays of a model of degree 2, and of a higher one: logits = V g(y) + c, g_j(y) = a_1j y + a_2j y^2 + ..."""


def names_of(model: PolynomialModel) -> tuple[str, ...]:
    """The names of the arrays of a model."""
    if isinstance(model, QuadraticModel):
        return QUADRATIC
    if model.V is None:
        raise InputError("a model without a polynomial per unit can't be exported; fit it as unitwise or shared")
    return HIGHER


def model_of(arrays: dict[str, Any]) -> PolynomialModel:
    """The model of its exported arrays."""
    if "V" in arrays:
        return PolynomialModel.by_unit(*(arrays[name] for name in HIGHER))
    return QuadraticModel(*(arrays[name] for name in QUADRATIC))


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
        """The fields as names and texts, with the type of the file's numbers."""
        return {field.name: getattr(self, field.name) for field in fields(self)} | {"dtype": dtype}


@dataclass(frozen=True)
class Options:
    """How a model is written.

    Parameters
    ----------
    dtype
        The type of the numbers: "float64" or "float32".
    labels
        Whether an ONNX graph also gives the decision.
    batch
        The number of rows that an ONNX graph takes; None for any number.
    """

    dtype: str = "float64"
    labels: bool = False
    batch: int | None = None

    def __post_init__(self) -> None:
        if self.batch is not None and self.batch < 1:
            raise InputError(f"the batch is {self.batch}, wanted at least 1 row, or none for any number")


@dataclass(frozen=True)
class Exporter:
    """One export format.

    Parameters
    ----------
    words
        What a file holds, for people.
    suffixes
        The file suffixes of the format.
    write
        The content of a file, from (model, origin, options).
    read
        The model of a file that `write` made; any other file is rejected.
    graph
        Whether a file is a graph, which can also give the decision and can have a fixed number of rows.
    """

    words: str
    suffixes: tuple[str, ...]
    write: Callable[[PolynomialModel, Origin, Options], bytes]
    read: Callable[[Path], PolynomialModel]
    graph: bool = False


def rounded(model: PolynomialModel, dtype: str) -> dict[str, NDArray[Any]]:
    """The model's five arrays in `dtype`; raises InputError for a number that the type cannot hold."""
    if dtype not in ("float64", "float32"):
        raise InputError(f"dtype is {dtype!r}, wanted 'float64' or 'float32'")
    out = {}
    for name in names_of(model):
        with np.errstate(over="ignore"):
            out[name] = np.ascontiguousarray(getattr(model, name), dtype=dtype)
        if not np.isfinite(out[name]).all():
            raise InputError(f"{name} holds numbers beyond the range of float32; export in float64")
    return out
