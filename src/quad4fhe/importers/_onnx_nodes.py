"""Walk an ONNX graph: each node is folded into the chain, harmless to the decision, or rejected by name.

Every rule is a function of a node and its one data input. A tail (Softmax, ArgMax, labels) is accepted only if it keeps
the decision of the logits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe.errors import InputError
from quad4fhe.importers._chain import Chain
from quad4fhe.importers._onnx_activations import RULES as ACTIVATIONS
from quad4fhe.importers._onnx_activations import function, joined, with_number
from quad4fhe.importers._onnx_flow import Constants, Flow, Graph, Node, Rule, affine_chain

_FLOATS = frozenset((1, 10, 11, 16))  # TensorProto.FLOAT, FLOAT16, DOUBLE, BFLOAT16


@dataclass(frozen=True, eq=False)
class Walk:
    """Where a walk arrived: the one chain behind the graph's outputs, and whether they are probabilities or labels."""

    chain: Chain
    is_probability: bool


def walk(graph: Graph, start: str, flow: Flow, first: int = 0) -> Walk:
    """Follow the data from the tensor `start` through the nodes from `first` on, to the graph's outputs."""
    flows: dict[str, Flow] = {start: flow}
    for node in graph.nodes[first:]:
        if any(name in flows for name in node.inputs):
            # Only the first output carries the data: others, such as Dropout's mask, stay unknown names.
            flows[node.outputs[0]] = apply(node, flows, graph.constants)
    reached = [flows[value.name] for value in graph.model.graph.output if value.name in flows]
    useful = [flow for flow in reached if flow.kind not in ("shape", "complement")]
    if not useful:
        raise InputError("no output of the graph is a score or label of its input; export the model again")
    # A graph may end with an activation.
    chains = [each.chain.activate("the last node") if each.kind == "activated" else each.chain for each in useful]
    whole = [chain for chain in chains if chain.complete]
    if any(chain is not whole[0] for chain in whole):
        raise InputError("the outputs of the graph have different output layers; supported: one classifier per graph")
    squashed = any(each.kind in ("sigmoid", "scores", "label") for each in useful)
    return Walk(whole[0] if whole else chains[0], squashed)


def apply(node: Node, flows: dict[str, Flow], constants: Constants) -> Flow:
    """The data after `node`; raises InputError, which names the node, if it can't be folded."""
    if (node.domain, node.op) == ("", "Concat"):
        return _concat(node, flows)
    rule = _RULES.get((node.domain, node.op))
    if rule is None:
        domain = f" of domain {node.domain!r}" if node.domain else ""
        raise node.refuse(f"is an operation{domain} that can't be folded")
    at = [index for index, name in enumerate(node.inputs) if name in flows]
    # Reshape takes the data and its sizes; any other node with two data inputs joins two branches.
    if len(at) > 1 and not (node.op == "Reshape" and at == [0, 1] and flows[node.inputs[1]].kind == "shape"):
        return joined(node, [flows[node.inputs[index]] for index in at], len(node.inputs))
    return rule(node, flows[node.inputs[at[0]]], at[0], constants)


def is_foldable(node: Node) -> bool:
    """Whether a dense network may contain this operation."""
    return (node.domain, node.op) in _RULES or node.op in ("Constant", "Concat")


def _per_feature(node: Node, array: NDArray[Any]) -> NDArray[Any]:
    """A constant that is broadcast along the samples, as a vector."""
    if array.size != 1 and array.shape[-1:] != (array.size,):
        raise node.refuse(f"has a constant of shape {array.shape}, wanted one number per feature")
    return array.reshape(-1)


def _gemm(node: Node, flow: Flow, at: int, constants: Constants) -> Flow:
    if at != 0 or node.number("transA", 0):
        raise node.refuse("takes samples as columns, wanted rows")
    chain = affine_chain(node, flow)
    weight = _matrix(node, constants.input(node, 1)) * node.number("alpha", 1.0)
    weight = weight if node.number("transB", 0) else weight.T
    if len(node.inputs) < 3 or not node.inputs[2]:
        return flow.through(chain.linear(node.label, weight))
    bias = _per_feature(node, constants.input(node, 2)) * node.number("beta", 1.0)
    if bias.size == 1:
        bias = np.broadcast_to(bias, weight.shape[:1])
    return flow.through(chain.linear(node.label, weight, bias))


