"""The order of things: hard, then reduced hulls, then soft, then other families; the only module that knows it.

Decides which attempt becomes the fit and puts the result together. What an attempt does is left to `two` and `many`,
what goes beyond the shared quadratic to `beyond`, what may be claimed of it to `certificate`.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any, Literal, get_args

import numpy as np
import scipy

from quad4fhe._arrays import IntArray
from quad4fhe._progress import Progress, silent
from quad4fhe._rows import ArrayRows, Rows, held_bytes, left_alone
from quad4fhe._threads import one_thread
from quad4fhe.data.files import Given, rows_of
from quad4fhe.engines import Engine
from quad4fhe.errors import FitError, InputError, TargetNotReachedError
from quad4fhe.fitting import beyond, many, notes, two
from quad4fhe.fitting.beyond import Replacement
from quad4fhe.fitting.budget import store_bytes
from quad4fhe.fitting.diagnostics import Agreement, Diagnostics, Quantisation, Slack
from quad4fhe.fitting.families import Priors
from quad4fhe.fitting.learned import Learned, learned
from quad4fhe.fitting.result import Fit, count_agreement
from quad4fhe.fitting.rounding import coarsest
from quad4fhe.fitting.run import Run, Solution
from quad4fhe.fitting.sharded import LiftShards
from quad4fhe.lift import refuse_empty, shard_rows
from quad4fhe.mlp import MLP
from quad4fhe.proof.compression import find_support
from quad4fhe.proof.guarantee import delta_of
from quad4fhe.proof.holdout import compressed, hold_out, refuse_seen
from quad4fhe.proof.reliable import check_level
from quad4fhe.proof.split import Split, split_of, split_rows
from quad4fhe.quadratic import QuadraticModel
from quad4fhe.regime import Regime
from quad4fhe.shards import Shards, engine_for, memory_bytes

Family = Literal["shared", "unitwise", "head", "auto"]
RegimeChoice = Literal["auto", "hard", "rch", "soft"]
Threshold = Literal["zero", "free"]
Attempt = Callable[[], Solution | None]
MEMORY_BUDGET = 2 * 2**30
"""Bytes that one copy of the calibration set's pre-activations may take before it is made anew at every pass."""


