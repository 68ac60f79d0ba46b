"""What the paper leaves out: other families, five seeds, figures by class, and samples of low margin."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from quad4fhe_reproduce.published import fulltrain
from quad4fhe_reproduce.recipes import SEED, WIDTH, recipe
from quad4fhe_reproduce.records import Fitted, Kind, Record
from quad4fhe_reproduce.schedule import ALL_SETS, SEEDS
from quad4fhe_reproduce.tables.shape import (
    NONE,
    Runs,
    fit_named,
    kind_of,
    mean_and_spread,
    missing,
    number,
    own_name,
    percent,
    points,
    table,
    title,
)

FAMILIES = ("paper", "polished", "unitwise", "head", "auto")
_SEEDED = ("paper", "polished", "auto")
_SMALL = 10  # classes that still fit in one row


def families(runs: Runs) -> str:
    """Calibration and test agreement of every family, and what auto chose."""
    head = ["set", *(f"{own_name(name)}, cal. / test" for name in FAMILIES), "auto chose", "auto over the paper's fit"]
    rows = []
    for name in ALL_SETS:
        record = runs.get("families", name, runs.width(name))
        if record is None:
            rows.append(missing(title(name), len(head)))
            continue
        fits = [fit_named(record, family) for family in FAMILIES]
        cells = [_both(each) for each in fits]
        first, auto = fits[0], fits[-1]
        assert first is not None
        assert auto is not None
        gain = points(auto.measured.agreement_test, first.measured.agreement_test)
        rows.append([title(name, record), *cells, f"{auto.family}, {auto.regime}", gain])
    return table(head, rows)


def _both(fit: Fitted | None) -> str:
    return NONE if fit is None else f"{percent(fit.measured.agreement_cal)} / {percent(fit.measured.agreement_test)}"


def _of_seed(runs: Runs, name: str, seed: int, fit: str) -> tuple[Record, Fitted] | None:
    kind: Kind = "families" if seed == SEED else "seed"
    record = runs.get(kind, name, WIDTH, seed)
    own = fit_named(record, fit)
    return None if record is None or own is None else (record, own)


def seeds(runs: Runs) -> str:
    """Mean and standard deviation over the seeds of split, training and fit; the paper has one seed."""
    head = ["set", "seeds", "ReLU acc.", "published Agr. (one seed)"]
    head += [f"{what}, {own_name(name)}" for name in _SEEDED for what in ("Agr.", "acc.")]
    head += ["regimes of the paper's fit"]
    rows = []
    for name in ALL_SETS:
        by_fit = {
            fit: [each for seed in (SEED, *SEEDS) if (each := _of_seed(runs, name, seed, fit)) is not None]
            for fit in _SEEDED
        }
        first = by_fit["paper"]
        if not first:
            rows.append(missing(title(name), len(head)))
            continue
        theirs = fulltrain(recipe(name).paper, WIDTH)
        cells = []
        for fit in _SEEDED:
            few = "" if len(by_fit[fit]) == len(first) else f" ({len(by_fit[fit])} of the seeds)"
            cells.append(mean_and_spread([own.measured.agreement_test for _, own in by_fit[fit]]) + few)
            cells.append(mean_and_spread([own.measured.accuracy for _, own in by_fit[fit]]) + few)
        relu = mean_and_spread([record.relu.accuracy for record, _ in first])
        published = percent(theirs.agreement_test if theirs else None)
        regimes = _counted([own.regime for _, own in first])
        rows.append([title(name), str(len(first)), relu, published, *cells, regimes])
    return table(head, rows)


def seed_range(runs: Runs, name: str) -> str:
    """Lowest and highest test agreement of the paper's fit over the seeds."""
    pairs = [each for seed in (SEED, *SEEDS) if (each := _of_seed(runs, name, seed, "paper")) is not None]
    agreed = [own.measured.agreement_test for _, own in pairs]
    return f"{percent(min(agreed))} to {percent(max(agreed))}" if len(agreed) > 1 else NONE


def seed_kinds(runs: Runs, name: str) -> list[str]:
    """The kind of regime of the paper's fit at every seed: hard, rch or soft."""
    pairs = [_of_seed(runs, name, seed, "paper") for seed in (SEED, *SEEDS)]
    return [kind_of(each[1].regime) for each in pairs if each is not None]


