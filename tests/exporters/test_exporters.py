from __future__ import annotations

import importlib.util
import io
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from conftest import MODELS, Trained
from quad4fhe import MLP, Fit, InputError, MissingExtraError, PolynomialModel, fit
from quad4fhe.exporters import changed_decisions, export, folded, read
from quad4fhe.proof.exact import decisions
from support.cases import LOSSLESS, LOSSLESS_X, PAIRS, PAIRS_X
from support.reference_models import assert_refused

CASES = {"binary": (LOSSLESS, LOSSLESS_X), "four classes": (PAIRS, PAIRS_X)}


def run_onnx(proto: Any, X: NDArray[Any], dtype: str) -> list[Any]:
    ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: nothing to run the graph with")
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs: list[Any] = session.run(None, {"x": X.astype(dtype)})
    return outputs


def decided(logits: NDArray[Any]) -> NDArray[Any]:
    return (logits[:, 0] > 0).astype(int) if logits.shape[1] == 1 else logits.argmax(axis=1)


# --- ONNX -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_the_graph_has_no_other_operations_than_gemm_mul_and_add(case: str, dtype: str) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed")
    fitted, _ = CASES[case]
    proto = fitted.to_onnx(dtype=dtype)
    assert [node.op_type for node in proto.graph.node] == ["Gemm", "Mul", "Gemm", "Gemm", "Add"]
    assert [(opset.domain, opset.version) for opset in proto.opset_import] == [("", 14)]
    assert [value.name for value in proto.graph.output] == ["logits"]
    told = {entry.key: entry.value for entry in proto.metadata_props}
    assert told["quad4fhe.family"] == fitted.family
    assert told["quad4fhe.regime"] == fitted.regime
    assert told["quad4fhe.quadratic_sha256"] == fitted.model.sha256
    assert told["quad4fhe.relu_model_sha256"] == fitted.mlp.sha256
    assert told["quad4fhe.calibration_sha256"] == fitted.certificate.calibration_sha256
    assert told["quad4fhe.dtype"] == dtype


@pytest.mark.parametrize("case", CASES)
def test_onnxruntime_gives_the_logits_and_the_labels_of_the_fit(case: str) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed")
    fitted, X = CASES[case]
    logits, label = run_onnx(fitted.to_onnx(labels=True), X, "float64")
    np.testing.assert_allclose(logits, fitted.model.logits(X), rtol=1e-12, atol=1e-12)
    assert label.tolist() == fitted.predict(X).tolist()
    assert label.dtype == np.int64


@pytest.mark.parametrize("outputs", [1, 3])
def test_on_an_exact_tie_the_label_is_that_of_the_fit(outputs: int) -> None:
    """A score of zero is class 0, and the lowest index wins a tie: both on exact numbers."""
    pytest.importorskip("onnx", reason="onnx is not installed")
    model = PolynomialModel.quadratic(
        [[1.0]], [0.0], np.ones((outputs, 1)), np.zeros((outputs, 1)), np.full(outputs, -4.0)
    )
    fitted = replace(LOSSLESS, model=model)
    X = np.array([[2.0], [-2.0], [3.0], [1.0]])
    _, label = run_onnx(fitted.to_onnx(labels=True), X, "float64")
    assert label.tolist() == ([0, 0, 1, 0] if outputs == 1 else [0, 0, 0, 0]) == fitted.predict(X).tolist()


@pytest.mark.parametrize("name", MODELS)
def test_real_models_decide_in_onnxruntime_as_the_fit_does(name: str, trained: Callable[[str], Trained]) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed")
    model = trained(name)
    fitted = fit(model.mlp, model.X_cal[:2000], polish=False, family="shared")
    X = model.X_test
    exact = decisions(fitted.model, X)
    wanted = fitted.predict(X)
    for dtype, unit in (("float64", 1e-12), ("float32", 1e-4)):
        logits, label = run_onnx(fitted.to_onnx(dtype=dtype, labels=True), X, dtype)
        # Rounding may change decisions whose gap is this small; in float64 none of these samples is so close to a tie.
        clear = exact.gap > unit * np.abs(fitted.model.logits(X)).max()
        np.testing.assert_array_equal(label[clear], wanted[clear])
        np.testing.assert_array_equal(decided(logits)[clear], wanted[clear])
        assert clear.mean() > (0.999 if dtype == "float64" else 0.97)
        assert np.count_nonzero(label != wanted) <= (0 if dtype == "float64" else 2)


