"""A promise without a hold-out: the few calibration rows that determine a hard fit.

Finds, in rationals and without the solvers, the rows that determine the widest separation (Theorem 2 for two classes,
MC-H for pairs), and checks that a fit is that separation up to rounding. `docs/guarantees.md` has the proof: a new
row whose decision is lost would have changed these rows, and Campi and Garatti bound how likely that is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from quad4fhe._arrays import Array, IntArray
from quad4fhe.io.rows import Rows
from quad4fhe.mlp import MLP
from quad4fhe.polynomial import QuadraticModel
from quad4fhe.proof.evidence import Evidence, eliminated, evidence_rows
from quad4fhe.proof.exact import WholeNumbers, bounded_logits, decisions

Geometry = Literal["plane", "pairs"]
EPSILON = Fraction(1, 10**9)
"""How far a fit may be from the exact optimum, relative to its statistics; fixed before any data is seen."""
_MOST = 12  # rows that may lie at the smallest margin; more of them promise little
_NEAR = 1e-5  # relative to the smallest margin
_ROWS = 2048
_SAME_SUM = Fraction(1, 10**9)
_ZERO, _ONE = Fraction(0), Fraction(1)


@dataclass(frozen=True)
class Optimum:
    """The widest separation: theta with margin 1, (alpha, beta, offset) in the plane, else (alpha, beta, eta, lambda).

    `level` bounds what a constant may be off by, for an error of one in EPSILON.
    """

    geometry: Geometry
    theta: list[Fraction]
    level: Fraction

    @property
    def norm(self) -> Fraction:
        """The larger of |alpha| and |beta|."""
        return max(abs(self.theta[0]), abs(self.theta[1]))


def find_support(mlp: MLP, model: QuadraticModel, rows: Rows, margins: Array, threshold: str) -> list[int] | None:
    """The rows that determine `model` as the widest separation of all of them; None if it can't be shown."""
    smallest = float(margins.min(initial=np.inf))
    near = np.flatnonzero(margins <= smallest * (1 + _NEAR))
    if not (0 < smallest < np.inf and 0 < near.size <= _MOST):
        return None
    candidates: list[int] = near.tolist()
    found = _optimum(mlp, rows, candidates, _geometry(mlp, threshold))
    if found is None:
        return None
    named = [i for i in candidates if _margin(mlp, found, rows.row(i)) == 1]
    return named if determines(mlp, model, rows, named, threshold) else None


def determines(mlp: MLP, model: QuadraticModel, rows: Rows, support: Sequence[int], threshold: str) -> bool:
    """Whether exactly these rows lie at the margin of the widest separation of all rows, which `model` is.

    Every row must be kept by all coefficients that are as close to the exact optimum as `model` may be.
    """
    listed = list(support)
    if (
        not 0 < len(listed) <= _MOST
        or sorted(set(listed)) != listed
        or not 0 <= listed[0] <= listed[-1] < rows.shape[0]
    ):
        return False
    found = _optimum(mlp, rows, listed, _geometry(mlp, threshold))
    return found is not None and _is_near(mlp, model, found) and _at_margin(mlp, found, rows) == listed


def _geometry(mlp: MLP, threshold: str) -> Geometry:
    if mlp.classes > 2:
        return "pairs"
    B, _ = WholeNumbers(mlp).offsets()
    fixed = abs(B[1] - B[0]) <= _SAME_SUM * max(abs(B[0]), abs(B[1]))  # eta can't move the threshold
    return "pairs" if threshold == "zero" and fixed else "plane"


def _optimum(mlp: MLP, rows: Rows, support: list[int], geometry: Geometry) -> Optimum | None:
    """The widest separation of a few rows alone, by the conditions of Karush, Kuhn and Tucker on each set of edges."""
    constraints = _constraints(mlp, rows, support, geometry)
    weights = [_ONE, _ONE, _ZERO] if geometry == "plane" else [_ONE] * 4
    if geometry == "pairs":
        constraints.append([_ZERO, _ZERO, _ZERO, _ONE])
    for size in range(1, len(weights) + 1):
        for active in itertools.combinations(constraints, size):
            theta = _stationary(active, weights)
            if theta is not None and all(_dot(theta, row) >= 1 for row in constraints):
                found = Optimum(geometry, theta, _ZERO)
                level = found.norm * max(_size(mlp, rows.row(i)) for i in support)
                return Optimum(geometry, theta, level) if found.norm else None
    return None


def _constraints(mlp: MLP, rows: Rows, support: list[int], geometry: Geometry) -> list[list[Fraction]]:
    """The rows z with theta.z >= 1 of these samples, against every rival."""
    at = {i: int(decisions(mlp, rows.row(i)[None]).label[0]) for i in support}
    if geometry == "plane":
        return evidence_rows(mlp, rows, at, Evidence(geometry="plane", samples=support))
    pairs = [(i, c) for i in support for c in range(mlp.classes) if c != at[i]]
    named = Evidence(geometry="pairs", samples=[i for i, _ in pairs], rivals=[c for _, c in pairs])
    return evidence_rows(mlp, rows, at, named)


def _stationary(active: Sequence[list[Fraction]], weights: list[Fraction]) -> list[Fraction] | None:
    """The only theta with active.theta = 1 and weights * theta = active^T y, if there is one and y is positive."""
    n, k = len(weights), len(active)
    system = [
        [weights[j] if i == j else _ZERO for j in range(n)] + [-row[i] for row in active] + [_ZERO] for i in range(n)
    ]
    system += [list(row) + [_ZERO] * k + [_ONE] for row in active]
    if len(eliminated(system, n + k)) < n + k:
        return None
    solved = [row[-1] for row in system]
    return solved[:n] if min(solved[n:]) > 0 else None


