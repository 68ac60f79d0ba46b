"""One family fitted to the ReLU model itself: a stack of weighted problems on the same features.

Decides how loss, ridge and features meet in one function to be minimised. Which problems (folds or the whole), which
strengths and which loss is left to `families`.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.fitting.descent import minimise
from quad4fhe.fitting.losses import Loss
from quad4fhe.fitting.standardised import Single, Standardised


class Parametrisation(Protocol):
    """How a family turns unknowns into weights on the features; see `Head` and `Unitwise`."""

    name: str

    def strengthen(self, strength: float) -> None:
        """Set the ridge."""

    def expand(self, x: Array) -> tuple[Array, Array]:
        """Weights and constants of the unknowns."""

    def gather(self, weights: Array, constant: Array) -> Array:
        """The gradient in the unknowns."""

    def solve(self, weights: Array, constant: Array) -> Array:
        """The unknowns of given weights and constants."""

    def penalty(self, x: Array) -> tuple[Array, Array]:
        """The ridge and its gradient."""


def distil(
    features: Standardised,
    family: Parametrisation,
    loss: Loss,
    weight: Single,
    start: tuple[Array, Array],
    *,
    rounds: int,
    tolerance: float,
) -> tuple[Array, Array, int]:
    """Minimise the mean loss plus ridge of every problem; `weight` (problems, n) has rows that sum to one.

    Returns weights (problems, K, 2m), constants (problems, K) and the rounds that were used.
    """

    def function(x: Array) -> tuple[Array, Array]:
        weights, constant = family.expand(x)
        problems, outputs, size = weights.shape
        flat = weights.reshape(-1, size).astype(np.float32)
        shift = constant.reshape(-1, 1).astype(np.float32)
        value, slope = np.zeros(problems), np.zeros((problems * outputs, size))
        drift = np.zeros((problems, outputs))
        for rows, chunk in features.chunks():
            logits = flat @ chunk.T
            logits += shift
            part, gradient = loss(logits.reshape(problems, outputs, -1), rows, weight[:, rows])
            value += part
            slope += gradient.reshape(problems * outputs, -1) @ chunk
            drift += gradient.sum(axis=2, dtype=np.float64)
        ridge, pull = family.penalty(x)
        return value + ridge, family.gather(slope.reshape(weights.shape), drift) + pull

    x, _, used = minimise(function, family.solve(*start), rounds, tolerance)
    weights, constant = family.expand(x)
    return weights, constant, used
