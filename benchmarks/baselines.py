"""Every baseline on the five trained models, beside the published figures: docs/baselines.md.

Run `python benchmarks/baselines.py`; the data folder comes from QUAD4FHE_DATA, as for the tests. Only agreements,
errors and depths are written: nothing in them depends on the machine.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from quad4fhe import MLP
from quad4fhe_reproduce.baselines import Comparison, measure
from quad4fhe_reproduce.baselines.precise import DEGREES, precise, sign_at

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("QUAD4FHE_DATA", ROOT.parent / "shared" / "data"))
PAGE = ROOT / "docs" / "baselines.md"
START, END = "<!-- figures: written by benchmarks/baselines.py -->", "<!-- end of figures -->"

DATASETS = {"breast_cancer": "BWC", "diabetes": "Diabetes", "sst5": "SST5", "shuttle": "Shuttle", "otto": "Otto"}
METHODS = {"Square": "square", "OLA": "ola", "Precise-11": "precise_a11"}
METHODS |= {f"LS-{d}": f"ls_poly_{d}" for d in (2, 3, 5, 7)} | {f"Remez-{d}": f"remez_{d}" for d in (2, 3, 5, 7)}


def published() -> dict[tuple[str, str], dict[str, str]]:
    """The published rows at width 256, by data set and method."""
    with (DATA.parent / "paper" / "published_results.csv").open() as file:
        return {
            (line["dataset"], line["method"]): line
            for line in csv.DictReader(file)
            if line["protocol"] == "fulltrain" and line["width"] == "256"
        }


def run(name: str) -> Comparison:
    """The comparison on one trained model."""
    with np.load(DATA / "models" / f"{name}.npz") as z:
        mlp = MLP(z["W1"], z["b1"], z["W2"], z["b2"])
        return measure(mlp, z["X_cal"], z["X_test"], z["y_test"])


def pair(ours: float, theirs: str) -> str:
    """Ours and the published figure, in percent."""
    return f"{100 * ours:.2f} / {100 * float(theirs):.2f}"


def model_table(name: str, result: Comparison, rows: dict[tuple[str, str], dict[str, str]]) -> Iterator[str]:
    """One data set: agreement with ReLU, ours / published."""
    lo, hi = result.interval
    yield f"### {DATASETS[name]}"
    yield ""
    yield f"{result.n_cal} calibration and {result.n_test} test samples, pre-activations in [{lo:.2f}, {hi:.2f}]."
    yield ""
    yield "| | calibration | test | accuracy | degree | depth | products | largest error | samples outside |"
    yield "|---|---|---|---|---|---|---|---|---|"
    original = rows[DATASETS[name], "Original"]
    yield f"| ReLU | | | {pair(result['ReLU'].accuracy or 0.0, original['test_acc'])} | | | | | |"
    for row in result.rows[1:]:
        line = rows[DATASETS[name], METHODS[row.name]]
        cells = [
            row.name,
            pair(row.agreement_cal, line["cal_agreement"]),
            pair(row.agreement_test, line["test_agreement"]),
            pair(row.accuracy or 0.0, line["test_acc"]),
            f"{row.degree}",
            f"{row.depth}",
            f"{row.products}",
            f"{row.activation_error:.3g}",
            "" if row.outside_samples is None else f"{row.outside_samples * result.n_test:.0f}",
        ]
        yield "| " + " | ".join(cells) + " |"
    yield ""


def precise_table() -> Iterator[str]:
    """The precision levels of Precise, measured on a grid."""
    near = np.logspace(-9, 0, 400001)
    x = np.concatenate([-near, near, np.linspace(-1.0, 1.0, 400001)])
    yield "### Precise, level by level"
    yield ""
    yield "| alpha | degrees | gap | error of the sign outside | error of ReLU on all of [-1, 1] | depth | products |"
    yield "|---|---|---|---|---|---|---|"
    for alpha, degrees in DEGREES.items():
        sign, polynomial = sign_at(alpha), precise(1.0, alpha)
        error = float(np.abs(polynomial(x) - np.maximum(x, 0.0)).max())
        powers = " | ".join(f"2^{np.log2(value):.2f}" for value in (sign.gap, sign.error, error))
        shown = ", ".join(map(str, degrees))
        yield f"| {alpha} | {shown} | {powers} | {polynomial.depth} | {polynomial.products} |"
    yield ""


def main() -> None:
    """Measure, and write the figures of the page."""
    rows = published()
    results = {name: run(name) for name in DATASETS}
    text = [line for name, result in results.items() for line in model_table(name, result, rows)]
    text += precise_table()
    before, rest = PAGE.read_text().split(START)
    PAGE.write_text(f"{before}{START}\n\n" + "\n".join(text) + "\n" + END + rest.split(END)[1])
    print("\n".join(text))


if __name__ == "__main__":
    main()
