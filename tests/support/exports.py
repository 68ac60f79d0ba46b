"""Models as people export them, each with raw inputs and the decisions of its own framework."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

D, K = 4, 3
N = 40


@dataclass(frozen=True)
class Export:
    """A way to write a model file.

    `write` writes the model and returns its path, raw inputs, and the framework's own decisions on them. `refused` has
    the words of the line with which the model is refused; `split` says that it has a feature part. A case that is not
    `whole` stops after `verify`, because a case with the same numbers goes on.
    """

    write: Callable[[Path], tuple[Path, Any, Any]]
    needs: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    split: bool = False
    whole: bool = True


@cache
def rows(d: int = D) -> Any:
    """Samples (40, d) and labels, learnable from a few of them."""
    rng = np.random.default_rng(11)
    X = rng.normal(size=(N, d)).astype(np.float32)
    y = (X[:, 0] > 0).astype(int) + (X[:, 1] + 0.5 * X[:, 2] > 0.3)
    return X, y


# --- scikit-learn through skl2onnx ------------------------------------------------------------------------------


def classifier(*steps: Any, **options: Any) -> Any:
    """A trained classifier behind preprocessing."""
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline

    X, y = rows()
    labels = options.pop("labels", y)
    sizes = options.pop("sizes", (6,))
    net = MLPClassifier(sizes, solver="lbfgs", max_iter=80, random_state=1, **options)
    return make_pipeline(*steps, net).fit(X, labels)


def by_skl2onnx(make: Callable[[], Any], **options: Any) -> Callable[[Path], Any]:
    """What skl2onnx writes."""

    def write(folder: Path) -> Any:
        from skl2onnx import to_onnx

        model, (X, _) = make(), rows()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about versions
            proto = to_onnx(model, X[:1], target_opset={"": 17, "ai.onnx.ml": 3}, **options)
        (folder / "model.onnx").write_bytes(proto.SerializeToString())
        place = {label: index for index, label in enumerate(getattr(model, "classes_", ()))}
        decided = model.predict(X)
        return folder / "model.onnx", X, np.array([place.get(each, 0) for each in decided.tolist()])

    return write


def saved(make: Callable[[], Any], suffix: str) -> Callable[[Path], Any]:
    """`MLP.from_sklearn(...).save`."""

    def write(folder: Path) -> Any:
        from quad4fhe import MLP

        model, (X, _) = make(), rows()
        MLP.from_sklearn(model).save(folder / f"model{suffix}")
        return folder / f"model{suffix}", X, model.predict(X)

    return write


# --- torch ------------------------------------------------------------------------------------------------------


def train(net: Any, X: Any, y: Any) -> Any:
    """A few steps of Adam, so that several classes are decided."""
    import torch

    torch.set_num_threads(1)  # on a busy machine, threads that wait for each other cost a hundred times the work
    optimiser = torch.optim.Adam(net.parameters(), 2e-2)
    for _ in range(150):
        out = net(torch.tensor(X))
        if out.shape[-1] == 1:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(out[:, 0], torch.tensor((y > 0) * 1.0).float())
        else:
            loss = torch.nn.functional.cross_entropy(out, torch.tensor(y))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return net.eval()


def dense(activation: Any = None, *, outputs: int = K, norm: bool = False, tail: Any = None) -> Any:
    """Linear, activation, Linear, trained; the tail is added afterwards."""
    import torch
    from torch import nn

    torch.manual_seed(3)
    layers = [nn.Linear(D, 6), *([nn.BatchNorm1d(6)] if norm else []), activation or nn.ReLU(), nn.Dropout(0.1)]
    net = train(nn.Sequential(*layers, nn.Linear(6, outputs)), *rows())
    return net if tail is None else nn.Sequential(net, tail).eval()


def deep(layers: int, activation: str = "ReLU") -> Any:
    """Several hidden layers."""
    import torch
    from torch import nn

    torch.manual_seed(3)
    active = getattr(nn, activation)
    hidden = [part for _ in range(layers - 1) for part in (nn.Linear(6, 6), active())]
    return train(nn.Sequential(nn.Linear(D, 6), active(), *hidden, nn.Linear(6, K)), *rows())


def residual() -> Any:
    """A hidden layer, a residual block with a gate and a LayerNorm, and an output layer."""
    import torch
    from torch import nn

    class Block(nn.Module):  # type: ignore[misc,unused-ignore] # its base has no types
        def __init__(self) -> None:
            super().__init__()
            self.first, self.gate, self.last = nn.Linear(D, 6), nn.Linear(6, 12), nn.Linear(6, K)
            self.norm = nn.LayerNorm(6)

        def forward(self, x: Any) -> Any:
            h = torch.relu(self.first(x))
            return self.last(self.norm(h + nn.functional.glu(self.gate(h))))

    torch.manual_seed(3)
    return train(Block(), *rows())


def attention() -> Any:
    """A transformer's encoder block over four tokens, its mean, and a head of one hidden layer."""
    import torch
    from torch import nn

    class Block(nn.Module):  # type: ignore[misc,unused-ignore] # its base has no types
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Linear(1, 8)
            self.queries, self.keys, self.values = (nn.Linear(8, 8) for _ in range(3))
            self.norm = nn.LayerNorm(8)
            self.head = nn.Sequential(nn.Linear(8, 6), nn.GELU(), nn.Linear(6, K))

        def forward(self, x: Any) -> Any:
            t = self.token(x.unsqueeze(-1))
            weights = torch.softmax(self.queries(t) @ self.keys(t).transpose(1, 2) / 8**0.5, dim=-1)
            return self.head(self.norm(t + weights @ self.values(t)).mean(dim=1))

    torch.manual_seed(3)
    return train(Block(), *rows())


