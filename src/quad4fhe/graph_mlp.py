"""Networks of which only the first layer is read; residual, gated, normalised or any other layers may follow it.

The replacement lives on the first layer, as for a deeper network. Everything after it is an ONNX graph: onnxruntime
computes the logits and decisions, in floats and without an error bound. They are the targets of a fit, and its
certificate says that they were measured.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from quad4fhe._arrays import Array, samples, sha256, tensor
from quad4fhe.activations import RELU, Activation
from quad4fhe.deep import with_nearest_head
from quad4fhe.errors import InputError
from quad4fhe.feature_part import FeaturePart
from quad4fhe.mlp import MLP, Settling


@dataclass(frozen=True, eq=False)
class GraphMLP(MLP):
    """A classifier whose first layer is `W1`, `b1`, and whose logits the ONNX graph `network` computes from x.

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

    def adapted(self, X: ArrayLike) -> MLP:
        """The same network with the head that is nearest to its logits on X (n, d), in least squares."""
        return with_nearest_head(self, X)
