"""Models from torch: a module, a state dict, or a .pt/.pth file that holds a state dict.

Modules are read as they act at inference time: BatchNorm uses its running statistics, Dropout does nothing.
"""

from __future__ import annotations

import io
import pickle  # for its exception only: nothing is unpickled here
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from quad4fhe.activations import Activation
from quad4fhe.errors import InputError, MissingExtraError
from quad4fhe.importers import Importer
from quad4fhe.importers._chain import Chain
from quad4fhe.importers._state_dict import from_state_dict
from quad4fhe.io.files import one_line, opened
from quad4fhe.mlp import MLP

_SUPPORTED = (
    "supported: a Sequential of Linear, BatchNorm1d, activation, Linear, with Dropout, Identity and Flatten anywhere "
    "and Softmax, LogSoftmax or Sigmoid at the end"
)
_NESTED = ("state_dict", "model_state_dict", "model", "net", "module", "weights")  # where checkpoints keep it
_EXPORT = "pass a tensor of a few raw inputs as example=, or export the model with torch.onnx.export"


def from_torch(
    module: Any, *, activation: Activation | str | None = None, example: Any = None, split: str = "auto"
) -> MLP:
    """Import a module that ends in Linear, activation, Linear, or a state dict of one.

    The layers of a Sequential are read directly. Any other module is exported to ONNX with `example`, a tensor of a few
    raw inputs, and cut into feature part and head; `split` chooses the place, as in `from_onnx`.
    """
    torch = _torch()
    if isinstance(module, Mapping):
        weights = _weights(module)
        return from_state_dict(
            {str(key): _numpy(f"entry {key!r}", value) for key, value in weights.items()}, activation
        )
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"got {type(module).__name__}, wanted a torch module or a state dict; {_SUPPORTED}")
    if activation is not None:
        raise InputError("a torch module has its own activation; leave out activation=")
    try:
        if split == "auto":
            return _sequential(module)
        if example is None:
            raise InputError(f"split={split!r} is for a module that is exported to ONNX")
    except InputError as error:
        if example is None:
            raise InputError(f"{error}; {_EXPORT}") from None
    return _exported(module, example, split)


def _exported(module: Any, example: Any, split: str) -> MLP:
    """Export the module to ONNX and read that."""
    torch = _torch()
    from quad4fhe.importers.onnx import read_graph

    try:
        import onnx
    except ImportError:
        raise MissingExtraError("onnx", "onnx", "splitting a torch module") from None
    rows = torch.as_tensor(example)
    buffer, training = io.BytesIO(), module.training
    module.eval()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about details of the export
            torch.onnx.export(
                module,
                (rows,),
                buffer,
                dynamo=False,
                input_names=["X"],
                output_names=["logits"],
                dynamic_axes={"X": {0: "n"}, "logits": {0: "n"}},
            )
    except Exception as error:  # the exporter raises whatever the module's own code raises
        raise InputError(
            f"torch can't export the module with this example ({one_line(error)}); export it to ONNX yourself"
        ) from None
    finally:
        module.train(training)
    # One output is read as a score, as for a Sequential.
    return read_graph(onnx.load_from_string(buffer.getvalue()), binary=True, split_at=split)


