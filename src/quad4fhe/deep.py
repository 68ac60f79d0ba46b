"""Networks with two or more hidden layers.

The replacement lives on the first hidden layer: its polynomial stands for everything after it, and is fitted to the
logits and decisions of the whole network. The families need a head matrix on the first layer; a deeper network has
none of its own, so one is derived (`DeepMLP.adapted`).
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from quad4fhe._arrays import Array, row_chunks, samples, sha256, tensor
from quad4fhe.activations import RELU, Activation
from quad4fhe.errors import InputError
from quad4fhe.feature_part import FeaturePart
from quad4fhe.mlp import MLP

Layers = tuple[tuple[Array, Array], ...]
_RIDGE = 1e-6  # of the mean square of the activations, so that dead units do not make the equations singular


@dataclass(frozen=True, eq=False)
class DeepMLP(MLP):
    """A classifier with two or more hidden ReLU layers.

    `W1` and `b1` are the first layer, and `layers` the weights and biases after the first ReLU, the output layer last.
    `W2` (K, m) and `b2` (K,) are the derived head: a linear map of the first layer's activations in place of `layers`.
    It is no part of the network or its hash: logits and decisions are those of the whole network.
    """

    layers: Layers  # type: ignore[misc]  # a class attribute of MLP, which has none

    def __init__(
        self,
        W1: ArrayLike,
        b1: ArrayLike,
        layers: Sequence[tuple[ArrayLike, ArrayLike]],
        head: tuple[ArrayLike, ArrayLike] | None = None,
        *,
        activation: Activation | str = RELU,
        feature_part: FeaturePart | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        first, bias = tensor("W1", W1, 2), tensor("b1", b1, 1)
        if len(layers) < 2:
            raise InputError(f"a deeper network has two or more hidden layers, got {len(layers)}; use MLP")
        checked: list[tuple[Array, Array]] = []
        width = first.shape[0]
        for k, (weight, shift) in enumerate(layers, start=2):
            W, b = tensor(f"W{k}", weight, 2), tensor(f"b{k}", shift, 1)
            if W.shape[1] != width or b.shape != W.shape[:1] or 0 in W.shape:
                raise InputError(f"W{k} has shape {W.shape} and b{k} {b.shape}, wanted (units, {width}) and (units,)")
            checked.append((W, b))
            width = W.shape[0]
        W2, b2 = _composed(checked) if head is None else head
        super().__init__(first, bias, W2, b2, activation=activation, feature_part=feature_part, notes=notes)
        if not self.activation.is_default:
            raise InputError(f"a network with {len(layers)} hidden layers and {self.activation}, wanted ReLU in all")
        if self.outputs != width:
            raise InputError(f"W2 has {self.outputs} rows, but the last layer gives {width} logits")
        object.__setattr__(self, "layers", tuple(checked))

    def __repr__(self) -> str:
        sizes = [self.features, self.units, *(W.shape[0] for W, _ in self.layers)]
        return f"DeepMLP({'-'.join(map(str, sizes))})"

    @cached_property
    def sha256(self) -> str:
        """A hash of all layers, without the derived head."""
        arrays = [self.W1, self.b1, *(array for layer in self.layers for array in layer)]
        own = "" if self.feature_part is None else self.feature_part.sha256
        return hashlib.sha256(f"quad4fhe-mlp-deep:{sha256('quad4fhe-mlp-1', arrays)}:{own}".encode()).hexdigest()

    def _changed(self, **changes: Any) -> MLP:
        kept = {"activation": self.activation, "feature_part": self.feature_part, "notes": self.notes}
        return DeepMLP(self.W1, self.b1, self.layers, (self.W2, self.b2), **(kept | changes)).named(self.names)

    def logits(self, X: ArrayLike) -> Array:
        """The logits of the whole network, shape (n, K)."""
        checked = samples("X", X, self.features)
        out = np.empty((checked.shape[0], self.outputs))
        widths = sum(W.shape[0] for W, _ in self.layers)
        for rows, chunk in row_chunks("X", checked, 8 * (self.features + self.units + widths)):
            value = chunk @ self.W1.T + self.b1
            for W, b in self.layers:
                value = np.maximum(value, 0.0) @ W.T + b
            out[rows] = value
        return out

    def scaled(self, power: int) -> DeepMLP:
        """The network with logits times 2^power, exactly."""
        *inner, (W, b) = self.layers
        head = (np.ldexp(self.W2, power), np.ldexp(self.b2, power))
        return DeepMLP(self.W1, self.b1, [*inner, (np.ldexp(W, power), np.ldexp(b, power))], head)

    def adapted(self, X: ArrayLike) -> DeepMLP:
        """The same network with the head that is nearest to its logits on X (n, d), in least squares."""
        active = np.maximum(self.hidden(X), 0.0)
        logits = self.logits(X)
        centre, target = active.mean(axis=0), logits.mean(axis=0)
        active -= centre
        moments = active.T @ active
        ridge = _RIDGE * max(float(np.trace(moments)) / self.units, 1e-300)
        head = np.linalg.solve(moments + ridge * np.eye(self.units), active.T @ (logits - target)).T
        if not np.isfinite(head).all():
            return self
        made = copy.copy(self)
        object.__setattr__(made, "W2", tensor("W2", head, 2))
        object.__setattr__(made, "b2", tensor("b2", target - head @ centre, 1))
        return made


def _composed(layers: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """The layers as one linear map, with slope 1/2 for every ReLU between them."""
    weight, bias = layers[0]
    for W, b in layers[1:]:
        weight, bias = 0.5 * (W @ weight), 0.5 * (W @ bias) + b
    return weight, bias
