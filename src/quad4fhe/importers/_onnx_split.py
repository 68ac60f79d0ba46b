"""Read ONNX graphs that can't be folded as a whole, in one of two ways.

`split` and `cut_at` cut a graph in two: a feature part that runs at the client, and the head, which is fitted and
encrypted. The search goes backwards from the outputs and takes the earliest tensor from which the rest of the graph is
a classifier with one hidden layer, so that everything affine in front of the hidden layer is folded into the head.

`behind_first_layer` (`--split first`) reads the first layer and keeps the whole graph. It is for networks whose later
layers can't be read (residual connections, gates, normalisation, attention), but whose first computation is a dense
layer. onnxruntime computes their decisions, and the polynomial acts on the first layer.
"""

from __future__ import annotations

from typing import Any

from quad4fhe.activations import RELU, Activation
from quad4fhe.deep import GraphMLP
from quad4fhe.errors import InputError
from quad4fhe.feature_checks import check_graph
from quad4fhe.feature_part import FeaturePart
from quad4fhe.importers._chain import Chain
from quad4fhe.importers._expressions import recognise
from quad4fhe.importers._onnx_flow import Flow, Graph
from quad4fhe.importers._onnx_nodes import Walk, apply, is_foldable, walk
from quad4fhe.io.files import parsing

AUTO, FIRST = "auto", "first"
_BEFORE, _AFTER = 400, 64  # failed attempts after which the search ends, before and after its first success
_WAY_OUT = (
    "--split first wants a graph from one matrix of samples, through a Linear layer (Gemm, or MatMul and Add), to one "
    "tensor of scores; export it with torch.onnx.export from the inputs of that layer on"
)

Cut = tuple[FeaturePart, Walk]
"""The feature part, and the walk through the head."""


def split(graph: Graph) -> Cut | None:
    """Cut a graph whose front can't be folded; None if no cut leaves a classifier with one hidden layer.

    A graph of dense layers alone is not cut: its first layers would be handed to every client.
    """
    found: tuple[str, Walk] | None = None
    failed = 0
    for index in range(len(graph.nodes) - 1, -1, -1):
        name = graph.nodes[index].outputs[0]
        if name not in graph.data:
            continue
        head = _head(graph, name, index + 1)
        failed = 0 if head is not None else failed + 1
        if head is not None:
            found = name, head
        elif failed > (_BEFORE if found is None else _AFTER):
            break
    if found is None or all(is_foldable(node) for node in _needed(graph, found[0])):
        return None
    return _extracted(graph, found[0]), found[1]


def cut_at(graph: Graph, name: str) -> Cut:
    """Cut a graph at the tensor or after the node of this name."""
    places = {node.name: node.outputs[0] for node in graph.nodes if node.name}
    tensor = name if name in graph.data else places.get(name, name)
    if tensor not in graph.data:
        known = [node.outputs[0] for node in graph.nodes if node.outputs[0] in graph.data]
        shown = ", ".join(map(repr, known[-6:]))
        raise InputError(f"the graph has no tensor or node {name!r} to split at; its last tensors are {shown}")
    at = [index for index, node in enumerate(graph.nodes) if tensor in node.outputs]
    if not at:
        raise InputError(f"{name!r} is an input of the graph, so there is nothing to split off; leave out the split")
    head = walk(graph, tensor, Flow(Chain(), "affine"), at[0] + 1)
    head.chain.mlp()  # raises InputError if the rest is not a classifier
    return _extracted(graph, tensor), head


def _head(graph: Graph, name: str, first: int) -> Walk | None:
    """The walk from a tensor to the outputs, if it is a classifier with one hidden layer."""
    try:
        found = walk(graph, name, Flow(Chain(), "affine"), first)
    except InputError:
        return None
    return found if found.chain.complete and found.chain.started else None


def _needed(graph: Graph, tensor: str) -> list[Any]:
    """The nodes that compute a tensor, in order."""
    wanted, kept = {tensor}, []
    for node in reversed(graph.nodes):
        if wanted & set(node.outputs):
            wanted |= set(node.inputs)
            kept.append(node)
    return kept[::-1]


def _extracted(graph: Graph, tensor: str) -> FeaturePart:
    """The part of the graph that computes a tensor, as a separate graph."""
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


def behind_first_layer(graph: Graph) -> tuple[GraphMLP, bool]:
    """The network behind its first layer, and whether a Sigmoid follows its score."""
    if len(graph.inputs) != 1:
        raise InputError(f"the graph has {len(graph.inputs)} inputs; {_WAY_OUT}")
    (start,) = graph.inputs
    chain, activation = _first_layer(graph, start.name)
    scores, squashed = _scores(graph)
    part = _extracted(graph, scores)
    (layer,) = chain.maps
    graph.check_features(layer.weight.shape[1])
    return GraphMLP(layer.weight, layer.bias, part, activation=activation), squashed


def _first_layer(graph: Graph, start: str) -> tuple[Chain, Activation]:
    """The affine maps up to the first activation, and that activation; ReLU if it is not a known one."""
    flows: dict[str, Flow] = {start: Flow(Chain(), "affine")}
    for node in graph.nodes:
        if any(name in flows for name in node.inputs) and not any(
            name in graph.data and name not in flows for name in node.inputs
        ):
            try:
                flows[node.outputs[0]] = apply(node, flows, graph.constants)
            except InputError:  # onnxruntime computes the rest
                continue
    seen = list(flows.values())
    for each in seen:
        origin = each.origin or each.chain
        if each.kind in ("activated", "sigmoid") and origin.started and len(origin.maps) == 1:
            same = [flow for flow in seen if flow.kind in ("activated", "sigmoid") and flow.origin is origin]
            known = [found for flow in (same or [each]) if (found := recognise(flow.expression)) is not None]
            plain = [found.activation for found in known if found.inner == (1.0, 0.0)]
            return origin, plain[-1] if plain else RELU
    dense = [each.chain for each in seen if each.kind == "affine" and each.chain.started and len(each.chain.maps) == 1]
    if not dense:
        first = graph.nodes[0].label if graph.nodes else "nothing"
        raise InputError(f"the graph begins with {first}, and no Linear layer takes its input; {_WAY_OUT}")
    return dense[-1], RELU


def _scores(graph: Graph) -> tuple[str, bool]:
    """The tensor of scores behind the graph's outputs, before a Softmax or Sigmoid."""
    made: dict[str, Any] = {name: node for node in graph.nodes for name in node.outputs if name}
    outputs = [value.name for value in graph.model.graph.output if value.name in graph.data]
    if len(outputs) != 1 or outputs[0] not in made:
        raise InputError(f"the graph has {len(outputs)} outputs that depend on its input; {_WAY_OUT}")
    name, squashed = outputs[0], False
    while made[name].op in ("Identity", "Cast", "Softmax", "LogSoftmax", "Sigmoid") and made[name].inputs[0] in made:
        squashed = squashed or made[name].op == "Sigmoid"
        name = made[name].inputs[0]
    return name, squashed
