from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import expit, softmax

from quad4fhe import MLP, InputError, MissingExtraError
from quad4fhe.importers.onnx import read_graph
from support.reference_models import Net, assert_answers, assert_refused, nets, relu_logits

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - only where onnx is

NET = Net(d=3, m=4, classes=3, seed=7)
BINARY = Net(d=3, m=4, classes=2, seed=7)


def run(model: Any, X: NDArray[Any]) -> list[Any]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs: list[Any] = session.run(None, {session.get_inputs()[0].name: X.astype(np.float32)})
    return outputs


def imported(model: Any, folder: Path, *, binary: bool = False, **save: Any) -> MLP:
    path = folder / "model.onnx"
    onnx.save(model, path, **save)
    return MLP.from_onnx(path, binary=binary)


# --- what skl2onnx writes ---------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(net=nets(), scaler=st.sampled_from(["none", "standard", "minmax", "maxabs", "robust"]), zipmap=st.booleans())
def test_what_skl2onnx_writes_answers_as_onnxruntime_does(
    tmp_path_factory: pytest.TempPathFactory, net: Net, scaler: str, zipmap: bool
) -> None:
    pytest.importorskip("skl2onnx", reason="skl2onnx is not installed")
    from skl2onnx import to_onnx
    from sklearn import preprocessing
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline

    scalers = {
        "none": [],
        "standard": [preprocessing.StandardScaler()],
        "minmax": [preprocessing.MinMaxScaler()],
        "maxabs": [preprocessing.MaxAbsScaler()],
        "robust": [preprocessing.RobustScaler()],
    }
    X = net.samples()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # three epochs do not converge
        classifier = MLPClassifier((net.m,), max_iter=3, random_state=net.seed)
        model = make_pipeline(*scalers[scaler], classifier).fit(X, np.arange(len(X)) % net.classes)
        graph = to_onnx(model, X[:1].astype(np.float32), options={"zipmap": zipmap})
    mlp = imported(graph, tmp_path_factory.mktemp("skl"))
    label, proba = run(graph, X)
    if zipmap:
        proba = np.array([[row[k] for k in range(net.classes)] for row in proba])
    logits = mlp.logits(X)
    mine = softmax(logits, axis=1) if net.classes > 2 else np.hstack([expit(-logits), expit(logits)])
    np.testing.assert_allclose(mine, proba, atol=2e-5)
    ranked = np.sort(proba, axis=1)
    clear = ranked[:, -1] - ranked[:, -2] > 1e-4
    np.testing.assert_array_equal(mlp.decide(X)[clear], np.asarray(label)[clear])


# --- graphs written by hand -------------------------------------------------------------------------------------

Nodes = list[Any]


def graph(
    nodes: Nodes,
    constants: dict[str, Any],
    shape: list[Any] | None = None,
    opset: int = 20,
    outputs: tuple[str, ...] = ("out",),
    inputs: tuple[str, ...] = ("x",),
) -> Any:
    ins = [helper.make_tensor_value_info(i, TensorProto.FLOAT, ["n", 3] if shape is None else shape) for i in inputs]
    outs = [helper.make_empty_tensor_value_info(name) for name in outputs]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 1), helper.make_opsetid("my.own", 1)]
    return helper.make_model(helper.make_graph(nodes, "g", ins, outs, tensors), opset_imports=opsets, ir_version=9)


def node(op: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), output.split(), name=f"{op}_{output.split()[0]}", **attributes)


def weights(net: Net = NET) -> dict[str, Any]:
    return dict(zip(("W1", "b1", "W2", "b2"), net.weights(), strict=True))


def plain(*tail: Any, net: Net = NET, before: Nodes | None = None, last: str = "out", **constants: Any) -> Any:
    """Gemm, Relu, Gemm with something in front of it or behind it."""
    start = before[-1].output[0] if before else "x"
    body = [
        node("Gemm", f"{start} W1 b1", "y", transB=1),
        node("Relu", "y", "h"),
        node("Gemm", "h W2 b2", "z" if tail else last, transB=1),
    ]
    return graph([*(before or []), *body, *tail], weights(net) | constants)