def convolution() -> Any:
    """A convolution over images of four by four, pooled, and a head."""
    import torch
    from torch import nn

    torch.manual_seed(3)
    X, y = rows(16)
    images = X.reshape(N, 1, 4, 4)
    layers = [nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return train(nn.Sequential(*layers, nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, K)), images, y)


def by_torch(make: Callable[[], Any], *, new: bool = False, images: bool = False, half: bool = False) -> Any:
    """What torch.onnx.export writes, by the old exporter or the new one."""

    def write(folder: Path) -> Any:
        import torch

        net, X = make(), rows(16)[0].reshape(N, 1, 4, 4) if images else rows()[0]
        with torch.no_grad():
            logits = net(torch.tensor(X)).numpy()
        even = 0.5 if _squashed(net) else 0.0
        decided = (logits[:, 0] > even).astype(int) if logits.shape[1] == 1 else logits.argmax(1)
        sent, example = (net.half(), torch.tensor(X[:2]).half()) if half else (net, torch.tensor(X[:2]))
        path = folder / "model.onnx"
        shapes: dict[str, Any] = {"dynamic_axes": {"x": {0: "n"}}}
        if new:
            shapes = {"dynamic_shapes": ({0: torch.export.Dim("n")},), "verbose": False}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about details of the export
            torch.onnx.export(sent, (example,), path, dynamo=new, input_names=["x"], **shapes)
        return path, X.astype(np.float16).astype(np.float32) if half else X, decided

    return write


def _squashed(net: Any) -> bool:
    return type(list(net.modules())[-1]).__name__ == "Sigmoid"


def state_dict(make: Callable[[], Any], *, nested: str = "") -> Any:
    """What torch.save writes of a state dict, alone or in a checkpoint."""

    def write(folder: Path) -> Any:
        import torch

        net, (X, _) = make(), rows()
        weights = net.state_dict()
        torch.save({"epoch": 3, nested: weights} if nested else weights, folder / "model.pt")
        with torch.no_grad():
            return folder / "model.pt", X, net(torch.tensor(X)).argmax(1).numpy()

    return write


# --- by hand, as Keras and others write -------------------------------------------------------------------------


def graph(*nodes: Any, outputs: int = K, seed: int = 2, **constants: Any) -> Callable[[Path], Any]:
    """Nodes between x and out; W1, b1, W2, b2 are there, and `constants`."""

    def write(folder: Path) -> Any:
        import onnx
        import onnxruntime
        from onnx import helper, numpy_helper

        rng = np.random.default_rng(seed)
        weights = {"W1": rng.normal(size=(D, 6)), "b1": rng.normal(size=6) / 2, "W2": rng.normal(size=(6, outputs)) / 2}
        weights |= {"b2": np.zeros(outputs), "zero": np.zeros(()), "six": np.array(6.0)} | constants
        made = [helper.make_node(op, ins.split(), outs.split(), **attributes) for op, ins, outs, attributes in nodes]
        used = {name for node in made for name in node.input}
        tensors = [numpy_helper.from_array(np.asarray(v, np.float32), k) for k, v in weights.items() if k in used]
        x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", D])
        out = helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, None)
        model = helper.make_model(
            helper.make_graph(made, "g", [x], [out], tensors), opset_imports=[helper.make_opsetid("", 18)], ir_version=8
        )
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        logits = session.run(None, {"x": rows()[0]})[0]
        decided = (logits[:, 0] > 0).astype(int) if outputs == 1 else logits.argmax(axis=1)
        return folder / "model.onnx", rows()[0], decided

    return write


def between(*middle: Any, outputs: int = K, **constants: Any) -> Callable[[Path], Any]:
    """MatMul, Add, these nodes from y to h, MatMul, Add: the way Keras is converted."""
    first = (("MatMul", "x W1", "z", {}), ("Add", "z b1", "y", {}))
    return graph(*first, *middle, ("MatMul", "h W2", "o", {}), ("Add", "o b2", "out", {}), outputs=outputs, **constants)


def bytes_of(name: str, content: bytes) -> Callable[[Path], Any]:
    """A file that is no model."""

    def write(folder: Path) -> Any:
        (folder / name).write_bytes(content)
        return folder / name, rows()[0], None

    return write
