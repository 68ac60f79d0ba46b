"""Two classes: the attempts in the lifted plane (hard, reduced hulls, soft), and the line that keeps most decisions.

A direction in the plane becomes coefficients by placing the threshold in the middle of the gap: by eta if zero must
stay the threshold (Eq. eta-fixed), by tau if it is free. The cascade decides which attempts run, and in which order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from quad4fhe._arrays import Array, BoolArray, IntArray
from quad4fhe.calibration.plane import Cloud, Plane
from quad4fhe.fitting import notes, reduced_hulls
from quad4fhe.fitting.diagnostics import LineOptimum
from quad4fhe.fitting.hulls import Contact, Separation, hull, separate
from quad4fhe.fitting.polish import polish
from quad4fhe.fitting.run import Candidate, Run
from quad4fhe.proof.evidence import Evidence, smallest_evidence
from quad4fhe.regime import Regime

_POINTS = 6000  # candidates beyond which the quadratic sweep is not attempted
_BLOCK = 2_000_000  # entries of one block of the sweep
_LEVEL = 1e-9  # radians: points this close in angle count as met together
_TURN = 0.7390851332151607  # no special angle, so that axis-aligned data is not split where the sweep starts


def hard(run: Run, plane: Plane) -> Candidate | None:
    """Theorem 1: the widest separation of the hulls if they are disjoint, else evidence that they meet."""
    with run.stage("hard"):
        found = separate(plane)
        if isinstance(found, Separation):
            solution = _candidate(run, plane, Regime("hard"), found.theta, found.low, found.high)
            solution.tolerance = found.margin / found.diameter
            if run.accept_if_lossless(solution):
                return solution
        elif isinstance(found, Contact):
            named = Evidence(geometry="plane", samples=found.positive + found.negative)
            run.evidence = smallest_evidence(run.mlp, run.shards.rows, named, 4)
    run.refuse_hard()
    return None


def rch(run: Run, plane: Plane) -> Candidate | None:
    """The largest cap of the paper's grid whose reduced hulls are disjoint."""
    with run.stage("rch"):
        capped, run.cap_trace = reduced_hulls.scan(plane)
        if capped is None:
            run.refusal = f"no cap of the grid down to {reduced_hulls.CAPS[-1]:g} separates the reduced hulls"
            return None
        meets = run.cap_trace[-2][0] if len(run.cap_trace) > 1 else 1.0
        run.critical_mu = reduced_hulls.critical_cap(plane, capped.mu, meets)
        solution = _candidate(run, plane, Regime("rch", capped.mu), capped.theta, capped.low, capped.high)
        solution.cap = capped
    if run.polish:
        _report_optimum(run, plane, solution)
    return solution


def soft(run: Run, plane: Plane) -> Candidate | None:
    """The soft-margin direction, then the line that keeps the most decisions if a polish is wanted."""
    with run.stage("soft"):
        softened = reduced_hulls.soft(plane)
    if softened is None:
        run.refusal = "the lifted classes have the same centre, so no direction tells them apart (theta = 0)"
        return None
    run.soft_trace = softened.trace
    regime = Regime("soft", softened.step.weight)
    solution = _candidate(run, plane, regime, softened.theta, softened.low, softened.high)
    solution.step = softened.step
    solution.margin = solution.normalised_margin = softened.step.margin
    if not run.polish:
        return solution
    with run.stage("polish"):
        better = _line_candidate(run, plane, solution, Regime("soft", softened.step.weight, polished=True))
    if better is None:
        return solution
    better.step = solution.step
    return better


def _candidate(run: Run, plane: Plane, regime: Regime, theta: Array, low: float, high: float) -> Candidate:
    alpha, beta = float(theta[0]), float(theta[1])
    middle = (low + high) / 2
    if run.threshold == "zero":
        eta, tau = (-middle - (1 - beta) * plane.b) / plane.B, 0.0
    else:
        eta, tau = 0.0, middle + (1 - beta) * plane.b
    found = run.shared(regime, alpha, beta, eta, tau)
    found.margin = found.normalised_margin = low - high
    return found


def _report_optimum(run: Run, plane: Plane, solution: Candidate) -> None:
    """Report how far a reduced-hull fit is from the best any line can do, without changing it."""
    with run.stage("optimum"):
        _line_candidate(run, plane, solution, solution.regime)
    if run.best_line is not None:
        run.notes.append(about_line(run.best_line))


def about_line(best: LineOptimum) -> str:
    """The remark about the best line in the lifted plane."""
    return (notes.BEST_LINE_PROVED if best.optimal else notes.BEST_LINE).format(best.mismatches)