def _weights(content: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """The state dict inside a checkpoint, which may also hold an optimizer and other entries."""
    torch = _torch()
    if any(isinstance(value, torch.Tensor) for value in content.values()):
        return content
    nested = [content[key] for key in _NESTED if isinstance(content.get(key), Mapping)]
    if nested:
        found = _weights(nested[0])
        # DataParallel and Lightning add one more name in front of every entry.
        first = {str(key).partition(".")[0] for key in found}
        if len(first) == 1 and all(str(key).count(".") >= 2 for key in found):
            return {str(key).partition(".")[2]: value for key, value in found.items()}
        return found
    return content


def _sequential(module: Any) -> MLP:
    torch = _torch()
    chain = Chain()
    tail = ""
    for name, layer in _layers(module, ""):
        label = f"layer {name!r} ({type(layer).__name__})" if name else type(layer).__name__
        if _is_absent(layer):
            continue
        squashes = type(layer) is torch.nn.Sigmoid and chain.complete
        if squashes or type(layer) in (torch.nn.Softmax, torch.nn.LogSoftmax):
            _check_tail(label, layer, chain)
            tail = label
        elif tail:
            raise InputError(f"{label} comes after {tail}, which must be last; {_SUPPORTED}")
        else:
            chain = _append(chain, label, layer)
    mlp = chain.mlp()
    return mlp if mlp.outputs > 1 else mlp.with_notes("one output: read as class 1 where it is positive")


def from_torch_file(path: str | Path, *, activation: Activation | str | None = None) -> MLP:
    """Read a .pt or .pth file that holds a state dict, without running code of the file."""
    torch = _torch()
    advice = "save the weights alone with torch.save(model.state_dict(), path), or export the model to ONNX"
    with opened(path) as file:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about TorchScript archives, which are rejected below
                content = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # on bad bytes torch.load raises KeyError, IndexError, UnicodeDecodeError and others
            if isinstance(error, pickle.UnpicklingError) or "TorchScript" in str(error):
                came = "holds a pickled module or a TorchScript archive, which is never run, wanted a state dict"
            else:
                came = "is damaged or not a torch file, wanted a state dict"
            raise InputError(f"{came}; {advice}") from error
        if not isinstance(content, Mapping):
            raise InputError(f"holds a {type(content).__name__}, wanted a state dict; {advice}")
        return from_torch(content, activation=activation)


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
        raise InputError(f"{type(module).__name__} defines its own forward, which is not read; {_SUPPORTED}")
    else:
        # named_children would skip the second use of an object, but one ReLU object may be two layers.
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
        raise InputError(f"{label} has forward hooks, which are not read; remove them first (such as weight_norm)")
    if type(layer) in _activations():
        return chain.activate(label, _activations()[type(layer)](layer))
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
    raise InputError(f"{label} can't be folded into a head; {_SUPPORTED}")


@cache
def _activations() -> dict[type, Callable[[Any], Activation]]:
    """Torch's activations, with their parameters."""
    nn = _torch().nn

    def named(name: str, *attributes: str) -> Callable[[Any], Activation]:
        return lambda layer: Activation(name, tuple(float(getattr(layer, each)) for each in attributes))

    return {
        nn.ReLU: named("relu"),
        nn.LeakyReLU: named("leaky_relu", "negative_slope"),
        nn.PReLU: lambda layer: Activation("leaky_relu", (tuple(_numpy("PReLU", layer.weight).tolist()),)),
        nn.ReLU6: named("relu6"),
        nn.Hardtanh: named("hardtanh", "min_val", "max_val"),
        nn.Hardsigmoid: named("hard_sigmoid"),
        nn.Hardswish: named("hard_swish"),
        nn.Softsign: named("softsign"),
        nn.Sigmoid: named("sigmoid"),
        nn.Tanh: named("tanh"),
        nn.GELU: lambda layer: Activation("gelu" if layer.approximate == "none" else "gelu_tanh"),
        nn.SiLU: named("silu"),
        nn.ELU: named("elu", "alpha"),
        nn.SELU: named("selu"),
        nn.CELU: named("celu", "alpha"),
        nn.Softplus: named("softplus", "beta"),
        nn.Mish: named("mish"),
    }


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
            f"{label} is of type {type(value).__name__}, wanted a tensor; from a checkpoint, pass the state dict alone"
        )
    try:
        array: NDArray[Any] = value.detach().to(device="cpu", dtype=torch.float64).numpy()
    except (RuntimeError, TypeError) as error:  # meta, quantised and sparse tensors
        raise InputError(
            f"{label} can't be converted to numbers ({one_line(error)}); pass a dense tensor with values"
        ) from error
    return array


IMPORTER = Importer(
    words="a torch Sequential, or a state dict in a .pt or .pth file",
    suffixes=(".pt", ".pth"),
    packages=("torch",),
    extra="torch",
    read_file=from_torch_file,
    read_object=from_torch,
    options=("activation", "example", "split"),
)
