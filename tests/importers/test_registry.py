"""A new format is one importer or exporter and one line in its registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quad4fhe import MLP, InputError
from quad4fhe.exporters import EXPORTERS, Exporter, Options, Origin, export, read
from quad4fhe.importers import IMPORTERS, Importer
from quad4fhe.io.formats import suffixes
from quad4fhe.polynomial import PolynomialModel

MODEL = MLP([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.5], [[1.0, -1.0]], [0.25])


def read_text(path: str | Path) -> MLP:
    w = [float(word) for word in Path(path).read_text().split()]
    return MLP(np.reshape(w[:4], (2, 2)), w[4:6], [w[6:8]], w[8:])


TOY = Importer("numbers in a text file", suffixes=(".toy",), packages=("test_registry",), read_file=read_text,
               read_object=lambda net: net.mlp)  # fmt: skip


class Net:
    mlp = MODEL


Net.__module__ = "test_registry"


def test_a_toy_importer_reads_its_files_and_objects(tmp_path: Path) -> None:
    path = tmp_path / "model.toy"
    path.write_text("1 0 0 1 0 0.5 1 -1 0.25")
    with pytest.raises(InputError, match=r"'.toy' is not one of a model file, wanted .npz, .safetensors, .onnx"):
        MLP.load(path)
    with pytest.raises(InputError, match=r"the model is a Net, wanted a path or one of: .*an ONNX graph"):
        MLP.load(Net())
    with IMPORTERS.added("toy", TOY):
        assert MLP.load(path).sha256 == MODEL.sha256
        assert MLP.load(Net()).sha256 == MODEL.sha256
        with pytest.raises(InputError, match=r"\.pth, \.toy"):
            MLP.load(tmp_path / "model.h5")


def test_every_importer_describes_itself() -> None:
    assert suffixes(IMPORTERS) == [".npz", ".safetensors", ".onnx", ".pt", ".pth"]
    for entry in IMPORTERS:
        assert entry.words
        assert bool(entry.suffixes) == (entry.read_file is not None)
        assert bool(entry.packages) == (entry.read_object is not None)


def test_objects_of_a_framework_are_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    neural = pytest.importorskip("sklearn.neural_network", reason="scikit-learn is not installed")
    X = np.random.default_rng(0).normal(size=(40, 2))
    classifier = neural.MLPClassifier((3,), max_iter=2000, random_state=0, tol=0.1).fit(X, X[:, 0] > 0)
    assert MLP.load(classifier).sha256 == MLP.from_sklearn(classifier).sha256


def test_a_toy_exporter_writes_and_reads_its_files(tmp_path: Path) -> None:
    model = PolynomialModel.shared(MODEL, 0.1, 0.5, 0.2)
    origin = Origin("shared", "hard", model.sha256, MODEL.sha256, "", "0")

    def write(given: PolynomialModel, about: Origin, options: Options) -> bytes:
        return given.sha256.encode()

    def again(file: Path) -> Any:
        assert file.read_text() == model.sha256
        return model

    with EXPORTERS.added("toy", Exporter("a hash", (".toy",), write, again)):
        export(model, tmp_path / "model.toy", origin)
        assert read(tmp_path / "model.toy") is model
        with pytest.raises(InputError, match="only an ONNX graph outputs labels"):
            export(model, tmp_path / "model.toy", origin, Options(labels=True))
    with pytest.raises(InputError, match=r"wanted \.onnx, \.pt, \.npz"):
        export(model, tmp_path / "model.toy", origin)
