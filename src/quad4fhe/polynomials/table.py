"""The comparison as a rich table, for a terminal. Decides columns and wording only; printing is the caller's."""

from __future__ import annotations

from math import isfinite

from rich.table import Table

from quad4fhe.polynomials.comparison import Comparison, Row


def comparison_table(comparison: Comparison) -> Table:
    """One line for each replacement; columns without a single value are left out."""
    lo, hi = comparison.interval
    table = Table(
        title="Replacements of ReLU, side by side",
        caption=(
            f"{comparison.n_cal} calibration and {comparison.n_test} test samples; "
            f"calibration pre-activations in [{lo:.4g}, {hi:.4g}]; * clipped to the interval"
        ),
    )
    columns = {
        "replacement": [row.name for row in comparison.rows],
        "agreement cal %": [_percent(row.agreement_cal) for row in comparison.rows],
        "agreement test %": [_percent(row.agreement_test) for row in comparison.rows],
        "accuracy %": [_percent(row.accuracy) for row in comparison.rows],
        "macro-F1 %": [_percent(row.macro_f1) for row in comparison.rows],
        "degree": [_whole(row.degree) for row in comparison.rows],
        "depth": [_whole(row.depth) for row in comparison.rows],
        "products": [_whole(row.products) for row in comparison.rows],
        "largest error": [_size(row.activation_error) for row in comparison.rows],
        "outside, samples %": [_outside(row) for row in comparison.rows],
        "overflowed samples": [str(row.nonfinite_samples or "") for row in comparison.rows],
    }
    shown = {title: cells for title, cells in columns.items() if any(cells)}
    for title in shown:
        table.add_column(title, justify="left" if title == "replacement" else "right")
    for cells in zip(*shown.values(), strict=True):
        table.add_row(*cells)
    return table


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
