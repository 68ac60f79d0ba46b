"""Three or more classes, one polynomial of degree p for all units: the pairwise margin problems with p + 2 unknowns.

Coordinate k of the lift is, for every class, the head's sum of phi_k, which is orthonormal over all pre-activations.
`fitting.pairwise` solves both problems, as for degree 2. Where the rows are too many to hold, some are used: evidence
among them holds for all, and a separation counts only if its model is lossless on all rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quad4fhe._arrays import Array, IntArray, row_chunks
from quad4fhe.fitting.degrees.rounding import Rounded
from quad4fhe.fitting.families import SHARED
from quad4fhe.fitting.families.basis import Basis
from quad4fhe.fitting.families.features import stratified_rows
from quad4fhe.fitting.pairwise import PairContradiction, PairSeparation, separate_pairs, soft_pairs
from quad4fhe.fitting.run import Candidate, Run
from quad4fhe.fitting.sweep import Risk, Worst, usable_scales, worst_rows
from quad4fhe.mlp import MLP
from quad4fhe.proof.evidence import Evidence, smallest_evidence
from quad4fhe.regime import Regime

if TYPE_CHECKING:
    from quad4fhe.fitting.families.learning import Learned

_HELD = 2**24  # numbers of the lift that are held for the hard problem
_SWEPT = 2**21  # for the soft problem, which sweeps them hundreds of times


class PairLift:
    """The lift P (n, K, p) of some rows with their targets, and the constants B and b of each class."""

    def __init__(self, P: Array, target: IntArray, rows: IntArray, B: Array, b: Array, start: Array) -> None:
        self.P, self.target, self.rows, self.B, self.b, self.start = P, target, rows, B, b, start
        self.samples, self.sweeps = int(target.size), 0

    @classmethod
    def of(cls, mlp: MLP, part: Learned, basis: Basis, held: int, seed: int) -> PairLift:
        """All rows, or as many as `held` numbers allow, every class in its share."""
        head, b = mlp.W2, mlp.b2
        if mlp.outputs == 1:
            head, b = np.vstack([np.zeros_like(head), head]), np.append(0.0, b)
        rows = np.arange(part.target.size)
        wanted = max(1, held // (len(head) * basis.degree))
        if rows.size > wanted:
            rows = np.sort(stratified_rows(part.target, wanted, seed))
        P = np.empty((rows.size, len(head), basis.degree))
        X = part.X[rows]
        for at, chunk in row_chunks("X_cal", X, 8 * (mlp.features + (basis.degree + 4) * mlp.units)):
            for k, phi in enumerate(basis.polynomials(chunk @ mlp.W1.T + mlp.b1)):
                P[at, :, k] = phi @ head.T
        start = np.zeros(basis.degree + 2)
        start[0], start[-1] = 0.5 * float(basis.spread[0]), 1.0  # about u / 2
        return cls(P, part.target[rows], rows, head.sum(axis=1), b, start)

    def scales(self) -> Array:
        """A typical size of each coordinate of the pairwise lift, 1 where it is constant."""
        sizes = np.zeros(self.P.shape[2])
        for _, part, target in self._chunks():
            at = np.arange(target.size)
            sizes += np.square(part - part[at, target][:, None]).sum(axis=(0, 1))
        return usable_scales(np.sqrt(sizes / (self.samples * (self.B.size - 1))), self.B, self.b)

    def worst(self, theta: Array) -> Worst:
        """The worst row of each class and the worst few of all."""
        self.sweeps += 1
        margin, rival = self._margins(theta)
        chosen = worst_rows(margin, self.target)
        lifts = self._pairs(chosen, rival[chosen])
        return Worst(theta, float(margin.min()), self.rows[chosen], rival[chosen], lifts)

    def risk(self, theta: Array) -> Risk:
        """The hinge risk."""
        self.sweeps += 1
        margin, rival = self._margins(theta)
        low = np.flatnonzero(margin < 1)
        gradient = -self._pairs(low, rival[low]).sum(axis=0)
        lowest = float(margin.min())
        return Risk(
            theta=theta,
            risk=float((1.0 - margin[low]).sum()),
            gradient=gradient,
            agreeing=int(np.count_nonzero(margin > 0)),
            slack_count=int(low.size),
            slack_max=max(0.0, 1.0 - lowest),
            margin=lowest,
        )

    def _pairs(self, rows: IntArray, rivals: IntArray) -> Array:
        own = self.target[rows]
        P = self.P[rows, own] - self.P[rows, rivals]
        return np.column_stack([P, self.B[own] - self.B[rivals], self.b[own] - self.b[rivals]])

    def _margins(self, theta: Array) -> tuple[Array, IntArray]:
        margin, rival = np.empty(self.samples), np.empty(self.samples, dtype=np.int64)
        fixed = theta[-2] * self.B + theta[-1] * self.b
        for rows, part, target in self._chunks():
            scores = part @ theta[:-2] + fixed
            at = np.arange(target.size)
            own = scores[at, target]
            scores[at, target] = -np.inf
            rival[rows] = np.argmax(scores, axis=1)
            margin[rows] = own - scores[at, rival[rows]]
        return margin, rival

    def _chunks(self) -> list[tuple[slice, Array, IntArray]]:
        step = max(1, 2**19 // self.P[0].size)
        parts = [slice(start, min(start + step, self.samples)) for start in range(0, self.samples, step)]
        return [(rows, self.P[rows], self.target[rows]) for rows in parts]


def hard(run: Run, part: Learned, basis: Basis, rounded: Rounded) -> Candidate | None:
    """A lossless candidate, or evidence that there is none."""
    with run.stage("hard"):
        lift = PairLift.of(run.mlp, part, basis, _HELD, run.seed)
        found = separate_pairs(lift)
        run.sweeps += lift.sweeps
        if isinstance(found, PairSeparation):
            made = _candidate(run, basis, Regime("hard"), found.theta, rounded)
            if run.accept_if_lossless(made):
                return made
        elif isinstance(found, PairContradiction) and len(part.X) == run.lift.samples and run.evidence is None:
            named = Evidence(
                geometry="pairs",
                samples=found.samples.tolist(),
                rivals=found.rivals.tolist(),
                scale=found.scale,
                degree=basis.degree,
            )
            run.evidence = smallest_evidence(run.mlp, run.shards.rows, named, basis.degree + 3)
    run.refuse_hard()
    return None


def soft(run: Run, part: Learned, basis: Basis, rounded: Rounded) -> Candidate:
    """The soft-margin fit of the C that keeps most, as for degree 2."""
    with run.stage("soft"):
        lift = PairLift.of(run.mlp, part, basis, _SWEPT, run.seed)
        softened = soft_pairs(lift, tolerance=1e-4, rounds=150, report=run.say)
        run.sweeps += lift.sweeps
        run.soft_trace = softened.trace
        made = _candidate(run, basis, Regime("soft", softened.C), softened.theta, rounded)
        made.step = next(step for step in softened.trace if step.weight == softened.C)
    return made


def _candidate(run: Run, basis: Basis, regime: Regime, theta: Array, rounded: Rounded) -> Candidate:
    own = np.repeat((theta[:-2] / theta[-1])[:, None], run.mlp.units, axis=1)
    constant = run.mlp.b2 + theta[-2] / theta[-1] * run.mlp.head_sums
    model = rounded(basis, own, constant, lossless=regime.is_hard)
    return Candidate(run.mlp, SHARED, regime, None, None, None, free=model)
