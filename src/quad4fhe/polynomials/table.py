"""The comparison as a rich table or as plain text. Decides columns and wording only; printing is the caller's."""

from __future__ import annotations

import io
from math import isfinite

from rich.console import Console
from rich.table import Table

from quad4fhe.polynomials.comparison import Comparison, Row

_TEXT_WIDTH = 120


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
