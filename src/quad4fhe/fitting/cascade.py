"""`fit`: its options, and the order of attempts (hard, then reduced hulls, then soft, then other families)."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from quad4fhe._arrays import CHUNK_BYTES
from quad4fhe._box import default_share, widened
from quad4fhe._progress import Progress, silent
from quad4fhe._threads import one_thread
from quad4fhe.deep import with_nearest_head
from quad4fhe.errors import InputError, TargetNotReachedError
from quad4fhe.fitting import notes
from quad4fhe.fitting.assembly import Seen, assemble
from quad4fhe.fitting.design import Design, refuse_empty, row_bytes, shard_rows
from quad4fhe.fitting.families import AUTO, DEGREES, FAMILIES, SHARED
from quad4fhe.fitting.labels import calibration_labels, check_accuracy, decisions, labels_of
from quad4fhe.fitting.ladder import Ladder
from quad4fhe.fitting.result import Fit
from quad4fhe.fitting.run import Run
from quad4fhe.fitting.warnings import about_classes, about_scale
from quad4fhe.io.columns import Columns
from quad4fhe.io.rows import Rows, held_bytes, left_alone
from quad4fhe.io.samples import Given
from quad4fhe.mlp import MLP
from quad4fhe.proof.bounds import delta_of
from quad4fhe.proof.guarantee import Split, check_level
from quad4fhe.proof.holdout import hold_out, refuse_seen, split_of, split_rows
from quad4fhe.raw import names_for, rows_for
from quad4fhe.workers.pool import Workers
from quad4fhe.workers.shards import Shards, memory_bytes, pool_for

RegimeChoice = Literal["auto", "hard", "rch", "soft"]
Threshold = Literal["zero", "free"]
MEMORY_BUDGET = 2 * 2**30
"""Bytes for one copy of the calibration set's pre-activations; beyond it they are computed again at every pass."""

_HEAD_ROWS = 20_000  # that the head of a deeper network is derived from, if there are more
_HEAD_BLOCKS = 100  # that they come in, spread over the data
_DRIVER = 16 * 2**20  # bytes for line searches, hulls and answers of workers
_DRIVER_ROW = 24  # margins and labels of every row, and their copies when the fit is written
_POINT = 48  # the lifted points of two classes, sorted by class, and what their hulls take, for each coordinate
_WORKER = 3 * 2**20
_SPARE = 2**20