def fit(
    mlp: MLP,
    X_cal: Given,
    *,
    family: Family = "shared",
    regime: RegimeChoice = "auto",
    target_agreement: float | None = None,
    threshold: Threshold = "zero",
    polish: bool = True,
    seed: int = 2026,
    X_test: Given | None = None,
    holdout: Given | float | None = None,
    confidence: float = 0.95,
    fresh: bool = False,
    reliable: float | None = None,
    memory_budget: int = MEMORY_BUDGET,
    engine: str | Engine | None = None,
    workers: int | None = None,
    memory: int | str | None = None,
    progress: Progress = silent,
) -> Fit:
    """Replace the ReLU of `mlp` with a quadratic that keeps its decisions on X_cal (n, d).

    The fit is the same to the last bit with any engine, number of workers and amount of memory, or none of them. Only
    families other than shared learn from a sample where there are more than 100,000 rows that are not here as one
    array anyway: with an engine, with `memory`, and from `Rows`, memory maps, lists of paths, .npy and .parquet files.
    A file that is changed during the fit is noticed at its end, and InputError is raised.

    Parameters
    ----------
    mlp
        The trained classifier.
    X_cal
        Calibration samples (n, d); their labels are not needed. Also `Rows`, a path, or a list of paths whose rows
        follow each other: .npy and .parquet files are read part by part, others whole.
    family
        "shared" is one quadratic for all hidden units. "unitwise" gives every unit its own and "head" frees S, T and
        c, both at the same cost under encryption; sharpness and strength of their prior (the shared fit) are
        cross-validated on X_cal. "auto" takes the smallest family that cross-validates within one standard error of
        the best, and never one that does worse than shared.
    regime
        "auto" runs the paper's cascade (hard, then rch for two classes, then soft); "hard", "rch" or "soft" asks for
        one of them.
    target_agreement
        A share in (0, 1]. Raises TargetNotReachedError where the calibration agreement stays below it; with
        family="auto" the smallest family that reaches it is taken.
    threshold
        "free" lets two classes be told apart at a threshold other than zero, which is then moved into c. The constant
        of unitwise and head is free, so it adds nothing to them.
    polish
        Let a soft fit trade hinge loss for kept decisions; False gives the paper's own.
    seed
        Seed of the polish, of the folds of the cross-validation and of the split of a hold-out.
    X_test
        Samples that are only measured, never fitted; anything that X_cal may be.
    holdout
        Rows for a promise about new inputs (`Fit.guarantee`); anything that X_cal may be, or the share of X_cal that
        is set aside for it before the fit, by a plain random split.
    confidence
        Confidence of that promise.
    fresh
        Your word that the ReLU model was not trained on the `holdout` rows and that nothing was chosen by them;
        without it there is no promise. Without a hold-out it says this of X_cal, and a hard fit promises what the few
        rows that determine it allow.
    reliable
        A share such as 0.995: find on the hold-out the smallest margin above which at least this share of decisions is
        kept, with the confidence. `Fit.is_reliable` tells which decisions have it.
    memory_budget
        Bytes for the one copy of pre-activations that the other families keep; beyond it they are computed again at
        every pass, more slowly.
    engine
        "local", "ray" or an Engine: shares the work out among processes.
    workers
        How many processes; as many as there are cores by default.
    memory
        Bytes, or text such as "512MB", that all processes together may take beyond what they take when they start;
        statistics that do not fit go to scratch files (TMPDIR).
    progress
        Progress callback (what, done, total).
    """
    if not isinstance(mlp, MLP):
        raise InputError(
            f"the model is a {type(mlp).__name__}, wanted an MLP: use MLP.from_sklearn, from_torch or load"
        )
    _check_options(mlp, family, regime, threshold, target_agreement, seed)
    limit, team = memory_bytes(memory), engine_for(engine, workers)
    started = time.perf_counter()
    rows = rows_of("X_cal", X_cal, mlp.features, "calibration", limit)
    refuse_empty("X_cal", rows.shape[0])
    test = None if X_test is None else rows_of("X_test", X_test, mlp.features, "test", limit)
    rows, held_out, split = _held_out(mlp, rows, holdout, seed, limit)
    _check_promise(held_out, confidence, fresh, reliable)
    held = held_bytes(rows, X_cal) + (0 if test is None else held_bytes(test, X_test))
    kept = store_bytes(limit, team.workers if team else 1, mlp, rows.shape[0], held)
    progress("lift", 0, 0)
    if mlp.classes > 2:
        import scipy.optimize  # noqa: F401 - loads SciPy's own BLAS, which can be limited only then
    with (
        left_alone(rows, test, held_out),
        one_thread(),
        Shards(rows, shard_rows(mlp.classes), mlp, engine=team, memory=kept) as shards,
    ):
        run = Run(mlp, shards, LiftShards(shards, mlp, partial(progress, "lift")), threshold, polish, seed, progress)
        run.seconds["lift"] = time.perf_counter() - started
        solution = _solve(run, regime)
        taken = beyond.shared(run, solution)
        if family != "shared":
            learn = partial(_learn, run, taken.model, limit, everything=team is None and limit is None)
            budget = memory_budget if limit is None else min(memory_budget, limit // 2)
            taken = beyond.replace(run, taken, family, learn, target_agreement, budget)
        fitted = _result(run, solution, taken, test)
        if held_out is not None:
            fitted = replace(
                fitted,
                guarantee=hold_out(
                    mlp, fitted.model, held_out, confidence, split, level=reliable, margins=fitted.margins
                ),
            )
        elif fresh:
            fitted = _compressed(fitted, rows, confidence)
    reached = fitted.diagnostics.calibration.agreement
    if target_agreement is not None and reached < target_agreement:
        auto = "lower the target, or use more representative calibration data"
        raise TargetNotReachedError(
            f"the best agreement found is {100 * reached:.3f}%, below the target of {100 * target_agreement:.3f}%; "
            + (auto if family == "auto" else "try family='auto'")
        )
    return fitted


def _held_out(
    mlp: MLP, rows: Rows, holdout: Given | float | None, seed: int, memory: int | None
) -> tuple[Rows, Rows | None, Split | None]:
    """The rows to fit, those of a promise, and how these were set aside."""
    if holdout is None:
        return rows, None, None
    if isinstance(holdout, float):
        split = split_of(rows.shape[0], holdout, seed)
        return *split_rows(rows, split), split
    found = rows_of("X_holdout", holdout, mlp.features, "test", memory)
    refuse_seen(found, rows)
    return rows, found, None


def _compressed(fitted: Fit, rows: Rows, confidence: float) -> Fit:
    """The fit with a promise by the few rows that determine it, or with a remark that there is none."""
    support = None
    if fitted.regime.kind == "hard":
        support = find_support(fitted.mlp, fitted.model, rows, fitted.margins, fitted.threshold)
    if support is None:
        fitted.diagnostics.notes.append(notes.NO_PROMISE)
        return fitted
    return replace(fitted, guarantee=compressed(rows.shape[0], support, confidence))


def _check_promise(held_out: Rows | None, confidence: float, fresh: bool, reliable: float | None) -> None:
    delta_of(confidence)
    if held_out is not None and not fresh:
        raise InputError(
            "hold-out rows promise something only if the ReLU model was not trained on them and nothing was chosen by "
            "them; say so with fresh=True, or leave them out"
        )
    if reliable is not None:
        check_level(reliable)
        if held_out is None:
            raise InputError(
                "reliable decisions are found on a hold-out; add holdout=0.1, or rows of their own, and fresh=True"
            )


def _check_options(mlp: MLP, family: str, regime: str, threshold: str, target: Any, seed: Any) -> None:
    for name, value, allowed in (
        ("family", family, get_args(Family)),
        ("regime", regime, get_args(RegimeChoice)),
        ("threshold", threshold, get_args(Threshold)),
    ):
        if value not in allowed:
            raise InputError(f"{name} is {value!r}, wanted one of {', '.join(map(repr, allowed))}")
    if not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed is {seed!r}, wanted a whole number, 0 or more")
    if target is not None and not (isinstance(target, float | int) and 0 < target <= 1):
        raise InputError(f"target_agreement is {target!r}, wanted a share in (0, 1], such as 0.99")
    if family != "shared" and regime != "auto":
        raise InputError(
            f"regime={regime!r} is a choice within family='shared', and family is {family!r}; leave it out"
        )
    if mlp.classes > 2 and threshold == "free":
        raise InputError(f"threshold='free' is for two classes, and this model has {mlp.classes}; leave it out")


def _solve(run: Run, regime: RegimeChoice) -> Solution:
    attempts = _attempts(run)
    if regime != "auto" and regime not in attempts:
        why = f"this model has {run.lift.classes}" if run.lift.classes > 2 else "here B = 0 fixes the threshold"
        raise InputError(f"regime={regime!r} needs two classes and a threshold that can move, and {why}; use 'auto'")
    for name, attempt in attempts.items():
        if regime in ("auto", name) and (solution := attempt()) is not None:
            return solution
    advice = "one shared quadratic does not suit this model and data" if regime == "auto" else "use regime='auto'"
    raise FitError(f"{run.refusal}; {advice}")


def _attempts(run: Run) -> dict[str, Attempt]:
    """What can be tried, in this order."""
    pairs: dict[str, Attempt] = {"hard": partial(many.hard, run), "soft": partial(many.soft, run)}
    if run.lift.classes > 2:
        return pairs
    plane = run.lift.plane()
    if run.threshold == "zero" and plane.B == 0:
        run.notes.append(notes.NO_SHIFT)
        return pairs
    return {
        "hard": partial(two.hard, run, plane),
        "rch": partial(two.rch, run, plane),
        "soft": partial(two.soft, run, plane),
    }


def _learn(run: Run, whole: QuadraticModel, memory: int | None, *, everything: bool) -> tuple[Learned, Priors]:
    """What other families learn from, and the shared fit to some of it."""
    part = learned(run, memory, everything=everything)
    return part, partial(_shared_on, run, whole, part)


def _shared_on(run: Run, whole: QuadraticModel, part: Learned, rows: IntArray) -> QuadraticModel:
    """The shared fit to some of the rows, or that to all of them where some have no shared fit of their own."""
    if np.unique(part.target[rows]).size < 2:
        return whole
    with Shards(ArrayRows(part.X[rows]), shard_rows(run.mlp.classes), run.mlp) as shards:
        inner = Run(run.mlp, shards, LiftShards(shards, run.mlp), run.threshold, run.polish, run.seed, silent)
        try:
            return inner.model(_solve(inner, "auto"))
        except FitError:
            return whole


def _result(run: Run, solution: Solution, taken: Replacement, X_test: Rows | None) -> Fit:
    certificate = taken.certificate
    own = taken.family == "shared"
    with run.stage("diagnostics"):
        decimals, bits = coarsest(run, solution) if own else (None, None)
        test = None if X_test is None else count_agreement(run.mlp, taken.model, X_test, "X_test")
    if run.lift.ties:
        run.notes.append(notes.TIES.format(run.lift.ties))
    n, lost = certificate.samples, len(certificate.mismatches)
    step, cap, tolerance = (solution.step, solution.cap, solution.tolerance) if own else (None, None, None)
    diagnostics = Diagnostics(
        samples=n,
        classes=run.lift.classes,
        hard=run.hard,
        calibration=Agreement(samples=n, agreement=(n - lost) / n, mismatches=lost),
        test=test,
        margin=taken.margin,
        normalised_margin=taken.normalised_margin,
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
        quantisation=Quantisation(tolerance=tolerance, decimals=decimals, bits=bits),
        sweeps=run.sweeps,
        notes=run.notes,
        seconds=run.seconds,
        families=taken.trials,
        family_trace=taken.trace,
        conditioning=taken.conditioning,
    )
    return Fit(
        mlp=run.mlp,
        model=taken.model,
        family=taken.family,
        regime=Regime(taken.regime),
        threshold=run.threshold,
        alpha=taken.alpha,
        beta=taken.beta,
        eta=taken.eta,
        tau=taken.tau,
        seed=run.seed,
        box=run.lift.box,
        margins=taken.margins,
        diagnostics=diagnostics,
        certificate=certificate,
        versions={
            "quad4fhe": version("quad4fhe"),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scipy": scipy.__version__,
        },
    )
