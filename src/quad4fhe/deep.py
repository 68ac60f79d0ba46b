"""Networks with more than one hidden layer: of known layers, or with a graph behind the first layer.

The replacement lives on the first hidden layer: its polynomial stands for everything after it, and is fitted to the
logits and decisions of the whole network. The families need a head matrix on the first layer; such a network has none,
so one is derived (`with_nearest_head`).
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
from quad4fhe.mlp import MLP, Settling

Layers = tuple[tuple[Array, Array], ...]
_RIDGE = 1e-6  # of the mean square of the activations, so that dead units do not make the equations singular


@dataclass(frozen=True, eq=False)
class DeepMLP(MLP):
    """A classifier with two or more hidden layers.

    `W1` and `b1` are the first layer, and `layers` the weights and biases after the first activation, the output layer
    last. `activation` is one for all hidden layers, or a sequence with one for each; `activations` are all of them.
    `W2` (K, m) and `b2` (K,) are the derived head: a linear map of the first layer's activations in place of `layers`.
    It is not part of the network or its hash: logits and decisions are those of the whole network.
    """

    layers: Layers  # type: ignore[misc]  # a class attribute of MLP, which has none
    inner: tuple[Activation, ...] = ()  # `activations`, as a field

    def __init__(
        self,
        W1: ArrayLike,
        b1: ArrayLike,
        layers: Sequence[tuple[ArrayLike, ArrayLike]],
        head: tuple[ArrayLike, ArrayLike] | None = None,
        *,
        activation: Activation | str | Sequence[Activation | str] = RELU,
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
        inner = _activations(activation, [first.shape[0], *(W.shape[0] for W, _ in checked[:-1])])
        super().__init__(first, bias, W2, b2, activation=inner[0], feature_part=feature_part, notes=notes)
        object.__setattr__(self, "inner", inner)
        if self.outputs != width:
            raise InputError(f"W2 has {self.outputs} rows, but the last layer gives {width} logits")
        object.__setattr__(self, "layers", tuple(checked))

    def __repr__(self) -> str:
        sizes = [self.features, self.units, *(W.shape[0] for W, _ in self.layers)]
        kinds = list(dict.fromkeys(map(str, self.activations)))  # each once
        shown = "" if self._is_relu else f", {' and '.join(kinds)}"
        return f"DeepMLP({'-'.join(map(str, sizes))}{shown})"

    @property
    def activations(self) -> tuple[Activation, ...]:
        """The activation of each hidden layer."""
        return self.inner

    @property
    def _is_relu(self) -> bool:
        return all(each.is_default for each in self.inner)

    @property
    def settled_by(self) -> Settling:
        """Fractions where they stay short through all layers, else intervals."""
        short = all(each.is_exact and not each.kind.divides for each in self.inner)
        return "fractions" if short else "intervals"

    @cached_property
    def sha256(self) -> str:
        """A hash of all layers, without the derived head."""
        arrays = [self.W1, self.b1, *(array for layer in self.layers for array in layer)]
        own = "" if self.feature_part is None else self.feature_part.sha256
        # Networks of ReLU keep the hashes that they had before there were other activations.
        kinds = "" if self._is_relu else f":{[each.plain() for each in self.inner]!r}"
        text = f"quad4fhe-mlp-deep:{sha256('quad4fhe-mlp-1', arrays)}:{own}{kinds}"
        return hashlib.sha256(text.encode()).hexdigest()

    def _changed(self, **changes: Any) -> MLP:
        kept = {"activation": self.inner, "feature_part": self.feature_part, "notes": self.notes}
        return DeepMLP(self.W1, self.b1, self.layers, (self.W2, self.b2), **(kept | changes)).named(self.names)

    def logits(self, X: ArrayLike) -> Array:
        """The logits of the whole network, shape (n, K)."""
        checked = samples("X", X, self.features)
        out = np.empty((checked.shape[0], self.outputs))
        widths = sum(W.shape[0] for W, _ in self.layers)
        for rows, chunk in row_chunks("X", checked, 8 * (self.features + self.units + widths)):
            value = chunk @ self.W1.T + self.b1
            for activation, (W, b) in zip(self.inner, self.layers, strict=True):
                value = activation(value) @ W.T + b
            out[rows] = value
        return out

    def scaled(self, power: int) -> DeepMLP:
        """The network with logits times 2^power, exactly."""
        *inner, (W, b) = self.layers
        head = (np.ldexp(self.W2, power), np.ldexp(self.b2, power))
        layers = [*inner, (np.ldexp(W, power), np.ldexp(b, power))]
        return DeepMLP(self.W1, self.b1, layers, head, activation=self.inner)


@dataclass(frozen=True, eq=False)
class GraphMLP(MLP):
    """A classifier of which only the first layer, `W1` and `b1`, is read; the ONNX graph `network` gives the logits.

    Behind the first layer may be residual, gated, normalised or any other layers. onnxruntime computes the logits and
    decisions, in floats and without an error bound. They are the targets of a fit, and its certificate says that they
    were measured.

    `activation` is that of the first layer, or ReLU where it has none of its own (gates). It only shapes the derived
    head `W2`, `b2`, which is not part of the network or its hash. Rows are evaluated one by one, so that a decision
    does not depend on the rows beside it. Needs the extra `features`.
    """

    network: FeaturePart | None  # type: ignore[misc]  # a class attribute of MLP, which has none; never None here
    power: int = 0

    def __init__(
        self,
        W1: ArrayLike,
        b1: ArrayLike,
        network: FeaturePart,
        head: tuple[ArrayLike, ArrayLike] | None = None,
        *,
        activation: Activation | str = RELU,
        feature_part: FeaturePart | None = None,
        notes: tuple[str, ...] = (),
        power: int = 0,
    ) -> None:
        first = tensor("W1", W1, 2)
        if head is None:
            outputs = network.row_by_row(np.zeros((1, first.shape[1]))).shape[1]
            head = np.zeros((outputs, first.shape[0])), np.zeros(outputs)
        super().__init__(first, b1, *head, activation=activation, feature_part=feature_part, notes=notes)
        object.__setattr__(self, "network", network)
        object.__setattr__(self, "power", power)

    def __repr__(self) -> str:
        return f"GraphMLP({self.features}-{self.units}-...-{self.outputs}, {self._graph.sha256[:12]} in onnxruntime)"

    @property
    def _graph(self) -> FeaturePart:
        assert self.network is not None
        return self.network

    @property
    def settled_by(self) -> Settling:
        """Nothing: onnxruntime's floats decide."""
        return "graph"

    @cached_property
    def sha256(self) -> str:
        """A hash of the first layer and the graph, without the derived head."""
        own = "" if self.feature_part is None else self.feature_part.sha256
        kind = repr(self.activation.plain())
        arrays = sha256("quad4fhe-mlp-1", (self.W1, self.b1))
        text = f"quad4fhe-mlp-graph:{arrays}:{self._graph.sha256}:{self.power}:{kind}:{own}"
        return hashlib.sha256(text.encode()).hexdigest()

    def _changed(self, **changes: Any) -> MLP:
        kept = {"activation": self.activation, "feature_part": self.feature_part, "notes": self.notes}
        head = self.W2, self.b2
        made = GraphMLP(self.W1, self.b1, self._graph, head, power=self.power, **(kept | changes))
        return made.named(self.names)

    def logits(self, X: ArrayLike) -> Array:
        """The logits of the whole network, shape (n, K), as onnxruntime computes them."""
        checked = np.asarray(samples("X", X, self.features))
        found = self._graph.row_by_row(checked) if len(checked) else np.empty((0, self.outputs))
        if found.shape[1] != self.outputs:
            raise InputError(f"the graph gives {found.shape[1]} logits, and the head has {self.outputs}")
        if np.isnan(found).any():
            count = int(np.count_nonzero(np.isnan(found).any(axis=1)))
            raise InputError(f"the graph gives NaN for {count} of {len(found)} rows: no decision; leave such rows out")
        return np.ldexp(found, self.power)

    def scaled(self, power: int) -> GraphMLP:
        """The network with logits times 2^power, exactly."""
        head = np.ldexp(self.W2, power), np.ldexp(self.b2, power)
        return GraphMLP(self.W1, self.b1, self._graph, head, activation=self.activation, power=self.power + power)


