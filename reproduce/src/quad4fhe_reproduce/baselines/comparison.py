"""The result of a comparison: one row for each replacement, as a table, a dictionary or CSV."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any

from rich.console import Console
from rich.table import Table

_TEXT_WIDTH = 120


@dataclass(frozen=True)
class Row:
    """What one replacement keeps of the model, and what it costs.

    Agreement is the share of samples decided as by the ReLU model; a sample whose logits overflow counts as decided
    differently, and is counted in `nonfinite_samples` (calibration and test together). `depth` and `products` are of
    the activation alone, by the schedule of `schedule`. `activation_error` is the largest |p - relu| on the calibration
    interval. The `outside` shares are of the test set: pre-activations beyond the interval the replacement was made
    for, and samples with at least one of them; with `clipped` those values were clipped to the interval. A field is
    None where it has no meaning: no labels, no single scalar activation, no interval.
    """

    name: str
    agreement_cal: float
    agreement_test: float
    accuracy: float | None
    macro_f1: float | None
    degree: int | None
    depth: int | None
    products: int | None
    activation_error: float | None
    outside_values: float | None
    outside_samples: float | None
    clipped: bool
    nonfinite_samples: int


@dataclass(frozen=True, repr=False)
class Comparison:
    """Every replacement side by side, on the same samples; prints as a table.

    `interval` is that of the calibration pre-activations.
    """

    rows: tuple[Row, ...]
    interval: tuple[float, float]
    n_cal: int
    n_test: int
    model_sha256: str

    def __repr__(self) -> str:
        return table_text(self)

    def __getitem__(self, name: str) -> Row:
        """The row of one replacement."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def to_dict(self) -> dict[str, Any]:
        """Plain values only; a number that overflowed is null, as JSON has no infinity."""
        rows = [{key: _plain(value) for key, value in asdict(row).items()} for row in self.rows]
        return {
            "format": "quad4fhe-comparison-1",
            "model_sha256": self.model_sha256,
            "n_cal": self.n_cal,
            "n_test": self.n_test,
            "interval": list(self.interval),
            "rows": rows,
        }

    def to_csv(self) -> str:
        """One line for each replacement under a header; an empty cell is a field without a meaning or value."""
        out = io.StringIO()
        writer = csv.DictWriter(out, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        for row in self.to_dict()["rows"]:
            writer.writerow({key: "" if value is None else value for key, value in row.items()})
        return out.getvalue()


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not isfinite(value) else value


def comparison_table(comparison: Comparison) -> Table:
    """One line for each replacement; columns without a single value are left out."""
    lo, hi = comparison.interval
    table = Table(
        title="Replacements of ReLU, side by side",
        title_justify="left",
        caption_justify="left",
        caption=(
            f"cal, test: decisions kept on {comparison.n_cal} calibration and {comparison.n_test} test samples; "
            "ct-ct: products of ciphertexts; error: largest difference from ReLU; "
            f"out: test samples with a pre-activation beyond the calibration range [{lo:.4g}, {hi:.4g}], "
            "* where it is clipped"
        ),
        box=None,
        padding=(0, 2, 0, 0),
    )
    columns = {
        "name": [row.name for row in comparison.rows],
        "cal %": [_percent(row.agreement_cal) for row in comparison.rows],
        "test %": [_percent(row.agreement_test) for row in comparison.rows],
        "acc %": [_percent(row.accuracy) for row in comparison.rows],
        "F1 %": [_percent(row.macro_f1) for row in comparison.rows],
        "deg": [_whole(row.degree) for row in comparison.rows],
        "depth": [_whole(row.depth) for row in comparison.rows],
        "ct-ct": [_whole(row.products) for row in comparison.rows],
        "error": [_size(row.activation_error) for row in comparison.rows],
        "out %": [_outside(row) for row in comparison.rows],
        "overflow": [str(row.nonfinite_samples or "") for row in comparison.rows],
    }
    shown = {title: cells for title, cells in columns.items() if any(cells)}
    for title in shown:
        table.add_column(title, justify="left" if title == "name" else "right", no_wrap=True)
    for cells in zip(*shown.values(), strict=True):
        table.add_row(*cells)
    return table


def table_text(comparison: Comparison) -> str:
    """The table as plain text, of the same width everywhere."""
    console = Console(file=io.StringIO(), width=_TEXT_WIDTH, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(comparison_table(comparison))
    return "\n".join(line.rstrip() for line in captured.get().rstrip().splitlines())


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f}"


def _whole(number: int | None) -> str:
    return "" if number is None else str(number)


def _size(number: float | None) -> str:
    if number is None:
        return ""
    return f"{number:.3g}" if isfinite(number) else "overflow"


def _outside(row: Row) -> str:
    return _percent(row.outside_samples) + ("*" if row.clipped and row.outside_samples else "")
