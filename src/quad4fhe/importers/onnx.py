"""Models from ONNX files, as skl2onnx and both torch exporters write them.

Decides where the graph's input and outputs are and follows the data between them, node by node; what a node does to
the data is left to `_onnx_nodes`. The graph is only read: nothing runs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quad4fhe._files import opened, parsing
from quad4fhe.errors import InputError, MissingExtraError
from quad4fhe.importers._chain import Chain
from quad4fhe.importers._onnx_graph import Constants, Node
from quad4fhe.importers._onnx_nodes import Flow, apply
from quad4fhe.mlp import MLP

_OLDEST_OPSET = 7  # before it, Add and Gemm broadcast by rules of their own


def from_onnx(path: str | Path) -> MLP:
    """Import an ONNX graph: Gemm or MatMul+Add, Relu, Gemm or MatMul+Add; scalers and BatchNormalization are folded."""
    try:
        import onnx
        from onnx.external_data_helper import load_external_data_for_model
    except ImportError:
        raise MissingExtraError("onnx", "onnx", "importing an ONNX model") from None

    with opened(path) as file:
        with parsing("the ONNX model", "export it again"):
            model = onnx.load(file, format="protobuf", load_external_data=False)
        if not model.graph.node:
            raise InputError("holds no ONNX graph; export the model again")
        # onnx itself refuses external files outside the model's folder.
        with parsing("the second file, which holds the weights,", "keep both together"):
            load_external_data_for_model(model, str(file.parent))
        return _read(model)


def _read(model: Any) -> MLP:
    for opset in model.opset_import:
        if opset.domain in ("", "ai.onnx") and opset.version < _OLDEST_OPSET:
            raise InputError(
                f"uses opset {opset.version}, wanted {_OLDEST_OPSET} or later; export it with a newer opset"
            )
    graph = model.graph
    constants = Constants(graph.initializer)
    inputs = [value for value in graph.input if value.name not in constants]
    if len(inputs) != 1:
        names = ", ".join(repr(value.name) for value in inputs) or "none"
        raise InputError(f"the graph has {len(inputs)} inputs ({names}), wanted one matrix of samples; export it so")
    shape = _shape(inputs[0])
    flows: dict[str, Flow] = {inputs[0].name: Flow(Chain(), "affine", vector=shape is not None and len(shape) == 1)}
    for proto in graph.node:
        node = Node(proto)
        if any(name in flows for name in node.inputs):
            # Only the first output carries the data: Dropout's mask and the like stay unknown names.
            flows[node.outputs[0]] = apply(node, flows, constants)
        else:
            constants.fold(node)
    mlp = _decided(graph, flows).mlp()
    _check_features(shape, mlp)
    return mlp


def _decided(graph: Any, flows: dict[str, Flow]) -> Chain:
    """The one chain that the graph's outputs are made from."""
    reached = [flows[value.name] for value in graph.output if value.name in flows]
    chains = [flow.chain for flow in reached if flow.kind not in ("shape", "complement")]
    if not chains:
        raise InputError("no output of the graph is a score or label of its input; export the model again")
    whole = [chain for chain in chains if chain.complete]
    if any(chain is not whole[0] for chain in whole):
        raise InputError("the outputs of the graph have different output layers; supported: one classifier per graph")
    return whole[0] if whole else chains[0]


def _shape(value: Any) -> list[int] | None:
    """The declared input shape, 0 where it is left open; None without a declaration."""
    tensor = value.type.tensor_type
    return [int(dim.dim_value) for dim in tensor.shape.dim] if tensor.HasField("shape") else None


def _check_features(shape: list[int] | None, mlp: MLP) -> None:
    """A Reshape may cut one sample into several; then the declared width is not the model's."""
    if not shape:
        return
    width = 1
    for size in shape if len(shape) == 1 else shape[1:]:
        width *= size
    if width not in (0, mlp.features):
        raise InputError(
            f"the graph takes {width} values per sample, but its first layer {mlp.features}; "
            "supported: samples as rows, or images flattened to rows"
        )
