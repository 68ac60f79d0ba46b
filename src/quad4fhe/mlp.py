"""The trained classifier: one hidden layer, four finite arrays of matching shapes, immutable.

A model whose input goes through other layers first has a feature part, which runs at the client.
"""

from __future__ import annotations

import copy
import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from quad4fhe._arrays import Array, IntArray, row_chunks, samples, sha256, tensor
from quad4fhe.activations import RELU, Activation
from quad4fhe.errors import InputError
from quad4fhe.feature_part import FeaturePart, Features
from quad4fhe.names import NONE, Names

Settling = Literal["fractions", "intervals", "graph"]


@dataclass(frozen=True, eq=False)
class MLP:
    """A one-hidden-layer classifier, logits(x) = W2 a(W1 x + b1) + b2 with the activation a.

    Rows are hidden units and classes. K = 1 is a binary classifier with one score, class 1 when the score is positive;
    with K >= 2 the largest logit wins, the lowest index on an exact tie.

    Parameters
    ----------
    W1
        Weights of the hidden layer, (m, d).
    b1
        Biases of the hidden layer, (m,).
    W2
        Weights of the output layer, (K, m).
    b2
        Biases of the output layer, (K,).
    activation
        The activation, or its name as in "gelu" and "leaky_relu:0.2"; ReLU by default.
    feature_part
        What comes before, if the model is the head of a larger one: it computes the features x from raw inputs, and so
        does `inputs(X)`. `fit`, `verify` and `Fit.predict` take raw inputs; the methods `hidden`, `logits` and `decide`
        always take features.
    notes
        What an importer had to assume; not part of the model's hash.
    """

    W1: Array
    b1: Array
    W2: Array
    b2: Array
    activation: Activation
    feature_part: FeaturePart | None
    notes: tuple[str, ...]
    names = NONE  # not a field: `named` sets it
    layers: ClassVar[Any] = ()  # of a deeper network: see `deep.DeepMLP`
    network: ClassVar[FeaturePart | None] = None  # of a network whose first layer alone is read: see `deep.GraphMLP`

    def __init__(
        self,
        W1: ArrayLike,
        b1: ArrayLike,
        W2: ArrayLike,
        b2: ArrayLike,
        *,
        activation: Activation | str = RELU,
        feature_part: FeaturePart | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
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
        chosen = Activation.parse(activation) if isinstance(activation, str) else activation
        chosen.check(units)
        for name, value in (("W1", first), ("b1", first_bias), ("W2", head), ("b2", head_bias)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "activation", chosen)
        object.__setattr__(self, "feature_part", feature_part)
        object.__setattr__(self, "notes", notes)

    def named(self, names: Names) -> MLP:
        """The same model with names of its features and classes, which are not part of its hash."""
        names.check(self.features, self.classes)
        made = copy.copy(self)
        object.__setattr__(made, "names", names)
        return made

    def __repr__(self) -> str:
        kind = "" if self.activation.is_default else f", {self.activation}"
        part = "" if self.feature_part is None else f", {self.feature_part!r} at the client"
        return f"MLP({self.features}-{self.units}-{self.outputs}{kind}{part})"

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
        """The number of classes, at least 2."""
        return max(2, self.outputs)

    @property
    def head_sums(self) -> Array:
        """B_c = sum_j W2[c, j], correctly rounded and so the same on every machine; shape (K,)."""
        return np.array([math.fsum(row) for row in self.W2])

    @cached_property
    def sha256(self) -> str:
        """A hash of arrays, activation and feature part; two models with equal numbers have equal hashes."""
        found = sha256("quad4fhe-mlp-1", (self.W1, self.b1, self.W2, self.b2))
        for kind, own in (
            ("activation", "" if self.activation.is_default else repr(self.activation.plain())),
            ("features", "" if self.feature_part is None else self.feature_part.sha256),
        ):
            if own:  # a ReLU model without a feature part keeps the hash that it had before there were others
                found = hashlib.sha256(f"quad4fhe-mlp-{kind}:{found}:{own}".encode()).hexdigest()
        return found

    @property
    def activations(self) -> tuple[Activation, ...]:
        """The activation of each hidden layer."""
        return (self.activation,)

    @property
    def settled_by(self) -> Settling:
        """What settles the decisions that rounding leaves open: exact fractions, or rigorous intervals."""
        return "fractions" if self.activation.is_exact else "intervals"

    @property
    def has_derived_head(self) -> bool:
        """Whether W2 and b2 are not part of the network, because it has further layers."""
        return bool(self.layers) or self.network is not None

    def inputs(self, X: Any) -> Any:
        """The samples that the hidden layer takes: the features of raw inputs, or X itself without a feature part.

        Columns of a DataFrame are taken by name, if the model has names.
        """
        if self.feature_part is not None:
            return self.feature_part(X)
        if self.names.features is None or not hasattr(X, "columns"):
            return X
        from quad4fhe.io.columns import Columns
        from quad4fhe.io.samples import ordered

        return ordered("X", X, Columns(self.names.features))

    def marked(self, values: Array) -> Array:
        """Rows of features marked as such, so that the feature part is not applied to them again."""
        return values if self.feature_part is None else Features.of(values, self.feature_part.sha256)

    def with_activation(self, activation: Activation | str) -> MLP:
        """The same weights with another activation."""
        return self._changed(activation=activation)

    def with_feature_part(self, part: FeaturePart | None) -> MLP:
        """The same head behind another feature part."""
        return self._changed(feature_part=part)

    def with_notes(self, *notes: str) -> MLP:
        """The same model with further notes."""
        return self._changed(notes=(*self.notes, *notes))

    def _changed(self, **changes: Any) -> MLP:
        kept = {"activation": self.activation, "feature_part": self.feature_part, "notes": self.notes}
        return MLP(self.W1, self.b1, self.W2, self.b2, **(kept | changes)).named(self.names)

    def hidden(self, X: ArrayLike) -> Array:
        """Pre-activations y = W1 x + b1, shape (n, m)."""
        checked = samples("X", X, self.features)
        out = np.empty((checked.shape[0], self.units))
        for rows, chunk in row_chunks("X", checked, 8 * (self.features + self.units)):
            out[rows] = chunk @ self.W1.T + self.b1
        return out

    def logits(self, X: ArrayLike) -> Array:
        """The model's logits, shape (n, K)."""
        checked = samples("X", X, self.features)
        out = np.empty((checked.shape[0], self.outputs))
        for rows, chunk in row_chunks("X", checked, 8 * (self.features + self.units)):
            out[rows] = self.activation(chunk @ self.W1.T + self.b1) @ self.W2.T + self.b2
        return out

    def decide(self, X: ArrayLike) -> IntArray:
        """The model's decisions, shape (n,)."""
        return decide(self.logits(X))

    def require_one_hidden(self, what: str) -> None:
        """Reject a deeper network, because `what` replaces one activation."""
        if self.has_derived_head:
            layers = len(self.layers) or "a whole graph behind it"
            raise InputError(
                f"{what} replaces the activation of one hidden layer, and this network has {layers}; "
                "`quad4fhe fit MODEL CALIB --family auto --test TEST` measures the polynomial that replaces them all"
            )

    def scaled(self, power: int) -> MLP:
        """The model with logits times 2^power, exactly."""
        W2, b2 = np.ldexp(self.W2, power), np.ldexp(self.b2, power)
        return MLP(self.W1, self.b1, W2, b2, activation=self.activation)

    @classmethod
    def from_sklearn(cls, estimator: Any, *, example: Any = None) -> MLP:
        """Import a fitted scikit-learn MLPClassifier, alone or at the end of a Pipeline.

        Affine steps are folded; other preprocessing (ColumnTransformer, encoders, imputers) becomes the feature part.
        `example` is a small array or DataFrame of raw inputs, for columns whose type the Pipeline does not record.
        """
        from quad4fhe.importers.sklearn import from_sklearn

        return from_sklearn(estimator, example=example)

    @classmethod
    def from_torch(
        cls, module: Any, *, activation: Activation | str | None = None, example: Any = None, split: str = "auto"
    ) -> MLP:
        """Import a torch module that ends in Linear, activation, Linear, or a state dict of one.

        Other layers in front become the feature part, which is exported with `example`, a tensor of a few raw inputs.
        A state dict does not name its `activation`; without one ReLU is assumed. `split="first"` reads the first layer
        of any other network, and lets onnxruntime compute its decisions.
        """
        from quad4fhe.importers.torch import from_torch

        return from_torch(module, activation=activation, example=example, split=split)

    @classmethod
    def from_onnx(cls, path: str | Path, *, binary: bool = False, split: str = "auto") -> MLP:
        """Import an ONNX graph that ends in Gemm or MatMul+Add, one activation, Gemm or MatMul+Add.

        What comes before and can't be folded becomes the feature part; `split` names a tensor to cut at, and "first"
        reads the first layer of any network. `binary` takes a single output without a Sigmoid as the score of class 1.
        """
        from quad4fhe.importers.onnx import from_onnx

        return from_onnx(path, binary=binary, split=split)

    @classmethod
    def load(
        cls,
        source: str | Path | Any,
        *,
        activation: Activation | str | None = None,
        binary: bool = False,
        split: str = "auto",
        example: Any = None,
    ) -> MLP:
        """Read a model file; the suffix selects the format (.npz, .safetensors, .onnx, .pt, .pth).

        A scikit-learn or torch model is taken as well. Other packages can add formats (`quad4fhe.importers`).

        Parameters
        ----------
        source
            A path, or a model of a framework.
        activation
            The activation of a state dict, which does not record it: "gelu", "leaky_relu:0.2".
        binary
            Take an ONNX graph with a single output and no Sigmoid as the score of class 1.
        split
            Where to cut an ONNX graph into feature part and head: "auto", "never", or a tensor's name; or "first": read
            the first layer alone, with the decisions of the whole graph measured by onnxruntime.
        example
            A few raw inputs, for a torch or scikit-learn model with a feature part.
        """
        from quad4fhe.importers import load

        return load(source, activation=activation, binary=binary, split=split, example=example)

    def save(self, path: str | Path) -> None:
        """Write the model atomically to one .safetensors or .npz file that `load` reads."""
        from quad4fhe.importers.arrays import save

        save(self, path)


def decide(logits: Array) -> IntArray:
    """Decisions from logits (n, K): the sign for K = 1, else the largest, the lowest index on a tie."""
    if logits.shape[1] == 1:
        return (logits[:, 0] > 0).astype(np.int64)
    winners: IntArray = np.argmax(logits, axis=1).astype(np.int64)
    return winners
