"""The trained classifier: one hidden ReLU layer, validated and immutable.

Decides what a model is (four finite arrays of matching shapes) and what it answers. How it came to be is left to
`importers`, what replaces its ReLU to `fit`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from quad4fhe._arrays import Array, IntArray, row_chunks, samples, sha256, tensor
from quad4fhe.errors import InputError


@dataclass(frozen=True, eq=False)
class MLP:
    """A one-hidden-layer ReLU classifier, logits(x) = W2 relu(W1 x + b1) + b2.

    W1 is (m, d), b1 is (m,), W2 is (K, m), b2 is (K,): rows are hidden units and classes. K = 1 is a binary
    classifier with one score, class 1 when the score is positive; with K >= 2 the largest logit wins, the lowest
    index on an exact tie.
    """

    W1: Array
    b1: Array
    W2: Array
    b2: Array

    def __init__(self, W1: ArrayLike, b1: ArrayLike, W2: ArrayLike, b2: ArrayLike) -> None:
        first, head = tensor("W1", W1, 2), tensor("W2", W2, 2)
        first_bias, head_bias = tensor("b1", b1, 1), tensor("b2", b2, 1)
        units, features = first.shape
        classes = head.shape[0]
        if 0 in (units, features, classes):
            raise InputError(f"W1 {first.shape} and W2 {head.shape} must not be empty")
        if first_bias.shape != (units,):
            raise InputError(f"b1 has {first_bias.size} entries, but W1 {first.shape} has {units} hidden units")
        if head.shape[1] != units:
            hint = " (rows of W2 are classes: pass its transpose)" if head.shape[0] == units else ""
            raise InputError(f"W2 has shape {head.shape}, wanted (classes, {units}) to match W1 {first.shape}{hint}")
        if head_bias.shape != (classes,):
            raise InputError(f"b2 has {head_bias.size} entries, but W2 {head.shape} has {classes} classes")
        for name, value in (("W1", first), ("b1", first_bias), ("W2", head), ("b2", head_bias)):
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"MLP({self.features}-{self.units}-{self.outputs})"

    @property
    def features(self) -> int:
        """The input width d."""
        return int(self.W1.shape[1])

    @property
    def units(self) -> int:
        """The hidden width m."""
        return int(self.W1.shape[0])

    @property
    def outputs(self) -> int:
        """The number of logits: K, or 1 for a binary score."""
        return int(self.W2.shape[0])

    @property
    def classes(self) -> int:
        """The number of classes that can be decided: at least 2."""
        return max(2, self.outputs)

    @property
    def head_sums(self) -> Array:
        """B_c = sum_j W2[c, j], correctly rounded, so that it is the same number on every machine; shape (K,)."""
        return np.array([math.fsum(row) for row in self.W2])

    @property
    def sha256(self) -> str:
        """A hash of the four arrays; two models with equal numbers have equal hashes."""
        return sha256("quad4fhe-mlp-1", (self.W1, self.b1, self.W2, self.b2))

    def hidden(self, X: ArrayLike) -> Array:
        """Pre-activations y = W1 x + b1, shape (n, m)."""
        checked = samples("X", X, self.features)
        out = np.empty((checked.shape[0], self.units))
        for rows, chunk in row_chunks("X", checked, 8 * (self.features + self.units)):
            out[rows] = chunk @ self.W1.T + self.b1
        return out

    def logits(self, X: ArrayLike) -> Array:
        """The ReLU model's logits, shape (n, K)."""
        checked = samples("X", X, self.features)
        out = np.empty((checked.shape[0], self.outputs))
        for rows, chunk in row_chunks("X", checked, 8 * (self.features + self.units)):
            out[rows] = np.maximum(chunk @ self.W1.T + self.b1, 0.0) @ self.W2.T + self.b2
        return out

    def decide(self, X: ArrayLike) -> IntArray:
        """The ReLU model's decisions, shape (n,)."""
        return decide(self.logits(X))

    @classmethod
    def from_sklearn(cls, estimator: Any) -> MLP:
        """Import a fitted scikit-learn MLPClassifier, alone or behind scalers in a Pipeline."""
        from quad4fhe.importers.sklearn import from_sklearn

        return from_sklearn(estimator)

    @classmethod
    def from_torch(cls, module: Any) -> MLP:
        """Import a torch Sequential: Linear, optional BatchNorm1d and Dropout, ReLU, Linear."""
        from quad4fhe.importers.torch import from_torch

        return from_torch(module)

    @classmethod
    def from_onnx(cls, path: str | Path) -> MLP:
        """Import an ONNX graph: Gemm or MatMul+Add, Relu, Gemm or MatMul+Add."""
        from quad4fhe.importers.onnx import from_onnx

        return from_onnx(path)

    @classmethod
    def load(cls, path: str | Path) -> MLP:
        """Read a model file; the suffix says how (.npz, .safetensors, .onnx, .pt, .pth)."""
        from quad4fhe.importers import load

        return load(path)

    def save(self, path: str | Path) -> None:
        """Write the model to one .safetensors or .npz file that `load` reads, whole or not at all."""
        from quad4fhe.importers.arrays import save

        save(self, path)


def decide(logits: Array) -> IntArray:
    """Decisions from logits (n, K): the sign for K = 1, else the largest, the lowest index on a tie."""
    if logits.shape[1] == 1:
        return (logits[:, 0] > 0).astype(np.int64)
    winners: IntArray = np.argmax(logits, axis=1).astype(np.int64)
    return winners