# --- torch ------------------------------------------------------------------------------------------------------


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.parametrize("case", CASES)
def test_the_torch_module_gives_the_logits_of_the_fit(case: str, torch: Any) -> None:
    fitted, X = CASES[case]
    net = fitted.to_torch()
    assert not net.training
    with torch.no_grad():
        logits = net(torch.from_numpy(X)).numpy()
        single = fitted.to_torch(dtype="float32")(torch.from_numpy(X.astype(np.float32))).numpy()
    np.testing.assert_allclose(logits, fitted.model.logits(X), rtol=1e-12, atol=1e-12)
    assert single.dtype == np.float32
    np.testing.assert_array_equal(decided(logits), fitted.predict(X))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's own
def test_the_torch_module_can_be_exported_pickled_and_trained_without_touching_the_fit(torch: Any) -> None:
    net = PAIRS.to_torch()
    x = torch.from_numpy(PAIRS_X)
    program = torch.export.export(net, (x,))
    assert torch.equal(program.module()(x), net(x))
    buffer = io.BytesIO()
    torch.save(net, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=False)(x), net(x))
    before = PAIRS.model.sha256
    net(x).sum().backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= 0.1 * parameter.grad
    assert PAIRS.model.sha256 == before


# --- files ------------------------------------------------------------------------------------------------------


def needed(suffix: str) -> None:
    if suffix != ".npz":
        package = {".onnx": "onnx", ".pt": "torch"}[suffix]
        pytest.importorskip(package, reason=f"{package} is not installed")


@pytest.mark.parametrize("suffix", [".onnx", ".pt", ".npz"])
@pytest.mark.parametrize("case", CASES)
def test_what_is_written_can_be_read_back_to_the_last_bit(case: str, suffix: str, tmp_path: Path) -> None:
    needed(suffix)
    fitted, X = CASES[case]
    path = tmp_path / f"model{suffix}"
    fitted.export(path)
    assert read(path).sha256 == fitted.model.sha256
    fitted.export(path, dtype="float32")
    again = read(path)
    for name in ("W1", "b1", "S", "T", "c"):
        np.testing.assert_array_equal(getattr(again, name), np.float32(getattr(fitted.model, name)))
    assert changed_decisions(fitted.model, path, X, "float32") == np.count_nonzero(
        again.decide(np.float32(X)) != fitted.predict(X)
    )
    assert os.listdir(tmp_path) == [path.name]


def test_to_onnx_writes_the_graph_it_returns(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    proto = PAIRS.to_onnx(tmp_path / "model.onnx", labels=True)
    assert onnx.load(tmp_path / "model.onnx") == proto
    with pytest.raises(InputError, match=r"saved as \.onnx"):
        PAIRS.to_onnx(tmp_path / "model.bin")


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 3),
    st.floats(1e-30, 1e30),
    st.integers(0, 2**20),
    st.booleans(),
)
def test_any_model_survives_the_round_trip(d: int, m: int, K: int, size: float, seed: int, labels: bool) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed")
    rng = np.random.default_rng(seed)
    shapes = ((m, d), (m,), (K, m), (K, m), (K,))
    model = PolynomialModel.quadratic(*(size * rng.normal(size=shape) for shape in shapes))
    fitted = replace(PAIRS, model=model)
    proto = fitted.to_onnx(labels=labels)
    X = rng.normal(size=(5, d))
    y = np.abs(X @ model.W1.T + model.b1)
    room = 1e-12 * ((y * y) @ np.abs(model.S).T + y @ np.abs(model.T).T + np.abs(model.c)).max()
    np.testing.assert_allclose(run_onnx(proto, X, "float64")[0], model.logits(X), rtol=0, atol=room)


# --- folded -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_a_folded_graph_is_affine_square_affine_and_the_same_function(case: str) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed")
    fitted, X = CASES[case]
    proto = fitted.to_onnx(folded=True)
    assert [node.op_type for node in proto.graph.node] == ["Gemm", "Mul", "Gemm"]
    wanted = fitted.model.logits(X)
    np.testing.assert_allclose(run_onnx(proto, X, "float64")[0], wanted, rtol=0, atol=1e-9 * np.abs(wanted).max())