def fit(
    mlp: MLP,
    X_cal: Given,
    y: ArrayLike | None = None,
    *,
    family: str = "auto",
    degree: int | Literal["auto"] = 2,
    cost: float = 1.0,
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
    pool: str | Workers | None = None,
    workers: int | None = None,
    memory: int | str | None = None,
    label_column: str | None = None,
    y_test: ArrayLike | None = None,
    insist: bool = False,
    progress: Progress = silent,
) -> Fit:
    """Replace the activation of `mlp` with a quadratic that keeps its decisions on X_cal (n, d).

    If the model has a feature part, X_cal, X_test and holdout are raw inputs, which go through it first.

    The fit is the same to the last bit with any pool, number of workers and amount of memory. There is one exception:
    families other than shared learn from a sample if there are more than 100,000 rows and these are not one array in
    memory (with a pool, with `memory`, and from `Rows`, memory maps, lists of paths, .npy and .parquet files). If a
    file changes during the fit, InputError is raised at the end.

    Parameters
    ----------
    mlp
        The trained classifier.
    X_cal
        Calibration samples (n, d). Also `Rows`, a path, or a list of paths whose rows
        follow each other: .npy and .parquet files are read part by part, others whole. If the model has feature names,
        columns of tables and DataFrames are put in their order; otherwise it takes the names of X_cal.
    y
        The labels of X_cal (n,), which are not fitted: `diagnostics.accuracy` then says how often the network is right
        on them, and its replacement, and a network that is no better than chance is refused. Class ids from 0, names of
        classes, or labels from 1. By default those that come with X_cal, from a column of labels or an array y.
    family
        "auto" takes the smallest family that cross-validates within one standard error of the best, and never one that
        does worse than shared. It takes a lossless shared fit at once, and any shared fit if `memory` has no room for
        other families. "shared" is one quadratic for all hidden units, the paper's three numbers and the fastest fit.
        "unitwise" gives every unit its own and "head" frees S, T and c, both at the same cost under encryption; the
        strength of their prior (each unit's least-squares quadratic) is cross-validated on X_cal.
    degree
        The degree of the polynomial: 2 (the paper's), 3, 4, 6 or 8. Higher degrees keep more decisions and cost more
        under encryption. Where the degree below cross-validates clearly better it is taken. "auto" takes the cheapest
        degree that reaches `target_agreement` by cross-validation, or without a target the best within `cost`. Weights
        of higher degrees are rounded to few bits: the rounded polynomial is the model.
    cost
        For degree="auto" without a target: the largest server time, as a multiple of that of degree 2.
    regime
        "auto" runs the paper's cascade (hard, then rch for two classes, then soft), and with `polish` leaves rch if
        another line keeps more decisions. "hard", "rch" or "soft" asks for one of them, in family "shared".
    target_agreement
        A share in (0, 1]. Raises TargetNotReachedError if the calibration agreement stays below it; family="auto" takes
        the smallest family that reaches it. With degree="auto", the cross-validated agreement must reach it as well.
    threshold
        "free" lets the threshold between two classes differ from zero; it is then moved into c. The constant of
        unitwise and head is free anyway.
    polish
        Trade margin and hinge loss for kept decisions where the fit is not hard; with family="shared", False gives the
        paper's fit.
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
        States that the ReLU model was not trained on the `holdout` rows and that no choice was based on them; a promise
        needs it.
    reliable
        A share such as 0.995: find on the hold-out the smallest margin above which at least this share of decisions is
        kept, with the confidence. `Fit.is_reliable` tells which decisions have it.
    memory_budget
        Bytes for the copy of pre-activations that the other families keep. If it is too small, every pass computes
        them again, which is slower.
    pool
        "local", "ray" or a Workers object: share the work among worker processes.
    workers
        How many workers; by default one for each core.
    memory
        Bytes, or text such as "512MB", that all processes together may take beyond what they take when they start;
        statistics that do not fit go to scratch files (TMPDIR).
    label_column
        The column of labels in tables, which is not a feature; by default y, label, target or outcome.
    y_test
        The labels of X_test; by default those that come with it.
    insist
        Fit a network that is no better than chance on the labels as well.
    progress
        Progress callback (what, done, total).
    """
    if not isinstance(mlp, MLP):
        raise InputError(
            f"the model is a {type(mlp).__name__}, wanted an MLP: use MLP.from_sklearn, from_torch or load"
        )
    _check_options(mlp, family, regime, threshold, target_agreement, seed)
    if family == AUTO and regime != "auto":
        family = SHARED
    _check_degree(degree, cost, regime, threshold)
    limit, team = memory_bytes(memory), pool_for(pool, workers)
    started = time.perf_counter()
    mlp = names_for(mlp, X_cal, label_column)
    named = Columns(mlp.names.features, label_column)
    rows = rows_for(mlp, "X_cal", X_cal, "calibration", limit, named)
    refuse_empty("X_cal", rows.shape[0])
    test = None if X_test is None else rows_for(mlp, "X_test", X_test, "test", limit, named)
    labels, label_notes = labels_of(mlp, "y", rows, y)
    rows, held_out, split = _held_out(mlp, rows, holdout, seed, limit, named)
    labels = labels if labels is None or split is None else calibration_labels(labels, split)
    mlp = _with_head(mlp, rows)
    _check_promise(held_out, confidence, fresh, reliable)
    held = held_bytes(rows, X_cal) + (0 if test is None else held_bytes(test, X_test))
    highest = DEGREES[-1] if degree == "auto" else degree
    kept = _store_bytes(limit, team.workers if team else 1, mlp, rows.shape[0], held, highest)
    progress("lift", 0, 0)
    if mlp.classes > 2:
        import scipy.optimize  # noqa: F401 - loads SciPy's own BLAS, which can be limited only then
    with (
        left_alone(rows, test, held_out),
        one_thread(),
        Shards(rows, shard_rows(mlp.classes, highest), mlp, pool=team, memory=kept) as shards,
    ):
        design = Design.of_shards(shards, mlp, partial(progress, "lift"))
        run = Run(mlp, shards, design, threshold, polish, seed, progress)
        decided = decisions(shards)
        run.notes += label_notes
        if labels is not None:
            run.warnings += check_accuracy(labels, decided, mlp.classes, insist=insist)
        run.warnings += [*about_classes(decided, mlp.classes), *about_scale(mlp, rows)]
        if mlp.layers:
            run.notes.append(notes.DEEPER.format(len(mlp.layers)))
        if mlp.network is not None:
            run.notes.append(notes.GRAPH)
        run.seconds["lift"] = time.perf_counter() - started
        budget = memory_budget if limit is None else min(memory_budget, limit // 2)
        ladder = Ladder(run, family, regime, target_agreement, highest, budget, limit)
        candidate = ladder.choose(degree, cost)
        if run.design.ties:
            run.notes.append(notes.TIES.format(run.design.ties))
        judged = None
        if held_out is not None:
            box = widened(run.design.box, default_share(candidate.model.degree))
            judged = hold_out(mlp, candidate.model, held_out, box, confidence, split, level=reliable, seen=rows)
        fitted = assemble(run, candidate, judged, Seen(labels, decided), test, y_test)
    if target_agreement is not None and candidate.agreement < target_agreement:
        auto = "lower the target, " + ("raise the degree, " if degree in DEGREES[:-1] else "")
        auto += "or use more representative calibration data"
        raise TargetNotReachedError(
            f"the best agreement found is {100 * candidate.agreement:.3f}%, below the target of "
            f"{100 * target_agreement:.3f}%; " + (auto if family == AUTO else "try family='auto'")
        )
    return fitted


def _with_head(mlp: MLP, rows: Rows) -> MLP:
    """A deeper network with a head derived from some calibration rows; any other model as it is."""
    if not mlp.has_derived_head:
        return mlp
    n = rows.shape[0]
    blocks = 1 if n <= _HEAD_ROWS else _HEAD_BLOCKS
    size = n if blocks == 1 else _HEAD_ROWS // blocks
    with one_thread():
        taken = [np.asarray(rows.part(at := k * n // blocks, at + size), dtype=np.float64) for k in range(blocks)]
        return with_nearest_head(mlp, np.concatenate(taken))


def _held_out(
    mlp: MLP, rows: Rows, holdout: Given | float | None, seed: int, memory: int | None, named: Columns
) -> tuple[Rows, Rows | None, Split | None]:
    """The rows to fit, the rows for a promise, and how these were split."""
    if holdout is None:
        return rows, None, None
    if isinstance(holdout, float):
        split = split_of(rows.shape[0], holdout, seed)
        return *split_rows(rows, split), split
    others = rows_for(mlp, "X_holdout", holdout, "test", memory, named)
    refuse_seen(others, rows)
    return rows, others, None


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
    if fresh and held_out is None:
        raise InputError(
            "fresh=True is about hold-out rows, and there are none; add holdout=0.1, or rows of their own, to it"
        )


def _check_options(mlp: MLP, family: str, regime: str, threshold: str, target: Any, seed: Any) -> None:
    for name, value, allowed in (
        ("family", family, (*FAMILIES.names(), AUTO)),
        ("regime", regime, get_args(RegimeChoice)),
        ("threshold", threshold, get_args(Threshold)),
    ):
        if value not in allowed:
            raise InputError(f"{name} is {value!r}, wanted one of {', '.join(map(repr, allowed))}")
    if not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed is {seed!r}, wanted a whole number, 0 or more")
    if target is not None and not (isinstance(target, float | int) and 0 < target <= 1):
        raise InputError(f"target_agreement is {target!r}, wanted a share in (0, 1], such as 0.99")
    if family not in (SHARED, AUTO) and regime != "auto":
        raise InputError(
            f"regime={regime!r} is a choice within family='shared', and family is {family!r}; leave it out"
        )
    if mlp.classes > 2 and threshold == "free":
        raise InputError(f"threshold='free' is for two classes, and this model has {mlp.classes}; leave it out")


def _check_degree(degree: Any, cost: Any, regime: str, threshold: str) -> None:
    if isinstance(degree, bool | float) or degree not in (*DEGREES, "auto"):
        raise InputError(f"degree is {degree!r}, wanted one of {', '.join(map(str, DEGREES))} or 'auto'")
    if not (isinstance(cost, float | int) and cost >= 1):
        raise InputError(f"cost is {cost!r}, wanted a number of 1 or more: server time over that of degree 2")
    if degree != "auto" and cost != 1:
        raise InputError(f"cost={cost:g} is a choice for degree='auto', and degree is {degree}; leave it out")
    for name, value, usual in (("regime", regime, "auto"), ("threshold", threshold, "zero")):
        if degree != 2 and value != usual:
            raise InputError(f"{name}={value!r} is a choice for degree 2, and degree is {degree!r}; leave it out")


def _store_bytes(memory: int | None, workers: int, mlp: MLP, n: int, held: int, degree: int) -> int | None:
    """How many of `memory` bytes each worker may use to keep statistics of its shards, None without a limit.

    `held` is the size of samples that were read whole. Statistics that do not fit go to scratch files; neither the cuts
    nor any result depend on it.
    """
    if memory is None:
        return None
    # A shard's statistics as they are made or read, a view of them, and the temporaries of a chunk.
    block = shard_rows(mlp.classes, degree) * row_bytes(mlp.classes, degree)
    working = _WORKER + 2 * block + 2 * CHUNK_BYTES
    driver = _DRIVER + (_DRIVER_ROW + (mlp.classes == 2) * degree * _POINT) * n + held
    needed = driver + workers * working
    if memory < needed:
        fewer = ", or use fewer workers" if workers > 1 else ""
        raise InputError(
            f"memory is {memory / 1e6:.3g} MB, but {n} rows, {mlp.classes} classes and {workers} "
            f"worker{'s' if workers > 1 else ''} take at least {needed / 1e6:.0f} MB; allow that{fewer}"
        )
    # Allocators keep more than what is in use, which is not counted above: leave room for it where there is some.
    return max(0, (memory - driver) // workers - working - _SPARE)
