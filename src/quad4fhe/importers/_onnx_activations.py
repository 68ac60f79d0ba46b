"""Elementwise nodes of an ONNX graph: activations in one node, and parts of activations that take several."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe.importers._chain import Chain
from quad4fhe.importers._expressions import Expression, constant, quotient
from quad4fhe.importers._onnx_flow import Constants, Flow, Node, Rule, affine_chain

_HUGE = 1e30  # some exporters write a larger bound of a Clip for "none"


def joined(node: Node, flows: list[Flow], inputs: int) -> Flow:
    """The sum, difference, product or quotient of two expressions of the same pre-activations."""
    origins = [flow.origin or flow.chain for flow in flows]
    known = all(flow.kind in ("affine", "activated", "sigmoid") for flow in flows) and origins[0] is origins[-1]
    if (
        node.op not in ("Add", "Sub", "Mul", "Div")
        or len(flows) != 2
        or inputs != 2
        or not known
        or not _is_open(origins[0])
    ):
        raise node.refuse("joins two branches of the data")
    first, second = (flow.expression for flow in flows)
    if node.op == "Mul":
        made = first * second
    elif node.op == "Div":
        made = quotient(first, second)
    else:
        made = first + (second if node.op == "Add" else second * constant(-1.0) or second)
    if made is None or (origins[0].complete and made.line is not None):
        raise node.refuse("joins two branches of the data")
    return _nonlinear(node, replace(flows[0], origin=origins[0]), made)


def _is_open(chain: Chain) -> bool:
    """Whether the chain ends in a matrix, so that an activation may follow."""
    return chain.started and chain.maps[-1].dense


def _nonlinear(node: Node, flow: Flow, expression: Expression) -> Flow:
    origin = flow.origin or flow.chain
    origin.activate(node.label)  # raises InputError for an activation before any layer, or right after another one
    return replace(flow, chain=origin, kind="activated", origin=origin, expression=expression)


def function(node: Node, flow: Flow, name: str, *parameters: Any) -> Flow:
    """The data after an elementwise function."""
    if flow.kind not in ("affine", "activated"):
        affine_chain(node, flow)  # raises
    return _nonlinear(node, flow, flow.expression.function(name, *parameters))


def with_number(op: str, expression: Expression, at: int, value: float) -> Expression | None:
    """The expression after an operation with one number, which is at input 1 - at."""
    if op in ("Mul", "Div"):
        return expression * constant(value if op == "Mul" else 1.0 / value)
    if op == "Add":
        return expression + constant(value)
    if at == 0:
        return expression + constant(-value)
    negative = expression * constant(-1.0)
    return None if negative is None else negative + constant(value)


def _named(name: str, *attributes: tuple[str, float]) -> Rule:
    """The rule of an operation that is an activation; ONNX's attributes and their defaults are its parameters."""

    def rule(node: Node, flow: Flow, at: int, constants: Constants) -> Flow:
        return function(node, flow, name, *(float(node.number(key, default)) for key, default in attributes))

    return rule


def _relu(node: Node, flow: Flow, at: int, constants: Constants) -> Flow:
    return _clipped(node, flow, 0.0, np.inf)


def _clipped(node: Node, flow: Flow, low: float, high: float) -> Flow:
    """Clip to [low, high]; a second clip narrows the first."""
    if flow.kind == "activated" and len(flow.expression.terms) == 1:
        ((atoms, factor),) = flow.expression.terms
        if factor == 1.0 and len(atoms) == 1 and atoms[0].name == "clip" and atoms[0].inner is not None:
            first, last = atoms[0].parameters
            inner = atoms[0].inner.function("clip", min(max(first, low), high), min(max(last, low), high))
            return replace(flow, expression=inner)
    return function(node, flow, "clip", low, high)


def _clip(node: Node, flow: Flow, at: int, constants: Constants) -> Flow:
    ends = [-np.inf, np.inf]
    for k, key in enumerate(("min", "max")):  # inputs since opset 11, attributes before
        if k + 1 < len(node.inputs) and node.inputs[k + 1]:
            ends[k] = _one_number(node, constants.input(node, k + 1))
        elif key in node.attributes:
            ends[k] = float(node.number(key, 0.0))
    ends = [np.copysign(np.inf, end) if abs(end) > _HUGE else end for end in ends]
    if np.isinf(ends).all():
        return flow
    return _clipped(node, flow, ends[0], ends[1])


def _extreme(node: Node, flow: Flow, at: int, constants: Constants) -> Flow:
    """Max(x, 0) or Min(x, 6): the data and one number."""
    if len(node.inputs) != 2:
        raise node.refuse("takes more than the data and one number")
    end = _one_number(node, constants.input(node, 1 - at))
    return _clipped(node, flow, end, np.inf) if node.op == "Max" else _clipped(node, flow, -np.inf, end)


def _one_number(node: Node, array: NDArray[Any]) -> float:
    if not array.size or not (array == array.flat[0]).all():
        raise node.refuse(f"has a constant of shape {array.shape}, wanted the same number for every unit")
    return float(array.flat[0])


def _prelu(node: Node, flow: Flow, at: int, constants: Constants) -> Flow:
    slopes = constants.input(node, 1).reshape(-1)
    return function(node, flow, "leaky_relu", float(slopes[0]) if slopes.size == 1 else tuple(slopes.tolist()))


def _gelu(node: Node, flow: Flow, at: int, constants: Constants) -> Flow:
    form = node.attributes.get("approximate", b"none")
    return function(node, flow, "gelu_tanh" if form in (b"tanh", "tanh") else "gelu")


def _power(node: Node, flow: Flow, at: int, constants: Constants) -> Flow:
    power = _one_number(node, constants.input(node, 1)) if at == 0 else 0.0
    if power not in (2.0, 3.0) or flow.kind not in ("affine", "activated"):
        raise node.refuse("is a power that is not part of a known activation")
    square = flow.expression * flow.expression
    made = square if power == 2.0 or square is None else square * flow.expression
    if made is None:
        raise node.refuse("is a power that is not part of a known activation")
    return _nonlinear(node, flow, made)


RULES: dict[tuple[str, str], Rule] = {
    ("", "Relu"): _relu,
    ("", "Clip"): _clip,
    ("", "Max"): _extreme,
    ("", "Min"): _extreme,
    ("", "PRelu"): _prelu,
    ("", "LeakyRelu"): _named("leaky_relu", ("alpha", 0.01)),
    ("", "Gelu"): _gelu,
    ("", "Tanh"): _named("tanh"),
    ("", "Erf"): _named("erf"),
    ("", "Abs"): _named("abs"),
    ("", "Pow"): _power,
    ("", "Elu"): _named("elu", ("alpha", 1.0)),
    ("", "Selu"): _named("selu", ("alpha", 1.6732632423543772), ("gamma", 1.0507009873554805)),
    ("", "Celu"): _named("celu", ("alpha", 1.0)),
    ("", "Softplus"): _named("softplus"),
    ("", "Softsign"): _named("softsign"),
    ("", "Mish"): _named("mish"),
    ("", "Swish"): _named("silu", ("alpha", 1.0)),
    ("", "HardSigmoid"): _named("hard_sigmoid", ("alpha", 0.2), ("beta", 0.5)),
    ("", "HardSwish"): _named("hard_swish"),
}
