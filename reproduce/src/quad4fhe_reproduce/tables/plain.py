"""The paper's plaintext tables beside ours: full-train MLPs, frozen backbones, feasibility, diagnostics, widths.

Decides columns and rows only; every figure comes from a finished run or from `published`.
"""

from __future__ import annotations

from collections.abc import Sequence

from quad4fhe_reproduce.baselines import published_names
from quad4fhe_reproduce.published import Published, fulltrain
from quad4fhe_reproduce.recipes import WIDTHS, recipe
from quad4fhe_reproduce.records import Fitted, Record
from quad4fhe_reproduce.schedule import ALL_SETS, BINARY_SETS, FROZEN_SETS, MLP_SETS
from quad4fhe_reproduce.tables.shape import (
    NONE,
    NOT_RUN,
    Cell,
    Runs,
    baseline_named,
    fit_named,
    kind_of,
    missing,
    number,
    percent,
    points,
    signed,
    table,
    three_lines,
    title,
    whole,
)

_SHOWN = ("Square", "Remez-7", "OLA", "Precise-11")


def accuracies(runs: Runs, names: Sequence[str]) -> str:
    """As in the paper: top-1 accuracy of every replacement, agreement and macro-F1, and our columns."""
    head = ["set", "", "ReLU", "Square", "Remez-7", "OLA", "Precise", "Quad", "Agr.", "MF1"]
    ours = ["Agr. polished", "Agr. unitwise", "Agr. head", "Agr. auto", "acc. auto"]
    ours += ["auto encrypted: Agr.", "acc.", "N, log Q", "server µs (forecast)"]
    rows = []
    for name in names:
        record = runs.get("plain", name)
        label = title(name, record)
        if record is None:
            rows.append(missing(label, len(head) + len(ours)))
            continue
        lines = three_lines(label, _accuracy_cells(record))
        polished, families = fit_named(record, "polished"), runs.get("families", name)
        others = [fit_named(families, family) for family in ("unitwise", "head", "auto")]
        auto = others[-1]
        agreed = [percent(each.measured.agreement_test) if each else NONE for each in (polished, *others)]
        if auto is not None:
            agreed[-1] += f" ({auto.family})"
        extra = [*agreed, percent(auto.measured.accuracy) if auto else NONE, *_encrypted(families, auto)]
        rows += [[*lines[0], *([""] * len(ours))], [*lines[1], *extra], [*lines[2], *([""] * len(ours))]]
    return table([*head, *ours], rows)


def _encrypted(record: Record | None, auto: Fitted | None) -> list[str]:
    """The folded circuit of auto's choice, layout batch, precision strict, on the whole test set."""
    if record is None or auto is None:
        return [NONE] * 4
    # A shared choice is the polished fit, or the paper's where both are the same model.
    wanted = ("polished", "paper") if auto.family == "shared" else (auto.family,)
    rows = {each.fit: each for each in record.encrypted if (each.layout, each.precision) == ("batch", "strict")}
    row = next((rows[name] for name in wanted if name in rows), None)
    if row is None:
        return [NONE] * 4
    took = f"{1e6 * row.server_seconds / row.samples:.3g}"
    return [percent(row.agreement), percent(row.accuracy), f"{row.ring}, {row.bits}", took]


def _accuracy_cells(record: Record) -> list[Cell]:
    paper = recipe(record.task.name).paper
    width = record.task.width
    original, quad = fulltrain(paper, width, "ReLU"), fulltrain(paper, width)
    own = fit_named(record, "paper")
    assert own is not None
    cells: list[Cell] = [(original.accuracy if original else None, record.relu.accuracy)]
    for method in _SHOWN:
        theirs, mine = fulltrain(paper, width, method), baseline_named(record, method)
        cells.append((theirs.accuracy if theirs else None, mine.accuracy if mine else None))
    cells.append((quad.accuracy if quad else None, own.measured.accuracy))
    cells.append((quad.agreement_test if quad else None, own.measured.agreement_test))
    cells.append((quad.macro_f1 if quad else None, own.measured.macro_f1))
    return cells


