"""Two classes: the attempts in the lifted plane (hard, reduced hulls, soft), each with the threshold it needs.

Decides how a direction in the plane becomes coefficients: the threshold goes to the middle of the gap, by eta where
zero must stay the threshold (Eq. eta-fixed), by tau where it is free. In which order they are tried is the cascade's.
"""

from __future__ import annotations

from quad4fhe._arrays import Array
from quad4fhe.evidence import Evidence
from quad4fhe.fitting import agreement, notes, reduced
from quad4fhe.fitting.bestline import best_line
from quad4fhe.fitting.diagnostics import LineOptimum
from quad4fhe.fitting.planar import Contact, Separation, separate
from quad4fhe.fitting.run import Run, Solution
from quad4fhe.plane import PlaneBlocks


def hard(run: Run, plane: PlaneBlocks) -> Solution | None:
    """Theorem 1: the widest separation of the hulls if they are disjoint, else evidence that they meet."""
    with run.stage("hard"):
        found = separate(plane)
        if isinstance(found, Separation):
            solution = _solution(run, plane, "hard", found.theta, found.low, found.high)
            solution.tolerance = found.margin / found.diameter
            if run.accept_if_lossless(solution):
                return solution
        elif isinstance(found, Contact):
            named = Evidence(geometry="plane", samples=found.positive + found.negative)
            run.evidence = run.smallest_evidence(named, 4)
    run.refuse_hard()
    return None


def rch(run: Run, plane: PlaneBlocks) -> Solution | None:
    """The largest cap of the paper's grid whose reduced hulls are disjoint."""
    with run.stage("rch"):
        capped, run.cap_trace = reduced.scan(plane)
        if capped is None:
            run.refusal = f"no cap of the grid down to {reduced.CAPS[-1]:g} separates the reduced hulls"
            return None
        meets = run.cap_trace[-2][0] if len(run.cap_trace) > 1 else 1.0
        run.critical_mu = reduced.critical_cap(plane, capped.mu, meets)
        solution = _solution(run, plane, f"rch({capped.mu:g})", capped.theta, capped.low, capped.high)
        solution.cap = capped
    if run.polish:
        _report_optimum(run, plane, solution)
    return solution


def soft(run: Run, plane: PlaneBlocks) -> Solution | None:
    """The soft-margin direction, then the line that keeps the most decisions if a polish is wanted."""
    with run.stage("soft"):
        softened = reduced.soft(plane)
    if softened is None:
        run.refusal = "the lifted classes have the same centre, so no direction tells them apart (theta = 0)"
        return None
    run.soft_trace = softened.trace
    name = f"soft({softened.step.weight:g})"
    solution = _solution(run, plane, name, softened.theta, softened.low, softened.high)
    solution.step = softened.step
    solution.margin = solution.normalised_margin = softened.step.margin
    if not run.polish:
        return solution
    with run.stage("polish"):
        better = _line_solution(run, plane, solution)
    if better is None:
        return solution
    better.regime, better.step = f"{solution.regime}+polish", solution.step
    return better


def _solution(run: Run, plane: PlaneBlocks, regime: str, theta: Array, low: float, high: float) -> Solution:
    alpha, beta = float(theta[0]), float(theta[1])
    middle, margin = (low + high) / 2, low - high
    if run.threshold == "zero":
        eta, tau = (-middle - (1 - beta) * plane.b) / plane.B, 0.0
    else:
        eta, tau = 0.0, middle + (1 - beta) * plane.b
    return Solution(regime, alpha, beta, eta, tau, margin=margin, normalised_margin=margin)


def _report_optimum(run: Run, plane: PlaneBlocks, solution: Solution) -> None:
    """Say how far a reduced-hull fit is from the best any line can do, without changing it."""
    with run.stage("optimum"):
        _line_solution(run, plane, solution)
    if run.best_line is not None:
        said = notes.BEST_LINE_PROVED if run.best_line.optimal else notes.BEST_LINE
        run.notes.append(said.format(run.best_line.mismatches))


def _line_solution(run: Run, plane: PlaneBlocks, start: Solution) -> Solution | None:
    """Look for a line with fewer mistakes than `start`; records the optimum, returns the line if it is better."""
    mistakes = run.lost(start)
    searched = agreement.polish(run.lift.shifted(start.tau), [start.three], run.seed, run.say)
    known = min(mistakes, run.lift.samples - searched.agreeing)
    best = best_line(plane, known)
    if best is not None and best.mistakes.size <= known:
        line = best.separation
        found = _solution(run, plane, "", line.theta, line.low, line.high)
        if run.lost(found) <= best.mistakes.size:  # not so where eta is too large for the constant to hold the line
            run.best_line = LineOptimum(mismatches=int(best.mistakes.size), optimal=best.optimal)
            return found if best.mistakes.size < mistakes else None
    run.best_line = LineOptimum(mismatches=known, optimal=False)
    if known == mistakes:
        return None
    alpha, beta, eta = (float(value) for value in searched.coefficients)
    found = Solution("", alpha, beta, eta, start.tau)
    found.margin = run.tally(found).margin
    found.normalised_margin = found.margin / float((alpha * alpha + beta * beta) ** 0.5)
    return found