def vec(*values: float) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def int64(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def matmul_graph() -> Any:
    w = weights()
    nodes = [
        node("MatMul", "x A", "p"),
        node("Add", "b1 p", "y"),
        node("Relu", "y", "h"),
        node("MatMul", "h B", "q"),
        node("Add", "q b2", "out"),
    ]
    return graph(nodes, {"A": w["W1"].T, "B": w["W2"].T, "b1": w["b1"], "b2": w["b2"][None, :]})


def transposed_graph() -> Any:
    w = weights()
    nodes = [
        node("Transpose", "W1", "A", perm=[1, 0]),
        node("Identity", "b1", "b1copy"),
        helper.make_node("Constant", [], ["W2"], value=numpy_helper.from_array(w["W2"])),
        helper.make_node("Constant", [], ["two"], value_float=2.0),
        node("Gemm", "x A b1copy", "y", alpha=0.5, beta=3.0),
        node("Relu", "y", "h"),
        node("Dropout", "h", "dropped mask"),
        node("Gemm", "dropped W2", "z", transB=1),
        node("Div", "z two", "out"),
    ]
    return graph(nodes, {"W1": w["W1"], "b1": w["b1"]})


def batch_norm_graph() -> Any:
    def stats(prefix: str, size: int, seed: int) -> dict[str, Any]:
        rng = np.random.default_rng(seed)
        names = [f"{prefix}{part}" for part in ("g", "b", "m", "v")]
        return {name: rng.uniform(0.3, 2.0, size).astype(np.float32) for name in names}

    nodes = [
        node("BatchNormalization", "x ag ab am av", "n0", epsilon=0.01),
        node("Gemm", "n0 W1 b1", "y", transB=1),
        node("BatchNormalization", "y bg bb bm bv", "n1"),
        node("Relu", "n1", "h"),
        node("BatchNormalization", "h cg cb cm cv", "n2"),
        node("Gemm", "n2 W2 b2", "out", transB=1),
    ]
    return graph(nodes, weights() | stats("a", 3, 1) | stats("b", 4, 2) | stats("c", 4, 3))


ARITHMETIC = [
    node("Sub", "x mean", "s0"),
    node("Div", "s0 std", "s1"),
    node("Mul", "half s1", "s2"),
    node("Sub", "ones s2", "s3"),
    node("Cast", "s3", "s4", to=1),
    node("Flatten", "s4", "s5"),
    node("Reshape", "s5 rows", "s6"),
]

ACCEPTED: dict[str, Callable[[], Any]] = {
    "gemm": plain,
    "matmul and add, bias on the left": matmul_graph,
    "alpha, beta, transposed and constant nodes": transposed_graph,
    "batch normalisation in three places": batch_norm_graph,
    "arithmetic in front": lambda: plain(
        before=ARITHMETIC,
        mean=vec(1, 2, 3),
        std=vec(0.5, 2, 3)[None, :],
        half=np.float32(0.5),
        ones=vec(1),
        rows=int64(-1, 3),
    ),
    "a scalar bias": lambda: graph(
        [
            node("Gemm", "x W1 half", "y", transB=1),
            node("Relu", "y", "h"),
            node("Gemm", "h W2 half", "out", transB=1),
        ],
        weights() | {"half": np.float32(0.5)},
    ),
    "a squeezed binary score": lambda: plain(node("Squeeze", "z one", "out"), net=BINARY, one=int64(1)),
    "a flattened binary score": lambda: plain(node("Reshape", "z flat", "out"), net=BINARY, flat=int64(-1)),
    "double precision": lambda: _to_double(plain()),
}


def _to_double(model: Any) -> Any:
    cast = helper.make_node("Cast", ["x"], ["x64"], to=TensorProto.DOUBLE)
    model.graph.node[0].input[0] = "x64"
    model.graph.node.insert(0, cast)
    for index, tensor in enumerate(model.graph.initializer):
        array = numpy_helper.to_array(tensor).astype(np.float64)
        model.graph.initializer[index].CopyFrom(numpy_helper.from_array(array, tensor.name))
    return model


@pytest.mark.parametrize("case", ACCEPTED)
def test_graphs_of_many_spellings_give_the_logits_of_onnxruntime(case: str, tmp_path: Path) -> None:
    model = ACCEPTED[case]()
    X = NET.samples()
    assert_answers(imported(model, tmp_path, binary="binary score" in case), X, run(model, X)[0], 1e-5)


@pytest.mark.parametrize("case", ["a squeezed binary score", "a flattened binary score"])
def test_a_single_output_without_sigmoid_may_be_a_regressor_and_is_refused(case: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"one output and no Sigmoid.*--binary"):
        imported(ACCEPTED[case](), tmp_path)


TAILS: dict[str, tuple[Net, Nodes]] = {
    "softmax": (NET, [node("Softmax", "z", "p", axis=1), node("ArgMax", "p", "out", axis=1, keepdims=0)]),
    "log-softmax": (NET, [node("LogSoftmax", "z", "p"), node("ArgMax", "p", "out", axis=-1, keepdims=0)]),
    "argmax": (
        NET,
        [node("ArgMax", "z", "k", axis=1), node("Cast", "k", "k1", to=6), node("Reshape", "k1 flat", "out")],
    ),
    "class names": (NET, [node("ArgMax", "z", "k", axis=1, keepdims=0), node("Gather", "names k", "out")]),
    "one against the rest": (NET, [node("Sigmoid", "z", "p"), node("ArgMax", "p", "out", axis=1, keepdims=0)]),
    "binary": (
        BINARY,
        [
            node("Sigmoid", "z", "p"),
            node("Sub", "unit p", "q"),
            node("Concat", "q p", "both", axis=1),
            node("ArgMax", "both", "out", axis=1, keepdims=0),
        ],
    ),
}


@pytest.mark.parametrize("case", TAILS)
def test_a_tail_leaves_the_decision_to_the_logits(case: str, tmp_path: Path) -> None:
    net, tail = TAILS[case]
    model = plain(*tail, net=net, flat=int64(-1), names=int64(0, 1, 2), unit=vec(1))
    X = net.samples()
    np.testing.assert_array_equal(imported(model, tmp_path).decide(X), run(model, X)[0])


def test_one_sample_as_a_vector_may_have_its_weights_on_the_left(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "W1 x", "p"),
        node("Add", "p b1", "y"),
        node("Relu", "y", "h"),
        node("MatMul", "W2 h", "q"),
        node("Add", "q b2", "z"),
        node("Softmax", "z", "out", axis=0),
    ]
    mlp = imported(graph(nodes, weights(), shape=[3]), tmp_path)
    assert_answers(mlp, NET.samples(), relu_logits(NET.samples(), *NET.weights()), 1e-9)