def _matmul(node: Node, flow: Flow, at: int, constants: Constants) -> Flow:
    chain = affine_chain(node, flow)
    weight = _matrix(node, constants.input(node, 1 - at))
    if at == 1 and not flow.vector:
        raise node.refuse("takes samples as columns, wanted rows")
    return flow.through(chain.linear(node.label, weight if at == 1 else weight.T))


def _matrix(node: Node, array: NDArray[Any]) -> NDArray[Any]:
    if array.ndim != 2:
        raise node.refuse(f"has a weight of shape {array.shape}, wanted a matrix")
    return array


def _arithmetic(node: Node, flow: Flow, at: int, constants: Constants) -> Flow:
    if node.op == "Sub" and at == 1 and flow.kind == "sigmoid" and flow.chain.width == 1:
        if not (constants.input(node, 0) == 1.0).all():
            raise node.refuse("subtracts a probability from a number other than 1")
        return replace(flow, kind="complement")
    value = _per_feature(node, constants.input(node, 1 - at))
    if node.op == "Div" and (at == 1 or not value.all()):
        raise node.refuse("divides by the data or by zero")
    same = flow.kind in ("affine", "activated") and bool((value == value[0]).all())
    made = with_number(node.op, flow.expression, at, float(value[0])) if same else None
    if flow.kind == "activated" and made is not None:
        return replace(flow, expression=made)
    chain = affine_chain(node, flow)
    if node.op in ("Mul", "Div"):
        chain = chain.scale(node.label, 1.0 / value if node.op == "Div" else value, 0.0)
    elif node.op == "Sub":
        chain = chain.scale(node.label, 1.0, -value) if at == 0 else chain.scale(node.label, -1.0, value)
    else:
        chain = chain.scale(node.label, 1.0, value)
    if made is None:
        return flow.through(chain)
    return replace(flow, chain=chain, origin=flow.origin or flow.chain, expression=made)


def _batch_norm(node: Node, flow: Flow, at: int, constants: Constants) -> Flow:
    if node.number("training_mode", 0) or at != 0:
        raise node.refuse("is in training mode; export the model with eval()")
    chain = affine_chain(node, flow)
    gamma, beta, mean, var = (constants.input(node, index) for index in range(1, 5))
    eps = node.number("epsilon", 1e-5)
    return flow.through(chain.batch_norm(node.label, mean, var, eps, gamma, beta))


def _scaler(node: Node, flow: Flow, at: int, constants: Constants) -> Flow:
    chain = affine_chain(node, flow)
    centred = chain.scale(node.label, 1.0, -node.numbers("offset", 0.0))
    return flow.through(centred.scale(node.label, node.numbers("scale", 1.0), 0.0))


def _same(node: Node, flow: Flow, at: int, constants: Constants) -> Flow:
    return flow


def _dropout(node: Node, flow: Flow, at: int, constants: Constants) -> Flow:
    if len(node.inputs) > 2 and node.inputs[2] and constants.input(node, 2).any():
        raise node.refuse("is in training mode; export the model with eval()")
    return flow


def _cast(node: Node, flow: Flow, at: int, constants: Constants) -> Flow:
    if flow.kind not in ("label", "shape") and node.number("to", 1) not in _FLOATS:
        raise node.refuse("rounds the data to whole numbers")
    return flow


def _flatten(node: Node, flow: Flow, at: int, constants: Constants) -> Flow:
    if flow.kind != "label" and node.number("axis", 1) != 1:
        raise node.refuse(f"flattens from axis {node.number('axis', 1)}, which mixes samples")
    return flow


def _reshape(node: Node, flow: Flow, at: int, constants: Constants) -> Flow:
    if flow.kind == "label":
        return flow
    chain = flow.chain
    if len(node.inputs) > 1 and node.inputs[1] not in constants:
        # As in x.view(x.size(0), -1). The sizes are not known here, so it may only flatten the input.
        if chain.started:
            raise node.refuse("changes the shape of the data between the layers")
        return flow
    sizes = [int(size) for size in constants.input(node, 1).reshape(-1)]
    width = chain.width if chain.started else None
    if (len(sizes) == 2 and (width is None or sizes[1] in (width, -1))) or (width == 1 and sizes == [-1]):
        return flow
    raise node.refuse(f"changes the shape of the data to {sizes}")


def _squeeze(node: Node, flow: Flow, at: int, constants: Constants) -> Flow:
    """Drop or add any axis of labels, or the axis of a single score."""
    if flow.kind in ("label", "shape") or (flow.chain.complete and flow.chain.width == 1):
        return flow
    raise node.refuse("changes the shape of the data")


