"""The order of things: hard, then reduced hulls, then soft, then polish; the only module that knows it.

Decides which regime's coefficients become the fit and what is claimed of them: `hard` only where the certificate says
lossless, impossible only where the evidence checks in rational arithmetic, undecided where neither does.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import combinations
from typing import Any, Literal, get_args

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from quad4fhe._arrays import Array, samples
from quad4fhe._progress import Progress, silent
from quad4fhe.certificate import Certificate, Evidence, certify, contradiction_weights, evidence_rows
from quad4fhe.errors import FitError, InputError, TargetNotReachedError
from quad4fhe.exact import Decisions
from quad4fhe.fit import agreement, reduced
from quad4fhe.fit.bestline import best_line
from quad4fhe.fit.pairwise import OutOfRounds, PairContradiction, PairSeparation, separate_pairs, soft_pairs
from quad4fhe.fit.planar import Contact, Separation, separate
from quad4fhe.fit.result import (
    Agreement,
    Diagnostics,
    Fit,
    LineOptimum,
    Quantisation,
    Slack,
    count_agreement,
)
from quad4fhe.fit.rounding import coarsest, kept
from quad4fhe.fit.sweep import Sweeper, largest_row
from quad4fhe.fit.trace import SoftStep
from quad4fhe.lift import Lift, Plane, lift
from quad4fhe.mlp import MLP
from quad4fhe.quadratic import QuadraticModel

Family = Literal["shared"]
Regime = Literal["auto", "hard", "rch", "soft"]
Threshold = Literal["zero", "free"]
Hard = Literal["feasible", "infeasible", "undecided", "not tried"]


@dataclass
class _Solution:
    """Coefficients of one regime and what its own problem says of them."""

    regime: str
    alpha: float
    beta: float
    eta: float
    tau: float = 0.0
    margin: float = 0.0
    normalised_margin: float = 0.0
    tolerance: float | None = None
    cap: reduced.ReducedSeparation | None = None
    step: SoftStep | None = None


@dataclass
class _Run:
    """What one run of the cascade gathers on its way."""

    mlp: MLP
    X: NDArray[Any]
    lift: Lift
    seed: int
    progress: Progress
    hard: Hard = "not tried"
    evidence: Evidence | None = None
    cap_trace: list[tuple[float, float]] = field(default_factory=list)
    critical_mu: float | None = None
    soft_trace: list[SoftStep] = field(default_factory=list)
    best_line: LineOptimum | None = None
    sweeps: int = 0
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.progress(name, 0, 0)
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def fit(
    mlp: MLP,
    X_cal: ArrayLike,
    *,
    family: Family = "shared",
    regime: Regime = "auto",
    target_agreement: float | None = None,
    threshold: Threshold = "zero",
    polish: bool = True,
    seed: int = 2026,
    X_test: ArrayLike | None = None,
    progress: Progress = silent,
) -> Fit:
    """Replace the ReLU of `mlp` by a quadratic that keeps its decisions on X_cal (n, d).

    regime="auto" runs the paper's cascade (hard, then rch for two classes, then soft); "hard", "rch" or "soft" asks for
    one of them. `polish` lets a soft fit trade hinge loss for kept decisions; polish=False gives the paper's own.
    threshold="free" lets two classes be told apart at a threshold other than zero, which is then moved into c.
    `target_agreement` in (0, 1] raises TargetNotReachedError where the calibration agreement stays below it. X_test is
    only measured, never fitted.
    """
    _check_options(mlp, family, regime, threshold, target_agreement)
    started = time.perf_counter()
    X = samples("X_cal", X_cal, mlp.features)
    test = None if X_test is None else samples("X_test", X_test, mlp.features)
    progress("lift", 0, 0)
    run = _Run(mlp, X, lift(mlp, X), seed, progress)
    run.seconds["lift"] = time.perf_counter() - started
    plane = _plane(run, threshold)
    solved = (
        _pairs_cascade(run, regime, polish) if plane is None else _plane_cascade(run, plane, regime, threshold, polish)
    )
    fitted = _result(run, *solved, threshold, test)
    reached = fitted.diagnostics.calibration.agreement
    if target_agreement is not None and reached < target_agreement:
        raise TargetNotReachedError(
            f"the best agreement found is {100 * reached:.3f}%, below the target of {100 * target_agreement:.3f}%; "
            "lower the target, or use more representative calibration data"
        )
    return fitted


def _check_options(mlp: MLP, family: str, regime: str, threshold: str, target: float | None) -> None:
    for name, value, allowed in (
        ("family", family, get_args(Family)),
        ("regime", regime, get_args(Regime)),
        ("threshold", threshold, get_args(Threshold)),
    ):
        if value not in allowed:
            raise InputError(f"{name} is {value!r}, wanted one of {', '.join(map(repr, allowed))}")
    if target is not None and not 0 < target <= 1:
        raise InputError(f"target_agreement is {target!r}, wanted a share in (0, 1], such as 0.99")
    if mlp.classes > 2 and threshold == "free":
        raise InputError(f"threshold='free' is for two classes, and this model has {mlp.classes}; leave it out")
    if mlp.classes > 2 and regime == "rch":
        raise InputError(f"regime='rch' is for two classes, and this model has {mlp.classes}; use 'soft' or 'auto'")


def _plane(run: _Run, threshold: Threshold) -> Plane | None:
    """The lifted plane, or None where the decision is not one line in it."""
    if run.lift.classes > 2:
        return None
    plane = run.lift.plane()
    if threshold == "zero" and plane.B == 0:
        run.notes.append(
            "B = 0: eta does not shift the scores, so the zero threshold was put to the pairwise problem itself; "
            "threshold='free' would allow the planar regimes"
        )
        return None
    return plane


# ---- two classes -----------------------------------------------------------------------------------------------------


def _plane_cascade(
    run: _Run, plane: Plane, regime: Regime, threshold: Threshold, polish: bool
) -> tuple[_Solution, Certificate, Decisions]:
    if regime in ("auto", "hard"):
        with run.stage("hard"):
            found = separate(plane)
            if isinstance(found, Separation):
                solution = _planar_solution("hard", plane, found.theta, found.low, found.high, threshold)
                solution.margin = solution.normalised_margin = found.margin
                solution.tolerance = found.margin / found.diameter
                if (certified := _if_lossless(run, solution)) is not None:
                    return certified
            elif isinstance(found, Contact):
                run.evidence = _plane_evidence(run, found)
        _note_hard(run, regime)
    if regime in ("auto", "rch"):
        with run.stage("rch"):
            capped, run.cap_trace = reduced.scan(plane)
            if capped is not None:
                meets = run.cap_trace[-2][0] if len(run.cap_trace) > 1 else 1.0
                run.critical_mu = reduced.critical_cap(plane, capped.mu, meets)
                solution = _planar_solution(
                    f"rch({capped.mu:g})", plane, capped.theta, capped.low, capped.high, threshold
                )
                solution.margin = solution.normalised_margin = capped.margin
                solution.cap = capped
        if capped is not None:
            if polish:
                _report_optimum(run, plane, solution, threshold)
            return solution, *_certify(run, solution)
        if regime == "rch":
            raise FitError(
                f"no cap of the grid down to {reduced.CAPS[-1]} separates the reduced hulls; use regime='soft' or 'auto'"
            )
    with run.stage("soft"):
        softened = reduced.soft(plane)
    if softened is None:
        raise FitError(
            "the lifted classes have the same centre, so no direction tells them apart (theta = 0); "
            "one shared quadratic does not suit this model and data"
        )
    run.soft_trace = softened.trace
    found_soft = softened.solution
    solution = _planar_solution(
        f"soft({softened.c:g})", plane, found_soft.theta, found_soft.low, found_soft.high, threshold
    )
    solution.step = next(step for step in softened.trace if step.weight == softened.c)
    solution.margin = solution.normalised_margin = solution.step.margin
    if polish:
        solution = _best_planar(run, plane, solution, threshold)
    return solution, *_certify(run, solution)


def _planar_solution(
    regime: str, plane: Plane, theta: Array, low: float, high: float, threshold: Threshold
) -> _Solution:
    """Place the threshold in the middle of (high, low): by eta (Eq. eta-fixed), or by a free tau."""
    alpha, beta = float(theta[0]), float(theta[1])
    middle = (low + high) / 2
    if threshold == "zero":
        eta = (-middle - (1 - beta) * plane.b) / plane.B
        return _Solution(regime, alpha, beta, eta)
    return _Solution(regime, alpha, beta, 0.0, tau=middle + (1 - beta) * plane.b)


def _plane_evidence(run: _Run, contact: Contact) -> Evidence | None:
    """The fewest of the samples in contact that contradict each other exactly: at most four (Kirchberger)."""
    members = contact.positive + contact.negative
    rows = evidence_rows(run.mlp, run.X, run.lift.target, Evidence(geometry="plane", samples=members))
    chosen = _smallest_contradiction(rows, 4)
    return None if chosen is None else Evidence(geometry="plane", samples=[members[k] for k in chosen])


def _smallest_contradiction(rows: list[list[Any]], most: int) -> tuple[int, ...] | None:
    for size in range(1, min(most, len(rows)) + 1):
        for chosen in combinations(range(len(rows)), size):
            if contradiction_weights([rows[k] for k in chosen]) is not None:
                return chosen
    return None


def _best_planar(run: _Run, plane: Plane, soft: _Solution, threshold: Threshold) -> _Solution:
    """The line that keeps the most decisions, where it keeps more than the soft one."""
    with run.stage("polish"):
        solution = _line_solution(run, plane, soft, threshold)
    if solution is None:
        return soft
    solution.regime, solution.step = f"{soft.regime}+polish", soft.step
    return solution


def _report_optimum(run: _Run, plane: Plane, solution: _Solution, threshold: Threshold) -> None:
    """Say how far a reduced-hull fit is from the best any line can do, without changing it."""
    with run.stage("optimum"):
        _line_solution(run, plane, solution, threshold)
    best = run.best_line
    if best is not None:
        run.notes.append(
            f"the best line found in the lifted plane loses {best.mismatches} decisions"
            f"{' (no line loses fewer)' if best.optimal else ''}; regime='soft' with polish takes it"
        )


def _line_solution(run: _Run, plane: Plane, start: _Solution, threshold: Threshold) -> _Solution | None:
    """Look for a line with fewer mistakes than `start`; records the optimum, returns the line if it is better."""
    mistakes = int(np.count_nonzero(~_kept(run, start)))
    searched = agreement.polish(_shifted(run.lift, start.tau), [_three(start)], run.seed)
    known = min(mistakes, run.lift.samples - searched.agreeing)
    best = best_line(plane, known)
    if best is not None and best.mistakes.size <= known:
        run.best_line = LineOptimum(mismatches=int(best.mistakes.size), optimal=best.optimal)
        s = best.separation
        found = _planar_solution("", plane, s.theta, s.low, s.high, threshold)
        found.margin = found.normalised_margin = s.margin
        return found if best.mistakes.size < mistakes else None
    run.best_line = LineOptimum(mismatches=known, optimal=False)
    if known == mistakes:
        return None
    alpha, beta, eta = (float(value) for value in searched.coefficients)
    found = _Solution("", alpha, beta, eta, tau=start.tau)
    _pair_margins(run, found)
    return found


def _shifted(lifted: Lift, tau: float) -> Lift:
    if not tau:
        return lifted
    b = lifted.b.copy()
    b[-1] -= tau
    return Lift(lifted.Q, lifted.L, lifted.B, b, lifted.target, lifted.ties, lifted.box)


# ---- many classes ----------------------------------------------------------------------------------------------------


def _pairs_cascade(run: _Run, regime: Regime, polish: bool) -> tuple[_Solution, Certificate, Decisions]:
    sweeper = Sweeper(run.lift)
    if regime == "rch":
        raise InputError("regime='rch' needs a threshold that can move, and here B = 0; use threshold='free'")
    if regime in ("auto", "hard"):
        with run.stage("hard"):
            found = separate_pairs(sweeper)
            run.sweeps = sweeper.sweeps
            if isinstance(found, PairSeparation):
                solution = _homogeneous("hard", found.theta)
                solution.margin, solution.normalised_margin = 1.0, 1.0 / float(np.linalg.norm(found.theta))
                solution.tolerance = solution.normalised_margin / largest_row(run.lift)
                if (certified := _if_lossless(run, solution)) is not None:
                    return certified
            elif isinstance(found, PairContradiction):
                run.evidence = _pairs_evidence(run, found)
            elif isinstance(found, OutOfRounds):
                run.notes.append(f"the hard problem was still open after {found.rounds} rounds")
        _note_hard(run, regime)
    with run.stage("soft"):
        softened = soft_pairs(sweeper, report=lambda text: run.progress(text, 0, 0))
    run.sweeps, run.soft_trace = sweeper.sweeps, softened.trace
    solution = _homogeneous(f"soft({softened.C:g})", softened.theta)
    solution.step = next(step for step in softened.trace if step.weight == softened.C)
    solution.margin, solution.normalised_margin = solution.step.margin, solution.step.margin / solution.step.norm
    if solution.step.gap > 1e-6:
        run.notes.append(f"the soft problem stopped at a relative duality gap of {solution.step.gap:.1e}")
    if polish:
        with run.stage("polish"):
            starts = [theta[:3] / theta[3] for theta in (softened.theta, *softened.thetas)]
            better = agreement.polish(run.lift, starts, run.seed, lambda text: run.progress(text, 0, 0))
        if better.agreeing > int(np.count_nonzero(_kept(run, solution))):
            step = solution.step
            solution = _Solution(
                f"{solution.regime}+polish", *(float(value) for value in better.coefficients), step=step
            )
            _pair_margins(run, solution)
        else:
            run.notes.append("the polish found no coefficients that keep more decisions")
    return solution, *_certify(run, solution)


def _homogeneous(regime: str, theta: Array) -> _Solution:
    alpha, beta, eta = (float(value) for value in theta[:3] / theta[3])
    return _Solution(regime, alpha, beta, eta)


def _pairs_evidence(run: _Run, found: PairContradiction) -> Evidence | None:
    members, rivals = found.samples.tolist(), found.rivals.tolist()
    named = Evidence(geometry="pairs", samples=members, rivals=rivals, scale=found.scale)
    rows = evidence_rows(run.mlp, run.X, run.lift.target, named)
    chosen = _smallest_contradiction(rows, 5)
    if chosen is None:
        return None
    first = int(found.scale)  # the scale row comes first where there is one
    pairs = [k - first for k in chosen if k >= first]
    return Evidence(
        geometry="pairs",
        samples=[members[k] for k in pairs],
        rivals=[rivals[k] for k in pairs],
        scale=bool(found.scale and chosen[0] == 0),
    )


def _pair_margins(run: _Run, solution: _Solution) -> None:
    theta = np.append(_three(solution), 1.0)
    solution.margin = float(Sweeper(_shifted(run.lift, solution.tau)).margins(theta).margin.min())
    solution.normalised_margin = solution.margin / float(np.linalg.norm(theta))


# ---- both ------------------------------------------------------------------------------------------------------------


def _three(solution: _Solution) -> Array:
    return np.array([solution.alpha, solution.beta, solution.eta])


def _kept(run: _Run, solution: _Solution) -> Any:
    return kept(run.lift, solution.alpha, solution.beta, solution.eta, solution.tau)


def _note_hard(run: _Run, regime: Regime) -> None:
    """Record what the exact test found once it did not give a lossless fit."""
    run.hard = "undecided" if run.evidence is None else "infeasible"
    if run.hard == "undecided":
        run.notes.append(
            "the hard problem is undecided: no float64 coefficients were found to keep every decision, "
            "and no evidence against them survives exact arithmetic"
        )
    if regime == "hard":
        reason = "no shared quadratic keeps every decision" if run.evidence else "the hard problem is undecided"
        rows = f" (contradicted by calibration rows {run.evidence.samples})" if run.evidence else ""
        raise FitError(f"{reason}{rows}; use regime='auto' for the best relaxed fit")


def _model(run: _Run, solution: _Solution) -> QuadraticModel:
    return QuadraticModel.shared(run.mlp, solution.alpha, solution.beta, solution.eta, solution.tau)


def _certify(run: _Run, solution: _Solution) -> tuple[Certificate, Decisions]:
    with run.stage("certificate"):
        return certify(run.mlp, _model(run, solution), run.X, run.evidence)


def _if_lossless(run: _Run, solution: _Solution) -> tuple[_Solution, Certificate, Decisions] | None:
    """Accept a hard solution only with its certificate: rounding S, T and c may have undone a thin separation."""
    if not np.isfinite([solution.alpha, solution.beta, solution.eta, solution.tau]).all():
        return None
    certificate, decided = _certify(run, solution)
    if certificate.statement != "lossless":
        return None
    run.hard = "feasible"
    return solution, certificate, decided


def _result(
    run: _Run,
    solution: _Solution,
    certificate: Certificate,
    decided: Decisions,
    threshold: Threshold,
    X_test: NDArray[Any] | None,
) -> Fit:
    model = _model(run, solution)
    with run.stage("diagnostics"):
        decimals, bits = coarsest(run.lift, solution.alpha, solution.beta, solution.eta, solution.tau)
        test = None if X_test is None else count_agreement(run.mlp, model, X_test)
    if run.lift.ties:
        run.notes.append(f"the ReLU logits tie exactly on {run.lift.ties} rows; the lowest class index is their target")
    n, lost, step, cap = certificate.samples, len(certificate.mismatches), solution.step, solution.cap
    diagnostics = Diagnostics(
        samples=n,
        classes=run.lift.classes,
        hard=run.hard,
        calibration=Agreement(samples=n, agreement=1.0 - lost / n, mismatches=lost),
        test=test,
        margin=solution.margin,
        normalised_margin=solution.normalised_margin,
        slack=None if step is None else Slack(count=step.slack_count, sum=step.slack_sum, max=step.slack_max),
        mu=None if cap is None else cap.mu,
        mu_plus=None if cap is None else cap.mu_plus,
        mu_minus=None if cap is None else cap.mu_minus,
        critical_mu=run.critical_mu,
        weight=None if step is None else step.weight,
        gap=None if step is None else step.gap,
        cap_trace=run.cap_trace,
        soft_trace=run.soft_trace,
        best_line=run.best_line,
        quantisation=Quantisation(tolerance=solution.tolerance, decimals=decimals, bits=bits),
        sweeps=run.sweeps,
        notes=run.notes,
        seconds=run.seconds,
    )
    return Fit(
        mlp=run.mlp,
        model=model,
        family="shared",
        regime=solution.regime,
        threshold=threshold,
        alpha=solution.alpha,
        beta=solution.beta,
        eta=solution.eta,
        tau=solution.tau,
        seed=run.seed,
        box=run.lift.box,
        margins=decided.gap,
        diagnostics=diagnostics,
        certificate=certificate,
        versions={
            "quad4fhe": version("quad4fhe"),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scipy": scipy.__version__,
        },
    )
