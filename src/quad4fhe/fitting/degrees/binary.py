"""Two classes, one polynomial of degree p for all units: hulls and reduced hulls of the lift in R^p.

Coordinate k of the lift is the sum over units of the head's weight times phi_k, which is orthonormal over all
pre-activations. Coordinates are whitened before distances are taken. `fitting.binary` does the same for degree 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quad4fhe._arrays import Array, row_chunks
from quad4fhe.fitting.degrees.hulls import Apart, Hull, Meet, closest
from quad4fhe.fitting.degrees.rounding import Rounded
from quad4fhe.fitting.families import SHARED
from quad4fhe.fitting.families.basis import Basis
from quad4fhe.fitting.reduced_hulls import CAPS, ReducedSeparation
from quad4fhe.fitting.run import Candidate, Run
from quad4fhe.mlp import MLP
from quad4fhe.proof.evidence import Evidence, smallest_evidence
from quad4fhe.regime import Regime

if TYPE_CHECKING:
    from quad4fhe.fitting.families.learning import Learned

_SMALL = 1e-9  # a weight this small is rounding


def separated(run: Run, part: Learned, basis: Basis, rounded: Rounded) -> Candidate | None:
    """A lossless candidate if the hulls are disjoint, else one for the largest cap that separates, else None."""
    B, b = _difference(run.mlp, run.mlp.head_sums), _difference(run.mlp, run.mlp.b2)
    if B == 0:
        return None
    lift = _lift(run.mlp, part, basis)
    mean = lift.mean(axis=0)
    factor = np.linalg.cholesky(np.atleast_2d(np.cov(lift.T)) + 1e-12 * np.eye(lift.shape[1]) * lift.var())
    points = np.linalg.solve(factor, (lift - mean).T).T
    first, second = points[part.target == 1], points[part.target == 0]

    def candidate(regime: Regime, found: Apart) -> Candidate:
        direction = np.linalg.solve(factor.T, found.direction)
        # Scores as far apart as the ReLU model's: decisions fix no scale.
        size = float(np.std(run.mlp.logits(part.X))) / max(float(np.std(lift @ direction)), 1e-300)
        middle = (found.low + found.high) / 2 + float(direction @ mean)
        eta = (-size * middle - b) / B
        own = np.broadcast_to((size * direction)[:, None], (basis.degree, run.mlp.units))
        model = rounded(basis, own, run.mlp.b2 + eta * run.mlp.head_sums, lossless=regime.is_hard)
        return Candidate(run.mlp, SHARED, regime, None, None, None, free=model)

    with run.stage("hard"):
        found = closest(Hull(first), Hull(second))
        if isinstance(found, Apart):
            made = candidate(Regime("hard"), found)
            if run.accept_if_lossless(made):
                return made
        if isinstance(found, Meet) and run.evidence is None:
            run.evidence = _evidence(run, points, part, found, basis.degree)
    run.refuse_hard()
    with run.stage("rch"):
        for cap in CAPS:
            capped = closest(Hull(first, cap), Hull(second, cap))
            distance = capped.distance if isinstance(capped, Apart) else 0.0
            run.cap_trace.append((cap, distance))
            if isinstance(capped, Apart):
                made = candidate(Regime("rch", cap), capped)
                unit = capped.direction / distance
                made.cap = ReducedSeparation(
                    mu=cap,
                    mu_plus=max(cap, 1 / len(first)),
                    mu_minus=max(cap, 1 / len(second)),
                    theta=unit,
                    u=capped.high * unit / distance,
                    v=capped.low * unit / distance,
                    low=capped.low / distance,
                    high=capped.high / distance,
                    margin=distance,
                )
                return made
    return None


def is_fixed(mlp: MLP) -> bool:
    """Whether no constant of the polynomial moves the threshold, so that hulls decide nothing."""
    return _difference(mlp, mlp.head_sums) == 0


def _difference(mlp: MLP, values: Array) -> float:
    return float(values[0] if mlp.outputs == 1 else values[1] - values[0])


def _lift(mlp: MLP, part: Learned, basis: Basis) -> Array:
    """The lift (n, p) of the rows."""
    head = mlp.W2[0] if mlp.outputs == 1 else mlp.W2[1] - mlp.W2[0]
    out = np.empty((len(part.X), basis.degree))
    for rows, chunk in row_chunks("X_cal", part.X, 8 * (mlp.features + (basis.degree + 4) * mlp.units)):
        for k, phi in enumerate(basis.polynomials(chunk @ mlp.W1.T + mlp.b1)):
            out[rows, k] = phi @ head
    return out


def _evidence(run: Run, points: Array, part: Learned, found: Meet, degree: int) -> Evidence | None:
    """Rows of the meeting point whose exact combination leaves no room, at most p + 2; None if rounding hides them."""
    from scipy.optimize import nnls  # here: its import takes as long as a command that needs none of it

    if len(part.X) != run.lift.samples:
        return None  # a sample of the rows has other numbers
    positive, negative = np.flatnonzero(part.target == 1)[found.first], np.flatnonzero(part.target == 0)[found.second]
    rows = np.concatenate([positive, negative])
    sign = np.concatenate([np.ones(positive.size), -np.ones(negative.size)])
    system = np.vstack([(sign[:, None] * points[rows]).T, sign, np.ones(rows.size)])
    weights, _ = nnls(system, np.append(np.zeros(degree + 1), 1.0))
    samples = sorted(int(row) for row in rows[weights > _SMALL])
    named = Evidence(geometry="plane", samples=samples, degree=degree)
    few = 0 < len(samples) <= degree + 2
    return smallest_evidence(run.mlp, run.shards.rows, named, len(samples)) if few else None
