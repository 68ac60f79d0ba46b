"""The polynomial model as an ONNX graph of five nodes: Gemm, Mul, Gemm, Gemm, Add.

Decides how the graph looks, kept so plain that any tool that compiles ONNX to encrypted arithmetic can take it:

    y = Gemm(x, W1, b1)      squared = Mul(y, y)
    logits = Add(Gemm(squared, S, c), Gemm(y, T))

The linear term keeps its own Gemm: completing the square would save it, but lose digits where alpha is small.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quad4fhe._files import parsing, write_atomically
from quad4fhe.errors import InputError, MissingExtraError
from quad4fhe.exporters._origin import NAMES, Origin, rounded
from quad4fhe.quadratic import QuadraticModel

OPSET = 13  # old enough for every runtime in use, new enough for a Gemm without bias and double everywhere
IR_VERSION = 7  # the file format of the same ONNX release
_BODY = ("Gemm", "Mul", "Gemm", "Gemm", "Add")


def to_model(model: QuadraticModel, origin: Origin, dtype: str = "float64", labels: bool = False) -> Any:
    """An onnx.ModelProto with the input `x` (n, d) and the output `logits` (n, K).

    `labels` adds the output `label` (n,), the decision as an int64: the sign of the one score for K = 1, else the
    largest logit, the lowest index on an exact tie.
    """
    onnx = _onnx()
    helper, kind = onnx.helper, getattr(onnx.TensorProto, {"float32": "FLOAT"}.get(dtype, "DOUBLE"))
    arrays = rounded(model, dtype)
    nodes = [
        helper.make_node("Gemm", ["x", "W1", "b1"], ["y"], name="hidden", transB=1),
        helper.make_node("Mul", ["y", "y"], ["squared"], name="square"),
        helper.make_node("Gemm", ["squared", "S", "c"], ["of_squares"], name="squares", transB=1),
        helper.make_node("Gemm", ["y", "T"], ["of_hidden"], name="linear", transB=1),
        helper.make_node("Add", ["of_squares", "of_hidden"], ["logits"], name="logits"),
    ]
    outputs = [helper.make_tensor_value_info("logits", kind, ["n", model.outputs])]
    constants = [onnx.numpy_helper.from_array(arrays[name], name) for name in NAMES]
    if labels:
        outputs.append(helper.make_tensor_value_info("label", onnx.TensorProto.INT64, ["n"]))
        nodes += _label_nodes(model.outputs, onnx)
        if model.outputs == 1:
            constants.append(onnx.numpy_helper.from_array(arrays["c"][:1] * 0, "zero"))
            constants.append(helper.make_tensor("flat", onnx.TensorProto.INT64, [1], [-1]))
    inputs = [helper.make_tensor_value_info("x", kind, ["n", model.features])]
    graph = helper.make_graph(nodes, "quadratic", inputs, outputs, constants)
    proto = helper.make_model(
        graph,
        producer_name="quad4fhe",
        producer_version=origin.quad4fhe,
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
        doc_string="logits = S (y*y) + T y + c with y = W1 x + b1",
    )
    helper.set_model_props(proto, {f"quad4fhe.{name}": text for name, text in origin.lines(dtype).items()})
    onnx.checker.check_model(proto)
    return proto


def to_bytes(model: QuadraticModel, origin: Origin, dtype: str, labels: bool) -> bytes:
    """The content of an .onnx file."""
    return _bytes(to_model(model, origin, dtype, labels))


def write(proto: Any, path: str | Path) -> None:
    """Write a graph to an .onnx file, whole or not at all."""
    if Path(path).suffix.lower() != ".onnx":
        raise InputError(f"an ONNX graph is saved as .onnx, not {Path(path).name!r}; choose a name such as model.onnx")
    write_atomically(path, _bytes(proto))


def _bytes(proto: Any) -> bytes:
    with parsing("a graph of this size", "an ONNX file holds 2 GiB at most; export as .npz"):
        out: bytes = proto.SerializeToString(deterministic=True)
    return out


def read(file: Path) -> QuadraticModel:
    """The model of a graph that `to_model` made; any other graph is refused, not guessed at."""
    onnx = _onnx()
    with parsing("the ONNX model", "export the fit again"):
        proto = onnx.load(file, format="protobuf", load_external_data=False)
        held = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    body = tuple(node.op_type for node in proto.graph.node[: len(_BODY)])
    wires = [list(node.input) for node in proto.graph.node[: len(_BODY)]]
    expected = [["x", "W1", "b1"], ["y", "y"], ["squared", "S", "c"], ["y", "T"], ["of_squares", "of_hidden"]]
    if body != _BODY or wires != expected or not set(NAMES) <= set(held):
        raise InputError("holds another graph, wanted one made by `quad4fhe export`; models with ReLU: MLP.from_onnx")
    return QuadraticModel(*(held[name] for name in NAMES))


def _label_nodes(outputs: int, onnx: Any) -> list[Any]:
    helper = onnx.helper
    if outputs > 1:
        return [helper.make_node("ArgMax", ["logits"], ["label"], name="decide", axis=1, keepdims=0)]
    return [
        helper.make_node("Greater", ["logits", "zero"], ["positive"], name="positive"),
        helper.make_node("Cast", ["positive"], ["column"], name="column", to=onnx.TensorProto.INT64),
        helper.make_node("Reshape", ["column", "flat"], ["label"], name="decide"),
    ]


def _onnx() -> Any:
    try:
        import onnx
        import onnx.numpy_helper
    except ImportError:
        raise MissingExtraError("onnx", "onnx", "exporting to ONNX") from None
    return onnx
