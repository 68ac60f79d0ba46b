"""The small-pool tables: accuracy as in the paper, and agreement of our fits at each pool."""

from __future__ import annotations

from quad4fhe_reproduce.published import Published, smallpool
from quad4fhe_reproduce.recipes import POOLS, RECIPES, SEED, recipe
from quad4fhe_reproduce.records import Fitted, PoolResult, Record
from quad4fhe_reproduce.schedule import ALL_SETS, BINARY_SETS, SEEDS
from quad4fhe_reproduce.tables.shape import NONE, Runs, kind_of, missing, own_name, percent, points, table, title


def accuracy(runs: Runs) -> str:
    """As in the paper: top-1 accuracy of the paper's own fit at each pool, and of ReLU."""
    head = ["set", "", *(f"{100 * share:g}%" for share in POOLS), "ReLU"]
    rows = []
    for name in ALL_SETS:
        record = runs.get("pool", name, runs.width(name))
        if record is None:
            rows.append(missing(title(name), len(head)))
            continue
        paper = recipe(name).paper
        original = smallpool(paper, 0.2, "ReLU")
        theirs = [smallpool(paper, share) for share in POOLS]
        published = [each.accuracy if each else None for each in theirs] + [original.accuracy if original else None]
        ours = [_accuracy(pool) for pool in record.pools] + [record.relu.accuracy]
        rows.append([title(name, record), "paper", *(percent(value) for value in published)])
        rows.append(["", "ours", *(percent(value) for value in ours)])
        rows.append(["", "difference", *(points(a, b) for a, b in zip(ours, published, strict=True))])
    return table(head, rows)


def agreement(runs: Runs) -> str:
    """Test agreement at each pool: the paper's figure, and our fits; rows of the pool in brackets."""
    head = ["set", "", *(f"{100 * share:g}%" for share in POOLS)]
    rows = []
    for name in ALL_SETS:
        record = runs.get("pool", name, runs.width(name))
        if record is None:
            rows.append(missing(title(name), len(head)))
            continue
        theirs = [smallpool(recipe(name).paper, share) for share in POOLS]
        cells = [f"{percent(each.agreement_test)} [{each.n_cal}]" if each else NONE for each in theirs]
        rows.append([title(name, record), "paper", *cells])
        for fit in ("paper", "polished", "auto"):
            rows.append(["", f"ours, {own_name(fit)}", *(_cell(pool, fit) for pool in record.pools)])
            if fit == "paper":
                rows.append(["", "difference", *(_apart(pool, fit, each) for pool, each in _beside(record))])
    return table(head, rows)


def _beside(record: Record) -> list[tuple[PoolResult, Published | None]]:
    """Every pool of a run with its published row."""
    return [(pool, smallpool(recipe(record.task.name).paper, pool.share)) for pool in record.pools]


def _apart(pool: PoolResult, fit: str, theirs: Published | None) -> str:
    own = _own(pool, fit)
    return points(own.measured.agreement_test if own else None, theirs.agreement_test if theirs else None)


def differing(runs: Runs, close: float) -> list[str]:
    """One line for each pool of the paper's own data with another kind of regime, or agreement further than `close`."""
    lines = []
    for each in RECIPES:
        record = runs.get("pool", each.name)
        for pool, theirs in _beside(record) if record is not None and each.same else []:
            own = _own(pool, "paper")
            if own is None or theirs is None or theirs.agreement_test is None:
                continue
            where = f"{title(each.name)} at {100 * pool.share:g}%"
            rows = f"({theirs.n_cal} rows there, {pool.rows} here)"
            if kind_of(own.regime) != kind_of(theirs.regime):
                lines.append(f"{where}: {theirs.regime} published, {own.regime} here {rows}.")
            if abs(own.measured.agreement_test - theirs.agreement_test) > close:
                agreement = f"{percent(theirs.agreement_test)} published, {percent(own.measured.agreement_test)} here"
                lines.append(f"{where}: agreement {agreement} {rows}.")
    return lines


def regimes(runs: Runs) -> str:
    """Regime of the paper's fit on the pools of the binary sets, for each seed: it depends on the rows drawn."""
    head = ["set", "seed", *(f"{100 * share:g}%" for share in POOLS)]
    rows = []
    for name in BINARY_SETS:
        theirs = [smallpool(recipe(name).paper, share) for share in POOLS]
        cells = [f"{each.regime} [{each.n_cal}]" if each else NONE for each in theirs]
        rows.append([title(name), "paper, 2026", *cells])
        for seed in (SEED, *SEEDS):
            record = runs.get("pool", name, runs.width(name), seed)
            if record is None:
                continue
            pairs = [(pool, _own(pool, "paper")) for pool in record.pools]
            shown = [NONE if own is None else f"{own.regime} [{pool.rows}]" for pool, own in pairs]
            rows.append(["", f"ours, {seed}", *shown])
    return table(head, rows)


def notes(runs: Runs) -> list[str]:
    """One line for each pool that could not be used, or that misses classes."""
    lines = []
    for name in ALL_SETS:
        record = runs.get("pool", name, runs.width(name))
        for pool in record.pools if record is not None else []:
            where = f"{title(name)} at {100 * pool.share:g}%"
            if pool.why_unavailable:
                lines.append(f"{where} is unavailable: {pool.why_unavailable}.")
            elif pool.missing_classes:
                assert record is not None
                lines.append(f"{where}: {pool.missing_classes} of {record.classes} classes have no row in the pool.")
    return lines


def _own(pool: PoolResult, name: str) -> Fitted | None:
    return next((each for each in pool.fits if each.name == name), None)


def _accuracy(pool: PoolResult) -> float | None:
    own = _own(pool, "paper")
    return None if own is None else own.measured.accuracy


def _cell(pool: PoolResult, name: str) -> str:
    own = _own(pool, name)
    if own is None:
        return NONE
    chosen = f", {own.family}" if name == "auto" else ""
    return f"{percent(own.measured.agreement_test)} [{pool.rows}{chosen}]"


def by_size(record: Record, name: str) -> list[tuple[int, float]]:
    """(rows, test agreement) of one fit over the pools, for the picture."""
    pairs = [(pool.rows, _own(pool, name)) for pool in record.pools]
    return [(rows, own.measured.agreement_test) for rows, own in pairs if own is not None]
