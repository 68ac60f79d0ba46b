"""The networks that `peers.py` gives to every tool, and the file they travel in."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quad4fhe import MLP, Fit, fit
from quad4fhe.exporters import folded

Floats = NDArray[np.float64]
_ROWS = 4096  # test rows that travel to the peers, and calibration rows


@dataclass(frozen=True)
class Network:
    """A trained network, its polynomial replacement of family shared, and its data."""

    name: str
    mlp: MLP
    fit: Fit
    X_cal: Floats
    X_test: Floats

    @property
    def shape(self) -> str:
        """Its widths."""
        return f"{self.mlp.features}-{self.mlp.units}-{self.mlp.outputs}"

    @property
    def box(self) -> Floats:
        """The box of all its data, which every tool may assume."""
        both = np.concatenate([self.X_cal, self.X_test])
        return np.stack([both.min(axis=0), both.max(axis=0)])

    def write(self, stem: Path) -> Path:
        """Write the task as STEM.npz, and the exports STEM.onnx and STEM_folded.onnx in float32."""
        model, flat = self.fit.model, folded(self.fit.model)
        shown = self.X_test[:_ROWS]
        arrays = {"W1": self.mlp.W1, "b1": self.mlp.b1, "W2": self.mlp.W2, "b2": self.mlp.b2}
        arrays |= {"W": flat.W1, "b": flat.b1, "V": flat.S, "k": flat.c, "X": shown, "X_cal": self.X_cal[:_ROWS]}
        arrays |= {"logits": model.logits(shown), "relu": self.mlp.decide(shown)}
        three = {name: np.array(getattr(self.fit, name)) for name in ("alpha", "beta", "eta")}
        path = stem.with_suffix(".npz")
        np.savez(path, **arrays, **three)
        self.fit.to_onnx(stem.with_suffix(".onnx"), dtype="float32")
        self.fit.to_onnx(stem.with_name(f"{stem.name}_folded.onnx"), dtype="float32", folded=True)
        return path


def networks() -> dict[str, Callable[[Path, Path], Network]]:
    """The networks by name, each loaded from (data folder, cache folder)."""
    return {"otto": partial(_trained, "otto"), "breast_cancer": partial(_trained, "breast_cancer"), "mnist": _mnist}


def _trained(name: str, data: Path, cache: Path) -> Network:
    with np.load(data / "models" / f"{name}.npz") as z:
        mlp = MLP(z["W1"], z["b1"], z["W2"], z["b2"])
        X_cal, X_test = z["X_cal"].astype(np.float64), z["X_test"].astype(np.float64)
    return Network(name, mlp, fit(mlp, X_cal, family="shared"), X_cal, X_test)


def _mnist(data: Path, cache: Path) -> Network:
    """784-128-10 as `he_org` trains it, kept in the cache folder; pixels that it leaves out have weight 0."""
    sys.path.insert(0, str(Path(__file__).parent / "he_org" / "submission"))
    from model import EPOCHS, SEED, pixels_of
    from training import mnist, train

    X, y, X_test, _ = mnist(data)
    path, pixels = cache / "mnist_network.npz", pixels_of(X)
    if not path.exists():
        (W1, b1), (W2, b2) = train(X, y, pixels, (128,), EPOCHS, SEED)
        np.savez(path, W1=W1, b1=b1, W2=W2, b2=b2)
    with np.load(path) as z:
        first = np.zeros((z["W1"].shape[0], X.shape[1]))
        first[:, pixels] = z["W1"]
        mlp = MLP(first, z["b1"], z["W2"], z["b2"])
    X_cal = X[:5_000].astype(np.float64)
    return Network("mnist", mlp, fit(mlp, X_cal, family="shared"), X_cal, X_test.astype(np.float64))
