"""Three or more classes, or two that no threshold can move: the pairwise attempts, hard and soft with polish.

Homogeneous coefficients (alpha, beta, eta, lambda) become (alpha, beta, eta) by dividing by lambda. The cascade decides
which attempts run, and in which order.
"""

from __future__ import annotations

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.calibration.lift import Statistics
from quad4fhe.fitting import notes
from quad4fhe.fitting.pairwise import OutOfRounds, PairContradiction, PairSeparation, separate_pairs, soft_pairs
from quad4fhe.fitting.polish import polish
from quad4fhe.fitting.run import Candidate, Run
from quad4fhe.fitting.sweep import Sweeper, coordinate_scales, largest_row, tally
from quad4fhe.proof.evidence import Evidence, smallest_evidence
from quad4fhe.regime import Regime

_GAP = 1e-6
_EXTREME = 1e6  # statistics of the trained models have scales between 0.05 and 500


def hard(run: Run) -> Candidate | None:
    """MC-H: coefficients with positive margins for every pair, else Farkas evidence that there are none."""
    sweeper = Sweeper(run.lift)
    with run.stage("hard"):
        found = separate_pairs(sweeper)
        run.sweeps += sweeper.sweeps
        if isinstance(found, PairSeparation):
            solution = _candidate(run, Regime("hard"), found.theta, margin=1.0)
            solution.tolerance = solution.normalised_margin / largest_row(run.lift)
            if found.gap > _GAP:
                run.notes.append(notes.NOT_WIDEST.format(found.gap))
            if run.accept_if_lossless(solution):
                return solution
        elif isinstance(found, PairContradiction):
            named = Evidence(
                geometry="pairs", samples=found.samples.tolist(), rivals=found.rivals.tolist(), scale=found.scale
            )
            run.evidence = smallest_evidence(run.mlp, run.shards.rows, named, 5)
        elif isinstance(found, OutOfRounds):
            run.notes.append(notes.STILL_OPEN.format(found.rounds))
    run.refuse_hard()
    return None


def soft(run: Run) -> Candidate:
    """MC-S over the grid of C, then the polish if one is wanted."""
    stats, scales = _ordinary(run)
    sweeper = Sweeper(stats)
    with run.stage("soft"):
        softened = soft_pairs(sweeper, tolerance=_GAP, report=run.say)
    run.sweeps += sweeper.sweeps
    run.soft_trace = softened.trace
    step = next(step for step in softened.trace if step.weight == softened.C)
    solution = _candidate(run, Regime("soft", softened.C), softened.theta / scales, margin=step.margin)
    solution.normalised_margin, solution.step = step.margin / step.norm, step
    if step.gap > _GAP:
        run.notes.append(notes.SOFT_STOPPED.format(step.gap))
    if not run.polish:
        return solution
    with run.stage("polish"):
        thetas = [theta / scales for theta in (softened.theta, *softened.thetas)]
        starts = [theta[:3] / theta[3] for theta in thetas]
        better = polish(run.lift, starts, run.seed, run.say)
    if run.lift.samples - better.agreeing >= run.lost(solution):
        run.notes.append(notes.NO_POLISH)
        return solution
    theta = np.append(better.coefficients, 1.0)
    worst = tally(run.lift, theta).margin
    polished = _candidate(run, Regime("soft", softened.C, polished=True), theta, margin=worst)
    polished.step = step
    return polished


def _ordinary(run: Run) -> tuple[Statistics, Array]:
    """The statistics, divided by their scales if these are so extreme that |theta| would measure nothing."""
    scales = coordinate_scales(run.lift)
    if scales.max() <= _EXTREME and scales.min() >= 1 / _EXTREME:
        return run.lift, np.ones(4)
    run.notes.append(notes.EXTREME_SCALE)
    return run.lift.scaled(scales), scales


def _candidate(run: Run, regime: Regime, theta: Array, margin: float) -> Candidate:
    alpha, beta, eta = (float(value) for value in theta[:3] / theta[3])
    found = run.shared(regime, alpha, beta, eta)
    found.margin, found.normalised_margin = margin, margin / float(np.linalg.norm(theta))
    return found
