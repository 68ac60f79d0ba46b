"""The part of a network before its head: cut off, carried in the fit, run at the client."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quad4fhe import MLP, Fit, InputError, fit, verify
from quad4fhe.feature_part import FeaturePart, Features
from quad4fhe.raw import samples_for, write_features
from support.feature_models import CHANNELS, CLASSES, SIDE, UNITS, conv_model

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
helper, numpy_helper = onnx.helper, onnx.numpy_helper

RNG = np.random.default_rng(5)


def images(n: int = 60) -> Any:
    return RNG.normal(size=(n, 1, SIDE, SIDE)).astype(np.float32)


def run(model: Any, X: Any) -> Any:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: X})[0]


@pytest.fixture
def conv(tmp_path: Path) -> tuple[MLP, Any, Path]:
    model = conv_model()
    onnx.save(model, tmp_path / "conv.onnx")
    return MLP.load(tmp_path / "conv.onnx"), model, tmp_path


def test_the_head_behind_its_feature_part_is_the_whole_network(conv: tuple[MLP, Any, Path]) -> None:
    mlp, model, _ = conv
    X = images()
    assert mlp.feature_part is not None
    assert (mlp.features, mlp.units, mlp.outputs) == (CHANNELS * (SIDE // 2) ** 2, UNITS, CLASSES)
    assert np.allclose(mlp.logits(mlp.inputs(X)), run(model, X), atol=1e-4)
    assert mlp.feature_part(X.reshape(60, -1)).shape == (60, mlp.features)  # rows of flattened images


def test_a_fit_takes_raw_images_carries_the_part_and_verifies(conv: tuple[MLP, Any, Path]) -> None:
    mlp, model, folder = conv
    X, unseen = images(), images(30)
    made = fit(mlp, X, X_test=unseen, family="shared")
    made.save(folder / "fit.safetensors")
    back = Fit.load(folder / "fit.safetensors")
    assert back.mlp.feature_part is not None
    assert back.mlp.feature_part.sha256 == mlp.feature_part.sha256  # type: ignore[union-attr] # loaded above
    assert verify(back, mlp, X).samples == 60
    assert np.array_equal(back.predict(unseen), made.predict(mlp.inputs(unseen)))
    kept = np.mean(back.predict(unseen) == run(model, unseen).argmax(axis=1))
    assert back.agreement(unseen) == pytest.approx(kept)
    with pytest.raises(Exception, match="the model that was given"):
        verify(back, mlp.with_feature_part(None), X)


def test_a_changed_feature_part_breaks_the_certificate(conv: tuple[MLP, Any, Path]) -> None:
    mlp, _, _ = conv
    data = bytearray(fit(mlp, images(), family="shared").to_bytes())
    at = bytes(data).index(b"MaxPool")
    data[at : at + 7] = b"MinPool"
    with pytest.raises(Exception, match="was changed or damaged"):
        Fit.from_bytes(bytes(data))


def test_features_are_written_once_and_not_put_through_again(conv: tuple[MLP, Any, Path]) -> None:
    mlp, _, folder = conv
    X, y = images(), np.arange(60)
    np.savez(folder / "raw.npz", X=X, y=y)
    features, labels = samples_for(mlp, folder / "raw.npz", "calibration")
    write_features(folder / "features.npz", features, labels)
    again, kept = samples_for(mlp, folder / "features.npz", "calibration")
    assert np.array_equal(features, again)
    assert kept is not None
    assert kept.tolist() == y.tolist()
    assert verify(fit(mlp, X, family="shared"), mlp, folder / "features.npz").samples == 60
    other = Features.of(np.asarray(features), "0" * 64)
    with pytest.raises(InputError, match="compute them again"):
        mlp.inputs(other)


def test_an_export_for_one_image_at_a_time_is_run_one_by_one(tmp_path: Path) -> None:
    onnx.save(conv_model(batch=1), tmp_path / "conv.onnx")
    mlp = MLP.load(tmp_path / "conv.onnx")
    assert mlp.inputs(images(3)).shape == (3, mlp.features)


def test_affine_fronts_are_folded_and_need_no_feature_part(tmp_path: Path) -> None:
    model = conv_model()
    nodes = [node for node in model.graph.node if node.op_type in ("Gemm", "Relu")][1:]
    nodes[0].input[0] = "s"
    scale = helper.make_node("Mul", ["x", "half"], ["s"])
    width = CHANNELS * (SIDE // 2) ** 2
    graph = helper.make_graph(
        [scale, *nodes],
        "dense",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", width])],
        list(model.graph.output),
        [*model.graph.initializer, numpy_helper.from_array(np.array(0.5, np.float32), "half")],
    )
    dense = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(dense, tmp_path / "dense.onnx")
    assert MLP.load(tmp_path / "dense.onnx").feature_part is None


def test_the_split_can_be_named(conv: tuple[MLP, Any, Path]) -> None:
    _, model, folder = conv
    named = MLP.load(folder / "conv.onnx", split="f")
    X = images(5)
    assert np.allclose(named.logits(named.inputs(X)), run(model, X), atol=1e-4)
    with pytest.raises(InputError, match=r"no tensor or node 'nowhere'.*'f', 'y', 'h', 'logits'"):
        MLP.load(folder / "conv.onnx", split="nowhere")
    with pytest.raises(InputError, match=r"\(Conv\)"):
        MLP.load(folder / "conv.onnx", split="never")
    with pytest.raises(InputError, match="--split does not apply"):
        MLP.load(folder / "model.npz", split="f")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (np.zeros((4, 7)), r"shape \(4, 7\).*'x' \(numbers of shape \(samples, 1, 6, 6\)\)"),
        (np.array([["a"] * 36] * 2), "not numbers"),
        (np.full((2, 36), np.nan), "NaN or infinite features, the first for row 0"),
        ({"y": np.zeros(3), "z": np.zeros(3)}, "'x' is missing"),
        (np.float64(3), "wanted one entry per sample"),
    ],
)
def test_raw_inputs_of_another_kind_are_refused_in_one_line(conv: Any, raw: Any, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        conv[0].inputs(raw)
    assert "\n" not in str(caught.value)


def test_a_part_from_a_stranger_may_not_run_subgraphs_or_read_files(tmp_path: Path) -> None:
    inner = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["o"])], "i", [], [helper.make_empty_tensor_value_info("o")]
    )
    loop = helper.make_node("If", ["c"], ["out"], then_branch=inner, else_branch=inner)
    other = helper.make_node("Evil", ["x"], ["out"], domain="com.stranger")
    drawn = helper.make_node("RandomNormalLike", ["x"], ["out"])
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 2])
    c = helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, [])
    out = helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, ["n", 2])
    for node, words in ((loop, "runs a subgraph"), (other, "'com.stranger'"), (drawn, "draws random numbers")):
        model = helper.make_model(helper.make_graph([node], "g", [x, c], [out]))
        with pytest.raises(InputError, match=words):
            FeaturePart(model.SerializeToString())({"x": np.zeros((1, 2)), "c": np.array([True])})
    with pytest.raises(InputError, match="no ONNX graph"):
        FeaturePart(b"\xff\xff\xff")(np.zeros((1, 2)))
    outside = conv_model()
    onnx.save(outside, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    with pytest.raises(InputError, match="another file"):
        FeaturePart((tmp_path / "m.onnx").read_bytes())(images(1))


@pytest.mark.parametrize("where", ["initializer", "Constant", "graph input"])
@pytest.mark.parametrize("training", [False, True])
def test_dropout_in_training_mode_is_refused(tmp_path: Path, where: str, training: bool) -> None:
    """It would give an input different features each time; in inference mode it does nothing."""
    model = conv_model()
    mode = numpy_helper.from_array(np.array(training), "mode")
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.5, dtype=np.float32), "ratio"))
    if where == "initializer":
        model.graph.initializer.append(mode)
    elif where == "graph input":
        model.graph.input.append(helper.make_tensor_value_info("mode", onnx.TensorProto.BOOL, []))
    else:
        model.graph.node.insert(0, helper.make_node("Constant", [], ["mode"], value=mode))
    pool = next(index for index, node in enumerate(model.graph.node) if node.op_type == "MaxPool")
    model.graph.node[pool].input[0] = "dropped"
    model.graph.node.insert(pool, helper.make_node("Dropout", ["r", "ratio", "mode"], ["dropped"]))
    onnx.save(model, tmp_path / "conv.onnx")
    if training or where == "graph input":
        with pytest.raises(InputError, match=r"Dropout in training mode.*export the model with eval\(\)"):
            MLP.load(tmp_path / "conv.onnx")
    else:
        X = images(5)
        mlp = MLP.load(tmp_path / "conv.onnx")
        assert np.allclose(mlp.logits(mlp.inputs(X)), run(conv_model(), X), atol=1e-4)


def test_a_part_can_be_sent_to_another_process(conv: tuple[MLP, Any, Path]) -> None:
    mlp, _, _ = conv
    X = images(4)
    before = mlp.inputs(X)
    assert np.array_equal(pickle.loads(pickle.dumps(mlp)).inputs(X), before)


def test_a_model_file_keeps_activation_and_feature_part(conv: tuple[MLP, Any, Path]) -> None:
    mlp, _, folder = conv
    changed = mlp.with_activation("gelu")
    for name in ("m.safetensors", "m.npz"):
        changed.save(folder / name)
        assert MLP.load(folder / name).sha256 == changed.sha256
    with pytest.raises(InputError, match="its activation is GELU, not tanh"):
        MLP.load(folder / "m.npz", activation="tanh")
