"""Small trained models with a feature part: images through a convolution, a table with categories, texts."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from quad4fhe import MLP

SIDE, CHANNELS, UNITS, CLASSES = 6, 3, 8, 4
_WORDS = (
    "river mountain valley meadow forest",
    "engine voltage circuit battery switch",
    "sonata chorus violin rhythm melody",
)


def conv_model(*, activation: str = "Relu", batch: Any = "n") -> Any:
    """Conv, Relu, pooling, then a head of one hidden layer, as a backbone is exported."""
    import onnx
    from onnx import helper, numpy_helper

    width = CHANNELS * (SIDE // 2) ** 2
    rng = np.random.default_rng(5)
    W1 = rng.normal(size=(UNITS, width)) / 4
    W1 -= W1.mean(axis=1, keepdims=True)  # so that several classes are decided
    weights = {
        "K": rng.normal(size=(CHANNELS, 1, 3, 3)),
        "W1": W1,
        "b1": rng.normal(size=UNITS),
        "W2": rng.normal(size=(CLASSES, UNITS)),
        "b2": rng.normal(size=CLASSES) / 4,
    }
    nodes = [
        helper.make_node("Conv", ["x", "K"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "W1", "b1"], ["y"], transB=1),
        helper.make_node(activation, ["y"], ["h"]),
        helper.make_node("Gemm", ["h", "W2", "b2"], ["logits"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "conv",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [batch, 1, SIDE, SIDE])],
        [helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, [batch, CLASSES])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def images(n: int, seed: int = 0) -> Any:
    """Raw images (n, 1, 6, 6)."""
    return np.random.default_rng(seed).normal(size=(n, 1, SIDE, SIDE)).astype(np.float32)


def image_model() -> MLP:
    """The head behind a convolution."""
    import onnx

    with tempfile.TemporaryDirectory() as folder:
        onnx.save(conv_model(), Path(folder) / "conv.onnx")
        return MLP.load(Path(folder) / "conv.onnx")


def table(n: int, seed: int = 0) -> dict[str, Any]:
    """Raw rows with a number that may be missing, another number, and a category."""
    rng = np.random.default_rng(seed)
    age = np.round(rng.uniform(18, 80, size=n), 3)
    age[:: max(2, n // 4)] = np.nan
    return {
        "age": age,
        "income": np.round(rng.normal(3e4, 9e3, n), 2),
        "town": rng.choice(["Aarhus", "Bergen", "Turku"], n),
    }


@cache
def table_pipeline() -> Any:
    """A trained Pipeline with an imputer, a scaler and a one-hot encoder."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import Pipeline, make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    raw = table(200)
    X = np.column_stack([np.array(raw[name], dtype=object) for name in raw])
    y = (raw["income"] > 3e4).astype(int) + (raw["town"] == "Bergen")
    prepare = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), [0, 1]),
            ("towns", OneHotEncoder(handle_unknown="ignore"), [2]),
        ]
    )
    net = MLPClassifier((8,), solver="lbfgs", max_iter=150, random_state=0)
    return Pipeline([("prepare", prepare), ("net", net)]).fit(X, y)


def table_onnx() -> Any:
    """The Pipeline as skl2onnx writes it, with one input for each column."""
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType

    types = [
        ("age", FloatTensorType([None, 1])),
        ("income", FloatTensorType([None, 1])),
        ("town", StringTensorType([None, 1])),
    ]
    return to_onnx(
        table_pipeline(), initial_types=types, target_opset={"": 17, "ai.onnx.ml": 3}, options={"zipmap": False}
    )


def table_model() -> MLP:
    """The head behind that preprocessing, by way of ONNX."""
    import onnx

    with tempfile.TemporaryDirectory() as folder:
        onnx.save(table_onnx(), Path(folder) / "table.onnx")
        return MLP.load(Path(folder) / "table.onnx")


def texts(n: int, seed: int = 0) -> Any:
    """Raw texts (n,), each about one of three things."""
    rng = np.random.default_rng(seed)
    about = rng.integers(0, 3, size=n)
    return np.array(
        [" ".join(rng.choice(_WORDS[k].split(), size=6)) + f" {rng.choice(_WORDS[0].split())}" for k in about]
    )


@cache
def text_pipeline() -> Any:
    """A trained Pipeline of TF-IDF features and a classifier."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import Pipeline

    raw = texts(150)
    y = [next(k for k in (1, 2, 0) if any(word in text for word in _WORDS[k].split())) for text in raw]
    net = MLPClassifier((6,), solver="lbfgs", max_iter=150, random_state=0)
    return Pipeline([("words", TfidfVectorizer()), ("net", net)]).fit(raw, y)


def text_model() -> MLP:
    """The head behind a vectoriser of texts."""
    return MLP.from_sklearn(text_pipeline())
