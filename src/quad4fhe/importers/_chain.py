"""Fold what a framework wrote around its one ReLU into W1, b1, W2, b2, in float64.

Decides what folds: any affine maps on either side of exactly one ReLU. Reading a framework's layers and naming them
in errors (the `label`) is left to the importer of that framework.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from quad4fhe._arrays import Array, tensor
from quad4fhe.errors import InputError
from quad4fhe.mlp import MLP


@dataclass(frozen=True, eq=False)
class _Affine:
    """x -> weight x + bias. A vector weight is a diagonal; one of size 1 is a multiple of the identity."""

    weight: Array
    bias: Array

    @property
    def dense(self) -> bool:
        return self.weight.ndim == 2

    def after(self, inner: _Affine) -> _Affine:
        """The one map that applies `inner`, then this."""
        # Overflow shows up as an infinite weight, which MLP refuses by name.
        with np.errstate(over="ignore", invalid="ignore"):
            if not self.dense:
                scale = self.weight[:, None] if inner.dense else self.weight
                return _Affine(scale * inner.weight, self.weight * inner.bias + self.bias)
            shift = self.weight @ np.broadcast_to(inner.bias, self.weight.shape[1:])
            weight = self.weight @ inner.weight if inner.dense else self.weight * inner.weight
            return _Affine(weight, shift + self.bias)


_IDENTITY = _Affine(np.ones(1), np.zeros(1))


@dataclass(frozen=True, eq=False)
class Chain:
    """A model read so far, from its input on: one affine map, and a second one once its ReLU was met.

    Chains are immutable, so a graph that branches holds one per branch, and two branches with the same chain take
    the same decisions.
    """

    maps: tuple[_Affine, ...] = (_IDENTITY,)

    @property
    def width(self) -> int | None:
        """How many values come out so far; None while nothing has fixed it."""
        for part in reversed(self.maps):
            if part.weight.size > 1 or part.dense:
                return int(part.weight.shape[0])
        return None

    @property
    def started(self) -> bool:
        """Whether a weight matrix was met, so that the input width is fixed."""
        return self.maps[0].dense

    @property
    def complete(self) -> bool:
        """Whether this is a whole classifier: matrix, ReLU, matrix."""
        return len(self.maps) == 2 and self.maps[1].dense

    def linear(self, label: str, weight: ArrayLike, bias: ArrayLike | None = None) -> Chain:
        """Append a layer with weight (out, in) and bias (out,), zero where None."""
        matrix = tensor(f"the weight of {label}", weight, 2)
        out = matrix.shape[0]
        vector = np.zeros(out) if bias is None else tensor(f"the bias of {label}", bias, 1)
        if vector.shape != (out,):
            raise InputError(
                f"the bias of {label} has {vector.size} entries, but its weight {matrix.shape} has {out} rows"
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
            raise InputError(f"the scale of {label} has {factor.size} entries, but its shift has {offset.size}")
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

    def relu(self, label: str) -> Chain:
        """Append the ReLU; there may be one only."""
        if len(self.maps) == 2:
            raise InputError(f"{label} is the second ReLU, but only one hidden layer is supported")
        if not self.started:
            raise InputError(f"{label} comes before any weight matrix; supported: linear layer, ReLU, linear layer")
        return Chain((*self.maps, _IDENTITY))

    def mlp(self) -> MLP:
        """The classifier, once it is complete."""
        if not self.complete:
            missing = "linear layer after its ReLU" if len(self.maps) == 2 else "ReLU"
            raise InputError(f"the model has no {missing}; supported: linear layer, ReLU, linear layer")
        first, second = self.maps
        return MLP(first.weight, first.bias, second.weight, second.bias)

    def _then(self, outer: _Affine) -> Chain:
        return Chain((*self.maps[:-1], outer.after(self.maps[-1])))

    def _mismatch(self, label: str, size: int) -> InputError:
        return InputError(f"{label} takes {size} values, but the layer before it gives {self.width}; check the file")
