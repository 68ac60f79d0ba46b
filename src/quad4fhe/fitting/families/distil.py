"""Fits a family to the ReLU model: the losses, and a stack of weighted problems on the same features.

Logits are transposed, (problems, outputs, rows): a class is then a contiguous row, which makes the exponentials several
times faster than the usual layout.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from quad4fhe._arrays import Array, IntArray
from quad4fhe.fitting.families.base import Parametrisation
from quad4fhe.fitting.families.features import Single, Standardised
from quad4fhe.fitting.families.lbfgs import minimise


class Loss(Protocol):
    """Value (problems,) and gradient of the sum over `rows` with weights (problems, rows)."""

    def __call__(self, logits: Single, rows: slice, weight: Single) -> tuple[Array, Single]:
        """Evaluate on logits (problems, outputs, rows); the logits may be overwritten."""


class Divergence:
    """KL(p || q), p = softmax(targets), q = softmax(logits); one output is the logit of the second of two classes."""

    def __init__(self, targets: Array) -> None:
        """Prepare for targets (outputs, n), the ReLU model's logits, already sharpened or softened."""
        p, logs = _softmax(targets[None].astype(np.float32))
        self._p = p[0]
        # The entropy of p has no gradient, but without it the values of good fits would drown in a constant.
        self._entropy = np.einsum("kn,kn->n", self._p, logs[0])

    def __call__(self, logits: Single, rows: slice, weight: Single) -> tuple[Array, Single]:
        """Evaluate on logits (problems, outputs, rows)."""
        p = self._p[:, rows]
        q, logs = _softmax(logits)
        value = self._entropy[rows] - np.einsum("kn,bkn->bn", p, logs)
        q -= p
        q *= weight[:, None, :]
        gradient = q if logits.shape[1] > 1 else q[:, 1:]
        return np.einsum("bn,bn->b", value, weight, dtype=np.float64), gradient


class Hinge:
    """The huberised hinge on the margin against the strongest rival, which is wanted to be at least `width`."""

    def __init__(self, decided: IntArray, width: float) -> None:
        """Prepare for decisions (n,), the ReLU model's own."""
        self._decided, self._width = decided, np.float32(width)

    def __call__(self, logits: Single, rows: slice, weight: Single) -> tuple[Array, Single]:
        """Evaluate on logits (problems, outputs, rows)."""
        decided = self._decided[rows]
        if logits.shape[1] == 1:
            sign = (2 * decided - 1).astype(np.float32)
            value, slope = self._huber(logits[:, 0] * sign)
            return _total(value, weight), (slope * weight * sign)[:, None, :]
        problem, at = np.arange(logits.shape[0])[:, None], np.arange(decided.size)[None, :]
        own = logits[problem, decided, at].copy()
        logits[problem, decided, at] = -np.inf
        rival = np.argmax(logits, axis=1)
        value, slope = self._huber(own - logits[problem, rival, at])
        slope *= weight
        gradient = np.zeros_like(logits)
        gradient[problem, decided, at] = slope
        gradient[problem, rival, at] = -slope
        return _total(value, weight), gradient

    def _huber(self, margin: Single) -> tuple[Single, Single]:
        """Quadratic over the last `width` before the margin is reached, linear below; the slope is at most 1/width."""
        short = np.maximum(np.float32(1.0) - margin / self._width, np.float32(0.0))
        near = np.minimum(short, np.float32(1.0))
        return near * (short - np.float32(0.5) * near), -near / self._width


def _total(value: Single, weight: Single) -> Array:
    total: Array = np.einsum("bn,bn->b", value, weight, dtype=np.float64)
    return total


def _softmax(logits: Single) -> tuple[Single, Single]:
    """Probabilities and their logarithms along the classes, (problems, K, rows) with K >= 2."""
    if logits.shape[1] == 1:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
    logs = logits - logits.max(axis=1, keepdims=True)
    p = np.exp(logs)
    total = p.sum(axis=1, keepdims=True)
    p /= total
    logs -= np.log(total)
    return p, logs


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
    """Minimise the mean loss plus ridge of every problem.

    Parameters
    ----------
    features
        The standardised features of n rows.
    family
        The unknowns and the ridge.
    loss
        The loss of a row.
    weight
        The weight of every row in every problem, (problems, n); each problem's weights sum to one.
    start
        Weights (problems, K, 2m) and constants (problems, K) to start from.
    rounds, tolerance
        When to stop; see `lbfgs.minimise`.

    Returns weights (problems, K, 2m), constants (problems, K) and the number of rounds.
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
