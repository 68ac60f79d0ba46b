"""One polynomial for all units, by the decisions alone: hard, reduced hulls (rch), soft, and the polish.

Two classes are two sets of points in R^p, and a direction becomes coefficients by placing the threshold in the middle
of the gap: by eta if zero must stay the threshold (Eq. eta-fixed), by tau if it is free. More classes, or two that no
constant can move, are pairwise margins; there homogeneous coefficients are divided by the last, lambda. `Problem` says
which attempts there are, in which order, at any degree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.errors import FitError, InputError
from quad4fhe.fitting import notes
from quad4fhe.fitting.design import Design
from quad4fhe.fitting.diagnostics import SoftStep, best_step
from quad4fhe.fitting.hulls import Apart, Meet, closest, farthest
from quad4fhe.fitting.pairs import (
    OutOfRounds,
    PairContradiction,
    PairSeparation,
    separate_pairs,
    soft_pairs,
)
from quad4fhe.fitting.polish import polish
from quad4fhe.fitting.run import Candidate, Caps, Run
from quad4fhe.fitting.sweeps import Sweeper, largest_row
from quad4fhe.proof.evidence import Evidence, smallest_evidence
from quad4fhe.regime import Regime

CAPS = (0.80, 0.60, 0.40, 0.30, 0.20, 0.15, 0.10, 0.08, 0.05, 0.03, 0.02, 0.01)
"""The paper's grid of base caps mu; each class uses max(mu, 1/n)."""

_HALVINGS = 30  # of the interval that holds the critical cap
_SMALL = 1e-9  # a weight this small is rounding
_GAP, _ROUNDS = 1e-6, 400
_HIGHER_GAP, _HIGHER_ROUNDS = 1e-4, 150  # above degree 2, where the result is rounded and compared with other fits
_SWEPT = 2**21  # coordinates of rows that a soft problem above degree 2 sweeps hundreds of times

Make = Callable[[Regime, Array, float, float], Candidate]
"""The candidate of a regime, coefficients (p,), eta and tau."""
Attempt = Callable[[], Candidate | None]


@dataclass(frozen=True, eq=False)
class Problem:
    """The shared polynomial of one degree: its coordinates, and how coefficients become a candidate."""

    run: Run
    design: Design
    make: Make

    def solve(self, regime: str) -> Candidate:
        """The first attempt that succeeds, or the only one that was asked for."""
        candidate = self.first(regime)
        if candidate is None:
            advice = (
                "use regime='auto'" if regime != "auto" else "one shared quadratic does not suit this model and data"
            )
            raise FitError(f"{self.run.refusal}; {advice}")
        return candidate

    def first(self, regime: str = "auto") -> Candidate | None:
        """The same; None if no attempt succeeds."""
        attempts = self.attempts
        if regime != "auto" and regime not in attempts:
            why = (
                f"this model has {self.design.classes}" if self.design.classes > 2 else "here B = 0 fixes the threshold"
            )
            raise InputError(
                f"regime={regime!r} needs two classes and a threshold that can move, and {why}; use 'auto'"
            )
        for name, attempt in attempts.items():
            if regime in ("auto", name) and (candidate := attempt()) is not None:
                return self._relaxed(candidate) if regime == "auto" and candidate.regime.is_reduced else candidate
        return None

    @cached_property
    def attempts(self) -> dict[str, Attempt]:
        """What can be tried, in this order."""
        run = self.run
        if self.design.classes == 2 and (run.threshold == "free" or self.design.shift != 0):
            hulls = Hulls(self)
            return {"hard": hulls.hard, "rch": hulls.rch, "soft": hulls.soft}
        if self.design.classes == 2 and self.design.basis is None:
            run.notes.append(notes.NO_SHIFT)
        pairs = Pairs(self)
        return {"hard": pairs.hard, "soft": pairs.soft}

    def polished(self, start: Candidate, starts: list[Array]) -> Candidate:
        """The candidate, or one near the `starts` (p + 1,) that keeps more decisions, where a polish is wanted.

        Above degree 2 a fit to the logits takes its place.
        """
        run = self.run
        if not run.polish or self.design.basis is not None:
            return start
        with run.stage("polish"):
            better = polish(self.design.shifted(start.tau), starts, run.seed, run.say)
        if self.design.samples - better.agreeing >= run.lost(start):
            run.notes.append(notes.NO_POLISH)
            return start
        regime = Regime("soft", start.regime.parameter, polished=True)
        candidate = self.make(regime, better.coefficients[:-1], float(better.coefficients[-1]), start.tau)
        candidate.margin = run.tally(candidate).margin
        candidate.step = start.step
        return candidate

    def _relaxed(self, candidate: Candidate) -> Candidate:
        """A fit by reduced hulls, or the polished soft fit if that keeps more decisions and a polish is wanted."""
        run = self.run
        if not run.polish or self.design.basis is not None:
            return candidate
        noted = len(run.notes)
        softened = self.attempts["soft"]()
        if softened is not None and run.lost(softened) < run.lost(candidate):
            return softened
        del run.notes[noted:]
        run.soft_trace = []
        return candidate

    def contradict(
        self, geometry: Literal["plane", "pairs"], samples: list[int], rivals: Sequence[int] = (), scale: bool = False
    ) -> None:
        """Record the fewest of these rows that contradict each other exactly, if there are any."""
        run, p = self.run, self.design.degree
        if run.evidence is not None or not samples:
            return
        degree = msgspec.UNSET if p == 2 else p
        named = Evidence(geometry=geometry, samples=samples, rivals=list(rivals), scale=scale, degree=degree)
        run.evidence = smallest_evidence(run.mlp, run.shards.rows, named, p + (2 if geometry == "plane" else 3))


