"""Decisions kept as pairwise margins: the problems MC-H and MC-S, by cutting planes, in any dimension.

Finds out whether one shared polynomial can keep every decision (hard), with a direction or with Farkas evidence, and
the soft-margin optimum for a grid of C with its duality gap. Sweeps find the rows that matter, which are never all
formed. The master problems are small QPs, bounded by weak duality: an inaccurate solve can cost a round but never a
claim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from quad4fhe._arrays import Array, IntArray
from quad4fhe.fitting.diagnostics import SoftStep, best_step
from quad4fhe.fitting.sweeps import Risk, Sweeper, Worst

WEIGHTS = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
"""The paper's grid of C."""

_PATIENCE = 25  # cuts without a narrower gap
_WIDEST = 1e-8  # the relative gap at which a hard fit counts as the widest
_FLAT = 1e-11  # a normalised residual this small means that the rows combine to zero
_QP_ROUNDS = 80
_QP_PATIENCE = 8  # rounds without a better residual: rounding has set the limit
_STEP = 0.995  # share of the way to the boundary that one step may go


@dataclass(frozen=True)
class PairSeparation:
    """Homogeneous coefficients theta (p + 2,), theta.z >= 1 for every pair, within relative `gap` of the smallest."""

    theta: Array
    gap: float


@dataclass(frozen=True)
class PairContradiction:
    """Rows (samples against rivals, and lambda >= 1 if `scale`) with a nonnegative combination that is zero."""

    samples: IntArray
    rivals: IntArray
    scale: bool


@dataclass(frozen=True)
class OutOfRounds:
    """Neither feasible nor infeasible within the allowed rounds."""

    rounds: int


def separate_pairs(sweeper: Sweeper, *, rounds: int = 300) -> PairSeparation | PairContradiction | OutOfRounds:
    """Decide MC-H: solve on active rows, sweep all margins, add the worst, until the signs are settled."""
    scales = sweeper.scales
    rows = _ActiveRows(scales)
    rows.add(sweeper.worst(sweeper.design.start))
    for used in range(1, rounds + 1):
        direction = rows.separate()
        if direction is None:
            return rows.contradiction()
        worst = sweeper.worst(direction / scales)
        if worst.margin > 0:
            return _widest(sweeper, rows, worst, rounds - used)
        if not rows.add(worst):
            return OutOfRounds(used)
    return OutOfRounds(rounds)


class _ActiveRows:
    """The pairwise rows found so far, their coordinates divided by `scales` so that none drowns the others."""

    def __init__(self, scales: Array) -> None:
        self.scales = scales
        self.samples = np.empty(0, dtype=np.int64)
        self.rivals = np.empty(0, dtype=np.int64)
        self.rows = np.empty((0, scales.size))
        self._scale_row = np.eye(scales.size)[-1:]  # lambda >= 1
        self._known: set[tuple[int, int]] = set()
        self._weights = np.empty(0)

    def add(self, worst: Worst) -> bool:
        """Add the worst rows of a sweep; False if none of them is new."""
        pairs = list(zip(worst.samples.tolist(), worst.rivals.tolist(), strict=True))
        fresh = np.array([k for k, pair in enumerate(pairs) if pair not in self._known], dtype=np.int64)
        if fresh.size == 0:
            return False
        self._known.update(pairs)
        self.samples = np.append(self.samples, worst.samples[fresh])
        self.rivals = np.append(self.rivals, worst.rivals[fresh])
        self.rows = np.vstack([self.rows, worst.rows[fresh] / self.scales])
        return True

    def separate(self) -> Array | None:
        """A direction with positive margin on all active rows, or None if their hull holds the origin.

        Lawson and Hanson's least-distance problem: the residual of a nonnegative least squares fit is the direction.
        """
        from scipy.optimize import nnls  # imported here because it takes as long as a whole small command

        rows = np.vstack([self.rows, self._scale_row])
        norms = np.linalg.norm(rows, axis=1)
        if norms.min() == 0:  # no statistic tells two classes apart: the row itself is the contradiction
            self._weights = (norms == 0).astype(float)
            return None
        unit = (rows / norms[:, None]).T
        system = np.vstack([unit, np.ones(unit.shape[1])])
        self._weights, distance = nnls(system, np.eye(len(system))[-1], maxiter=30 * unit.shape[1] + 300)
        if distance <= _FLAT:
            return None
        direction: Array = unit @ self._weights
        return None if np.linalg.norm(direction) <= _FLAT * self._weights.sum() else direction

    def widest(self, start: Array) -> tuple[Array, float]:
        """Solve MC-H on the active rows: theta, and a lower bound on |theta|^2 / 2 by weak duality."""
        A = np.vstack([self.rows, self._scale_row / self.scales])
        size = np.linalg.norm(A, axis=1)
        unit, h, weight = A / size[:, None], 1.0 / size, 1.0 / np.square(self.scales)
        P = weight / weight.max()
        u, y = solve(P, np.zeros(P.size), unit, h, start * self.scales)
        y = np.maximum(y, 0.0)
        slope = unit.T @ y
        linear, quadratic = float(h @ y), float((slope * slope / P).sum())
        bound = 0.5 * linear * linear / quadratic if quadratic > 0 else 0.0  # at the best multiple of y
        return u / self.scales, bound * float(weight.max())

    def contradiction(self) -> PairContradiction:
        carrying = np.flatnonzero(self._weights > 0)
        scale = bool(carrying.size and carrying[-1] == self.samples.size)
        pairs = carrying[:-1] if scale else carrying
        return PairContradiction(self.samples[pairs], self.rivals[pairs], scale)


