"""Many classes (or two that no threshold can move): the pairwise attempts, hard and soft with polish.

Decides how homogeneous coefficients become (alpha, beta, eta). In which order they are tried is the cascade's.
"""

from __future__ import annotations

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.evidence import Evidence
from quad4fhe.fitting import agreement, notes
from quad4fhe.fitting.pairwise import OutOfRounds, PairContradiction, PairSeparation, separate_pairs, soft_pairs
from quad4fhe.fitting.run import Run, Solution
from quad4fhe.fitting.sweep import Sweeper, coordinate_scales, largest_row
from quad4fhe.lift import Statistics

_GAP = 1e-6
_EXTREME = 1e6  # statistics of the trained models have scales between 0.05 and 500


def hard(run: Run) -> Solution | None:
    """MC-H: coefficients with positive margins for every pair, else Farkas evidence that there are none."""
    sweeper = Sweeper(run.lift)
    with run.stage("hard"):
        found = separate_pairs(sweeper)
        run.sweeps += sweeper.sweeps
        if isinstance(found, PairSeparation):
            solution = _solution("hard", found.theta, margin=1.0)
            solution.tolerance = solution.normalised_margin / largest_row(run.lift)
            if found.gap > _GAP:
                run.notes.append(notes.NOT_WIDEST.format(found.gap))
            if run.accept_if_lossless(solution):
                return solution
        elif isinstance(found, PairContradiction):
            named = Evidence(
                geometry="pairs", samples=found.samples.tolist(), rivals=found.rivals.tolist(), scale=found.scale
            )
            run.evidence = run.smallest_evidence(named, 5)
        elif isinstance(found, OutOfRounds):
            run.notes.append(notes.STILL_OPEN.format(found.rounds))
    run.refuse_hard()
    return None


def soft(run: Run) -> Solution:
    """MC-S over the grid of C, then the polish if one is wanted."""
    stats, scales = _ordinary(run)
    sweeper = Sweeper(stats)
    with run.stage("soft"):
        softened = soft_pairs(sweeper, tolerance=_GAP, report=run.say)
    run.sweeps += sweeper.sweeps
    run.soft_trace = softened.trace
    step = next(step for step in softened.trace if step.weight == softened.C)
    solution = _solution(f"soft({softened.C:g})", softened.theta / scales, margin=step.margin)
    solution.normalised_margin, solution.step = step.margin / step.norm, step
    if step.gap > _GAP:
        run.notes.append(notes.SOFT_STOPPED.format(step.gap))
    if not run.polish:
        return solution
    with run.stage("polish"):
        thetas = [theta / scales for theta in (softened.theta, *softened.thetas)]
        starts = [theta[:3] / theta[3] for theta in thetas]
        better = agreement.polish(run.lift, starts, run.seed, run.say)
    if run.lift.samples - better.agreeing >= run.lost(solution):
        run.notes.append(notes.NO_POLISH)
        return solution
    theta = np.append(better.coefficients, 1.0)
    worst = Sweeper(run.lift).tally(theta).margin
    polished = _solution(f"{solution.regime}+polish", theta, margin=worst)
    polished.step = step
    return polished


def _ordinary(run: Run) -> tuple[Statistics, Array]:
    """The statistics, divided by their scales where these are so extreme that |theta| would measure nothing."""
    scales = coordinate_scales(run.lift)
    if scales.max() <= _EXTREME and scales.min() >= 1 / _EXTREME:
        return run.lift, np.ones(4)
    run.notes.append(notes.EXTREME_SCALE)
    return run.lift.scaled(scales), scales


def _solution(regime: str, theta: Array, margin: float) -> Solution:
    alpha, beta, eta = (float(value) for value in theta[:3] / theta[3])
    return Solution(regime, alpha, beta, eta, margin=margin, normalised_margin=margin / float(np.linalg.norm(theta)))
