"""Read the first layer of an ONNX graph and keep the whole graph: `--split first`.

For networks whose later layers can't be read (residual connections, gates, normalisation, attention), but whose first
computation is a dense layer. onnxruntime computes their decisions; the replacement lives on the first layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quad4fhe.activations import RELU, Activation
from quad4fhe.deep import GraphMLP
from quad4fhe.errors import InputError
from quad4fhe.importers._chain import Chain
from quad4fhe.importers._expressions import recognise
from quad4fhe.importers._onnx_flow import Flow
from quad4fhe.importers._onnx_graph import Graph
from quad4fhe.importers._onnx_nodes import apply
from quad4fhe.importers._onnx_split import extracted

_SQUASHES = ("Softmax", "LogSoftmax", "Sigmoid")
_WAY_OUT = (
    "--split first wants a graph from one matrix of samples, through a Linear layer (Gemm, or MatMul and Add), to one "
    "tensor of scores; export it with torch.onnx.export from the inputs of that layer on"
)


def behind_first_layer(graph: Graph, check: Callable[[int], None]) -> tuple[GraphMLP, bool]:
    """The network behind its first layer, and whether its score is known to be squashed by a Sigmoid.

    `check` refuses a first layer that does not take as many values as a sample has.
    """
    if len(graph.inputs) != 1:
        raise InputError(f"the graph has {len(graph.inputs)} inputs; {_WAY_OUT}")
    (start,) = graph.inputs
    chain, activation = _first_layer(graph, start.name)
    scores, squashed = _scores(graph)
    part = extracted(graph, scores)
    (layer,) = chain.maps
    check(layer.weight.shape[1])
    return GraphMLP(layer.weight, layer.bias, part, activation=activation), squashed


def _first_layer(graph: Graph, start: str) -> tuple[Chain, Activation]:
    """The affine maps up to the first activation; ReLU where what follows is no known activation."""
    flows: dict[str, Flow] = {start: Flow(Chain(), "affine")}
    for node in graph.nodes:
        if any(name in flows for name in node.inputs) and not any(
            name in graph.data and name not in flows for name in node.inputs
        ):
            try:
                flows[node.outputs[0]] = apply(node, flows, graph.constants)
            except InputError:  # what can't be read is left to onnxruntime
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
    while made[name].op in ("Identity", "Cast", *_SQUASHES) and made[name].inputs[0] in made:
        squashed = squashed or made[name].op == "Sigmoid"
        name = made[name].inputs[0]
    return name, squashed