@pytest.mark.parametrize("free", [True, False])
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.floats(1e-6, 1e6), st.integers(0, 2**20))
def test_folding_keeps_the_function(free: bool, d: int, m: int, K: int, size: float, seed: int) -> None:
    """Against exact fractions, for heads with a common offset per unit and for free ones."""
    rng = np.random.default_rng(seed)
    W1, b1, S = rng.normal(size=(m, d)), rng.normal(size=m), size * rng.normal(size=(K, m))
    T = rng.normal(size=(K, m)) if free else S * rng.normal(size=m)
    model = PolynomialModel.quadratic(W1, b1, S, T, rng.normal(size=K))
    out = folded(model)
    assert not out.T.any()
    assert out.units in ((m, m + 2 * K) if free else (m,))
    x = [Fraction(float(v)) for v in rng.normal(size=d)]

    def exact(each: PolynomialModel) -> list[tuple[Fraction, Fraction]]:
        """Every logit, and the sum of its absolute terms."""
        y = [
            sum((Fraction(float(w)) * v for w, v in zip(row, x, strict=True)), Fraction(float(b)))
            for row, b in zip(each.W1, each.b1, strict=True)
        ]
        rows = [
            [Fraction(float(s)) * u * u for s, u in zip(each.S[k], y, strict=True)]
            + [Fraction(float(t)) * u for t, u in zip(each.T[k], y, strict=True)]
            + [Fraction(float(each.c[k]))]
            for k in range(K)
        ]
        return [(sum(row, Fraction()), sum(map(abs, row), Fraction())) for row in rows]

    for (found, terms), (wanted, others) in zip(exact(out), exact(model), strict=True):
        assert abs(found - wanted) <= Fraction(1, 10**13) * (1 + terms + others) * (1 + len(x)) * out.units


def test_a_folded_model_comes_back_from_every_format(tmp_path: Path) -> None:
    for suffix in (".onnx", ".pt", ".npz"):
        if suffix != ".npz" and importlib.util.find_spec(suffix.strip(".").replace("pt", "torch")) is None:
            continue
        PAIRS.export(tmp_path / f"model{suffix}", folded=True)
        assert read(tmp_path / f"model{suffix}").sha256 == folded(PAIRS.model).sha256
    assert not read(tmp_path / "model.npz").A[0].any()


