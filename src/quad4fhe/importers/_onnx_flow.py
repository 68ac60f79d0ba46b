"""An ONNX graph as importers see it: its nodes and constants, and the data on its edges."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quad4fhe.errors import InputError
from quad4fhe.importers._chain import Chain
from quad4fhe.importers._expressions import PLAIN, Expression, recognise
from quad4fhe.io.files import parsing

_SUPPORTED = (
    "supported at the end of a graph: Gemm or MatMul and Add, one activation, Gemm or MatMul and Add, with scalers and "
    "BatchNormalization between them and Sigmoid, Softmax or ArgMax after them"
)

# affine: values of the chain. activated: a nonlinear expression of them. sigmoid: a Sigmoid of each. scores: the
# largest wins. complement: 1 - sigmoid of one score. label: the decision itself. shape: sizes of the data.
Kind = Literal["affine", "activated", "sigmoid", "scores", "complement", "label", "shape"]


class Node:
    """A node with its attributes as a dictionary, and a label for error messages."""

    def __init__(self, proto: Any) -> None:
        from onnx import helper

        self.proto = proto
        self.name = str(proto.name)
        # str: names that are not UTF-8 come as bytes.
        self.op = str(proto.op_type)
        self.domain = "" if proto.domain == "ai.onnx" else str(proto.domain)
        self.inputs: list[str] = list(proto.input)
        self.outputs: list[str] = list(proto.output) or [""]
        # The name comes from the file, and an error must be one printable line.
        kind = self.op if self.op.isidentifier() else repr(self.op)
        self.label = f"node {proto.name or self.outputs[0]!r} ({kind})"
        with parsing(f"the attributes of {self.label}", "export the model again"):
            self.attributes: dict[str, Any] = {a.name: helper.get_attribute_value(a) for a in proto.attribute}

    def number(self, name: str, default: float) -> float:
        """A numeric attribute."""
        value = self.attributes.get(name, default)
        if not isinstance(value, int | float):
            raise self.refuse(f"has an attribute {name} that is not a number")
        return value

    def numbers(self, name: str, default: float) -> NDArray[np.float64]:
        """An attribute that is a list of numbers, as a vector."""
        with parsing(f"the attribute {name!r} of {self.label}", "export the model again"):
            return np.asarray(self.attributes.get(name, [default]), dtype=np.float64)

    def refuse(self, why: str) -> InputError:
        """An error that names this node."""
        return InputError(f"{self.label} {why}; {_SUPPORTED}")


class Constants:
    """The graph's constant tensors by name: initializers, Constant nodes, and the tensors derived from them."""

    def __init__(self, initializers: Iterable[Any]) -> None:
        self._tensors: dict[str, Any] = {tensor.name: tensor for tensor in initializers}
        self._arrays: dict[str, NDArray[Any]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors or name in self._arrays

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._arrays:
            self._arrays[name] = self._array(name, self._tensors[name])
        return self._arrays[name]

    def input(self, node: Node, index: int) -> NDArray[Any]:
        """The constant at this input of the node, in float64."""
        name = node.inputs[index] if index < len(node.inputs) else ""
        if name not in self:
            raise node.refuse(f"has no constant at input {index} ({name!r})")
        array = self[name]
        with parsing(f"the numbers of {name!r} at {node.label}", "export the model again"):
            return array.astype(np.float64)

    def fold(self, node: Node) -> None:
        """Evaluate a node without data inputs, if its operation is one of the few that exporters write there."""
        if node.op == "Constant":
            for key, value in node.attributes.items():
                if key == "value":
                    self._arrays[node.outputs[0]] = self._array(node.outputs[0], value)
                elif key in ("value_float", "value_floats", "value_int", "value_ints"):
                    self._arrays[node.outputs[0]] = np.asarray(value)
        elif node.op in ("Identity", "Cast", "Transpose") and node.inputs and node.inputs[0] in self:
            array = self[node.inputs[0]]
            if node.op == "Transpose":
                with parsing(f"the axes of {node.label}", "export the model again"):
                    array = array.transpose(node.attributes.get("perm"))
            self._arrays[node.outputs[0]] = array

    @staticmethod
    def _array(name: str, tensor: Any) -> NDArray[Any]:
        from onnx import numpy_helper

        with parsing(f"the tensor {name!r} of the graph", "export the model again"):
            array: NDArray[Any] = numpy_helper.to_array(tensor)
        return array


class Graph:
    """The nodes and constants of an onnx.ModelProto.

    `data` holds the names of the tensors that depend on an input.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.constants = Constants(model.graph.initializer)
        self.inputs = [value for value in model.graph.input if value.name not in self.constants]
        self.nodes = [Node(proto) for proto in model.graph.node]
        self.data = {value.name for value in self.inputs}
        for node in self.nodes:
            if any(name in self.data for name in node.inputs):
                self.data.update(name for name in node.outputs if name)
            else:
                self.constants.fold(node)

    def shape(self) -> list[int] | None:
        """The declared shape of the first input, 0 where it is left open; None if it is not declared."""
        tensor = self.inputs[0].type.tensor_type
        return [int(dim.dim_value) for dim in tensor.shape.dim] if tensor.HasField("shape") else None

    def check_features(self, features: int) -> None:
        """Raise InputError if samples have another size than the first layer: a Reshape may cut one into several."""
        shape = self.shape()
        width = math.prod(shape if len(shape) == 1 else shape[1:]) if shape else 0
        if width not in (0, features):
            raise InputError(
                f"the graph takes {width} values per sample, but its first layer takes {features}; "
                "supported: samples as rows, or images flattened to rows"
            )


@dataclass(frozen=True, eq=False)
class Flow:
    """The data on one edge of the graph: the chain that computed it, and the kind of values it holds now."""

    chain: Chain
    kind: Kind
    vector: bool = False  # the input is one sample of shape (d,), not rows
    # The values as an expression of those of `origin`, while every operation since then is the same for all units.
    origin: Chain | None = None
    expression: Expression = PLAIN

    def through(self, chain: Chain) -> Flow:
        """The data after an affine operation, which becomes the new origin."""
        return replace(self, chain=chain, kind="affine", origin=None, expression=PLAIN)


Rule = Callable[[Node, Flow, int, Constants], Flow]


def affine_chain(node: Node, flow: Flow) -> Chain:
    """The chain that `node` continues with an affine map; an activation before it must be a known one."""
    if flow.kind == "shape":
        raise node.refuse("computes with the sizes of the data")
    if flow.kind == "affine":
        return flow.chain
    if flow.kind not in ("activated", "sigmoid"):  # a Sigmoid followed by a layer is an activation
        raise node.refuse("comes after the scores were turned into probabilities or labels")
    found = recognise(flow.expression)
    if found is None:
        raise node.refuse("comes after an elementwise function that is not a known activation")
    chain = flow.origin or flow.chain
    if found.inner != (1.0, 0.0):
        chain = chain.scale(node.label, *found.inner)
    chain = chain.activate(node.label, found.activation)
    return chain if found.outer == (1.0, 0.0) else chain.scale(node.label, *found.outer)
