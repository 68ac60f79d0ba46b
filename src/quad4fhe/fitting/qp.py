"""A small dense convex QP: a handful of variables, a few hundred inequalities, to full accuracy.

Decides nothing about the fit: the cutting planes call it on their master problem and bound its answer themselves, by
weak duality, so an inaccurate solve can cost a round but never a claim.
"""

from __future__ import annotations

import numpy as np

from quad4fhe._arrays import Array

_ROUNDS = 80
_PATIENCE = 8  # rounds without a better residual: rounding has set the limit
_STEP = 0.995  # share of the way to the boundary that one step may go


def solve(P: Array, q: Array, A: Array, h: Array, x: Array, accuracy: float = 1e-14) -> tuple[Array, Array]:
    """Minimise sum(P * x * x) / 2 + q.x subject to A x >= h, from any x, by Mehrotra's predictor-corrector.

    P (k,) >= 0 is the diagonal of the quadratic form, A is (rows, k). Returns x (k,) and the multipliers y (rows,),
    once the relative residuals are below `accuracy` or rounding sets the limit.
    The variables and rows should be scaled to order one by the caller.
    """
    rows = A.shape[0]
    s = np.maximum(A @ x - h, 1.0)
    y = np.ones(rows)
    ridge = 1e-14 * (1.0 + P.max(initial=0.0))
    best, best_residual, stale = (x, y), np.inf, 0
    for _ in range(_ROUNDS):
        dual, primal = P * x + q - A.T @ y, A @ x - s - h
        mu = float(s @ y) / rows
        size = 1.0 + abs(float(q @ x)) + float(np.abs(h).max())
        residual = max(mu * rows, float(np.abs(primal).max()), float(np.abs(dual).max())) / size
        if not np.isfinite(residual):
            break
        if residual < best_residual:
            best, best_residual, stale = (x, y), residual, 0
        else:
            stale += 1
        if residual < accuracy or stale > _PATIENCE:
            break
        try:
            change = _step(P + ridge, A, s, y, dual, primal, mu)
        except np.linalg.LinAlgError:
            break  # the barrier has outgrown double precision; what is best so far stands
        dx, ds, dy = change
        length = _STEP * min(_longest(s, ds), _longest(y, dy))
        if length < 1e-12:
            break
        x, s, y = x + length * dx, s + length * ds, y + length * dy
    return best


def _step(P: Array, A: Array, s: Array, y: Array, dual: Array, primal: Array, mu: float) -> tuple[Array, Array, Array]:
    """Predictor, then corrector with the centring that the predictor's progress calls for."""
    matrix = (A.T * (y / s)) @ A + np.diag(P)

    def newton(center: Array) -> tuple[Array, Array, Array]:
        dx = np.linalg.solve(matrix, A.T @ ((center - y * primal) / s) - dual).astype(np.float64)
        ds = A @ dx + primal
        return dx, ds, (center - y * ds) / s

    _, ds, dy = newton(-s * y)
    length = min(_longest(s, ds), _longest(y, dy))
    ahead = float((s + length * ds) @ (y + length * dy)) / s.size
    return newton(-s * y + (ahead / mu) ** 3 * mu - ds * dy)


def _longest(value: Array, change: Array) -> float:
    """The longest step in (0, 1/_STEP] that keeps value + step * change nonnegative."""
    falling = change < 0
    return min(1.0 / _STEP, float((-value[falling] / change[falling]).min(initial=np.inf)))