def with_nearest_head(mlp: MLP, X: ArrayLike) -> MLP:
    """The same network with the head on its first activations that is nearest to its logits on X (n, d)."""
    active = mlp.activation(mlp.hidden(X))
    logits = mlp.logits(X)
    centre, target = active.mean(axis=0), logits.mean(axis=0)
    active -= centre
    moments = active.T @ active
    ridge = _RIDGE * max(float(np.trace(moments)) / mlp.units, 1e-300)
    head = np.linalg.solve(moments + ridge * np.eye(mlp.units), active.T @ (logits - target)).T
    if not np.isfinite(head).all():
        return mlp
    made = copy.copy(mlp)
    object.__setattr__(made, "W2", tensor("W2", head, 2))
    object.__setattr__(made, "b2", tensor("b2", target - head @ centre, 1))
    return made


def _activations(given: Activation | str | Sequence[Activation | str], units: list[int]) -> tuple[Activation, ...]:
    """One activation for each hidden layer, with parameters for its units."""
    several = [given] * len(units) if isinstance(given, Activation | str) else list(given)
    found = tuple(Activation.parse(each) if isinstance(each, str) else each for each in several)
    if len(found) != len(units):
        raise InputError(f"got {len(found)} activations for {len(units)} hidden layers; give one, or one for each")
    for each, width in zip(found, units, strict=True):
        each.check(width)
    return found


def _composed(layers: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """The layers as one linear map, with slope 1/2 for every activation between them."""
    weight, bias = layers[0]
    for W, b in layers[1:]:
        weight, bias = 0.5 * (W @ weight), 0.5 * (W @ bias) + b
    return weight, bias