def _widest(sweeper: Sweeper, rows: _ActiveRows, worst: Worst, rounds: int) -> PairSeparation | OutOfRounds:
    """From a feasible direction to the MC-H optimum: the QP on active rows bounds from below, scaling from above."""
    best, gap, lower = np.full(worst.theta.size, np.inf), np.inf, 0.0
    for _ in range(max(1, rounds)):
        if worst.margin > 0:
            shrink = min(worst.margin, float(worst.theta[-1]))
            if shrink > 0 and np.linalg.norm(worst.theta) < shrink * np.linalg.norm(best):
                best = worst.theta / shrink
        fresh = rows.add(worst) or lower == 0
        if fresh:
            theta, bound = rows.widest(best if np.isfinite(best).all() else worst.theta)
            lower = max(lower, bound)
        gap = 1.0 - lower / (0.5 * float(best @ best))
        if gap <= _WIDEST or not fresh:  # without a new row the rest of the gap is rounding
            break
        worst = sweeper.worst(theta)
    if not np.isfinite(best).all():
        return OutOfRounds(rounds)
    return PairSeparation(best, max(0.0, float(gap)))


@dataclass(frozen=True)
class PairSoft:
    """The chosen soft optimum, the trace over the grid, and the optimum of each C (for the polish)."""

    C: float
    theta: Array
    trace: list[SoftStep]
    thetas: list[Array]


def soft_pairs(
    sweeper: Sweeper,
    weights: Sequence[float] = WEIGHTS,
    *,
    tolerance: float = 1e-6,
    rounds: int = 400,
    report: Callable[[str], None] | None = None,
) -> PairSoft:
    """Solve MC-S for every C by one-slack cutting planes and choose by the paper's rule.

    The risk does not depend on C, so a cut found for one C serves them all. Coordinates of extreme scale are divided by
    it, because |theta| would measure nothing.
    """
    bundle = _Bundle(sweeper)
    chosen: list[Risk] = []
    trace: list[SoftStep] = []
    for C in weights:
        point, gap = bundle.minimise(C, tolerance, rounds)
        chosen.append(point)
        trace.append(_soft_step(sweeper, C, point, gap))
        if report is not None:
            report(f"soft C={C:g}: agreement {100 * trace[-1].agreement:.2f}%, {sweeper.sweeps} sweeps")
    best = best_step(trace)
    return PairSoft(best.weight, chosen[trace.index(best)].theta, trace, [point.theta for point in chosen])


def _soft_step(sweeper: Sweeper, C: float, point: Risk, gap: float) -> SoftStep:
    return SoftStep(
        weight=C,
        agreement=point.agreeing / sweeper.samples,
        slack_count=point.slack_count,
        slack_sum=point.risk,
        slack_max=point.slack_max,
        margin=point.margin,
        norm=float(np.linalg.norm(point.theta * sweeper.units)),
        gap=gap,
    )


