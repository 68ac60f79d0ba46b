"""How large the circuit's output can get over the input box, and how steep it can be there.

Decides the bound that keeps encrypted values from wrapping around. Overflow is silent, so each number here is an upper
bound for every point of the box, not an estimate from samples. What is done with the bound is left to `plan`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.circuit.fold import Circuit, checked_box
from quad4fhe.errors import InputError

# An eigendecomposition per class is worth it while it takes about a second in all; beyond, the Frobenius norm bounds
# the spectral norm at the price of one m x m product per class.
_EIGEN_WORK = 4e9
ROUNDS = 12  # of tightening the ellipsoid; one gives the ball
_SLACK = 1e-9  # covers the rounding of the bound's own arithmetic where nothing cancels, many times over
_UNIT = 2.0**-53


@dataclass(frozen=True)
class Bound:
    """Upper bounds over the box: of |logit|, of the slope of a logit, and of |y| per unit."""

    logit: float
    method: str
    interval: float
    ellipsoid: float
    slope: float
    hidden: Array


def bound(circuit: Circuit, box: Array, rounds: int = ROUNDS) -> Bound:
    """Bound |logits| over the box by interval arithmetic per unit and by an enclosing ellipsoid; take the smaller.

    The slope is a bound of the Euclidean norm of d logit / d x over the box, for the largest class.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        found = _bound(circuit, checked_box(box, circuit.features), rounds)
    if not np.isfinite([found.logit, found.slope]).all():
        raise InputError("the logits overflow float64 over the box; standardise the features or narrow the box")
    return found


def _bound(circuit: Circuit, corners: Array, rounds: int) -> Bound:
    middle = (corners[0] + corners[1]) / 2 - circuit.shift
    radius = (corners[1] - corners[0]) / 2
    y_middle = circuit.W @ middle + circuit.t
    y_radius = np.abs(circuit.W) @ radius
    interval = _interval(circuit, middle, radius, y_middle, y_radius)
    ellipsoid, slope = _ellipsoid(circuit, middle, radius, y_middle, rounds)
    hidden = np.abs(circuit.W) @ (np.abs(middle) + radius) + np.abs(circuit.t)
    terms = np.abs(circuit.V) @ (hidden * hidden) + np.abs(circuit.c)
    steep = 2.0 * (np.abs(circuit.V) * hidden) @ np.abs(circuit.W)
    if circuit.U is not None:
        terms = terms + np.abs(circuit.U) @ (np.abs(middle) + radius)
        steep = steep + np.abs(circuit.U)
    # Sums that cancel lose units of their terms, which are far larger than the sums where features lie far from zero
    # or a square was completed with a tiny alpha.
    lost = 8 * (circuit.features + circuit.units + 8) * _UNIT
    best = np.minimum(interval, ellipsoid) + lost * terms
    slope += lost * float(np.linalg.norm(steep, axis=1).max())
    # Each class may take its own bound; the name says which of the two the largest class used.
    widest = int(np.argmax(best))
    return Bound(
        logit=float(best[widest]) * (1 + _SLACK),
        method="interval" if interval[widest] <= ellipsoid[widest] else "ellipsoid",
        interval=float(interval.max()),
        ellipsoid=float(ellipsoid.max()),
        slope=slope * (1 + _SLACK),
        hidden=(np.abs(y_middle) + y_radius) * (1 + _SLACK) + lost * hidden,
    )


def _interval(circuit: Circuit, middle: Array, radius: Array, y_middle: Array, y_radius: Array) -> Array:
    """Per class: the sum over units of the range of V_j y_j^2, plus the range of the skip. Shape (K,)."""
    low, high = y_middle - y_radius, y_middle + y_radius
    largest = np.maximum(low * low, high * high)
    smallest = np.where((low <= 0) & (high >= 0), 0.0, np.minimum(low * low, high * high))
    positive, negative = np.maximum(circuit.V, 0.0), np.minimum(circuit.V, 0.0)
    top = positive @ largest + negative @ smallest + circuit.c
    bottom = positive @ smallest + negative @ largest + circuit.c
    if circuit.U is not None:
        centre, spread = circuit.U @ middle, np.abs(circuit.U) @ radius
        top, bottom = top + centre + spread, bottom + centre - spread
    out: Array = np.maximum(np.abs(top), np.abs(bottom))
    return out


def _ellipsoid(circuit: Circuit, middle: Array, radius: Array, y_middle: Array, rounds: int) -> tuple[Array, float]:
    """Per class: |F(middle)| + |gradient| + the quadratic form over an ellipsoid around the box; and the slope bound.

    With x = middle + radius * z the box is |z_i| <= 1, and for any positive weights p with sum 1 it lies inside the
    ellipsoid sum_i p_i z_i^2 <= 1, where a quadratic form z' A z stays below the largest eigenvalue of
    P^-1/2 A P^-1/2. Equal weights give the ball; moving weight to the coordinates of the leading eigenvector
    tightens it (the dual of the max-cut relaxation).
    """
    W = circuit.W * radius
    gradient = 2.0 * (circuit.V * y_middle) @ W
    value = circuit.V @ (y_middle * y_middle) + circuit.c
    if circuit.U is not None:
        gradient += circuit.U * radius
        value = value + circuit.U @ middle
    width = circuit.features
    work = float(min(width, circuit.units)) ** 3 * circuit.outputs * 10
    if work > _EIGEN_WORK:
        gram = W @ W.T
        curve = np.array(
            [width * np.sqrt(max(0.0, float(((v[:, None] * gram) * (gram * v)).sum()))) for v in circuit.V]
        )
    else:
        curve = np.array([_form(W, v, rounds) for v in circuit.V])
    # The slope per unit of x, not of z: its own spectral norm, by the Frobenius bound (cheap, and never too small).
    gram = circuit.W @ circuit.W.T
    bend = np.array([2.0 * np.sqrt(max(0.0, float(((v[:, None] * gram) * (gram * v)).sum()))) for v in circuit.V])
    still = 2.0 * (circuit.V * y_middle) @ circuit.W
    if circuit.U is not None:
        still = still + circuit.U
    slope = np.linalg.norm(still, axis=1) + bend * float(np.linalg.norm(radius))
    return np.abs(value) + np.abs(gradient).sum(axis=1) + curve, float(slope.max())


def _form(W: Array, v: Array, rounds: int) -> float:
    """An upper bound of max |z' A z| over the unit cube for A = W' diag(v) W."""
    d = W.shape[1]
    if d > W.shape[0]:
        # Nonzero eigenvalues only: A = W' diag(v) W has those of the m x m matrix R diag(v) R' with R R' ~ W W'.
        _, triangle = np.linalg.qr(W.T)
        spectrum = np.linalg.eigvalsh((triangle * v) @ triangle.T)
        return float(d * np.abs(spectrum).max())
    A = (W.T * v) @ W
    best = float(np.abs(A).sum())
    p = np.full(d, 1.0 / d)
    for _ in range(rounds):
        root = 1.0 / np.sqrt(p)
        if not np.isfinite(A).all():
            return np.inf
        spectrum, vectors = np.linalg.eigh(A * root * root[:, None])
        worst = int(np.argmax(np.abs(spectrum)))
        best = min(best, float(np.abs(spectrum[worst])))
        p = np.maximum(0.7 * p + 0.3 * vectors[:, worst] ** 2, 1e-6 / d)
        p /= p.sum()
    return best
