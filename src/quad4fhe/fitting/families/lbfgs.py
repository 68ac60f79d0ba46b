"""L-BFGS for a stack of smooth convex problems, with one shared evaluation per round.

Folds of a cross-validation differ only in the weights of their rows, so one matrix product evaluates them all. A solver
for one problem at a time can't share it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quad4fhe._arrays import Array

_MEMORY = 12
_ENOUGH = 1e-4  # Armijo's share of the expected decrease
_SHRINK = 0.3
_STUCK = 6  # rejected steps in a row after which only rounding is left
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
