"""The polynomial model as a torch module, and as a .pt file that holds its state dict.

Decides the names in the state dict; the module itself is in `_torch_module`, which needs torch to be imported.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from quad4fhe._files import parsing
from quad4fhe.errors import InputError, MissingExtraError
from quad4fhe.exporters._origin import Origin, rounded
from quad4fhe.quadratic import QuadraticModel

_KEYS = {"hidden.weight": "W1", "hidden.bias": "b1", "squares.weight": "S", "linear.weight": "T", "squares.bias": "c"}


def to_module(model: QuadraticModel, dtype: str = "float64") -> Any:
    """A QuadraticNet in evaluation mode with the model's numbers; its parameters can be trained on."""
    torch = _torch()
    from quad4fhe.exporters._torch_module import QuadraticNet

    arrays = rounded(model, dtype)
    net = QuadraticNet(model.features, model.units, model.outputs, dtype=getattr(torch, dtype))
    # Copies: torch would otherwise share the memory of arrays that nobody may write to.
    net.load_state_dict({key: torch.from_numpy(arrays[name].copy()) for key, name in _KEYS.items()})
    return net.eval()


def to_bytes(model: QuadraticModel, origin: Origin, dtype: str, labels: bool) -> bytes:
    """The content of a .pt file: the state dict alone, so that it loads with weights_only=True."""
    buffer = io.BytesIO()
    _torch().save(to_module(model, dtype).state_dict(), buffer)
    return buffer.getvalue()


def read(file: Path) -> QuadraticModel:
    """The model of a state dict that `to_bytes` wrote; nothing in the file is executed."""
    torch = _torch()
    with parsing("the torch file", "export the fit again"):
        content = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(content, dict) or set(content) != set(_KEYS):
        raise InputError("holds another state dict, wanted one made by `quad4fhe export`; models with ReLU: MLP.load")
    with parsing("the tensors", "export the fit again"):
        arrays = {_KEYS[key]: value.numpy() for key, value in content.items()}
    return QuadraticModel(**arrays)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "torch", "exporting to torch") from None
    return torch
