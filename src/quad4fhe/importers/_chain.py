"""Fold the affine layers around one activation into W1, b1, W2, b2, in float64.

Any affine maps between two activations fold into one. Importers read a framework's layers, and give each a `label` for
error messages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from quad4fhe._arrays import Array, tensor
from quad4fhe.activations import RELU, Activation
from quad4fhe.deep import DeepMLP
from quad4fhe.errors import InputError
from quad4fhe.mlp import MLP


@dataclass(frozen=True, eq=False)
class _Affine:
    """x -> weight x + bias. A vector weight is a diagonal matrix; of size 1, a multiple of the identity."""

    weight: Array
    bias: Array

    @property
    def dense(self) -> bool:
        return self.weight.ndim == 2

    def after(self, inner: _Affine) -> _Affine:
        """The map that applies `inner`, then this one."""
        # An overflow gives an infinite weight, which MLP rejects by name.
        with np.errstate(over="ignore", invalid="ignore"):
            if not self.dense:
                scale = self.weight[:, None] if inner.dense else self.weight
                return _Affine(scale * inner.weight, self.weight * inner.bias + self.bias)
            shift = self.weight @ np.broadcast_to(inner.bias, self.weight.shape[1:])
            weight = self.weight @ inner.weight if inner.dense else self.weight * inner.weight
            return _Affine(weight, shift + self.bias)


_LAYERS = "linear layer, activation (such as ReLU), linear layer"
_IDENTITY = _Affine(np.ones(1), np.zeros(1))


@dataclass(frozen=True, eq=False)
class Chain:
    """The part of a model read so far: one affine map, and another one after each activation.

    Chains are immutable: a graph that branches has one per branch, and branches with the same chain decide the same.
    """

    maps: tuple[_Affine, ...] = (_IDENTITY,)
    activations: tuple[Activation, ...] = ()  # one between two maps

    @property
    def width(self) -> int | None:
        """The number of values of the last map; None while no layer has fixed it."""
        for part in reversed(self.maps):
            if part.weight.size > 1 or part.dense:
                return int(part.weight.shape[0])
        return None

    @property
    def started(self) -> bool:
        """Whether there is a weight matrix, so that the input width is fixed."""
        return self.maps[0].dense

    @property
    def complete(self) -> bool:
        """Whether this is a whole classifier: matrix, activation, matrix."""
        return len(self.maps) >= 2 and self.maps[-1].dense

    def linear(self, label: str, weight: ArrayLike, bias: ArrayLike | None = None) -> Chain:
        """Append a layer with weight (out, in) and bias (out,); None means zero."""
        matrix = tensor(f"the weight of {label}", weight, 2)
        out = matrix.shape[0]
        vector = np.zeros(out) if bias is None else tensor(f"the bias of {label}", bias, 1)
        if vector.shape != (out,):
            raise InputError(
                f"the bias of {label} has {vector.size} entries, its weight {matrix.shape} has {out} rows; check it"
            )
        if self.width not in (None, matrix.shape[1]):
            raise self._mismatch(label, matrix.shape[1])
        return self._then(_Affine(matrix, vector))

    def scale(self, label: str, scale: ArrayLike, shift: ArrayLike) -> Chain:
        """Append a per-feature map x -> scale * x + shift; a size of 1 means the same for every feature."""
        factor = tensor(f"the scale of {label}", np.atleast_1d(scale), 1)
        offset = tensor(f"the shift of {label}", np.atleast_1d(shift), 1)
        size = max(factor.size, offset.size)
        if not {factor.size, offset.size} <= {1, size}:
            raise InputError(
                f"the scale of {label} has {factor.size} entries, but its shift has {offset.size}; check the file"
            )
        if size > 1 and self.width not in (None, size):
            raise self._mismatch(label, size)
        return self._then(_Affine(np.broadcast_to(factor, size), np.broadcast_to(offset, size)))

    def batch_norm(
        self, label: str, mean: ArrayLike, var: ArrayLike, eps: float, gamma: ArrayLike = 1.0, beta: ArrayLike = 0.0
    ) -> Chain:
        """Append a BatchNorm with its running statistics: gamma (x - mean) / sqrt(var + eps) + beta."""
        # float64 from here on: a float32 fold would move decisions near the boundary.
        centre, spread = (np.asarray(value, dtype=np.float64) for value in (mean, var))
        weight, offset = (np.asarray(value, dtype=np.float64) for value in (gamma, beta))
        sizes = {value.size for value in (centre, spread, weight, offset)} - {1}
        if len(sizes) > 1:
            raise InputError(
                f"{label} has statistics and weights of different sizes {sorted(sizes)}; save the model again"
            )
        if not (spread + eps > 0).all():
            raise InputError(
                f"{label} has a running variance that is not positive; retrain or recompute its statistics"
            )
        slope = weight / np.sqrt(spread + eps)
        return self.scale(label, slope, offset - slope * centre)

    def activate(self, label: str, activation: Activation = RELU) -> Chain:
        """Append an activation."""
        if len(self.maps) >= 2 and not self.maps[-1].dense:
            raise InputError(
                f"{label} follows another activation without a linear layer between them; supported: {_LAYERS}"
            )
        if not self.started:
            raise InputError(f"{label} comes before any weight matrix; supported: {_LAYERS}")
        return Chain((*self.maps, _IDENTITY), (*self.activations, activation))

    def mlp(self) -> MLP:
        """The classifier, once it is complete."""
        if not self.complete:
            missing = "linear layer after its activation" if len(self.maps) >= 2 else "activation"
            raise InputError(f"the model has no {missing}; supported: {_LAYERS}")
        first, second, *more = self.maps
        if more:
            layers = [(each.weight, each.bias) for each in (second, *more)]
            return DeepMLP(first.weight, first.bias, layers, activation=self.activations)
        return MLP(first.weight, first.bias, second.weight, second.bias, activation=self.activations[0])

    def _then(self, outer: _Affine) -> Chain:
        return Chain((*self.maps[:-1], outer.after(self.maps[-1])), self.activations)

    def _mismatch(self, label: str, size: int) -> InputError:
        return InputError(f"{label} takes {size} values, but the layer before it gives {self.width}; check the file")