def _is_near(mlp: MLP, model: QuadraticModel, found: Optimum) -> bool:
    """Whether each number of `model` is within EPSILON of the optimum's, for one scale of the logits."""
    alpha, beta = found.theta[:2]
    c, u = np.unravel_index(int(np.argmax(np.abs(mlp.W2))), mlp.W2.shape)
    main, own = (alpha, model.S) if abs(alpha) >= abs(beta) else (beta, model.T)
    t = Fraction(float(own[c, u])) / (main * Fraction(float(mlp.W2[c, u])))
    if t <= 0:
        return False
    room = EPSILON * t * found.norm
    for W, S, T in zip(mlp.W2.flat, model.S.flat, model.T.flat, strict=True):
        weight, most = Fraction(float(W)), room * abs(Fraction(float(W)))
        for coefficient, value in ((alpha, S), (beta, T)):
            if abs(Fraction(float(value)) - t * coefficient * weight) > most:
                return False
    exact, own_c = _constants(mlp, found), [Fraction(float(value)) for value in model.c]
    own_c = [_ZERO, *own_c] if model.outputs == 1 else own_c
    if found.geometry == "plane":
        own_c = [_ZERO, own_c[1] - own_c[0]]
    return all(abs(c - t * e) <= EPSILON * t * found.level for c, e in zip(own_c, exact, strict=True))


def _constants(mlp: MLP, found: Optimum) -> list[Fraction]:
    """The constant of each class; in the plane only their difference is fixed."""
    if found.geometry == "plane":
        return [_ZERO, found.theta[2]]
    B, b = WholeNumbers(mlp).offsets()
    return [found.theta[2] * B_c + found.theta[3] * b_c for B_c, b_c in zip(B, b, strict=True)]


def _at_margin(mlp: MLP, found: Optimum, rows: Rows) -> list[int] | None:
    """The rows exactly at the margin; None if one lies inside it, or if coefficients near the optimum may lose it."""
    at: list[int] = []
    for i, allowed in _doubtful(mlp, found, rows):
        margin = _margin(mlp, found, rows.row(i))
        if margin < 1 or allowed > 1:
            return None
        at += [i] if margin == 1 else []
    return at


def _doubtful(mlp: MLP, found: Optimum, rows: Rows) -> Iterator[tuple[int, float]]:
    """The rows that floats can't place outside the margin, and how much coefficients near the optimum may lose."""
    alpha, beta = float(found.theta[0]), float(found.theta[1])
    constants = np.array([float(value) for value in _constants(mlp, found)])
    exact = QuadraticModel(mlp.W1, mlp.b1, alpha * mlp.W2, beta * mlp.W2, constants[-mlp.outputs :])
    norm, level = float(found.norm) * 1.001, float(found.level) * 1.001
    for start in range(0, rows.shape[0], _ROWS):
        X = np.asarray(rows.part(start, min(start + _ROWS, rows.shape[0])), dtype=np.float64)
        target: IntArray = decisions(mlp, X).label
        logits, error = bounded_logits(exact, X)
        size = _sizes(mlp, X)
        if mlp.outputs == 1:
            logits, error, size = (np.hstack([np.zeros_like(part), part]) for part in (logits, error, size))
        each = np.arange(len(X))
        # Twice the error: the numbers of `exact` are those of the optimum up to two roundings.
        gap = logits[each, target][:, None] - logits - 2 * (error[each, target][:, None] + error)
        allowed = float(EPSILON) * 1.001 * (norm * (size[each, target][:, None] + size) + 2 * level)
        fine = (gap > 1) & (gap >= allowed)
        fine[each, target] = True
        for i in np.flatnonzero(~fine.all(axis=1)):
            yield start + int(i), float(allowed[i].max())


def _margin(mlp: MLP, found: Optimum, x: Array) -> Fraction:
    """The exact margin of one row: its decided class against the nearest rival."""
    whole = WholeNumbers(mlp)
    Q, L = whole.lift(x)
    logits = [
        found.theta[0] * q + found.theta[1] * linear + constant
        for q, linear, constant in zip(Q, L, _constants(mlp, found), strict=True)
    ]
    t = int(decisions(mlp, x[None]).label[0])
    return logits[t] - max(value for c, value in enumerate(logits) if c != t)


def _sizes(mlp: MLP, X: Array) -> Array:
    """Upper bounds (n, outputs) of sum_u |W2| (y^2 + |y|)."""
    y = np.abs(X @ mlp.W1.T + mlp.b1) + 2.0**-40 * (np.abs(X) @ np.abs(mlp.W1).T + np.abs(mlp.b1))
    out: Array = 1.001 * ((y * y + y) @ np.abs(mlp.W2).T)
    return out


def _size(mlp: MLP, x: Array) -> Fraction:
    """The largest of sum_u |W2| (y^2 + |y|) over the outputs, exactly."""
    y = WholeNumbers(mlp).hidden(x).fractions()
    terms = [value * value + abs(value) for value in y]
    return max(
        sum((abs(Fraction(float(w))) * term for w, term in zip(row, terms, strict=True)), _ZERO) for row in mlp.W2
    )


def _dot(theta: Sequence[Fraction], row: Sequence[Fraction]) -> Fraction:
    return sum((a * b for a, b in zip(theta, row, strict=True)), _ZERO)
