"""Residual and gated networks behind a first Linear layer: measured by onnxruntime, fitted on that layer, verified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quad4fhe import MLP, CertificateError, Client, Fit, InputError, fit, plan, verify
from quad4fhe.cli import main
from quad4fhe.deep import GraphMLP
from quad4fhe.he.session import Server
from quad4fhe.mlp import decide
from support.forging import changed, opened, sealed

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - only where onnx is

RNG = np.random.default_rng(7)
X = RNG.normal(size=(160, 4))


def weights(**shapes: tuple[int, ...]) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {name: (rng.normal(size=shape) / 2).astype(np.float32) for name, shape in shapes.items()}


def graph(path: Path, nodes: list[tuple[str, str, str, dict[str, Any]]], held: dict[str, Any], **shapes: Any) -> Path:
    """An ONNX file from (operation, inputs, outputs, attributes)."""
    made = [helper.make_node(op, ins.split(), outs.split(), **attributes) for op, ins, outs, attributes in nodes]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (shapes.get("inputs") or {"x": ["n", 4]}).items()
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in shapes.get("outputs", ["out"])]
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in held.items()]
    body = helper.make_graph(made, "net", inputs, outputs, constants)
    onnx.save(helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


RESIDUAL = [
    ("Sub", "x shift", "x0", {}),
    ("MatMul", "x0 A", "y0", {}),
    ("Add", "y0 a", "y", {}),
    ("Relu", "y", "h", {}),
    ("MatMul", "h B", "r0", {}),
    ("Tanh", "r0", "r", {}),
    ("Add", "h r", "s", {}),
    ("LayerNormalization", "s g b", "t", {}),
    ("MatMul", "t C", "z", {}),
    ("Softmax", "z", "out", {"axis": 1}),
]
GATED = [
    ("Gemm", "x A a", "y", {}),
    ("Split", "y", "left right", {"axis": 1}),
    ("Sigmoid", "right", "gate", {}),
    ("Mul", "left gate", "h", {}),
    ("MatMul", "h D", "out", {}),
]
HELD = weights(A=(4, 12), a=(12,), B=(12, 12), g=(12,), b=(12,), C=(12, 3), D=(6, 3)) | {"shift": np.float32(0.5)}
KINDS = {"residual": RESIDUAL, "gated": GATED}


def held_by(kind: str) -> dict[str, Any]:
    used = {name for _, inputs, _, _ in KINDS[kind] for name in inputs.split()}
    return {name: value for name, value in HELD.items() if name in used}


@pytest.fixture(params=list(KINDS))
def model(request: Any, tmp_path: Path) -> Path:
    return graph(tmp_path / f"{request.param}.onnx", KINDS[request.param], held_by(request.param))


def scores(path: Path, rows: Any) -> Any:
    return ort.InferenceSession(path.read_bytes()).run(None, {"x": rows.astype(np.float32)})[0]


def test_the_first_layer_is_read_and_the_graph_decides(model: Path) -> None:
    with pytest.raises(InputError, match="--split first puts the polynomial on the first Linear layer"):
        MLP.load(model)
    found = MLP.load(model, split="first")
    assert isinstance(found, GraphMLP)
    shift = 0.5 if model.stem == "residual" else 0.0
    wanted = (X - shift) @ HELD["A"].astype(np.float64) + HELD["a"]
    assert np.allclose(found.hidden(X), wanted, atol=1e-12)
    own = scores(model, X)
    assert (found.decide(X) == own.argmax(axis=1)).all()
    if model.stem == "residual":  # the logits are those before the softmax
        assert np.allclose(found.logits(X) - np.log(own), (found.logits(X) - np.log(own))[:, :1], atol=1e-4)
    assert found.logits(X[:3]).tobytes() == found.logits(X)[:3].tobytes()  # whatever rows are beside them


def test_a_fit_says_that_its_targets_were_measured(model: Path, tmp_path: Path) -> None:
    mlp = MLP.load(model, split="first")
    found = fit(mlp, X, family="head")
    assert [found.certificate.settled.measured, found.certificate.settled.total] == [len(X), len(X)]
    assert "measured and not proved" in dict(found.summary())["settled"]
    assert "exactly" not in repr(found._repr_html_())
    lost = np.flatnonzero(found.predict(X) != scores(model, X).argmax(axis=1))
    assert list(found.certificate.mismatches) == lost.tolist()
    assert len(lost) < 16
    found.save(tmp_path / "fit.safetensors")
    read = Fit.load(tmp_path / "fit.safetensors")
    assert isinstance(read.mlp, GraphMLP)
    assert read.mlp.sha256 == mlp.sha256
    assert verify(read, mlp, X).settled == found.certificate.settled
    mlp.save(tmp_path / "net.safetensors")
    assert MLP.load(tmp_path / "net.safetensors").sha256 == mlp.sha256
    manifest, tensors = opened(found.to_bytes())
    stated = manifest["certificate"]["settled"]
    for way in set(stated) - {"measured"}:
        forged = changed(manifest, ("certificate", "settled"), stated | {"measured": 0, way: len(X)})
        with pytest.raises(CertificateError, match="which this model's are not"):
            Fit.from_bytes(sealed(forged, tensors))
    silent = {name: value for name, value in manifest["certificate"].items() if name != "settled"}
    with pytest.raises(InputError, match="missing required field `settled`"):
        Fit.from_bytes(sealed(manifest | {"certificate": silent}, tensors))
    other = tensors["network"].copy()
    other[len(other) // 2] ^= 1
    with pytest.raises((CertificateError, InputError)):
        verify(Fit.from_bytes(sealed(manifest, tensors | {"network": other})), None, X)


def test_a_row_without_a_decision_is_refused(tmp_path: Path) -> None:
    nodes = [*GATED[:-1], ("MatMul", "h D", "z", {}), ("Sqrt", "x0", "nan", {}), ("Add", "z nan", "out", {})]
    nodes.insert(0, ("ReduceMax", "x", "x0", {"axes": [1], "keepdims": 1}))
    mlp = MLP.load(graph(tmp_path / "nan.onnx", nodes, held_by("gated")), split="first")
    fine, bad = np.ones((2, 4)), -np.ones((1, 4))
    assert np.isfinite(mlp.logits(fine)).all()
    with pytest.raises(InputError, match="NaN for 1 of 3 rows"):
        mlp.logits(np.concatenate([fine, bad]))


def test_the_graph_is_not_handed_to_clients(tmp_path: Path) -> None:
    path = graph(tmp_path / "gated.onnx", GATED, held_by("gated"))
    found = fit(MLP.load(path, split="first"), X, family="head")
    made = plan(found, samples=20, layout="batch", X=X)
    assert made.feature_part is None
    client, server = Client(made), Server(found, made)
    logits = np.concatenate([client.read(server.answer(request)) for request in client.requests(X[:20])])
    assert (decide(logits) == found.predict(X[:20])).all()


def test_the_command_line_takes_it(model: Path, tmp_path: Path, capsys: Any) -> None:
    np.savez(tmp_path / "calib.npz", X=X)
    fitted, calib = str(tmp_path / "fit.safetensors"), str(tmp_path / "calib.npz")
    assert main(["fit", str(model), calib, "-o", fitted]) == 2
    assert "--split first" in capsys.readouterr().err
    assert main(["fit", str(model), calib, "-o", fitted, "--split", "first", "--family", "head"]) == 0
    assert "measured and not proved" in capsys.readouterr().out
    assert main(["verify", fitted, calib, "--model", str(model), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settled"]["measured"] == len(X)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a convolution first": (
        {"nodes": [("Conv", "x K", "y", {}), ("Flatten", "y", "out", {})], "inputs": {"x": ["n", 1, 3, 3]}},
        r"begins with node 'y' \(Conv\), and no Linear layer takes its input; --split first wants",
    ),
    "two inputs": (
        {"nodes": [("Add", "x w", "s", {}), ("MatMul", "s A", "out", {})], "inputs": {"x": ["n", 4], "w": ["n", 4]}},
        r"has 2 inputs; --split first wants .* torch\.onnx\.export",
    ),
    "two outputs": (
        {"nodes": [("MatMul", "x A", "out", {}), ("Tanh", "out", "other", {})], "outputs": ["out", "other"]},
        "has 2 outputs that depend on its input; --split first wants",
    ),
    "tokens of several values": (
        {
            "nodes": [("MatMul", "x A", "y", {}), ("ReduceMean", "y", "out", {"axes": [1]})],
            "inputs": {"x": ["n", 5, 4]},
        },
        "takes 20 values per sample, but its first layer takes 4",
    ),
    "one output without a sigmoid": (
        {"nodes": [("MatMul", "x A", "y", {}), ("ReduceMean", "y", "out", {"axes": [1]})]},
        "may be a regressor",
    ),
}


@pytest.mark.parametrize(
    ("node", "held"),
    [
        (("Dropout", "h ratio on", "d", {}), {"ratio": np.float32(0.5), "on": np.array(True)}),
        (("BatchNormalization", "h o o o o", "d m v", {"training_mode": 1}), {"o": np.ones(6, dtype=np.float32)}),
    ],
)
def test_a_graph_in_training_mode_is_refused(node: Any, held: dict[str, Any], tmp_path: Path) -> None:
    """Dropout makes decisions random; a batch norm makes them depend on the other rows."""
    nodes = [*GATED[:-1], node, ("MatMul", "d D", "out", {})]
    path = graph(tmp_path / "training.onnx", nodes, held_by("gated") | held)
    with pytest.raises(InputError, match=rf"{node[0]} in training mode.*export the model with eval\(\)"):
        MLP.load(path, split="first")


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_first_layer_is_refused_with_what_to_do(name: str, tmp_path: Path) -> None:
    case, words = REFUSED[name]
    nodes = case["nodes"]
    used = {each for _, inputs, _, _ in nodes for each in inputs.split()}
    held = {key: value for key, value in (HELD | weights(K=(2, 1, 2, 2))).items() if key in used}
    path = graph(tmp_path / "net.onnx", nodes, held, inputs=case.get("inputs"), outputs=case.get("outputs", ["out"]))
    with pytest.raises(InputError, match=words) as refusal:
        MLP.load(path, split="first")
    assert "\n" not in str(refusal.value)


def test_a_torch_module_with_a_skip_connection() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    nn = torch.nn

    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner, self.last = nn.Linear(4, 8), nn.Linear(8, 4), nn.Linear(4, 3)

        def forward(self, x: Any) -> Any:
            return self.last(x + self.inner(nn.functional.silu(self.first(x))))

    torch.manual_seed(0)
    net = Skip().eval()
    found = MLP.from_torch(net, example=torch.zeros(2, 4), split="first")
    assert isinstance(found, GraphMLP)
    assert found.activation.name == "silu"
    assert np.allclose(found.W1, net.first.weight.detach().numpy())
    with torch.no_grad():
        wanted = net(torch.tensor(X, dtype=torch.float32)).numpy()
    assert np.abs(found.logits(X) - wanted).max() < 1e-5
    with pytest.raises(InputError, match="example="):
        MLP.from_torch(net, split="first")
