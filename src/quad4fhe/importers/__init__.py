"""Read a trained model from a file or a framework into an `MLP`.

Decides which importer a file suffix belongs to; each importer, one per file, decides what it can take. None of them
runs code from a model file: no pickle, no graph execution.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from quad4fhe.errors import InputError
from quad4fhe.importers.arrays import from_npz, from_safetensors
from quad4fhe.importers.onnx import from_onnx
from quad4fhe.importers.sklearn import from_sklearn
from quad4fhe.importers.torch import from_torch, from_torch_file
from quad4fhe.mlp import MLP

__all__ = ["from_npz", "from_onnx", "from_safetensors", "from_sklearn", "from_torch", "from_torch_file", "load"]

_BY_SUFFIX: dict[str, Callable[[str | Path], MLP]] = {
    ".npz": from_npz,
    ".safetensors": from_safetensors,
    ".onnx": from_onnx,
    ".pt": from_torch_file,
    ".pth": from_torch_file,
}


def load(path: str | Path) -> MLP:
    """Read a model file; the suffix says how (.npz, .safetensors, .onnx, .pt, .pth)."""
    suffix = Path(path).suffix.lower()
    if suffix not in _BY_SUFFIX:
        came = f"the suffix {suffix!r} is not one of a model file" if suffix else "the file name has no suffix"
        raise InputError(f"{path}: {came}, wanted {', '.join(_BY_SUFFIX)}; save or export the model as one of these")
    return _BY_SUFFIX[suffix](path)
