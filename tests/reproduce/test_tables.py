"""The tables: published figures as printed in the paper, differences with their sign, and gaps named as gaps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from quad4fhe_reproduce.published import CIRCUITS, fulltrain, smallpool
from quad4fhe_reproduce.recipes import RECIPES
from quad4fhe_reproduce.results import results
from quad4fhe_reproduce.schedule import ALL_SETS, TABLES, tasks
from quad4fhe_reproduce.store import Store
from quad4fhe_reproduce.tables import ckks, ours, plain, pools
from quad4fhe_reproduce.tables.shape import (
    Runs,
    fit_named,
    mean_and_spread,
    percent,
    points,
    signed,
    table,
    three_lines,
    title,
)

# As printed: ReLU, Square, Remez-7, OLA, Precise, Quad accuracy, agreement, macro-F1.
PRINTED = {
    "AG_News": (89.83, 73.30, 89.73, 89.80, 89.82, 89.95, 98.64, 89.94),
    "CIFAR10": (52.14, 35.84, 49.68, 52.25, 52.13, 52.64, 87.41, 52.31),
    "CIFAR100": (20.53, 12.03, 18.95, 20.52, 20.53, 20.71, 82.29, 19.53),
    "Otto": (79.71, 38.53, 71.87, 77.74, 79.72, 76.05, 87.05, 69.36),
    "Shuttle": (99.69, 82.56, 84.21, 88.55, 99.33, 97.04, 97.30, 49.32),
    "SST5": (36.43, 29.19, 36.33, 36.43, 36.43, 36.43, 92.31, 31.41),
}


@pytest.mark.parametrize("paper", PRINTED)
def test_the_published_figures_are_those_printed_in_the_paper(paper: str) -> None:
    methods = ("ReLU", "Square", "Remez-7", "OLA", "Precise-11", "Quad")
    rows = [fulltrain(paper, 256, method) for method in methods]
    assert all(row is not None for row in rows)
    found = [row.accuracy for row in rows if row is not None]
    quad = rows[-1]
    assert quad is not None
    shown = [round(100 * (value or 0), 2) for value in (*found, quad.agreement_test, quad.macro_f1)]
    assert shown == pytest.approx(list(PRINTED[paper]), abs=0.0051)


def test_the_pools_the_paper_marks_as_unusable_have_no_published_figure() -> None:
    assert smallpool("BWC", 0.01) is None
    assert smallpool("Dinov2_StanfordCars", 0.01) is None
    otto = smallpool("Otto", 0.01)
    assert otto is not None
    assert (otto.n_cal, round(100 * (otto.accuracy or 0), 2)) == (309, 76.46)


def test_the_papers_speed_ups_follow_from_its_latencies() -> None:
    latency = {(each.task, each.scheme): each.total_ms for each in CIRCUITS}
    for task, printed in (("otto", 1.25), ("cub200_lite0", 1.68), ("massive_en_minilm", 1.18)):
        assert latency[task, "Remez-7"] / latency[task, "Quad"] == pytest.approx(printed, abs=0.005)


def test_differences_are_in_points_with_their_sign() -> None:
    assert three_lines("set", [(0.9, 0.8875), (None, 0.5), (0.25, 0.25)]) == [
        ["set", "paper", "90.00", "-", "25.00"],
        ["", "ours", "88.75", "50.00", "25.00"],
        ["", "difference", "-1.25", "-", "0.00"],
    ]
    assert points(0.51, 0.5) == "+1.00"
    assert signed(-0.001) == signed(0.001) == "0.00"
    assert percent(None) == "-"


def test_the_spread_over_seeds_is_the_sample_standard_deviation() -> None:
    assert mean_and_spread([0.90, 0.92, 0.94]) == "92.00 ± 2.00"
    assert mean_and_spread([0.9]) == "90.00"


def test_a_table_is_markdown_with_as_many_cells_in_every_row() -> None:
    lines = table(["a", "b"], [["x", "1"], ["", "2"]]).splitlines()
    assert lines == ["| a | b |", "|---|---:|", "| x | 1 |", "|  | 2 |"]


def test_without_runs_the_document_says_so_in_every_row_and_its_tables_are_whole() -> None:
    text = results([])
    assert "not run yet" in text
    for block in text.split("\n\n"):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len({row.count("|") for row in rows}) <= 1, rows[:3]


def test_rows_on_other_data_say_so() -> None:
    for each in RECIPES:
        assert each.same == ("*(" not in title(each.name))


SHOWN: dict[str, list[Callable[[Runs], str]]] = {
    "mlp": [plain.mlp],
    "binary": [plain.feasibility],
    "diagnostics": [plain.diagnostics],
    "smallpool": [pools.accuracy, pools.agreement, pools.regimes],
    "frozen": [plain.frozen],
    "widths": [plain.widths],
    "families": [ours.families],
    "encrypted": [ckks.folded, ckks.changes],
    "ckks": [ckks.minimum, ckks.operations, ckks.sweep],
    "seeds": [ours.seeds],
    "classes": [ours.by_class, ours.class_spread],
    "margins": [ours.deciles, ours.dropped],
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_asks_for_every_run_that_it_shows_and_for_no_other(name: str) -> None:
    folder = Path(__file__).parents[2] / "results"
    if not (folder / "runs").is_dir():
        pytest.skip("the committed results are not here")
    records = Store(folder).records()
    wanted = set(tasks([name]))
    every, own = Runs.of(records), Runs.of([record for record in records if record.task in wanted])
    assert len(own.found) == len(wanted)
    whole = [show(every) for show in SHOWN[name]]
    assert [show(own) for show in SHOWN[name]] == whole
    for task in wanted:
        fewer = Runs({other: record for other, record in own.found.items() if other != task})
        assert [show(fewer) for show in SHOWN[name]] != whole, f"{task.label} is not shown"


def test_where_the_kind_of_regime_depends_on_the_seed_the_document_says_so() -> None:
    folder = Path(__file__).parents[2] / "results"
    if not (folder / "runs").is_dir():
        pytest.skip("the committed results are not here")
    text = results(Store(folder).records())
    assert "21 of 21 full-train models on the paper's own data" in text
    assert "At width 256, BWC is hard at 1, rch at 4 of 5 seeds." in text
    assert "Diabetes at 20%: hard published, rch(0.1) here (954 rows there, 1908 here)." in text


def test_runs_that_make_the_same_fit_agree_on_it() -> None:
    folder = Path(__file__).parents[2] / "results"
    if not (folder / "runs").is_dir():
        pytest.skip("the committed results are not here")
    runs = Runs.of(Store(folder).records())
    for name in ALL_SETS:
        for fit in ("paper", "polished"):
            first, second = (fit_named(runs.get(kind, name), fit) for kind in ("plain", "families"))
            assert first is not None
            assert second is not None
            assert first.measured == second.measured, (name, fit)


def test_what_the_document_says_of_random_pools_is_what_was_measured() -> None:
    file = Path(__file__).parents[2] / "benchmarks" / "pools.json"
    measured = {(row["set"], row["rows"]): row for row in json.loads(file.read_text())["pools"]}
    found = [measured["diabetes", rows]["hard"] for rows in (238, 476, 954, 1908)]
    assert {row["draws"] for row in measured.values()} == {100}
    assert found[-1] == 0
    text = " ".join(results([]).split())
    assert "238, 476 and 954 rows, are hard in {}, {} and {} of them".format(*found) in text
