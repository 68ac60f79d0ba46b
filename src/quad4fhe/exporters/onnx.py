"""The polynomial model as an ONNX graph of five nodes: Gemm, Mul, Gemm, Gemm, Add; of three without a linear term.

The graph is simple enough for any compiler from ONNX to encrypted arithmetic:

    y = Gemm(x, W1, b1)      squared = Mul(y, y)
    logits = Add(Gemm(squared, S, c), Gemm(y, T))

The linear term keeps its own Gemm: completing the square saves it, but loses digits where alpha is small, so that is
done only on request (`folding`). A model without a linear term has neither that Gemm nor the Add. Above degree 2 the
units' polynomials are evaluated by Horner's rule, with one Mul and one Add per power, between two Gemms.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from quad4fhe.errors import InputError, MissingExtraError
from quad4fhe.exporters import QUADRATIC, Exporter, Options, Origin, model_of, rounded
from quad4fhe.io.files import parsing, write_atomically
from quad4fhe.polynomial import PolynomialModel

OPSET = 14  # every runtime in use reads it; Concrete ML reads no older one
IR_VERSION = 7  # the file format of the same ONNX release
_FORMULA = "logits = S (y*y) + T y + c with y = W1 x + b1"
_HIGHER_FORMULA = "logits = V g(y) + c with y = W1 x + b1 and g_j(y) = a1_j y + a2_j y^2 + ..."


def to_model(model: PolynomialModel, origin: Origin, options: Options) -> Any:
    """An onnx.ModelProto with the input `x` (n, d) and the output `logits` (n, K); `options.batch` fixes n.

    `options.labels` adds the output `label` (n,), the decision as an int64: whether the score is positive for K = 1,
    else the index of the largest logit, the lowest index on an exact tie.
    """
    onnx = _onnx()
    helper, kind = onnx.helper, getattr(onnx.TensorProto, {"float32": "FLOAT"}.get(options.dtype, "DOUBLE"))
    arrays, rows = rounded(model, options.dtype), options.batch or "n"
    linear = not model.is_quadratic or bool(model.T.any())
    if model.degree == 2 and not linear:
        del arrays["T"]
    if "a" in arrays:
        coefficients = arrays.pop("a")
        arrays |= {f"a{k}": np.ascontiguousarray(row) for k, row in enumerate(coefficients, start=1)}
    nodes = [helper.make_node(*node[:3], name=node[3], **node[4]) for node in _body(model.degree, linear)]
    outputs = [helper.make_tensor_value_info("logits", kind, [rows, model.outputs])]
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    if options.labels:
        outputs.append(helper.make_tensor_value_info("label", onnx.TensorProto.INT64, [rows]))
        nodes += _label_nodes(model.outputs, onnx)
        if model.outputs == 1:
            constants.append(onnx.numpy_helper.from_array(arrays["c"][:1] * 0, "zero"))
            constants.append(helper.make_tensor("flat", onnx.TensorProto.INT64, [1], [-1]))
    inputs = [helper.make_tensor_value_info("x", kind, [rows, model.features])]
    graph = helper.make_graph(nodes, "quadratic" if model.degree == 2 else "polynomial", inputs, outputs, constants)
    proto = helper.make_model(
        graph,
        producer_name="quad4fhe",
        producer_version=origin.quad4fhe,
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
        doc_string=_FORMULA if model.degree == 2 else _HIGHER_FORMULA,
    )
    helper.set_model_props(proto, {f"quad4fhe.{name}": text for name, text in origin.lines(options.dtype).items()})
    onnx.checker.check_model(proto)
    return proto


def to_bytes(model: PolynomialModel, origin: Origin, options: Options) -> bytes:
    """The content of an .onnx file."""
    return _bytes(to_model(model, origin, options))


def write(proto: Any, path: str | Path) -> None:
    """Write a graph to an .onnx file, whole or not at all."""
    if Path(path).suffix.lower() != ".onnx":
        raise InputError(f"an ONNX graph is saved as .onnx, not {Path(path).name!r}; choose a name such as model.onnx")
    write_atomically(path, _bytes(proto))


def _bytes(proto: Any) -> bytes:
    with parsing("a graph of this size", "an ONNX file holds 2 GiB at most; export as .npz"):
        out: bytes = proto.SerializeToString(deterministic=True)
    return out


def read(file: Path) -> PolynomialModel:
    """The model of a graph that `to_model` made; raises InputError for any other graph."""
    onnx = _onnx()
    with parsing("the ONNX model", "export the fit again"):
        proto = onnx.load(file, format="protobuf", load_external_data=False)
        held = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    degree = 2 if "S" in held else sum(name.startswith("a") for name in held)
    expected = [node[:3] for node in _body(max(2, degree), degree > 2 or "T" in held)]
    found = [(node.op_type, list(node.input), list(node.output)) for node in proto.graph.node[: len(expected)]]
    if "S" in held:
        held.setdefault("T", np.zeros_like(held["S"]))
    names = QUADRATIC if degree == 2 else ("W1", "b1", "V", "c", *(f"a{k}" for k in range(1, degree + 1)))
    if found != expected or not set(names) <= set(held):
        raise InputError(
            "holds another graph, wanted one made by `quad4fhe export`; to read a trained model, use MLP.from_onnx"
        )
    if degree > 2:
        held["a"] = np.stack([held[f"a{k}"] for k in range(1, degree + 1)])
    return model_of(held)


def _body(degree: int, linear: bool) -> list[tuple[str, list[str], list[str], str, dict[str, int]]]:
    """The nodes up to the logits: kind, inputs, outputs, name and attributes."""
    hidden: tuple[str, list[str], list[str], str, dict[str, int]]
    hidden = ("Gemm", ["x", "W1", "b1"], ["y"], "hidden", {"transB": 1})
    if degree == 2:
        nodes = [hidden, ("Mul", ["y", "y"], ["squared"], "square", {})]
        if not linear:
            return [*nodes, ("Gemm", ["squared", "S", "c"], ["logits"], "logits", {"transB": 1})]
        return [
            *nodes,
            ("Gemm", ["squared", "S", "c"], ["of_squares"], "squares", {"transB": 1}),
            ("Gemm", ["y", "T"], ["of_hidden"], "linear", {"transB": 1}),
            ("Add", ["of_squares", "of_hidden"], ["logits"], "logits", {}),
        ]
    nodes = [hidden, ("Mul", ["y", f"a{degree}"], [f"g{degree}"], f"power{degree}", {})]
    for k in range(degree - 1, 0, -1):
        nodes.append(("Add", [f"g{k + 1}", f"a{k}"], [f"s{k}"], f"coefficient{k}", {}))
        nodes.append(("Mul", [f"s{k}", "y"], [f"g{k}"], f"power{k}", {}))
    return [*nodes, ("Gemm", ["g1", "V", "c"], ["logits"], "logits", {"transB": 1})]


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


EXPORTER = Exporter("an ONNX graph (opset 14) of Gemm, Mul and Add", (".onnx",), to_bytes, read, graph=True)
