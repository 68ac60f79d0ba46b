"""Fits a family to the ReLU model: the divergence, and a stack of weighted problems on the same features.

Logits are transposed, (problems, outputs, rows): a class is then a contiguous row, which makes the exponentials several
times faster than the usual layout.
"""

from __future__ import annotations

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.fitting.families.base import Parametrisation
from quad4fhe.fitting.families.features import Single, Standardised
from quad4fhe.fitting.families.lbfgs import minimise


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
    loss: Divergence,
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
        Weights (problems, K, p m) and constants (problems, K) to start from.
    rounds, tolerance
        When to stop; see `lbfgs.minimise`.

    Returns weights (problems, K, p m), constants (problems, K) and the number of rounds.
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