def _counted(words: Sequence[str]) -> str:
    return ", ".join(f"{word} x {words.count(word)}" for word in sorted(set(words)))


def by_class(runs: Runs) -> str:
    """F1 by class where there are few classes: ReLU decisions are not labels, so F1 is against the truth."""
    rows = []
    for name in ALL_SETS:
        record = runs.get("families", name, runs.width(name))
        if record is None or record.classes > _SMALL:
            continue
        for fit in ("paper", "polished", "auto"):
            own = fit_named(record, fit)
            if own is None:
                continue
            label = title(name, record) if fit == "paper" else ""
            blank = [""] * (_SMALL - record.classes)
            rows.append([label, f"F1, {own_name(fit)}", *(percent(value) for value in own.class_f1), *blank])
            rows.append(["", f"Agr., {own_name(fit)}", *(percent(value) for value in own.class_agreement), *blank])
    return table(["set", "", *(f"class {c}" for c in range(_SMALL))], rows)


def class_spread(runs: Runs) -> str:
    """Where there are many classes: the worst, the tenth from below in a hundred, and the median class."""
    head = ["set", "classes", "fit", "F1: worst", "10%", "median", "Agr.: worst", "10%", "median", "classes at 100%"]
    rows = []
    for name in ALL_SETS:
        record = runs.get("families", name, runs.width(name))
        if record is None or record.classes <= _SMALL:
            continue
        for fit in ("paper", "polished", "auto"):
            own = fit_named(record, fit)
            if own is None:
                continue
            label = [title(name, record), str(record.classes)] if fit == "paper" else ["", ""]
            complete = sum(value == 1.0 for value in own.class_agreement)
            rows.append([*label, own_name(fit), *_three(own.class_f1), *_three(own.class_agreement), str(complete)])
    return table(head, rows)


def _three(values: Sequence[float | None]) -> list[str]:
    known = sorted(value for value in values if value is not None)
    return [percent(known[0]), percent(known[round(0.1 * (len(known) - 1))]), percent(median(known))]


def deciles(runs: Runs) -> str:
    """Test agreement on each tenth of the test set, from the samples the ReLU model is least sure of upwards."""
    head = ["set", "fit", *(f"{10 * k} to {10 * k + 10}%" for k in range(10))]
    rows = []
    for name in ALL_SETS:
        record = runs.get("families", name, runs.width(name))
        if record is None:
            rows.append(missing(title(name), len(head)))
            continue
        for fit in ("paper", "polished", "auto"):
            own = fit_named(record, fit)
            if own is not None:
                label = title(name, record) if fit == "paper" else ""
                rows.append([label, own_name(fit), *(percent(value) for value in own.deciles)])
    return table(head, rows)


def dropped(runs: Runs) -> str:
    """The shared fits without the calibration rows of lowest margin: regime, coefficients, test agreement."""
    head = ["set", "rows left out", "regime", "alpha / beta", "eta / beta", "Agr.", "change", "polished Agr.", "change"]
    rows = []
    for name in ALL_SETS:
        record = runs.get("plain", name, runs.width(name))
        own, polished = fit_named(record, "paper"), fit_named(record, "polished")
        if record is None or own is None or polished is None:
            rows.append(missing(title(name), len(head)))
            continue
        base, better = own.measured.agreement_test, polished.measured.agreement_test
        shape = _shape(own.alpha, own.beta, own.eta)
        rows.append([title(name, record), "none", own.regime, *shape, percent(base), "", percent(better), ""])
        by_share = {share: {each.fit: each for each in record.dropped if each.share == share} for share in (0.01, 0.05)}
        for share, both in by_share.items():
            plain, polish = both["paper"], both["polished"]
            shape = _shape(plain.alpha, plain.beta, plain.eta)
            first = [percent(plain.agreement_test), points(plain.agreement_test, base)]
            second = [percent(polish.agreement_test), points(polish.agreement_test, better)]
            rows.append(["", f"{100 * share:g}%", plain.regime, *shape, *first, *second])
    return table(head, rows)


def _shape(alpha: float | None, beta: float | None, eta: float | None) -> list[str]:
    """Coefficients up to scale, as margins of different problems have different scales."""
    if alpha is None or beta is None or eta is None or beta == 0:
        return [NONE, NONE]
    return [number(alpha / beta, 4), number(eta / beta, 3)]