def test_a_fixed_batch_is_in_the_graph(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed")
    proto = PAIRS.to_onnx(batch=1, labels=True)
    shown = [*proto.graph.input, *proto.graph.output]
    assert [value.type.tensor_type.shape.dim[0].dim_value for value in shown] == [1, 1, 1]
    X = np.zeros((1, PAIRS.mlp.features))
    np.testing.assert_allclose(run_onnx(proto, X, "float64")[0], PAIRS.model.logits(X))


def test_a_folded_torch_module_has_two_layers(torch: Any) -> None:
    net = PAIRS.to_torch(folded=True)
    assert sorted(dict(net.named_children())) == ["hidden", "squares"]
    X = np.random.default_rng(5).normal(size=(20, PAIRS.mlp.features))
    wanted = PAIRS.model.logits(X)
    with torch.no_grad():
        found = net(torch.from_numpy(X)).numpy()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-9 * np.abs(wanted).max())


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.npz"
    PAIRS.export(path)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match="nothing was changed there"):
        LOSSLESS.export(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model.npz"]


def huge() -> Fit:
    return replace(LOSSLESS, model=PolynomialModel.quadratic([[1e300]], [0.0], [[1.0]], [[0.0]], [0.0]))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda folder: PAIRS.export(folder / "model.h5"), ["'.h5'", ".onnx, .pt, .npz"]),
        (lambda folder: PAIRS.export(folder / "model"), ["no suffix"]),
        (lambda folder: PAIRS.export(folder / "no" / "model.npz"), ["can't write", "No such file"]),
        (lambda folder: PAIRS.export(folder / "m.npz", labels=True), ["only an ONNX graph outputs labels"]),
        (lambda folder: PAIRS.export(folder / "m.npz", batch=1), ["only an ONNX graph has a fixed number of rows"]),
        (lambda folder: PAIRS.export(folder / "m.onnx", batch=0), ["the batch is 0", "at least 1 row"]),
        (lambda folder: PAIRS.export(folder / "m.npz", dtype="float16"), ["'float16'", "'float64' or 'float32'"]),
        (lambda folder: huge().export(folder / "m.npz", dtype="float32"), ["W1", "export in float64"]),
        (lambda folder: read(folder / "none.npz"), ["none.npz", "no such file"]),
        (lambda folder: read(folder / "model.txt"), ["'.txt'"]),
        (lambda folder: read(folder / "empty.npz"), ["empty"]),
        (lambda folder: read(folder / "relu.npz"), ["but no S, T, c"]),
        (lambda folder: read(folder / "relu.onnx"), ["another graph"]),
        (lambda folder: read(folder / "damaged.onnx"), ["cannot be read"]),
        (lambda folder: MLP.load(folder / "quadratic.onnx"), ["quadratic.onnx"]),
    ],
)
def test_a_mistake_is_one_line(call: Callable[[Path], object], words: list[str], tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    (tmp_path / "empty.npz").touch()
    (tmp_path / "damaged.onnx").write_bytes(b"\xff\x00nonsense")
    np.savez(tmp_path / "relu.npz", W1=np.ones((1, 1)), b1=np.ones(1), W2=np.ones((1, 1)), b2=np.ones(1))
    proto = PAIRS.to_onnx(tmp_path / "quadratic.onnx")
    del proto.graph.node[1:]
    onnx.save(proto, tmp_path / "relu.onnx")
    with pytest.raises(InputError) as caught:
        call(tmp_path)
    assert_refused(str(caught.value), *words)


@pytest.mark.parametrize(("package", "call"), [("onnx", PAIRS.to_onnx), ("torch", PAIRS.to_torch)])
def test_without_a_package_the_error_says_what_to_install(
    package: str, call: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'quad4fhe\[{package}\]'"):
        call()


def test_exporting_needs_neither_the_fit_nor_its_calibration_data(tmp_path: Path) -> None:
    """`export` takes any polynomial model, also that of a loaded fit."""
    LOSSLESS.save(tmp_path / "fit.safetensors")
    loaded = Fit.load(tmp_path / "fit.safetensors")
    export(loaded.model, tmp_path / "model.npz", loaded._origin())
    assert read(tmp_path / "model.npz").sha256 == LOSSLESS.model.sha256


# --- Degrees above two --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cubic() -> tuple[Fit, NDArray[Any]]:
    rng = np.random.default_rng(3)
    mlp = MLP(rng.standard_normal((8, 4)), rng.standard_normal(8), rng.standard_normal((3, 8)), np.zeros(3))
    X = rng.standard_normal((120, 4))
    return fit(mlp, X, family="unitwise", degree=3), X


@pytest.mark.parametrize("suffix", [".npz", ".onnx", ".pt"])
def test_a_fit_of_degree_three_comes_back_from_every_format(
    cubic: tuple[Fit, NDArray[Any]], suffix: str, tmp_path: Path
) -> None:
    pytest.importorskip({".onnx": "onnx", ".pt": "torch"}.get(suffix, "numpy"))
    fitted, X = cubic
    path = tmp_path / f"model{suffix}"
    fitted.export(path)
    assert read(path).sha256 == fitted.model.sha256
    assert changed_decisions(fitted.model, path, X, "float64") == 0


def test_a_higher_degree_is_not_folded(cubic: tuple[Fit, NDArray[Any]], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="only a model of degree 2 can be folded, and this has degree 3"):
        cubic[0].export(tmp_path / "model.npz", folded=True)


def test_other_runtimes_give_the_logits_of_degree_three(cubic: tuple[Fit, NDArray[Any]]) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed")
    fitted, X = cubic
    proto = fitted.to_onnx(labels=True)
    assert {node.op_type for node in proto.graph.node} == {"Gemm", "Mul", "Add", "ArgMax"}
    logits, labels = run_onnx(proto, X, "float64")
    assert np.allclose(logits, fitted.model.logits(X), rtol=1e-9, atol=1e-9)
    assert np.array_equal(labels, fitted.predict(X))


def test_the_torch_module_of_degree_three_is_the_model(cubic: tuple[Fit, NDArray[Any]]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    fitted, X = cubic
    logits = fitted.to_torch()(torch.from_numpy(X)).detach().numpy()
    assert np.allclose(logits, fitted.model.logits(X), rtol=1e-9, atol=1e-9)
