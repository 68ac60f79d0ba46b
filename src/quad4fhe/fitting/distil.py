"""Fits a family to the ReLU model: the divergence, and a stack of weighted problems on the same features.

Folds of a cross-validation differ only in the weights of their rows, so one matrix product evaluates them all, and
`minimise` is an L-BFGS for such a stack; a solver for one problem at a time can't share it. Logits are transposed,
(problems, outputs, rows): a class is then a contiguous row, which makes the exponentials several times faster than the
usual layout.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from quad4fhe._arrays import Array, BoolArray, IntArray
from quad4fhe.fitting.features import Single, Standardised
from quad4fhe.fitting.subspaces import Subspace

_MOST_RUNS = 16
_MEMORY = 12
_ENOUGH = 1e-4  # Armijo's share of the expected decrease
_SHRINK = 0.3
_STUCK = 6  # rejected steps in a row after which only rounding is left


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
    family: Subspace,
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
        When to stop; see `minimise`.

    Returns weights (problems, K, p m), constants (problems, K) and the number of rounds.
    """
    runs = [_runs(weight[:, rows] > 0) for rows in features.steps()]

    def function(x: Array) -> tuple[Array, Array]:
        weights, constant = family.expand(x)
        single, shift = weights.astype(np.float32), constant.astype(np.float32)[..., None]
        value, slope, drift = np.zeros(len(x)), np.zeros(weights.shape), np.zeros(constant.shape)
        for (rows, chunk), parts in zip(features.chunks(), runs, strict=True):
            for start, stop, using in parts:
                run, here = slice(rows.start + start, rows.start + stop), chunk[start:stop]
                flat = single[using].reshape(-1, single.shape[2])
                logits = (flat @ here.T).reshape(len(using), -1, stop - start)
                logits += shift[using]
                part, gradient = loss(logits, run, weight[using, run])
                value[using] += part
                slope[using] += (gradient.reshape(len(flat), -1) @ here).reshape(len(using), *slope.shape[1:])
                drift[using] += gradient.sum(axis=2, dtype=np.float64)
        ridge, pull = family.penalty(x)
        return value + ridge, family.gather(slope, drift) + pull

    x, _, used = minimise(function, family.solve(*start), rounds, tolerance)
    weights, constant = family.expand(x)
    return weights, constant, used


def _runs(used: BoolArray) -> list[tuple[int, int, IntArray]]:
    """Ranges of rows (start, stop) with the problems that give them weight, of `used` (problems, rows).

    Where rows of one fold are neighbours, rows without weight cost nothing. Many short ranges would cost more than they
    save, so then all rows are one.
    """
    problems, rows = used.shape
    ends = [0, *(np.flatnonzero((used[:, 1:] != used[:, :-1]).any(axis=0)) + 1), rows]
    if len(ends) > _MOST_RUNS:
        return [(0, rows, np.arange(problems))]
    runs = [(start, stop, np.flatnonzero(used[:, start])) for start, stop in pairwise(ends)]
    return [run for run in runs if run[2].size]


Function = Callable[[Array], tuple[Array, Array]]


def minimise(function: Function, x: Array, rounds: int, tolerance: float) -> tuple[Array, Array, int]:
    """Minimise function(x) -> values (problems,), gradients (problems, size) from x; returns x, values and rounds.

    A problem is done when a round lowers its value by less than `tolerance` of it. A step that fails costs no inner
    search: its problem stays where it is and tries a shorter step in the next round, with the others.
    """
    problems = x.shape[0]
    value, gradient = function(x)
    pairs: list[tuple[Array, Array, Array]] = []
    direction, step = -gradient, np.ones(problems)
    step /= np.maximum(1.0, np.linalg.norm(gradient, axis=1))
    done, rejected = np.zeros(problems, dtype=np.bool_), np.zeros(problems, dtype=np.int64)
    used = 0
    while used < rounds and not done.all():
        used += 1
        trial = x + step[:, None] * direction
        new_value, new_gradient = function(trial)
        slope = np.einsum("bi,bi->b", gradient, direction)
        kept = (new_value <= value + _ENOUGH * step * slope) & ~done
        small = value - new_value <= tolerance * np.abs(value)
        rejected = np.where(kept, 0, rejected + 1)
        done |= (kept & small) | (rejected >= _STUCK)
        move = np.where(kept[:, None], trial - x, 0.0)
        turn = np.where(kept[:, None], new_gradient - gradient, 0.0)
        curved = np.einsum("bi,bi->b", move, turn)
        x = x + move
        value, gradient = np.where(kept, new_value, value), gradient + turn
        pairs = [*pairs[-_MEMORY + 1 :], (move, turn, np.divide(1.0, curved, where=curved > 0, out=np.zeros(problems)))]
        direction = np.where(kept[:, None], _two_loops(pairs, gradient), direction)
        step = np.where(kept, 1.0, step * _SHRINK)
    return x, value, used


def _two_loops(pairs: list[tuple[Array, Array, Array]], gradient: Array) -> Array:
    """The quasi-Newton direction of each problem; a pair with zero weight stands for a rejected step."""
    direction = -gradient
    shares = []
    size = np.ones(gradient.shape[0])
    for move, turn, weight in reversed(pairs):
        share = weight * np.einsum("bi,bi->b", move, direction)
        direction -= share[:, None] * turn
        shares.append(share)
    for move, turn, weight in pairs:  # the newest accepted pair sets the scale
        square = np.einsum("bi,bi->b", turn, turn)
        size = np.where(weight > 0, np.einsum("bi,bi->b", move, turn) / np.where(square > 0, square, 1.0), size)
    direction *= size[:, None]
    for (move, turn, weight), share in zip(pairs, reversed(shares), strict=True):
        back = weight * np.einsum("bi,bi->b", turn, direction)
        direction += (share - back)[:, None] * move
    return direction
