"""Models as named arrays: .npz and .safetensors files with W1, b1, W2, b2, or with torch's names.

`save` writes W1, b1, W2, b2.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save as safetensors_bytes

from quad4fhe.activations import RELU, Activation
from quad4fhe.deep import DeepMLP, GraphMLP
from quad4fhe.errors import InputError
from quad4fhe.feature_part import FeaturePart
from quad4fhe.importers import Importer
from quad4fhe.importers._state_dict import from_state_dict
from quad4fhe.io.files import check_place, open_npz, opened, parsing, read_npz, write_atomically
from quad4fhe.mlp import MLP

_NAMES = ("W1", "b1", "W2", "b2")
FORMAT = "quad4fhe-mlp-1"
"""The version marker that `save` writes."""
_ACTIVATION, _PART, _NETWORK = "activation", "feature_part", "network"
_LISTED = 8  # names of arrays that an error shows


def from_npz(path: str | Path, *, activation: Activation | str | None = None) -> MLP:
    """Read W1 (m, d), b1 (m,), W2 (K, m), b2 (K,) from an .npz archive; other arrays are ignored."""
    with (
        opened(path) as file,
        open_npz(file, "write it with numpy.savez(path, W1=..., b1=..., W2=..., b2=...)") as archive,
    ):
        return _from_names(archive.files, lambda name: read_npz(archive, name), activation)


def from_safetensors(path: str | Path, *, activation: Activation | str | None = None) -> MLP:
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
            return _from_names(archive.keys(), read, activation)


def save(mlp: MLP, path: str | Path) -> None:
    """Write W1, b1, W2, b2 in float64, the activation and the feature part, as .safetensors or .npz."""
    place = Path(path)
    if isinstance(mlp, GraphMLP) and mlp.power:
        raise InputError("the network is scaled, which its graph does not record; save the unscaled network")
    arrays: dict[str, NDArray[Any]] = {name: np.ascontiguousarray(array) for name, array in _arrays(mlp).items()}
    if not all(each.is_default for each in mlp.activations):
        kinds = [each.plain() for each in mlp.activations]  # a deeper network has a list of them
        text = json.dumps(kinds if mlp.layers else kinds[0])
        arrays[_ACTIVATION] = np.frombuffer(text.encode(), dtype=np.uint8)
    if mlp.feature_part is not None:
        arrays[_PART] = np.frombuffer(mlp.feature_part.graph, dtype=np.uint8)
    if mlp.network is not None:
        arrays[_NETWORK] = np.frombuffer(mlp.network.graph, dtype=np.uint8)
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


def _arrays(mlp: MLP) -> dict[str, Any]:
    pairs = [(mlp.W1, mlp.b1), *(mlp.layers or [(mlp.W2, mlp.b2)])]
    return {f"{part}{k}": array for k, pair in enumerate(pairs, 1) for part, array in zip("Wb", pair, strict=True)}


def _from_names(names: Iterable[str], read: Callable[[str], NDArray[Any]], activation: Activation | str | None) -> MLP:
    held = list(names)
    missing = [name for name in _NAMES if name not in held]
    if not missing:
        part = FeaturePart(_bytes(_PART, read(_PART))) if _PART in held else None
        own = _stored(read(_ACTIVATION)) if _ACTIVATION in held else None
        given = Activation.parse(activation) if isinstance(activation, str) else activation
        if own is not None and given is not None and set(own) != {given}:
            said = " and ".join(map(str, own))
            raise InputError(f"the file records that its activation is {said}, not {given}; leave out --activation")
        deepest = next(k for k in range(2, len(held) + 3) if not {f"W{k + 1}", f"b{k + 1}"} <= set(held))
        pairs = [(read(f"W{k}"), read(f"b{k}")) for k in range(1, deepest + 1)]
        if deepest > 2:
            return DeepMLP(*pairs[0], pairs[1:], activation=own or given or RELU, feature_part=part)
        if _NETWORK in held:
            network = FeaturePart(_bytes(_NETWORK, read(_NETWORK)))
            kind = (own or (RELU,))[0]
            return GraphMLP(*pairs[0], network, pairs[1], activation=kind, feature_part=part)
        if own is not None and len(own) != 1:
            raise InputError(f"the file has {len(own)} activations for one hidden layer; save the model again")
        return MLP(*pairs[0], *pairs[1], activation=(own or (given or RELU,))[0], feature_part=part)
    if len(missing) == len(_NAMES) and any(name.endswith(".weight") for name in held):
        return from_state_dict({name: read(name) for name in held}, activation)
    shown = ", ".join(repr(name) for name in held[:_LISTED]) + (", ..." if len(held) > _LISTED else "")
    raise InputError(
        f"holds {shown or 'no arrays'}, but no {', '.join(missing)}; wanted the arrays {', '.join(_NAMES)}"
    )


def _bytes(name: str, array: NDArray[Any]) -> bytes:
    if array.dtype != np.uint8 or array.ndim != 1:
        raise InputError(f"the entry {name!r} is not a list of bytes; save the model again")
    return array.tobytes()


def _stored(array: NDArray[Any]) -> tuple[Activation, ...]:
    """One activation, or one for each hidden layer."""
    with parsing("the activation", "save the model again"):
        document = json.loads(_bytes(_ACTIVATION, array))
        each = document if isinstance(document[0], list) else [document]
        return tuple(Activation.from_plain(one) for one in each)


def _load(path: str | Path, *, activation: Activation | str | None = None) -> MLP:
    read = from_npz if Path(path).suffix.lower() == ".npz" else from_safetensors
    return read(path, activation=activation)


IMPORTER = Importer(
    words="the arrays W1, b1, W2, b2, or a torch state dict, in an .npz or .safetensors file",
    suffixes=(".npz", ".safetensors"),
    read_file=_load,
    options=("activation",),
)
