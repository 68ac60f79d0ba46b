"""Models from torch: a Sequential, a state dict, or a .pt/.pth file that holds a state dict.

Decides what each module of a Sequential means at inference time (BatchNorm uses its running statistics, Dropout is
absent). State dicts are left to `_state_dict`, folding to `_chain`.
"""

from __future__ import annotations

import pickle  # for its exception only: nothing is unpickled here
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from quad4fhe._files import one_line, opened
from quad4fhe.errors import InputError, MissingExtraError
from quad4fhe.importers._chain import Chain
from quad4fhe.importers._state_dict import from_state_dict
from quad4fhe.mlp import MLP

_SUPPORTED = (
    "supported: a Sequential of Linear, BatchNorm1d, ReLU, Linear, with Dropout, Identity and Flatten anywhere "
    "and Softmax, LogSoftmax or Sigmoid at the end"
)


def from_torch(module: Any) -> MLP:
    """Import a Sequential (Linear, optional BatchNorm1d and Dropout, ReLU, Linear) or a state dict of one."""
    torch = _torch()
    if isinstance(module, Mapping):
        return from_state_dict({str(key): _numpy(f"entry {key!r}", value) for key, value in module.items()})
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"got {type(module).__name__}, wanted a torch module or a state dict; {_SUPPORTED}")
    chain = Chain()
    tail = ""
    for name, layer in _layers(module, ""):
        label = f"layer {name!r} ({type(layer).__name__})" if name else type(layer).__name__
        if _is_absent(layer):
            continue
        if type(layer) in (torch.nn.Softmax, torch.nn.LogSoftmax, torch.nn.Sigmoid):
            _check_tail(label, layer, chain)
            tail = label
        elif tail:
            raise InputError(f"{label} comes after {tail}, which must be last; {_SUPPORTED}")
        else:
            chain = _append(chain, label, layer)
    return chain.mlp()


def from_torch_file(path: str | Path) -> MLP:
    """Read a .pt or .pth file that holds a state dict; nothing in it is executed."""
    torch = _torch()
    advice = "save the weights alone with torch.save(model.state_dict(), path), or export the model to ONNX"
    with opened(path) as file:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about TorchScript archives, which are refused below
                content = torch.load(file, map_location="cpu", weights_only=True)
        # torch.load lets whatever its unpickler hits on bad bytes escape: KeyError, IndexError, UnicodeDecodeError...
        except Exception as error:  # see the line above
            if isinstance(error, pickle.UnpicklingError) or "TorchScript" in str(error):
                came = "holds a whole pickled module or a TorchScript archive, which is never run, wanted a state dict"
            else:
                came = "is damaged or no torch file, wanted a state dict"
            raise InputError(f"{came}; {advice}") from error
        if not isinstance(content, Mapping):
            raise InputError(f"holds a {type(content).__name__}, wanted a state dict; {advice}")
        return from_torch(content)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "torch", "importing a torch model") from None
    return torch


def _layers(module: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The leaves of nested Sequentials in the order in which they run, with their full names."""
    sequential = _torch().nn.Sequential
    if not isinstance(module, sequential):
        yield name, module
    elif type(module).forward is not sequential.forward:
        raise InputError(
            f"{type(module).__name__} has a forward of its own, which is not read; {_SUPPORTED}; "
            "or export the model to ONNX"
        )
    else:
        # Not named_children, which leaves out the second use of a module: one ReLU object may be two layers.
        for key, child in module._modules.items():
            yield from _layers(child, f"{name}.{key}" if name else key)


def _is_absent(layer: Any) -> bool:
    """Whether the layer passes its input on unchanged at inference time."""
    nn = _torch().nn
    return type(layer) in (nn.Dropout, nn.AlphaDropout, nn.Identity) or (
        type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)
    )


def _append(chain: Chain, label: str, layer: Any) -> Chain:
    nn = _torch().nn
    # Exact types: a subclass may compute something else, and hooks (old weight_norm) may change the weights.
    if layer._forward_pre_hooks or layer._forward_hooks:
        raise InputError(f"{label} has forward hooks, which are not read; remove them first (for instance weight_norm)")
    if type(layer) is nn.ReLU:
        return chain.relu(label)
    if type(layer) is nn.Linear:
        bias = None if layer.bias is None else _numpy(label, layer.bias)
        return chain.linear(label, _numpy(label, layer.weight), bias)
    if type(layer) is nn.BatchNorm1d:
        if layer.running_mean is None or layer.running_var is None:
            raise InputError(f"{label} keeps no running statistics; train it with track_running_stats=True")
        mean, var = _numpy(label, layer.running_mean), _numpy(label, layer.running_var)
        if not layer.affine:
            return chain.batch_norm(label, mean, var, layer.eps)
        return chain.batch_norm(label, mean, var, layer.eps, _numpy(label, layer.weight), _numpy(label, layer.bias))
    raise InputError(f"{label} is not supported; {_SUPPORTED}; other modules may be exported to ONNX")


def _check_tail(label: str, layer: Any, chain: Chain) -> None:
    if not chain.complete:
        raise InputError(f"{label} comes before the last Linear layer; {_SUPPORTED}")
    if isinstance(layer, _torch().nn.Sigmoid):
        return
    if layer.dim not in (None, 1, -1):
        raise InputError(f"{label} has dim={layer.dim}, which mixes samples; wanted dim=1")
    if chain.width == 1:
        raise InputError(f"{label} over one output is constant; a binary model with one score ends in Sigmoid")


def _numpy(label: str, value: Any) -> NDArray[Any]:
    torch = _torch()
    if not isinstance(value, torch.Tensor):
        raise InputError(
            f"{label} is of type {type(value).__name__}, wanted a tensor; of a checkpoint, pass its state dict alone"
        )
    try:
        array: NDArray[Any] = value.detach().to(device="cpu", dtype=torch.float64).numpy()
    except (RuntimeError, TypeError) as error:  # meta, quantised and sparse tensors
        raise InputError(f"{label} holds a tensor without plain numbers ({one_line(error)})") from error
    return array
