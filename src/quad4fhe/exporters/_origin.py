"""What an exported file says of where it came from, and how its numbers are rounded."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe.errors import InputError
from quad4fhe.quadratic import QuadraticModel

NAMES = ("W1", "b1", "S", "T", "c")


@dataclass(frozen=True)
class Origin:
    """The fit behind an exported model; hashes are those of the float64 numbers of the fit."""

    family: str
    regime: str
    quadratic_sha256: str
    relu_model_sha256: str
    calibration_sha256: str
    quad4fhe: str

    def lines(self, dtype: str) -> dict[str, str]:
        """The same as names and texts, with the type the file's numbers have."""
        return {field.name: getattr(self, field.name) for field in fields(self)} | {"dtype": dtype}


def rounded(model: QuadraticModel, dtype: str) -> dict[str, NDArray[Any]]:
    """The model's five arrays in `dtype`; a number that the type can't hold is refused by name."""
    if dtype not in ("float64", "float32"):
        raise InputError(f"dtype is {dtype!r}, wanted 'float64' or 'float32'")
    out = {}
    for name in NAMES:
        with np.errstate(over="ignore"):
            out[name] = np.ascontiguousarray(getattr(model, name), dtype=dtype)
        if not np.isfinite(out[name]).all():
            raise InputError(f"{name} holds numbers beyond the range of float32; export in float64")
    return out