def _line_candidate(run: Run, plane: Plane, start: Candidate, regime: Regime) -> Candidate | None:
    """Look for a line with fewer mistakes than `start`; records the optimum, returns the line if it is better."""
    mistakes = run.lost(start)
    searched = polish(run.lift.shifted(start.tau), [start.three], run.seed, run.say)
    known = min(mistakes, run.lift.samples - searched.agreeing)
    best = best_line(plane, known)
    if best is not None and best.mistakes.size <= known:
        line = best.separation
        found = _candidate(run, plane, regime, line.theta, line.low, line.high)
        if run.lost(found) <= best.mistakes.size:  # more if eta is too large for the constant to hold the line
            run.best_line = LineOptimum(mismatches=int(best.mistakes.size), optimal=best.optimal)
            return found if best.mistakes.size < mistakes else None
    run.best_line = LineOptimum(mismatches=known, optimal=False)
    if known == mistakes:
        return None
    alpha, beta, eta = (float(value) for value in searched.coefficients)
    found = run.shared(regime, alpha, beta, eta, start.tau)
    found.margin = run.tally(found).margin
    found.normalised_margin = found.margin / float((alpha * alpha + beta * beta) ** 0.5)
    return found


@dataclass(frozen=True)
class BestLine:
    """The widest separation that misplaces only the samples `mistakes`; `optimal` says that fewer is impossible."""

    separation: Separation
    mistakes: IntArray
    optimal: bool


def best_line(plane: Plane, known: int) -> BestLine | None:
    """The line with the fewest mistakes, given one that makes `known`; None if the sweep would be too large.

    Turns a line around every point that an optimal line could misplace. `_candidates` drops the points that lie too
    deep inside their own class, which loses nothing.
    """
    candidates = _candidates(plane, known)
    if candidates is None:
        return None
    points, rows, positive = candidates
    x, y = _isotropic(points)
    bound, (pivot, angle, positive_left) = _sweep(x, y, positive)
    left = np.cos(angle) * (y - y[pivot]) - np.sin(angle) * (x - x[pivot]) > 0
    wrong = (left == positive) != positive_left
    same = (x == x[pivot]) & (y == y[pivot])
    majority = np.count_nonzero(positive[same]) * 2 > np.count_nonzero(same)
    wrong[same] = positive[same] != majority
    mistakes = rows[wrong]
    lost = np.count_nonzero(wrong & positive), np.count_nonzero(wrong & ~positive)
    if any(gone == count for gone, count in zip(lost, plane.moments.counts, strict=True)):
        return None
    separation = separate(plane, mistakes)
    if not isinstance(separation, Separation):
        return None
    fewest = rows.size - bound
    return BestLine(separation, mistakes, mistakes.size == fewest)


_Layers = tuple[tuple[Array, IntArray], tuple[Array, IntArray]]


def _candidates(plane: Plane, known: int) -> tuple[Array, IntArray, BoolArray] | None:
    """The points of the outer `known` + 1 convex layers of each class: only these matter to a line that good.

    A closed half-plane that holds a point inside k layers holds a point of each of the k. So a line that misplaces a
    point further in misplaces at least `known` + 1 of the candidates, and the best line misplaces no more than `known`.
    A point lies no deeper among fewer points, so the outer layers of the blocks hold those of all. Returned are points
    (k, 2), their rows (k,) and whether they are positive (k,).
    """
    found: _Layers | None = plane.total(partial(_merged, known + 1), _block_layers, known + 1)
    if found is None or sum(rows.size for _, rows in found) > _POINTS:
        return None
    (p, i), (q, j) = found
    points, rows = np.vstack([p, q]), np.concatenate([i, j])
    positive = np.arange(rows.size) < i.size
    order = np.argsort(rows)
    return points[order], rows[order], positive[order]


def _block_layers(plus: Cloud, minus: Cloud, count: int) -> _Layers | None:
    left = _POINTS
    found: list[tuple[Array, IntArray]] = []
    for cloud in (plus, minus):
        side = _layers(np.column_stack([cloud.x, cloud.y]), cloud.rows, count, left)
        if side is None:
            return None
        found.append(side)
        left -= side[1].size
    return found[0], found[1]


def _merged(count: int, a: _Layers | None, b: _Layers | None) -> _Layers | None:
    """The outer layers of two sets of layers. No limit here, or the order of merging would matter."""
    if a is None or b is None:
        return None
    found: list[tuple[Array, IntArray]] = []
    for (p, i), (q, j) in zip(a, b, strict=True):
        points, rows = np.vstack([p, q]), np.concatenate([i, j])
        order = np.argsort(rows)
        side = _layers(points[order], rows[order], count, rows.size)
        assert side is not None
        found.append(side)
    return found[0], found[1]