def _over_classes(node: Node, flow: Flow, default: int) -> None:
    axis = node.number("axis", default)
    if axis not in ((0, -1) if flow.vector else (1, -1)):
        raise node.refuse(f"works along axis {axis}, which is not that of the classes")
    # A pair (1 - p, p) made from one score is "scores" already.
    if flow.kind != "scores" and flow.chain.width == 1:
        raise node.refuse("works on a single score, so its result is constant")


def _tail(node: Node, flow: Flow) -> None:
    if not flow.chain.complete:
        raise node.refuse("comes before the last layer")
    if flow.kind not in ("affine", "sigmoid", "scores"):
        raise node.refuse("comes after the decision was made")


def _sigmoid(node: Node, flow: Flow, at: int, constants: Constants) -> Flow:
    if flow.kind in ("affine", "activated") and not flow.chain.complete:
        return function(node, flow, "sigmoid")
    _tail(node, flow)
    if flow.kind != "affine":
        raise node.refuse("comes after another Sigmoid or Softmax")
    # The nodes that follow tell whether this is a tail or the activation of another hidden layer.
    return replace(flow, kind="sigmoid", expression=flow.expression.function("sigmoid"))


def _softmax(node: Node, flow: Flow, at: int, constants: Constants) -> Flow:
    _tail(node, flow)
    # The default axis was 1 before opset 13 and is -1 since then: the same for rows of scores.
    _over_classes(node, flow, -1)
    return replace(flow, kind="scores")


def _argmax(node: Node, flow: Flow, at: int, constants: Constants) -> Flow:
    _tail(node, flow)
    _over_classes(node, flow, 0)
    if node.number("select_last_index", 0):
        raise node.refuse("decides for the last class on a tie, wanted the first")
    return replace(flow, kind="label")


def _zipmap(node: Node, flow: Flow, at: int, constants: Constants) -> Flow:
    _tail(node, flow)
    return replace(flow, kind="label")


def _lookup(node: Node, flow: Flow, at: int, constants: Constants) -> Flow:
    """Look up class names by index, or one of the sizes of the data."""
    if (flow.kind, at) in (("label", 1), ("shape", 0)):
        return flow
    raise node.refuse("picks some of the data")


def _sizes(node: Node, flow: Flow, at: int, constants: Constants) -> Flow:
    return replace(flow, kind="shape")


def _concat(node: Node, flows: dict[str, Flow]) -> Flow:
    """The probabilities (1 - p, p) of a binary score, in this order; or the sizes of the data."""
    parts = [flows[name] for name in node.inputs if name in flows]
    if all(part.kind == "shape" for part in parts):
        return parts[0]
    kinds = [part.kind for part in parts]
    same = all(part.chain is parts[0].chain for part in parts)
    if kinds != ["complement", "sigmoid"] or len(node.inputs) != 2 or not same:
        raise node.refuse("joins two branches of the data")
    if node.number("axis", 1) not in ((0, -1) if parts[0].vector else (1, -1)):
        raise node.refuse("joins probabilities along the samples")
    return replace(parts[0], kind="scores")


_RULES: dict[tuple[str, str], Rule] = ACTIVATIONS | {
    ("", "Gemm"): _gemm,
    ("", "MatMul"): _matmul,
    ("", "Add"): _arithmetic,
    ("", "Sub"): _arithmetic,
    ("", "Mul"): _arithmetic,
    ("", "Div"): _arithmetic,
    ("", "BatchNormalization"): _batch_norm,
    ("ai.onnx.ml", "Scaler"): _scaler,
    ("", "Identity"): _same,
    ("", "Dropout"): _dropout,
    ("", "Cast"): _cast,
    ("", "Flatten"): _flatten,
    ("", "Reshape"): _reshape,
    ("", "Squeeze"): _squeeze,
    ("", "Unsqueeze"): _squeeze,
    ("", "Sigmoid"): _sigmoid,
    ("", "Softmax"): _softmax,
    ("", "LogSoftmax"): _softmax,
    ("", "ArgMax"): _argmax,
    ("ai.onnx.ml", "ZipMap"): _zipmap,
    ("ai.onnx.ml", "ArrayFeatureExtractor"): _lookup,
    ("", "Gather"): _lookup,
    ("", "Shape"): _sizes,
}