class _Bundle:
    """All cuts of the hinge risk found so far, in coordinates u = theta * scales and per sample."""

    def __init__(self, sweeper: Sweeper) -> None:
        self._sweeper = sweeper
        self._scales, self._units = sweeper.scales, sweeper.units
        self._points: list[Risk] = []
        self._slopes = np.empty((0, self._scales.size))
        self._heights = np.empty(0)
        self._cut(sweeper.design.start / self._units)

    def _cut(self, theta: Array) -> None:
        point = self._sweeper.risk(theta)
        n = self._sweeper.samples
        self._points.append(point)
        self._slopes = np.vstack([self._slopes, point.gradient / (self._scales * n)])
        self._heights = np.append(self._heights, (point.risk - float(point.gradient @ theta)) / n)

    def minimise(self, C: float, tolerance: float, rounds: int) -> tuple[Risk, float]:
        """Minimise |theta|^2 / 2 + C R(theta) subject to lambda >= 1; returns the best point and its relative gap.

        The norm and lambda are those of theta * units.
        """
        lower, narrowest, stale = 0.0, np.inf, 0
        for _ in range(rounds):
            values = [0.5 * float(np.square(p.theta * self._units).sum()) + C * p.risk for p in self._points]
            at = int(np.argmin(values))
            best = self._points[at]
            master, bound = self._master(C, best.theta)
            lower = max(lower, bound)
            gap = (values[at] - lower) / values[at]
            stale = 0 if gap < 0.99 * narrowest else stale + 1
            narrowest = min(narrowest, gap)
            if gap <= tolerance or stale > _PATIENCE:  # a gap that stays is rounding, and is reported
                break
            # The master's minimiser overshoots where the model is still poor. Halfway back to the best point took a
            # third fewer sweeps on every problem tried.
            self._cut((best.theta + master) / 2)
        return best, max(0.0, float(gap))

    def _master(self, C: float, start: Array) -> tuple[Array, float]:
        n, scales, units = self._sweeper.samples, self._scales, self._units
        total = C * n
        unit = max(1.0, total)  # divide the objective, so that its numbers stay of order one
        P = np.append(np.square(units / scales) / unit, 0.0)
        cuts, k = self._slopes.shape  # column k is the slack, k - 1 is lambda
        A = np.zeros((cuts + 2, k + 1))
        A[:cuts, :k], A[:cuts, k] = -self._slopes, 1.0
        A[cuts, k] = 1.0
        A[cuts + 1, k - 1] = units[-1] / scales[-1]
        h = np.concatenate([self._heights, [0.0, 1.0]])
        norm = np.linalg.norm(A, axis=1)
        q = np.append(np.zeros(k), total / unit)
        x = np.append(start * scales, 0.0)
        x[k] = max(0.0, float((self._heights + self._slopes @ x[:k]).max()))
        x, y = solve(P, q, A / norm[:, None], h / norm, x, accuracy=1e-10)
        y = np.maximum(y / norm, 0.0)
        # Weak duality at a multiplier made feasible: the cut weights may sum to at most C n.
        mass = y[:cuts].sum()
        if mass > q[k]:
            y[:cuts] *= q[k] / mass
        slope = A[:cuts, :k].T @ y[:cuts]
        slope[k - 1] += A[cuts + 1, k - 1] * y[cuts + 1]
        bound = float(self._heights @ y[:cuts]) + y[cuts + 1] - 0.5 * float((slope * slope / P[:k]).sum())
        theta = x[:k] / scales
        theta[-1] = max(theta[-1], 1.0 / units[-1])
        return theta, bound * unit


def solve(P: Array, q: Array, A: Array, h: Array, x: Array, accuracy: float = 1e-14) -> tuple[Array, Array]:
    """Minimise sum(P * x * x) / 2 + q.x subject to A x >= h, from any x, by Mehrotra's predictor-corrector.

    P (k,) >= 0 is the diagonal of the quadratic form, A is (rows, k). Returns x (k,) and the multipliers y (rows,),
    once the relative residuals are below `accuracy` or rounding sets the limit. Callers scale variables and rows to
    order one.
    """
    rows = A.shape[0]
    s = np.maximum(A @ x - h, 1.0)
    y = np.ones(rows)
    ridge = 1e-14 * (1.0 + P.max(initial=0.0))
    best, best_residual, stale = (x, y), np.inf, 0
    for _ in range(_QP_ROUNDS):
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
        if residual < accuracy or stale > _QP_PATIENCE:
            break
        try:
            change = _step(P + ridge, A, s, y, dual, primal, mu)
        except np.linalg.LinAlgError:
            break  # the barrier has outgrown double precision: keep the best so far
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