def _layers(points: Array, rows: IntArray, count: int, most: int) -> tuple[Array, IntArray] | None:
    """The points of the outer `count` convex layers and their rows; None if they are more than `most`."""
    chosen: list[IntArray] = []
    rest = np.arange(rows.size)
    taken = 0
    for _ in range(count):
        if rest.size == 0:
            break
        layer = hull(points, rest)
        chosen.append(layer)
        rest = np.setdiff1d(rest, layer, assume_unique=True)
        taken += layer.size
        if taken > most:
            return None
    at = np.sort(np.concatenate(chosen)) if chosen else np.empty(0, dtype=np.int64)
    return points[at], rows[at]


def _isotropic(points: Array) -> tuple[Array, Array]:
    """Scale both coordinates to order one and turn: lines stay lines, and angles become well conditioned."""
    spread = np.ptp(points, axis=0)
    scaled = (points - points.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    c, s = np.cos(_TURN), np.sin(_TURN)
    return scaled @ np.array([c, s]), scaled @ np.array([-s, c])


def _sweep(x: Array, y: Array, positive: BoolArray) -> tuple[int, tuple[int, float, bool]]:
    """Turn a line around every point; the bound on right placements, and (pivot, angle, side) of the best line met."""
    bound, best, line = -1, -1, (0, 0.0, True)
    step = max(1, _BLOCK // x.size)
    for start in range(0, x.size, step):
        pivots = np.arange(start, min(start + step, x.size))
        upper, attained, angle = _turns(x, y, positive, pivots)
        bound = max(bound, int(upper.max()))
        side, row = np.unravel_index(int(np.argmax(attained)), attained.shape)
        if attained[side, row] > best:
            best, line = int(attained[side, row]), (int(pivots[row]), float(angle[side, row]), bool(side == 0))
    return bound, line


def _turns(x: Array, y: Array, positive: BoolArray, pivots: IntArray) -> tuple[Array, Array, Array]:
    """For each pivot, with the positive class on the left and on the right: an upper bound, the best met, its angle.

    At angle zero a point is on the left if it is above the line, or on it and ahead. While the line turns by pi every
    other point changes sides once, and with it from rightly placed to wrongly placed or back.
    """
    dx, dy = x[None, :] - x[pivots, None], y[None, :] - y[pivots, None]
    same = (dx == 0) & (dy == 0)
    left = (dy > 0) | ((dy == 0) & (dx > 0))
    angle = np.where(left, np.arctan2(dy, dx), np.arctan2(-dy, -dx))
    angle[same] = np.inf
    right_now = (left == positive[None, :]) & ~same
    change = np.where(same, 0, np.where(right_now, -1, 1))
    coincident = np.stack([same & positive, same & ~positive]).sum(axis=2).max(axis=0)
    order = np.argsort(angle, axis=1, kind="stable")
    angle, change = np.take_along_axis(angle, order, axis=1), np.take_along_axis(change, order, axis=1)
    others = x.size - same.sum(axis=1)
    begin = right_now.sum(axis=1)
    upper, attained, where = np.empty((2, pivots.size)), np.empty((2, pivots.size)), np.empty((2, pivots.size))
    with np.errstate(invalid="ignore"):
        steps = np.diff(angle, axis=1)
    fresh = np.hstack([np.ones((pivots.size, 1), dtype=np.bool_), ~(steps <= _LEVEL)])
    group = np.cumsum(fresh, axis=1)
    edges = np.hstack(
        [np.zeros((pivots.size, 1)), np.where(np.isinf(angle), np.pi, angle), np.full((pivots.size, 1), np.pi)]
    )
    room = np.diff(edges, axis=1)
    for side, sign in enumerate((1, -1)):
        initial = begin if side == 0 else others - begin
        gains = sign * change
        counts = np.hstack([initial[:, None], initial[:, None] + np.cumsum(gains, axis=1)])
        # Points met together may be passed in any order: the gains of a group first is the most that can be had.
        hopeful = np.take_along_axis(gains, np.lexsort((-gains, group), axis=1), axis=1)
        upper[side] = np.maximum(initial, (initial[:, None] + np.cumsum(hopeful, axis=1)).max(axis=1)) + coincident
        met = np.where(room > _LEVEL, counts, -1)
        at = np.argmax(met, axis=1)
        attained[side] = met[np.arange(pivots.size), at] + coincident
        ends = np.take_along_axis(edges, np.stack([at, at + 1], axis=1), axis=1)
        where[side] = ends.mean(axis=1)
    return upper, attained, where