class Pairs:
    """The attempts by pairwise margins."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.run, self.design = problem, problem.run, problem.design

    def hard(self) -> Candidate | None:
        """MC-H: coefficients with positive margins for every pair, else Farkas evidence that there are none."""
        run, sweeper = self.run, Sweeper(self.design)
        with run.stage("hard"):
            answer = separate_pairs(sweeper)
            run.sweeps += sweeper.sweeps
            if isinstance(answer, PairSeparation):
                solution = self._candidate(Regime("hard"), answer.theta, 1.0)
                solution.tolerance = solution.normalised_margin / largest_row(self.design)
                if answer.gap > _GAP:
                    run.notes.append(notes.NOT_WIDEST.format(answer.gap))
                if run.accept_if_lossless(solution):
                    return solution
            elif isinstance(answer, PairContradiction):
                self.problem.contradict("pairs", answer.samples.tolist(), answer.rivals.tolist(), answer.scale)
            elif isinstance(answer, OutOfRounds):
                run.notes.append(notes.STILL_OPEN.format(answer.rounds))
        run.refuse_hard()
        return None

    def soft(self) -> Candidate:
        """MC-S over the grid of C, then the polish."""
        run, design = self.run, self.design
        tolerance, rounds = (_GAP, _ROUNDS) if design.basis is None else (_HIGHER_GAP, _HIGHER_ROUNDS)
        size = design.samples * design.classes * design.degree
        if design.basis is not None and size > _SWEPT:
            design = design.sampled(_SWEPT / size, run.seed)
        sweeper = Sweeper(design)
        with run.stage("soft"):
            softened = soft_pairs(sweeper, tolerance=tolerance, rounds=rounds, report=run.say)
        run.sweeps += sweeper.sweeps
        run.soft_trace = softened.trace
        if sweeper.is_extreme:
            run.notes.append(notes.EXTREME_SCALE)
        step = next(step for step in softened.trace if step.weight == softened.C)
        solution = self._candidate(Regime("soft", softened.C), softened.theta, step.margin)
        solution.normalised_margin, solution.step = step.margin / step.norm, step
        if step.gap > tolerance:
            run.notes.append(notes.SOFT_STOPPED.format(step.gap))
        thetas = (softened.theta, *softened.thetas)
        return self._normalised(self.problem.polished(solution, [theta[:-1] / theta[-1] for theta in thetas]), solution)

    def _candidate(self, regime: Regime, theta: Array, margin: float) -> Candidate:
        coefficients = theta[:-1] / theta[-1]
        candidate = self.problem.make(regime, coefficients[:-1], float(coefficients[-1]), 0.0)
        candidate.margin, candidate.normalised_margin = margin, margin / float(np.linalg.norm(theta))
        return candidate

    def _normalised(self, candidate: Candidate, plain: Candidate) -> Candidate:
        if candidate is not plain and candidate.theta is not None:
            candidate.normalised_margin = candidate.margin / float(np.linalg.norm(candidate.theta))
        return candidate


class _Levels(NamedTuple):
    """A soft direction (p,), and the heights that the positive class reaches and the negative stays below."""

    theta: Array
    low: float
    high: float


class Hulls:
    """The attempts by hulls of two classes.

    At degree 2 distances are those of the paper's plane (Q, H). Above, coordinates are whitened first: a distance in
    orthonormal polynomials has no meaning of its own.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self.run, self.design = problem, problem.run, problem.design

    @cached_property
    def _sides(self) -> tuple[Array, Array, Array]:
        """The points of both classes, and the matrix (p, p) that takes directions back to coefficients."""
        points, positive = self.design.points
        back = np.eye(points.shape[1])
        if self.design.basis is not None:
            spread = np.atleast_2d(np.cov(points.T)) + 1e-12 * np.eye(len(back)) * points.var()
            back = np.linalg.inv(np.linalg.cholesky(spread)).T
            points = points @ back
        return points[positive], points[~positive], back

    def _apart(self, cap: float) -> Apart | Meet:
        return closest(*self._sides[:2], cap)

    def hard(self) -> Candidate | None:
        """Theorem 1: the widest separation of the hulls if they are disjoint, else evidence that they meet."""
        run = self.run
        with run.stage("hard"):
            hulls = self._apart(1.0)
            if isinstance(hulls, Apart):
                solution = self._separated(Regime("hard"), hulls)
                solution.tolerance = hulls.distance / farthest(*self._sides[:2])
                if run.accept_if_lossless(solution):
                    return solution
            else:
                self._contradict(hulls)
        run.refuse_hard()
        return None

    def rch(self) -> Candidate | None:
        """The largest cap of the paper's grid whose reduced hulls are disjoint."""
        run = self.run
        with run.stage("rch"):
            meets = 1.0
            for cap in CAPS:
                hulls = self._apart(cap)
                run.cap_trace.append((cap, hulls.distance if isinstance(hulls, Apart) else 0.0))
                if isinstance(hulls, Apart):
                    run.critical_mu = self._critical_cap(cap, meets)
                    solution = self._separated(Regime("rch", cap), hulls)
                    solution.caps = Caps(cap, *(max(cap, 1 / len(side)) for side in self._sides[:2]))
                    return solution
                meets = cap
        run.refusal = f"no cap of the grid down to {CAPS[-1]:g} separates the reduced hulls"
        return None

    def _critical_cap(self, separates: float, meets: float) -> float:
        """The largest separating cap mu*, by bisection between one that separates and one that does not."""
        low, high = math.log(separates), math.log(meets)
        for _ in range(_HALVINGS if meets > separates else 0):
            middle = (low + high) / 2
            if isinstance(self._apart(math.exp(middle)), Apart):
                low = middle
            else:
                high = middle
        return math.exp(low)

    def soft(self) -> Candidate | None:
        """P-RCH over a grid of c, by its duality (Theorem 4) with caps mu = 2 c, then the polish.

        On overlapping hulls a large c has the optimum theta = 0, which is not a direction; such a step is left out.
        """
        run = self.run
        with run.stage("soft"):
            trace: list[SoftStep] = []
            levels: list[_Levels] = []
            for cap in self._soft_caps():
                hulls = self._apart(cap)
                if isinstance(hulls, Apart):
                    levels.append(self._levels(hulls, cap))
                    trace.append(self._step(cap / 2, hulls, levels[-1]))
        if not trace:
            run.refusal = "the lifted classes have the same centre, so no direction tells them apart (theta = 0)"
            return None
        run.soft_trace, step = trace, best_step(trace)
        solution = self._candidate(Regime("soft", step.weight), *levels[trace.index(step)])
        solution.step = step
        solution.margin = solution.normalised_margin = step.margin
        starts = [solution]
        if self.design.basis is None:
            starts += [self._candidate(solution.regime, *level) for level in levels]
        at = [each.theta[:-1] for each in starts if each.theta is not None and each.tau == solution.tau]
        polished = self.problem.polished(solution, at)
        if polished is not solution and polished.theta is not None:
            polished.normalised_margin = polished.margin / float(np.linalg.norm(polished.theta[:-2]))
        return polished

    def _soft_caps(self) -> list[float]:
        largest = max(len(side) for side in self._sides[:2])
        caps, mu = list(CAPS), CAPS[-1] / 2
        while mu > 1.0 / largest:
            caps.append(mu)
            mu /= 2
        return [*caps, 1.0 / largest] if largest > 1 / caps[-1] else caps

    def _levels(self, hulls: Apart, cap: float) -> _Levels:
        """t + rho and t - rho of P-RCH: 1/mu samples of a class fall short of its level, an order statistic."""
        theta, levels = hulls.direction / hulls.distance, []
        for side, sign in zip(self._sides[:2], (1.0, -1.0), strict=True):
            short = min(len(side), math.ceil(1 / max(cap, 1 / len(side)) * (1 - 1e-12))) - 1
            levels.append(sign * float(np.partition(sign * (side @ theta), short)[short]))
        return _Levels(theta, levels[0], levels[1])

    def _step(self, c: float, hulls: Apart, levels: _Levels) -> SoftStep:
        theta, low, high = levels
        up, down = (side @ theta for side in self._sides[:2])
        slack = np.maximum(np.concatenate([low - up, down - high]), 0.0)
        score = np.concatenate([up - (low + high) / 2, (low + high) / 2 - down])
        return SoftStep(
            weight=c,
            agreement=float(np.count_nonzero(score > 0)) / score.size,
            slack_count=int(np.count_nonzero(slack)),
            slack_sum=float(slack.sum()),
            slack_max=float(slack.max()),
            margin=float(score.min()),
            norm=1.0,
            gap=abs(1.0 - (hulls.high - hulls.low) / hulls.distance / float(np.linalg.norm(hulls.u - hulls.v))),
        )

    def _separated(self, regime: Regime, hulls: Apart) -> Candidate:
        """The candidate halfway between two hulls."""
        size = hulls.distance
        solution = self._candidate(regime, hulls.direction / size, hulls.low / size, hulls.high / size)
        solution.margin = solution.normalised_margin = (hulls.high - hulls.low) / size
        return solution

    def _candidate(self, regime: Regime, theta: Array, low: float, high: float) -> Candidate:
        coefficients, middle = self._sides[2] @ theta, (low + high) / 2
        b = self.design.b[-1] - self.design.b[0]
        if self.design.basis is None:
            rest = (1 - coefficients[1]) * b  # the points hold the other part
        else:  # scores as far apart as those of u / 2: decisions fix no scale
            points, _ = self.design.points
            size = float(np.std(points @ self.design.start[:-2])) / max(float(np.std(points @ coefficients)), 1e-300)
            coefficients, middle, rest = size * coefficients, size * middle, b
        if self.run.threshold == "zero":
            return self.problem.make(regime, coefficients, float((-middle - rest) / self.design.shift), 0.0)
        return self.problem.make(regime, coefficients, 0.0, float(middle + rest))

    def _contradict(self, contact: Meet) -> None:
        """Evidence from the rows of a meeting point: a basic solution of the weights that combine them to zero."""
        from scipy.optimize import nnls  # here: its import takes as long as a command that needs none of it

        points, positive = self.design.points
        rows = np.concatenate([np.flatnonzero(positive)[contact.first], np.flatnonzero(~positive)[contact.second]])
        sign = np.where(positive[rows], 1.0, -1.0)
        centred = points[rows] - points[rows].mean(axis=0)
        scale = np.abs(centred).max(axis=0)
        system = np.vstack([(sign[:, None] * centred / np.where(scale > 0, scale, 1.0)).T, sign, np.ones(rows.size)])
        weights, _ = nnls(system, np.append(np.zeros(len(system) - 1), 1.0))
        self.problem.contradict("plane", np.sort(rows[weights > _SMALL]).tolist())