def feasibility(runs: Runs) -> str:
    """As in the paper: regime, coefficients and margin of the two binary sets."""
    head = ["set", "", "regime", "alpha", "beta", "eta", "margin", "critical cap", "test Agr."]
    rows = []
    for name in BINARY_SETS:
        record = runs.get("plain", name, runs.width(name))
        own, polished = fit_named(record, "paper"), fit_named(record, "polished")
        if record is None or own is None or polished is None:
            rows.append(missing(title(name), len(head)))
            continue
        theirs = fulltrain(recipe(name).paper, record.task.width)
        assert theirs is not None
        rows.append(
            [title(name, record), "paper", theirs.regime, *_coefficients(theirs), NONE, percent(theirs.agreement_test)]
        )
        rows.append(["", "ours", own.regime, *_coefficients(own), _cap(own), percent(own.measured.agreement_test)])
        pairs = zip(_values(own), _values(theirs), strict=True)
        moved = [signed(a - b, 3) if a is not None and b is not None else NONE for a, b in pairs]
        same = "same" if own.regime == theirs.regime else "differs"
        rows.append(["", "difference", same, *moved, "", points(own.measured.agreement_test, theirs.agreement_test)])
        if polished.regime != own.regime:
            agreement = percent(polished.measured.agreement_test)
            rows.append(["", "ours, polished", polished.regime, *_coefficients(polished), "", agreement])
        for family in ("unitwise", "head"):
            other = fit_named(runs.get("families", name, record.task.width), family)
            if other is not None:
                agreement = percent(other.measured.agreement_test)
                rows.append(["", f"ours, {family}", other.regime, "", "", "", "", "", agreement])
    return table(head, rows)


def _values(fit: Fitted | Published) -> tuple[float | None, ...]:
    return fit.alpha, fit.beta, fit.eta, fit.margin


def _coefficients(fit: Fitted | Published) -> list[str]:
    return [number(value) for value in _values(fit)]


def _cap(fit: Fitted) -> str:
    return NONE if fit.critical_mu is None else f"{fit.critical_mu:.5f}"


def diagnostics(runs: Runs) -> str:
    """As in the paper: regime, constraints, agreement, margin and slack of every set, full train."""
    head = ["set", "", "regime", "n_c", "pairs", "exact", "cal. Agr.", "test Agr.", "cal. mis", "test mis"]
    head += ["norm. marg.", "slack > 0", "sum of slack", "max. slack"]
    rows = []
    for name in ALL_SETS:
        record = runs.get("plain", name, runs.width(name))
        own = fit_named(record, "paper")
        if record is None or own is None:
            rows.append(missing(title(name), len(head)))
            continue
        theirs = fulltrain(recipe(name).paper, record.task.width)
        assert theirs is not None
        m = own.measured
        exact = "yes" if theirs.agreement_cal == 1.0 else "no"
        rows += [
            [
                title(name, record),
                "paper",
                theirs.regime,
                whole(theirs.n_cal),
                NONE if record.classes == 2 else whole(theirs.pairs),
                exact,
                percent(theirs.agreement_cal),
                percent(theirs.agreement_test),
                whole(theirs.mismatches_cal),
                whole(theirs.mismatches_test),
                number(theirs.normalised_margin, 2),
                whole(theirs.slack_count),
                _sum(theirs.slack_sum),
                number(theirs.slack_max, 2),
            ],
            [
                "",
                "ours",
                own.regime,
                whole(record.n_cal),
                whole(own.constraints),
                "yes" if own.lossless else "no",
                percent(m.agreement_cal),
                percent(m.agreement_test),
                whole(m.mismatches_cal),
                whole(m.mismatches_test),
                number(own.normalised_margin, 2),
                whole(own.slack_count),
                _sum(own.slack_sum),
                number(own.slack_max, 2),
            ],
            [
                "",
                "difference",
                _same(own.regime, theirs.regime),
                signed(record.n_cal - theirs.n_cal, 0),
                "",
                "",
                points(m.agreement_cal, theirs.agreement_cal),
                points(m.agreement_test, theirs.agreement_test),
                _moved(m.mismatches_cal, theirs.mismatches_cal, 0),
                _moved(m.mismatches_test, theirs.mismatches_test, 0),
                _moved(own.normalised_margin, theirs.normalised_margin, 2),
                _moved(own.slack_count, theirs.slack_count, 0),
                _moved(own.slack_sum, theirs.slack_sum, 1),
                _moved(own.slack_max, theirs.slack_max, 2),
            ],
        ]
        others = [fit_named(record, "polished")]
        others += [fit_named(runs.get("families", name, record.task.width), each) for each in ("unitwise", "head")]
        rows += [_other(each) for each in others if each is not None and each.regime != own.regime]
    return table(head, rows)


