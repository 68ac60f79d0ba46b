"""Models as named arrays: .npz and .safetensors files with W1, b1, W2, b2, or with torch's names.

Decides which of the two namings a file uses, and writes the first of them. What torch's names mean is left to
`_state_dict`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save as safetensors_bytes

from quad4fhe._files import check_place, open_npz, opened, parsing, read_npz, write_atomically
from quad4fhe.errors import InputError
from quad4fhe.importers._state_dict import from_state_dict
from quad4fhe.mlp import MLP

_NAMES = ("W1", "b1", "W2", "b2")
FORMAT = "quad4fhe-mlp-1"
"""The mark of a model file that was written here."""
_LISTED = 8  # how many names of a foreign file an error shows


def from_npz(path: str | Path) -> MLP:
    """Read W1 (m, d), b1 (m,), W2 (K, m), b2 (K,) from an .npz archive; other arrays are ignored."""
    with (
        opened(path) as file,
        open_npz(file, "write it with numpy.savez(path, W1=..., b1=..., W2=..., b2=...)") as archive,
    ):
        return _from_names(archive.files, lambda name: read_npz(archive, name))


def from_safetensors(path: str | Path) -> MLP:
    """Read W1, b1, W2, b2, or torch-style names such as `0.weight`, from a .safetensors file."""
    fix = "write it with safetensors.numpy.save_file"
    with opened(path) as file:
        with parsing("the .safetensors file", fix):
            archive: Any = safe_open(file, framework="numpy")

        def read(name: str) -> NDArray[Any]:
            with parsing(f"the tensor {name!r}", "save it as float32 or float64"):
                array: NDArray[Any] = archive.get_tensor(name)
            return array

        with archive:
            return _from_names(archive.keys(), read)


def save(mlp: MLP, path: str | Path) -> None:
    """Write W1, b1, W2, b2 in float64; the suffix says how (.safetensors, .npz)."""
    place = Path(path)
    arrays = {name: np.ascontiguousarray(getattr(mlp, name)) for name in _NAMES}
    if place.suffix == ".safetensors":
        data = safetensors_bytes(arrays, {"format": FORMAT})
    elif place.suffix == ".npz":
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays, format=np.array(FORMAT))
        data = buffer.getvalue()
    else:
        raise InputError(
            f"a model is saved as .safetensors or .npz, not {place.name!r}; choose a name such as model.safetensors"
        )
    write_atomically(check_place(place), data)


def _from_names(names: Iterable[str], read: Callable[[str], NDArray[Any]]) -> MLP:
    held = list(names)
    missing = [name for name in _NAMES if name not in held]
    if not missing:
        return MLP(*(read(name) for name in _NAMES))
    if len(missing) == len(_NAMES) and any(name.endswith(".weight") for name in held):
        return from_state_dict({name: read(name) for name in held})
    shown = ", ".join(repr(name) for name in held[:_LISTED]) + (", ..." if len(held) > _LISTED else "")
    raise InputError(
        f"holds {shown or 'no arrays'}, but no {', '.join(missing)}; wanted the arrays {', '.join(_NAMES)}"
    )
