from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from safetensors.numpy import save_file

from quad4fhe import MLP, InputError, MissingExtraError
from support.reference_models import Net, assert_answers, assert_refused, damages, nets, relu_logits

NET = Net(d=3, m=4, classes=3, seed=11)
NAMES = ("W1", "b1", "W2", "b2")


def arrays(net: Net = NET) -> dict[str, Any]:
    return dict(zip(NAMES, net.weights(), strict=True))


@settings(max_examples=25, deadline=None)
@given(nets())
def test_named_arrays_come_back_from_npz_and_safetensors_as_they_went(
    tmp_path_factory: pytest.TempPathFactory, net: Net
) -> None:
    folder = tmp_path_factory.mktemp("arrays")
    np.savez(folder / "m.npz", **arrays(net), X_cal=net.samples(), note=np.array("kept aside"))
    save_file(arrays(net) | {"S": np.ones((2, 2))}, folder / "m.safetensors")
    for name in ("m.npz", "m.safetensors"):
        mlp = MLP.load(folder / name)
        np.testing.assert_array_equal(mlp.W1, net.weights()[0])
        assert_answers(mlp, net.samples(), relu_logits(net.samples(), *net.weights()), 1e-12)


def test_the_suffix_may_be_in_capitals_and_the_path_a_string(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", **arrays())
    (tmp_path / "m.npz").rename(tmp_path / "M.NPZ")
    assert MLP.load(str(tmp_path / "M.NPZ")).units == 4


@pytest.mark.parametrize("name", ["breast_cancer", "shuttle"])
def test_a_trained_model_file_is_loaded_next_to_its_data(trained: Callable[[str], Any], name: str) -> None:
    model = trained(name)
    assert MLP.load(model.path).sha256 == model.mlp.sha256


def test_torch_names_in_safetensors_need_no_torch(tmp_path: Path) -> None:
    w = arrays()
    state = {"net.0.weight": w["W1"], "net.0.bias": w["b1"], "net.3.weight": w["W2"]}
    gamma, beta, mean, var = (np.random.default_rng(s).uniform(0.5, 2, 4).astype(np.float32) for s in range(4))
    parts = {"weight": gamma, "bias": beta, "running_mean": mean, "running_var": var}
    state |= {f"net.1.{part}": value for part, value in parts.items()} | {"net.1.num_batches_tracked": np.array(7)}
    save_file(state, tmp_path / "m.safetensors")
    X = NET.samples()
    hidden = (X @ w["W1"].T.astype(float) + w["b1"] - mean) / np.sqrt(var.astype(float) + 1e-5) * gamma + beta
    mlp = MLP.load(tmp_path / "m.safetensors", activation="relu")
    assert_answers(mlp, X, np.maximum(hidden, 0) @ w["W2"].T.astype(float), 1e-12)


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in arrays().items() if name not in names}


def objects(path: Path) -> None:
    np.savez(path, **without("b1"), b1=np.array([None] * 4, dtype=object))


def truncated(path: Path) -> None:
    np.savez(path, **arrays())
    path.write_bytes(path.read_bytes()[:-300])


def single(path: Path) -> None:
    with path.open("wb") as handle:
        np.save(handle, np.ones(3))