def _other(fit: Fitted) -> list[str]:
    """A line of the diagnostics for a fit the paper does not have."""
    m = fit.measured
    exact = "yes" if fit.lossless else "no"
    counts = [percent(m.agreement_cal), percent(m.agreement_test), whole(m.mismatches_cal), whole(m.mismatches_test)]
    return ["", f"ours, {fit.name}", fit.regime, "", "", exact, *counts, number(fit.normalised_margin, 2), "", "", ""]


def _sum(value: float | None) -> str:
    return NONE if value is None else f"{value:,.1f}"


def _moved(ours: float | None, paper: float | None, digits: int) -> str:
    return NONE if ours is None or paper is None else signed(ours - paper, digits)


def _same(ours: str, paper: str) -> str:
    return "same" if kind_of(ours) == kind_of(paper) else "differs"


def widths(runs: Runs) -> str:
    """Regime and test agreement of the paper's own fit at each width."""
    head = ["set", "", *(f"{what}, {width}" for width in WIDTHS for what in ("regime", "Agr.", "Quad acc."))]
    rows = []
    for name in ALL_SETS:
        lines: list[list[str]] = [[title(name), "paper"], ["", "ours"], ["", "difference"], ["", "ours, polished"]]
        for width in WIDTHS:
            theirs = fulltrain(recipe(name).paper, width)
            record = runs.get("plain", name, width)
            own, polished = fit_named(record, "paper"), fit_named(record, "polished")
            assert theirs is not None
            lines[0] += [theirs.regime, percent(theirs.agreement_test), percent(theirs.accuracy)]
            if own is None or polished is None:
                lines[1] += [NOT_RUN, NONE, NONE]
                lines[2] += ["", NONE, NONE]
                lines[3] += ["", NONE, NONE]
                continue
            m = own.measured
            lines[1] += [own.regime, percent(m.agreement_test), percent(m.accuracy)]
            lines[2] += [_same(own.regime, theirs.regime), points(m.agreement_test, theirs.agreement_test)]
            lines[2] += [points(m.accuracy, theirs.accuracy)]
            p = polished.measured
            lines[3] += [polished.regime, percent(p.agreement_test), percent(p.accuracy)]
        rows += lines
    return table(head, rows)


def baselines(runs: Runs) -> str:
    """Test agreement of every published baseline, of which the paper's tables show four."""
    names = published_names()
    rows = []
    for name in ALL_SETS:
        record = runs.get("plain", name)
        if record is None:
            rows.append(missing(title(name), len(names) + 2))
            continue
        cells: list[Cell] = []
        for method in names:
            theirs, mine = fulltrain(recipe(name).paper, 256, method), baseline_named(record, method)
            cells.append((theirs.agreement_test if theirs else None, mine.agreement_test if mine else None))
        rows += three_lines(title(name, record), cells)
    return table(["set", "", *names], rows)


def mlp(runs: Runs) -> str:
    """The full-train MLPs."""
    return accuracies(runs, MLP_SETS)


def frozen(runs: Runs) -> str:
    """The heads on frozen backbones."""
    return accuracies(runs, FROZEN_SETS)