def test_weights_in_a_second_file_are_read_and_named_if_missing(tmp_path: Path) -> None:
    options = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0}
    mlp = imported(plain(), tmp_path, **options)
    assert_answers(mlp, NET.samples(), relu_logits(NET.samples(), *NET.weights()), 1e-9)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(InputError) as caught:
        MLP.load(tmp_path / "model.onnx")
    assert_refused(str(caught.value), "weights.bin", "external weights", "keep it in the folder of the model")


def test_weights_outside_the_folder_of_the_model_are_never_opened(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    imported(plain(), tmp_path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    model = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../weights.bin"
    (inside / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(InputError) as caught:
        MLP.load(inside / "model.onnx")
    assert_refused(str(caught.value), "external weights")


def with_nan() -> Any:
    w = weights()
    w["W2"] = np.full_like(w["W2"], np.nan)
    return graph(list(plain().graph.node), w)


def truncated() -> Any:
    model = plain()
    model.graph.initializer[0].raw_data = b"123"
    return model


def two_hidden(second: Nodes) -> Any:
    """Linear, ReLU, Linear, the nodes from y2 to h2, Linear."""
    first = [node("Gemm", "x W1 b1", "y", transB=1), node("Relu", "y", "h"), node("Gemm", "h S", "y2")]
    square = np.arange(16, dtype=np.float32).reshape(4, 4) / 8 - 1
    return graph([*first, *second, node("Gemm", "h2 W2 b2", "out", transB=1)], weights() | {"S": square})


SECOND: dict[str, tuple[Nodes, Callable[[Any], Any]]] = {
    "tanh": ([node("Tanh", "y2", "h2")], np.tanh),
    "sigmoid": ([node("Sigmoid", "y2", "h2")], lambda u: 1 / (1 + np.exp(-u))),
    "silu": ([node("Sigmoid", "y2", "s"), node("Mul", "y2 s", "h2")], lambda u: u / (1 + np.exp(-u))),
    "leaky_relu": ([node("LeakyRelu", "y2", "h2", alpha=0.25)], lambda u: np.where(u > 0, u, u / 4)),
    "softsign": (
        [node("Abs", "y2", "a"), node("Add", "a one", "b"), node("Div", "y2 b", "h2")],
        lambda u: u / (1 + np.abs(u)),
    ),
}


@pytest.mark.parametrize("name", SECOND)
def test_a_second_hidden_layer_may_have_another_activation(name: str) -> None:
    nodes, function = SECOND[name]
    model = two_hidden(nodes)
    if name == "softsign":
        model.graph.initializer.append(numpy_helper.from_array(np.float32(1), "one"))
    found = read_graph(model)
    assert [each.name for each in found.activations] == ["relu", name]
    held = {each.name: numpy_helper.to_array(each).astype(np.float64) for each in model.graph.initializer}
    X = np.random.default_rng(0).normal(size=(50, 3))
    inner = np.maximum(X @ held["W1"].T + held["b1"], 0) @ held["S"]
    assert np.allclose(found.logits(X), function(inner) @ held["W2"].T + held["b2"], atol=1e-9)


def activation(op: str, **attributes: Any) -> Any:
    nodes = [node("Gemm", "x W1 b1", "y", transB=1), node(op, "y", "h", **attributes), node("Gemm", "h W2", "out")]
    return graph(nodes, weights())


def branching(last: Nodes, outputs: tuple[str, ...] = ("out",)) -> Any:
    nodes = [node("Gemm", "x W1 b1", "y", transB=1), node("Relu", "y", "h"), node("Gemm", "h W2 b2", "z", transB=1)]
    return graph([*nodes, *last], weights(), outputs=outputs)


REFUSALS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "an unknown activation": (lambda: activation("Sin"), ["node 'Sin_h' (Sin)", "supported at the end of a graph"]),
    "erf alone": (lambda: activation("Erf"), ["node 'Gemm_out' (Gemm)", "not a known activation"]),
    "an operation of another domain": (lambda: activation("Relu", domain="my.own"), ["'my.own'", "(Relu)"]),
    "no activation": (
        lambda: graph([node("Gemm", "x W1 b1", "y", transB=1), node("Gemm", "y W2 b2", "out", transB=1)], weights()),
        ["no activation"],
    ),
    "no output layer": (
        lambda: graph([node("Gemm", "x W1 b1", "y", transB=1), node("Relu", "y", "out")], weights()),
        ["no linear layer after its activation"],
    ),
    "relu on the input": (
        lambda: plain(before=[node("Relu", "x", "r")]),
        ["node 'Relu_r'", "before any weight matrix"],
    ),
    "NaN": (with_nan, ["weight of node 'Gemm_out' (Gemm)", "NaN"]),
    "shapes that do not fit": (
        lambda: graph(list(plain().graph.node), weights() | {"W2": np.ones((3, 5), np.float32)}),
        ["node 'Gemm_out' (Gemm) takes 5 values", "gives 4"],
    ),
    "a bias that does not fit": (
        lambda: graph(list(plain().graph.node), weights() | {"b1": vec(1, 2)}),
        ["bias of node 'Gemm_y' (Gemm) has 2 entries"],
    ),
    "a bias per sample": (
        lambda: graph(list(plain().graph.node), weights() | {"b1": np.ones((5, 4), np.float32)}),
        ["node 'Gemm_y' (Gemm) has a constant of shape (5, 4)"],
    ),
    "a residual connection": (lambda: branching([node("Add", "z z", "out")]), ["node 'Add_out' (Add)", "branches"]),
    "two heads": (
        lambda: branching([node("Gemm", "h W2", "other", transB=1)], outputs=("z", "other")),
        ["different output layers", "one classifier per graph"],
    ),
    "batch norm in training mode": (
        lambda: plain(before=[node("BatchNormalization", "x o o o o", "n m v", training_mode=1)], o=vec(1, 1, 1)),
        ["node 'BatchNormalization_n'", "training mode", "eval()"],
    ),
    "dropout in training mode": (
        lambda: plain(before=[node("Dropout", "x r t", "d")], r=vec(0.5)[0], t=np.array(True)),
        ["node 'Dropout_d' (Dropout)", "training mode", "eval()"],
    ),
    "negative variance": (
        lambda: plain(before=[node("BatchNormalization", "x o o o v", "n")], o=vec(1, 1, 1), v=vec(1, -1, 1)),
        ["node 'BatchNormalization_n'", "variance that is not positive"],
    ),
    "probabilities in the wrong order": (
        lambda: plain(
            node("Sigmoid", "z", "p"),
            node("Sub", "unit p", "q"),
            node("Concat", "p q", "out", axis=1),
            net=BINARY,
            unit=vec(1),
        ),
        ["node 'Concat_out' (Concat)"],
    ),
    "the probability of class 0 alone": (
        lambda: plain(node("Sigmoid", "z", "p"), node("Sub", "unit p", "out"), net=BINARY, unit=vec(1)),
        ["no output of the graph is a score or label"],
    ),
    "division by zero": (lambda: plain(before=[node("Div", "x o", "r")], o=vec(1, 0, 1)), ["'Div_r'", "by zero"]),
    "argmin": (lambda: plain(node("ArgMin", "z", "out", axis=1)), ["node 'ArgMin_out' (ArgMin)"]),
    "argmax over samples": (lambda: plain(node("ArgMax", "z", "out", axis=0)), ["(ArgMax)", "axis 0"]),
    "argmax of one score": (
        lambda: plain(node("ArgMax", "z", "out", axis=1), net=BINARY),
        ["(ArgMax)", "single score"],
    ),
    "softmax over samples": (lambda: plain(node("Softmax", "z", "out", axis=0)), ["(Softmax)", "axis 0"]),
    "rounding": (lambda: plain(before=[node("Cast", "x", "i", to=7)]), ["node 'Cast_i' (Cast)", "whole numbers"]),
    "multilabel": (
        lambda: plain(node("Sigmoid", "z", "p"), node("Binarizer", "p", "out", domain="ai.onnx.ml")),
        ["node 'Binarizer_out' (Binarizer)"],
    ),
    "weights that are not constant": (
        lambda: graph([node("Gemm", "x nowhere", "out")], {}),
        ["node 'Gemm_out' (Gemm)", "no constant at input 1 ('nowhere')"],
    ),
    "samples as columns": (
        lambda: graph([node("MatMul", "W1 x", "out")], weights()),
        ["node 'MatMul_out' (MatMul)", "columns"],
    ),
    "a sample cut in pieces": (
        lambda: graph(
            [node("Reshape", "x rows", "r"), *plain(before=[node("Identity", "r", "i")]).graph.node],
            weights() | {"rows": int64(-1, 3)},
            shape=["n", 6],
        ),
        ["takes 6 values per sample", "first layer takes 3"],
    ),
    "no nodes": (lambda: graph([], {}), ["holds no ONNX graph"]),
    "two inputs": (
        lambda: graph([node("Add", "a b", "out")], {}, inputs=("a", "b")),
        ["2 inputs ('a', 'b')", "wanted one"],
    ),
    "an output without input": (
        lambda: graph([node("Identity", "W1", "out")], weights()),
        ["no output of the graph is a score or label of its input"],
    ),
    "an opset of 2016": (lambda: graph(list(plain().graph.node), weights(), opset=6), ["opset 6", "wanted 7 or later"]),
    "a damaged tensor": (truncated, ["the tensor 'W1' of the graph", "export the model again"]),
    "text where numbers belong": (
        lambda: graph(list(plain().graph.node), weights() | {"b1": np.array(["a", "b", "c", "d"], object)}),
        ["'b1'", "node 'Gemm_y'"],
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_imported_is_refused_in_one_line_that_names_the_node(case: str, tmp_path: Path) -> None:
    make, words = REFUSALS[case]
    with pytest.raises(InputError) as caught:
        imported(make(), tmp_path)
    assert_refused(str(caught.value), "model.onnx: ", *words)


def test_without_onnx_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"quad4fhe\[onnx\]"):
        MLP.load(tmp_path / "model.onnx")
