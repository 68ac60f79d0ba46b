"""The polynomial model as a torch module, and as a .pt file that holds its state dict.

The module classes are in `_torch_module`, because defining them needs torch.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from quad4fhe.errors import InputError, MissingExtraError
from quad4fhe.exporters import Exporter, Options, Origin, model_of, rounded
from quad4fhe.io.files import parsing
from quad4fhe.polynomial import PolynomialModel

_HIGHER = {"hidden.weight": "W1", "hidden.bias": "b1", "coefficients": "a", "head.weight": "V", "head.bias": "c"}
_KEYS = {"hidden.weight": "W1", "hidden.bias": "b1", "squares.weight": "S", "linear.weight": "T", "squares.bias": "c"}
_FOLDED = {key: name for key, name in _KEYS.items() if name != "T"}


def to_module(model: PolynomialModel, dtype: str = "float64") -> Any:
    """The net of a model, in evaluation mode; its parameters can be trained further.

    A QuadraticNet, a FoldedNet if the model has no linear term, or a PolynomialNet above degree 2.
    """
    torch = _torch()
    from quad4fhe.exporters._torch_module import FoldedNet, PolynomialNet, QuadraticNet

    arrays, kind = rounded(model, dtype), getattr(torch, dtype)
    net: Any
    if model.is_quadratic and not model.T.any():
        keys, net = _FOLDED, FoldedNet(model.features, model.units, model.outputs, dtype=kind)
    elif model.is_quadratic:
        keys, net = _KEYS, QuadraticNet(model.features, model.units, model.outputs, dtype=kind)
    else:
        keys, net = _HIGHER, PolynomialNet(model.features, model.units, model.outputs, model.degree, dtype=kind)
    # Copies: torch would otherwise share the memory of read-only arrays.
    net.load_state_dict({key: torch.from_numpy(arrays[name].copy()) for key, name in keys.items()})
    return net.eval()


def to_bytes(model: PolynomialModel, origin: Origin, options: Options) -> bytes:
    """The content of a .pt file: the state dict alone, so that it loads with weights_only=True."""
    buffer = io.BytesIO()
    _torch().save(to_module(model, options.dtype).state_dict(), buffer)
    return buffer.getvalue()


def read(file: Path) -> PolynomialModel:
    """The model of a state dict that `to_bytes` wrote; nothing in the file is executed."""
    torch = _torch()
    with parsing("the torch file", "export the fit again"):
        content = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(content, dict) or set(content) not in (set(_KEYS), set(_FOLDED), set(_HIGHER)):
        raise InputError(
            "holds another state dict, wanted one made by `quad4fhe export`; to read a trained model, use MLP.load"
        )
    with parsing("the tensors", "export the fit again"):
        keys = _HIGHER if "coefficients" in content else _KEYS
        arrays = {keys[key]: value.numpy() for key, value in content.items()}
        if "S" in arrays:
            arrays.setdefault("T", np.zeros_like(arrays["S"]))
    return model_of(arrays)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "torch", "exporting to torch") from None
    return torch


EXPORTER = Exporter(
    "a torch state dict: hidden, squares, linear",
    (".pt",),
    to_bytes,
    read,
    higher="a torch state dict: hidden, coefficients, head",
)
