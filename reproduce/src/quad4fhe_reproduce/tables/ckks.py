"""The encrypted tables: our folded circuits, and minimum configuration, operations and precision of the paper's."""

from __future__ import annotations

from quad4fhe_reproduce.data.sets import data_set
from quad4fhe_reproduce.published import CIRCUITS, OPERATIONS
from quad4fhe_reproduce.records import Circuit, Encrypted, Record
from quad4fhe_reproduce.schedule import ALL_SETS, CKKS_SETS
from quad4fhe_reproduce.tables.shape import (
    NONE,
    NOT_RUN,
    Runs,
    fit_named,
    missing,
    own_name,
    percent,
    signed,
    table,
    title,
    whole,
)

SWEEP = (25, 30, 35, 40, 45)


def folded(runs: Runs) -> str:
    """Every fit of every set as a folded circuit: plan, bill, and real encryption of test samples."""
    head = ["set", "fit", "layout", "precision", "N", "log Q", "up / sample", "down / sample", "keys"]
    head += [
        "server µs / sample (forecast)",
        "client µs / sample (forecast)",
        "tried",
        "changed",
        "clipped",
        "Agr.",
        "acc.",
    ]
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


def changes(runs: Runs) -> str:
    """Decisions that encryption changed, over all circuits that were tried, also those the table leaves out."""
    records = [record for name in ALL_SETS if (record := runs.get("families", name, runs.width(name))) is not None]
    said = []
    for precision in ("strict", "fast"):
        tried = [(record, each) for record in records for each in record.encrypted if each.precision == precision]
        changed = [(record, each) for record, each in tried if each.changed]
        lost, every = sum(each.changed or 0 for _, each in changed), sum(each.tried for _, each in tried)
        where = [f"{data_set(record.task.name).title}, {each.fit}, layout {each.layout}" for record, each in changed]
        named = f" ({'; '.join(where)})" if where and precision == "strict" else ""
        said.append(
            f"{len(tried)} circuits of precision `{precision}` changed {lost} of {whole(every)} decisions{named}."
        )
    return "\n".join(said)


def _best(record: Record) -> str:
    """The fit that auto chose: a family of its own name, or the shared one, polished where that is another model."""
    auto = fit_named(record, "auto")
    if auto is not None and auto.family != "shared":
        return auto.family
    return "polished" if any(each.fit == "polished" for each in record.encrypted) else "paper"


def _chosen(record: Record) -> list[Encrypted]:
    """The paper's fit and auto's choice."""
    return [each for each in record.encrypted if each.fit in ("paper", _best(record))]


def _label(record: Record, fit: str) -> str:
    return f"{own_name(fit)} (auto)" if fit == _best(record) else own_name(fit)


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
        _short(server),
        _short(client),
        whole(each.tried),
        whole(each.changed),
        whole(each.clipped),
        percent(each.agreement),
        percent(each.accuracy),
    ]


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def minimum(runs: Runs) -> str:
    """Each scheme in the paper's minimum configuration, the least one we found feasible, and our folded circuit."""
    head = ["task", "activation", "paper: acc.", "depth, log Q", "ms", "speed-up over Remez-7"]
    head += ["ours there: acc.", "mismatches", "server ms", "speed-up", "least feasible: N, depth, log Q", "server ms"]
    rows = []
    for name in CKKS_SETS:
        record = runs.get("ckks", name)
        published = [each for each in CIRCUITS if each.task == name]
        slowest = next(each for each in published if each.scheme == "Remez-7")
        base = _seconds(record, "Remez-7")
        shown = title(name, record)
        for theirs in published:
            size = f"{theirs.depth}, {theirs.log_q}"
            speed = f"{slowest.total_ms / theirs.total_ms:.2f}"
            row = [shown, theirs.scheme, f"{theirs.accuracy:.2f}", size, f"{theirs.total_ms:.2f}", speed]
            shown = ""
            rows.append([*row, *_ours(record, base, theirs.scheme)])
        families = runs.get("families", name)
        for each in families.encrypted if families is not None else []:
            if each.fit == "paper" and each.layout == "batch":
                took = 1e3 * each.server_seconds / each.samples
                label = f"folded Quad, batch, {each.precision}; time forecast"
                there = [percent(each.accuracy), f"{each.changed} of {each.tried}", "", ""]
                rows.append(["", label, "", "", "", "", *there, f"{each.ring}, 3, {each.bits}", f"{took:.3g}"])
    return table(head, rows)


def _paper_row(record: Record | None, scheme: str) -> Circuit | None:
    """A scheme at N = 2^14 and scale 2^40, which is the paper's minimum configuration."""
    sweep = [] if record is None else record.sweep
    return next((each for each in sweep if each.scheme == scheme and each.log2_scale == 40 and each.samples), None)


def _seconds(record: Record | None, scheme: str) -> float | None:
    """Server seconds a sample at N = 2^14: the least of all scales, whose cost is the same."""
    sweep = [] if record is None else record.sweep
    seconds = [each.server_seconds / each.samples for each in sweep if each.scheme == scheme and each.server_seconds]
    return min(seconds, default=None)


def _ours(record: Record | None, base: float | None, scheme: str) -> list[str]:
    if record is None:
        return [NOT_RUN, *([NONE] * 5)]
    own = _paper_row(record, scheme)
    cells = [NONE] * 4
    if own is not None:
        took = _seconds(record, scheme)
        ratio = NONE if base is None or took is None else f"{base / took:.2f}"
        cells = [percent(own.accuracy), f"{own.mismatches} of {own.samples}", _milliseconds(took), ratio]
    least = next((each for each in record.minimum if each.scheme == scheme and each.feasible), None)
    if least is None:
        return [*cells, "none", NONE]
    took = None if least.server_seconds is None else least.server_seconds / least.samples
    return [*cells, f"{least.ring}, {least.depth}, {least.log_q}", _milliseconds(took)]


def _milliseconds(seconds: float | None) -> str:
    return NONE if seconds is None else f"{1e3 * seconds:.3g}"


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