def write(data: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(data)


BAD: dict[str, tuple[str, Callable[[Path], Any], list[str]]] = {
    "missing": ("m.npz", lambda path: None, ["no such file", "check the path"]),
    "folder": ("m.onnx", lambda path: path.mkdir(), ["this is a folder", "wanted a file"]),
    "empty npz": ("m.npz", write(b""), ["the file is empty"]),
    "empty onnx": ("m.onnx", write(b""), ["the file is empty"]),
    "empty safetensors": ("m.safetensors", write(b""), ["the file is empty"]),
    "noise npz": ("m.npz", write(b"noise" * 50), ["the .npz archive cannot be read", "numpy.savez"]),
    "noise zip": ("m.npz", write(b"PK\x03\x04" + b"noise" * 50), ["the .npz archive cannot be read"]),
    "noise safetensors": ("m.safetensors", write(b"noise" * 50), ["the .safetensors file cannot be read"]),
    "noise onnx": ("m.onnx", write(b"\xff\xfenoise" * 50), ["the ONNX model cannot be read", "export it again"]),
    "truncated npz": ("m.npz", truncated, [".npz archive"]),
    "an npy inside": ("m.npz", single, ["single array"]),
    "objects": ("m.npz", objects, ["'b1'", "numbers or text"]),
    "unknown suffix": ("m.h5", write(b"x"), ["'.h5'", ".onnx", ".safetensors", "export the model"]),
    "pickle": ("m.pkl", write(b"x"), ["is never read", 'it: python -c "', "m.pkl')).save(", "m.safetensors')\""]),
    "no suffix": ("model", write(b"x"), ["no suffix", "wanted .npz"]),
    "no W2": ("m.npz", lambda path: np.savez(path, **without("W2", "b2")), ["'W1', 'b1'", "no W2, b2"]),
    "only data": ("m.npz", lambda path: np.savez(path, X=np.ones(3)), ["'X'", "wanted the arrays W1, b1, W2, b2"]),
    "nothing": ("m.npz", lambda path: np.savez(path), ["no arrays"]),
    "transposed": ("m.npz", lambda path: np.savez(path, **arrays() | {"W2": arrays()["W2"].T}), ["W2", "transpose"]),
    "NaN": ("m.npz", lambda path: np.savez(path, **arrays() | {"b2": [0, np.nan, 0]}), ["b2", "NaN"]),
    "text": ("m.npz", lambda path: np.savez(path, **arrays() | {"b2": ["a", "b", "c"]}), ["b2", "real numbers"]),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_is_not_a_model_is_refused_in_one_line_with_its_path(case: str, tmp_path: Path) -> None:
    name, make, words = BAD[case]
    path = tmp_path / name
    make(path)
    if name.endswith(".onnx"):
        pytest.importorskip("onnx", reason="onnx is not installed")
    with pytest.raises(InputError) as caught:
        MLP.load(path)
    assert_refused(str(caught.value), f"{path}: ", *words)


def saved(name: str, folder: Path) -> bytes:
    """A good model file as bytes."""
    path = folder / name
    if name.endswith(".npz"):
        np.savez_compressed(path, **arrays())
    elif name.endswith(".safetensors"):
        save_file(arrays(), path)
    else:
        onnx = pytest.importorskip("onnx", reason="onnx is not installed")
        helper = onnx.helper
        tensors = [onnx.numpy_helper.from_array(value, key) for key, value in arrays().items()]
        nodes = [
            helper.make_node("Gemm", ["x", "W1", "b1"], ["y"], name="first", transB=1),
            helper.make_node("Relu", ["y"], ["h"]),
            helper.make_node("Gemm", ["h", "W2", "b2"], ["out"], transB=1),
        ]
        ends = [[helper.make_tensor_value_info(name, 1, ["n", size])] for name, size in (("x", 3), ("out", 3))]
        onnx.save(helper.make_model(helper.make_graph(nodes, "g", *ends, tensors)), path)
    return path.read_bytes()


@pytest.mark.parametrize("name", ["m.npz", "m.safetensors", "m.onnx"])
def test_a_damaged_file_is_read_or_refused_in_one_line_and_nothing_else(name: str, tmp_path: Path) -> None:
    @settings(max_examples=150, deadline=None)
    @given(damages(saved(name, tmp_path)))
    def check(damaged: bytes) -> None:
        (tmp_path / name).write_bytes(damaged)
        try:
            MLP.load(tmp_path / name)
        except InputError as error:
            assert_refused(str(error), name)

    check()


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"quad4fhe\[torch\]"):
        MLP.load(tmp_path / "m.pt")


def test_loading_arrays_imports_no_framework(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", **arrays())
    code = (
        "import sys, quad4fhe; quad4fhe.MLP.load(sys.argv[1]);"
        "import quad4fhe.io.samples;"
        "sys.exit(','.join({'sklearn', 'torch', 'onnx', 'pyarrow'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "m.npz")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
