"""The encrypted tables: our folded circuits, and minimum configuration, operations and precision of the paper's."""

from __future__ import annotations

from collections.abc import Sequence

from quad4fhe.experiments.published import CIRCUITS, OPERATIONS
from quad4fhe.experiments.records import Circuit, Encrypted, Record
from quad4fhe.experiments.schedule import ALL_SETS, CKKS_SETS
from quad4fhe.experiments.tables.shape import (
    NONE,
    NOT_RUN,
    Runs,
    fit_named,
    missing,
    percent,
    signed,
    table,
    title,
    whole,
)

SWEEP = (25, 30, 35, 40, 45)
_FITS = ("paper", "polished", "unitwise", "head", "auto")


def folded(runs: Runs) -> str:
    """Every fit of every set as a folded circuit: plan, bill, and real encryption of test samples."""
    head = ["set", "fit", "layout", "precision", "N", "log Q", "up / sample", "down / sample", "keys"]
    head += ["server µs / sample", "client µs / sample", "tried", "changed", "clipped", "Agr.", "acc."]
    rows = []
    for name in ALL_SETS:
        record = runs.get("families", name, runs.width(name))
        if record is None:
            rows.append(missing(title(name), len(head)))
            continue
        shown = title(name, record)
        for each in _chosen(record):
            rows.append([shown, _label(record, each.fit), *_plan(each)])
            shown = ""
    return table(head, rows)


def _chosen(record: Record) -> list[Encrypted]:
    """The paper's fit, and the best of ours, which is auto's family."""
    auto = fit_named(record, "auto")
    family = "paper" if auto is None or auto.family == "shared" else auto.family
    best = "polished" if family == "paper" and any(e.fit == "polished" for e in record.encrypted) else family
    return [each for each in record.encrypted if each.fit in ("paper", best)]


def _label(record: Record, fit: str) -> str:
    auto = fit_named(record, "auto")
    return f"{fit} (auto)" if auto is not None and auto.family == fit else fit


def _plan(each: Encrypted) -> list[str]:
    n = each.samples
    server, client = 1e6 * each.server_seconds / n, 1e6 * each.client_seconds / n
    return [
        each.layout,
        each.precision,
        str(each.ring),
        str(each.bits),
        _bytes(each.upload_bytes / n),
        _bytes(each.download_bytes / n),
        _bytes(each.key_bytes) if each.key_bytes else "none",
        f"{server:.3g}",
        f"{client:.3g}",
        whole(each.tried),
        whole(each.changed),
        whole(each.clipped),
        percent(each.agreement),
        percent(each.accuracy),
    ]


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def first_feasible(circuits: Sequence[Circuit], scheme: str) -> Circuit | None:
    """The row of the grid a scheme stops at."""
    return next((each for each in circuits if each.scheme == scheme and each.feasible), None)


def minimum(runs: Runs) -> str:
    """Minimum feasible configuration: the paper's grid, and smaller rings below it."""
    head = ["task", "activation", "paper: acc.", "depth, log Q", "paper ms", "ours: acc. (64 samples)"]
    head += ["N, depth, log Q", "mismatches", "server ms, one thread", "paper's speed-up over Remez-7", "ours"]
    rows = []
    for name in CKKS_SETS:
        record = runs.get("ckks", name)
        slowest = None if record is None else first_feasible(record.minimum, "Remez-7")
        published = [each for each in CIRCUITS if each.task == name]
        last = next(each for each in published if each.scheme == "Remez-7")
        shown = title(name, record)
        for theirs in published:
            row = [
                shown,
                theirs.scheme,
                f"{theirs.accuracy:.2f}",
                f"{theirs.depth}, {theirs.log_q}",
                f"{theirs.total_ms:.2f}",
            ]
            shown = ""
            speed = f"{last.total_ms / theirs.total_ms:.2f}"
            own = None if record is None else first_feasible(record.minimum, theirs.scheme)
            if own is None:
                rows.append([*row, NOT_RUN if record is None else "not feasible", NONE, NONE, NONE, speed, NONE])
                continue
            each_ms = None if own.server_seconds is None else 1e3 * own.server_seconds / own.samples
            ratio = NONE
            if slowest is not None and slowest.server_seconds and own.server_seconds:
                ratio = f"{slowest.server_seconds / own.server_seconds:.2f}"
            took = NONE if each_ms is None else f"{each_ms:.3g}"
            where = f"{own.ring}, {own.depth}, {own.log_q}"
            rows.append([*row, percent(own.accuracy), where, str(own.mismatches), took, speed, ratio])
    return table(head, rows)


def operations(runs: Runs) -> str:
    """Operations on ciphertexts for one batch: published, counted in our run of the paper's circuit, and folded."""
    head = ["task", "scheme", "", "enc.", "ct-ct", "ct-pt", "rotations", "rescales", "relin.", "depth"]
    rows = []
    for name in CKKS_SETS:
        record = runs.get("ckks", name)
        shown = title(name, record)
        for theirs in (each for each in OPERATIONS if each.task == name):
            counts = (theirs.encryptions, theirs.ct_ct, theirs.ct_pt, theirs.rotations, theirs.rescales)
            rows.append([shown, theirs.scheme, "paper", *map(str, counts), NONE, NONE])
            shown = ""
            own = None if record is None else next((o for o in record.operations if o.scheme == theirs.scheme), None)
            if own is None:
                rows.append(["", "", NOT_RUN, *([""] * 7)])
                continue
            mine = (own.encryptions, own.ct_ct, own.ct_pt, own.rotations, own.rescales)
            rows.append(["", "", "ours", *map(str, mine), str(own.relinearisations), str(own.depth)])
            moved = [signed(a - b, 0) for a, b in zip(mine, counts, strict=True)]
            rows.append(["", "", "difference", *moved, "", ""])
        for own in record.operations if record is not None else []:
            if own.scheme.startswith("folded"):
                counted = (own.encryptions, own.ct_ct, own.ct_pt, own.rotations, own.rescales)
                cells = (*counted, own.relinearisations, own.depth)
                rows.append(["", own.scheme, "ours", *(f"{value:,}" for value in cells)])
    return table(head, rows)


def sweep(runs: Runs) -> str:
    """The precision sweep: decisions that differ from the same circuit in the clear, and the largest logit error."""
    head = ["task", "activation", *(f"2^{scale}" for scale in SWEEP)]
    rows = []
    for name in CKKS_SETS:
        record = runs.get("ckks", name)
        if record is None:
            rows.append(missing(title(name), len(head)))
            continue
        shown = title(name, record)
        for scheme in dict.fromkeys(each.scheme for each in record.sweep):
            by_scale = {each.log2_scale: each for each in record.sweep if each.scheme == scheme}
            rows.append([shown, scheme, *(_swept(by_scale.get(scale)) for scale in SWEEP)])
            shown = ""
    return table(head, rows)


def _swept(each: Circuit | None) -> str:
    if each is None or each.samples == 0 or each.max_error is None:
        return NONE
    return f"{each.mismatches} of {each.samples}, {each.max_error:.1e}"
