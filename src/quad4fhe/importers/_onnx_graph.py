"""An ONNX graph's nodes and constants, checked as they are read.

Decides how a node is named in errors and which constants are known: initializers, Constant nodes, and the few nodes
that exporters put between them and their use. What a node does to the data is left to `_onnx_nodes`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe._files import parsing
from quad4fhe.errors import InputError

_SUPPORTED = (
    "supported: Gemm or MatMul and Add, one Relu, Gemm or MatMul and Add, with scalers and BatchNormalization between "
    "them and Sigmoid, Softmax or ArgMax at the end"
)


class Node:
    """A node with its attributes as a dictionary and a name to show."""

    def __init__(self, proto: Any) -> None:
        from onnx import helper

        # str: names that are not UTF-8 come as bytes.
        self.op = str(proto.op_type)
        self.domain = str(proto.domain)
        self.inputs: list[str] = list(proto.input)
        self.outputs: list[str] = list(proto.output) or [""]
        # A file may name an operation as it likes; an error is one printable line.
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
        """The error that names this node."""
        return InputError(f"{self.label} {why}; {_SUPPORTED}")


class Constants:
    """The graph's constant tensors by name: initializers, Constant nodes, and what exporters derive from them."""

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
        """Keep the result of a node without data inputs, if it is one of the few that exporters leave in."""
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
