"""Models as people export them: every command gives the right answers, or one line that helps."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quad4fhe import MLP
from quad4fhe.cli import main
from support import exports
from support.exports import Export, between, by_skl2onnx, by_torch, bytes_of, classifier, dense, saved, state_dict

TORCH, SKL = ("torch", "onnxscript"), ("sklearn", "skl2onnx")


def of_sklearn(*names: str, **options: Any) -> Any:
    """A classifier behind preprocessing, given by name, so that nothing is imported before it is needed."""

    def make() -> Any:
        from sklearn import decomposition, impute, preprocessing

        homes = (preprocessing, decomposition, impute)
        steps = [next(getattr(home, name)() for home in homes if hasattr(home, name)) for name in names]
        return classifier(*steps, **options)

    return make


def regressor() -> Any:
    from sklearn.neural_network import MLPRegressor

    X, y = exports.rows()
    return MLPRegressor(hidden_layer_sizes=(6,), solver="lbfgs", tol=1e9, random_state=0).fit(X, y.astype(float))


def torch_layer(name: str, *arguments: Any) -> Any:
    def make() -> Any:
        from torch import nn

        return dense(getattr(nn, name)(*arguments))

    return make


def tail(name: str, *arguments: Any, outputs: int = exports.K) -> Any:
    def make() -> Any:
        from torch import nn

        return dense(outputs=outputs, tail=getattr(nn, name)(*arguments))

    return make


LEVELS = np.array(["low", "mid", "top"])[exports.rows()[1]]
NO_ZIPMAP = {"options": {"zipmap": False}}
CASES: dict[str, Export] = {
    # scikit-learn
    "sklearn, ZipMap": Export(by_skl2onnx(of_sklearn()), SKL),
    "sklearn, no ZipMap": Export(by_skl2onnx(of_sklearn(), **NO_ZIPMAP), SKL),
    "sklearn, text labels": Export(by_skl2onnx(of_sklearn(labels=LEVELS)), SKL),
    "sklearn, two classes": Export(by_skl2onnx(of_sklearn(labels=exports.rows()[1] > 0)), SKL),
    "sklearn, scaler": Export(by_skl2onnx(of_sklearn("StandardScaler")), SKL),
    "sklearn, PCA": Export(by_skl2onnx(of_sklearn("PCA"), **NO_ZIPMAP), SKL),
    "sklearn, imputer": Export(by_skl2onnx(of_sklearn("SimpleImputer", "StandardScaler")), SKL, split=True),
    "sklearn, polynomial features": Export(by_skl2onnx(of_sklearn("PolynomialFeatures")), SKL, split=True),
    "sklearn, normalizer": Export(by_skl2onnx(of_sklearn("Normalizer")), SKL, split=True),
    "sklearn, tanh": Export(by_skl2onnx(of_sklearn(activation="tanh")), SKL),
    "sklearn, logistic": Export(by_skl2onnx(of_sklearn(activation="logistic")), SKL),
    "sklearn, two hidden layers": Export(by_skl2onnx(of_sklearn(sizes=(6, 5))), SKL),
    "sklearn, regressor": Export(by_skl2onnx(regressor), SKL, refused=("may be a regressor", "--binary")),
    "sklearn, saved": Export(saved(of_sklearn("StandardScaler"), ".safetensors"), SKL),
    "sklearn, saved with a feature part": Export(saved(of_sklearn("Normalizer"), ".npz"), SKL, split=True),
    # torch, both exporters
    "torch, old exporter": Export(by_torch(dense), TORCH),
    "torch, new exporter": Export(by_torch(dense, new=True), TORCH),
    "torch, BatchNorm and Dropout": Export(by_torch(lambda: dense(norm=True)), TORCH),
    "torch, BatchNorm, new exporter": Export(by_torch(lambda: dense(norm=True), new=True), TORCH),
    "torch, float16": Export(by_torch(dense, half=True), TORCH),
    "torch, softmax": Export(by_torch(tail("Softmax", 1)), TORCH),
    "torch, sigmoid of one score": Export(by_torch(tail("Sigmoid", outputs=1)), TORCH),
    "torch, one score": Export(by_torch(lambda: dense(outputs=1)), TORCH, refused=("one output", "--binary")),
    "torch, one score, --binary": Export(by_torch(lambda: dense(outputs=1)), TORCH, options=("--binary",)),
    "torch, convolution": Export(by_torch(exports.convolution, images=True), TORCH, split=True),
    "torch, convolution, new exporter": Export(by_torch(exports.convolution, images=True, new=True), TORCH, split=True),
    "torch, attention": Export(by_torch(exports.attention), TORCH, split=True),
    "torch, attention, new exporter": Export(by_torch(exports.attention, new=True), TORCH, split=True),
    "torch, two hidden layers": Export(by_torch(lambda: exports.deep(2)), TORCH),
    "torch, three hidden layers": Export(by_torch(lambda: exports.deep(3), new=True), TORCH),
    **{
        f"torch, two hidden layers of {name}": Export(
            by_torch(lambda name=name: exports.deep(2, name), new=new), TORCH, whole=False
        )
        for name, new in {"GELU": True, "SiLU": False, "Sigmoid": False}.items()
    },
    "torch, residual and gated": Export(by_torch(exports.residual), TORCH, refused=("(Split)", "--split first")),
    "torch, residual and gated, --split first": Export(by_torch(exports.residual), TORCH, options=("--split", "first")),
    "torch, state dict": Export(
        state_dict(dense), TORCH, refused=("does not record its activation", "--activation relu")
    ),
    "torch, state dict of ReLU": Export(state_dict(dense), TORCH, options=("--activation", "relu")),
    "torch, state dict of GELU": Export(state_dict(torch_layer("GELU")), TORCH, options=("--activation", "gelu")),
    "torch, state dict of PReLU": Export(state_dict(torch_layer("PReLU", 6)), TORCH),
    "torch, checkpoint": Export(state_dict(dense, nested="model_state_dict"), TORCH, options=("--activation", "relu")),
    **{
        f"torch, {name}{', new exporter' if new else ''}": Export(
            by_torch(torch_layer(name, *args), new=new), TORCH, whole=not new
        )
        for name, args in {
            "LeakyReLU": (0.2,),
            "PReLU": (6,),
            "GELU": (),
            "SiLU": (),
            "Tanh": (),
            "Sigmoid": (),
            "ELU": (),
            "SELU": (),
            "CELU": (0.5,),
            "Softplus": (),
            "Softsign": (),
            "Mish": (),
            "ReLU6": (),
            "Hardtanh": (),
            "Hardsigmoid": (),
            "Hardswish": (),
        }.items()
        for new in (False, True)
        if (name, new) != ("Softplus", True)
    },
    "torch, Softplus, new exporter": Export(
        by_torch(torch_layer("Softplus"), new=True), TORCH, refused=("(Greater)", "--split")
    ),
    # other exporters
    "Keras-style MatMul and Add": Export(between(("Relu", "y", "h", {}))),
    "Max(x, 0)": Export(between(("Max", "y zero", "h", {}))),
    "Clip(0, inf)": Export(between(("Clip", "y zero", "h", {}))),
    "Clip(0, 6)": Export(between(("Clip", "y zero six", "h", {}))),
    "SiLU by hand": Export(between(("Sigmoid", "y", "s", {}), ("Mul", "s y", "h", {}))),
    "an unknown activation": Export(between(("Sin", "y", "h", {})), refused=("(Sin)", "supported at the end")),
    "a linear model": Export(between(("Identity", "y", "h", {})), refused=("no activation",)),
    # files that are not models
    "noise": Export(bytes_of("model.onnx", b"\x00noise" * 20), refused=("ONNX", "export it again")),
    "an empty file": Export(bytes_of("model.onnx", b""), refused=("empty",)),
    "a pickle": Export(bytes_of("model.pkl", b"x"), refused=("never read", "model.pkl')).save(")),
    "a joblib file": Export(bytes_of("model.joblib", b"x"), refused=("never read", "MLP.from_sklearn")),
    "a Keras file": Export(bytes_of("model.h5", b"x"), refused=("'.h5'", ".onnx")),
}


def test_the_table_has_at_least_thirty_exports() -> None:
    assert len(CASES) >= 60
    assert sum(bool(case.refused) for case in CASES.values()) >= 10


@pytest.mark.parametrize("name", CASES)
def test_an_export_gives_the_right_answers_or_one_line_that_helps(name: str, tmp_path: Path, capsys: Any) -> None:
    case = CASES[name]
    for package in case.needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    path, X, decided = case.write(tmp_path)
    np.savez(tmp_path / "calib.npz", X=X)
    calib, out = str(tmp_path / "calib.npz"), str(tmp_path / "fit.safetensors")
    capsys.readouterr()
    code = main(["fit", str(path), calib, "-o", out, *case.options])
    if case.refused:
        error = capsys.readouterr().err.strip()
        assert code == 2, error
        assert "\n" not in error
        assert not [words for words in case.refused if words not in error], error
        return
    assert code == 0, capsys.readouterr().err
    name = case.options[0].removeprefix("--") if case.options else ""
    options = {name: case.options[1] if len(case.options) > 1 else True} if name else {}
    mlp = MLP.load(path, **options)
    assert (mlp.feature_part is not None) == case.split
    assert np.mean(mlp.decide(mlp.inputs(X)) == decided) >= 0.975  # float32 rounding may change one near-tie of 40
    assert main(["verify", out, calib]) == 0
    if not case.whole:
        return
    capsys.readouterr()
    assert main(["plan", out, "--samples", "40", "--layout", "batch", "--json"]) == 0
    (tmp_path / "plan.json").write_text(capsys.readouterr().out)
    assert main(["predict", out, calib, "--encrypted", "--plan", str(tmp_path / "plan.json"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bill"]["changed"] == 0
    assert main(["export", out, "-o", str(tmp_path / "quadratic.onnx"), "--check", calib]) == 0
