"""What an ONNX graph is read with: its nodes and constants, and the data on its edges."""

from __future__ import annotations

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

# affine: values of the chain. activated: a nonlinear expression of them. sigmoid: squashed one by one. scores: the
# largest wins. complement: 1 - sigmoid of one score. label: the decision itself. shape: sizes of the data.
Kind = Literal["affine", "activated", "sigmoid", "scores", "complement", "label", "shape"]


class Node:
    """A node with its attributes as a dictionary and a label for error messages."""

    def __init__(self, proto: Any) -> None:
        from onnx import helper

        self.proto = proto
        self.name = str(proto.name)
        # str: names that are not UTF-8 come as bytes.
        self.op = str(proto.op_type)
        self.domain = str(proto.domain)
        self.inputs: list[str] = list(proto.input)
        self.outputs: list[str] = list(proto.output) or [""]
        # The file chooses the operation's name, and an error must be one printable line.
        kind = self.op if self.op.isidentifier() else repr(self.op)
        self.label = f"node {proto.name or self.outputs[0]!r} ({kind})"
        with parsing(f"the attributes of {self.label}", "export the model again"):
            self.attributes: dict[str, Any] = {a.name: helper.get_attribute_value(a) for a in proto.attribute}

    def number(self, name: str, default: float) -> float:
        """A numeric attribute."""
        value = self.attributes.get(name, default)
        if not isinstance(value, int | float):
            raise self.refuse(f"has no number as {name}")
        return value

    def numbers(self, name: str, default: float) -> NDArray[np.float64]:
        """An attribute that lists numbers, as a vector."""
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
        """Evaluate a node without data inputs, if it is one of the few that exporters write."""
        if node.op == "Constant":
            self._constant(node)
        elif node.op in ("Identity", "Cast", "Transpose") and node.inputs and node.inputs[0] in self:
            array = self[node.inputs[0]]
            if node.op == "Transpose":
                with parsing(f"the axes of {node.label}", "export the model again"):
                    array = array.transpose(node.attributes.get("perm"))
            self._arrays[node.outputs[0]] = array

    def _constant(self, node: Node) -> None:
        for key, value in node.attributes.items():
            if key == "value":
                self._arrays[node.outputs[0]] = self._array(node.outputs[0], value)
            elif key in ("value_float", "value_floats", "value_int", "value_ints"):
                self._arrays[node.outputs[0]] = np.asarray(value)

    @staticmethod
    def _array(name: str, tensor: Any) -> NDArray[Any]:
        from onnx import numpy_helper

        with parsing(f"the tensor {name!r} of the graph", "export the model again"):
            array: NDArray[Any] = numpy_helper.to_array(tensor)
        return array


@dataclass(frozen=True, eq=False)
class Flow:
    """The data on one edge of the graph: the chain that computed it, and the kind of values it holds now."""

    chain: Chain
    kind: Kind
    vector: bool = False  # the input is one sample of shape (d,), not rows
    # The values as an expression of those of `origin`, as long as every operation since is the same for all units.
    origin: Chain | None = None
    expression: Expression = PLAIN

    def through(self, chain: Chain) -> Flow:
        """After an affine operation that fixes a new origin."""
        return replace(self, chain=chain, kind="affine", origin=None, expression=PLAIN)


Rule = Callable[[Node, Flow, int, Constants], Flow]


def affine_chain(node: Node, flow: Flow) -> Chain:
    if flow.kind == "shape":
        raise node.refuse("computes with the sizes of the data")
    if flow.kind in ("activated", "sigmoid"):  # a Sigmoid that a layer follows is no tail
        return _activated(node, flow)
    if flow.kind != "affine":
        raise node.refuse("comes after the scores were turned into probabilities or labels")
    return flow.chain


def _activated(node: Node, flow: Flow) -> Chain:
    """The chain with the activation that its expression is known to be."""
    found = recognise(flow.expression)
    if found is None:
        raise node.refuse("comes after an elementwise function that is no known activation")
    chain = flow.origin or flow.chain
    if found.inner != (1.0, 0.0):
        chain = chain.scale(node.label, *found.inner)
    chain = chain.activate(node.label, found.activation)
    return chain if found.outer == (1.0, 0.0) else chain.scale(node.label, *found.outer)
