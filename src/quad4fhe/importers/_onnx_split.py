"""Cut an ONNX graph in two: a feature part that runs at the client, and the head, which is fitted and encrypted.

The search goes backwards from the outputs and takes the earliest tensor from which the rest of the graph is a
classifier with one hidden layer, so that everything affine in front of the hidden layer is folded into the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quad4fhe.errors import InputError
from quad4fhe.feature_part import FeaturePart, check_graph
from quad4fhe.importers._chain import Chain
from quad4fhe.importers._onnx_flow import Flow
from quad4fhe.importers._onnx_graph import Graph, Walk
from quad4fhe.importers._onnx_nodes import is_foldable
from quad4fhe.io.files import parsing

AUTO, FIRST = "auto", "first"
_BEFORE, _AFTER = 400, 64  # tensors that are tried without success, before and after the first success


@dataclass(frozen=True, eq=False)
class Cut:
    """The feature part and the walk through the head."""

    part: FeaturePart
    walk: Walk


def split(graph: Graph) -> Cut | None:
    """The cut of a graph whose front can't be folded; None if no cut leaves a classifier with one hidden layer.

    A graph of dense layers alone is not cut: its first layers would be handed to every client.
    """
    found: tuple[int, str, Walk] | None = None
    failed = 0
    for index in range(len(graph.nodes) - 1, -1, -1):
        name = graph.nodes[index].outputs[0]
        if name not in graph.data:
            continue
        walk = _head(graph, name, index + 1)
        failed = 0 if walk is not None else failed + 1
        if walk is not None:
            found = index, name, walk
        elif failed > (_BEFORE if found is None else _AFTER):
            break
    if found is None or all(is_foldable(node) for node in _needed(graph, found[1])):
        return None
    return Cut(extracted(graph, found[1]), found[2])


def cut_at(graph: Graph, name: str) -> Cut:
    """The cut at a tensor or after a node of this name."""
    places = {node.name: node.outputs[0] for node in graph.nodes if node.name}
    tensor = name if name in graph.data else places.get(name, name)
    if tensor not in graph.data:
        known = [node.outputs[0] for node in graph.nodes if node.outputs[0] in graph.data]
        shown = ", ".join(map(repr, known[-6:]))
        raise InputError(f"the graph has no tensor or node {name!r} to split at; its last tensors are {shown}")
    at = [index for index, node in enumerate(graph.nodes) if tensor in node.outputs]
    if not at:
        raise InputError(f"{name!r} is an input of the graph, so nothing would be in front of the split; leave it out")
    walk = graph.walk(tensor, Flow(Chain(), "affine"), at[0] + 1)
    walk.chain.mlp()  # raises if the rest is no classifier
    return Cut(extracted(graph, tensor), walk)


def _head(graph: Graph, name: str, first: int) -> Walk | None:
    """The walk from a tensor to the outputs, if it is a classifier with one hidden layer."""
    try:
        walk = graph.walk(name, Flow(Chain(), "affine"), first)
    except InputError:
        return None
    return walk if walk.chain.complete and walk.chain.started else None


def _needed(graph: Graph, tensor: str) -> list[Any]:
    """The nodes that a tensor is computed with, in order."""
    wanted, kept = {tensor}, []
    for node in reversed(graph.nodes):
        if wanted & set(node.outputs):
            wanted |= set(node.inputs)
            kept.append(node)
    return kept[::-1]


def extracted(graph: Graph, tensor: str) -> FeaturePart:
    """The part of the graph that computes a tensor, as a graph of its own."""
    import onnx
    from onnx import helper

    model = graph.model
    protos = [node.proto for node in _needed(graph, tensor)]
    used = {name for proto in protos for name in proto.input}
    output = _declared(model, tensor)
    made = helper.make_graph(
        protos,
        "feature_part",
        [value for value in graph.inputs if value.name in used],
        [output],
        [each for each in model.graph.initializer if each.name in used],
    )
    opsets = [helper.make_opsetid(each.domain, each.version) for each in model.opset_import]
    part = helper.make_model(made, opset_imports=opsets, ir_version=model.ir_version, producer_name="quad4fhe")
    with parsing("the front of the graph", "export the model again"):
        data = part.SerializeToString(deterministic=True)
        onnx.load_from_string(data)
    check_graph(data)
    return FeaturePart(data)


def _declared(model: Any, tensor: str) -> Any:
    """The tensor with its inferred type; a float tensor of any shape if it can't be inferred."""
    import onnx
    from onnx import helper

    try:
        inferred = onnx.shape_inference.infer_shapes(model).graph
    except Exception:  # shape inference is a convenience; its errors have no common base class
        inferred = model.graph
    for value in (*inferred.value_info, *inferred.output):
        if value.name == tensor and value.type.tensor_type.elem_type:
            return helper.make_tensor_value_info(tensor, value.type.tensor_type.elem_type, None)
    return helper.make_tensor_value_info(tensor, onnx.TensorProto.FLOAT, None)
