"""What all tables share: looking up runs, and cells of Markdown.

Decides how a figure, a difference and a missing run are written. Which figures a table shows is left to its module.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quad4fhe_reproduce.data.sets import data_set
from quad4fhe_reproduce.recipes import SEED, WIDTH
from quad4fhe_reproduce.records import Fitted, Kind, Measured, Record, Task

NONE = "-"
NOT_RUN = "not run yet"


@dataclass(frozen=True)
class Runs:
    """Finished runs by what they measured. A set run on two files (its own, and one fetched) counts once, by task."""

    found: dict[Task, Record]

    @classmethod
    def of(cls, records: Iterable[Record]) -> Runs:
        """Index the runs."""
        return cls({record.task: record for record in records})

    def get(self, kind: Kind, name: str, width: int = WIDTH, seed: int = SEED) -> Record | None:
        """One run, or None if it is not finished."""
        return self.found.get(Task(kind=kind, name=name, width=width, seed=seed))

    def width(self, name: str) -> int:
        """The width shown for a set: 256, or in a trial whatever there is."""
        widths = {task.width for task in self.found if task.name == name and task.kind == "plain"}
        return WIDTH if WIDTH in widths or not widths else max(widths)


def fit_named(record: Record | None, name: str) -> Fitted | None:
    """One of a run's fits."""
    return None if record is None else next((each for each in record.fits if each.name == name), None)


def own_name(fit: str) -> str:
    """What the tables call one of our fits: *paper* alone is the published figure."""
    return "the paper's fit" if fit == "paper" else fit


def kind_of(regime: str) -> str:
    """hard, rch or soft: the weight or cap in brackets may differ between two runs of one kind."""
    return regime.split("(")[0]


def baseline_named(record: Record | None, name: str) -> Measured | None:
    """One of a run's baselines."""
    return None if record is None else next((each for each in record.baselines if each.name == name), None)


def title(name: str, record: Record | None = None) -> str:
    """The name of a set, with what is not the paper's about it."""
    data = data_set(name)
    origin = f"; fetched from {record.origin}" if record is not None and record.origin else ""
    labelled = f"{data.labelled}{origin}".strip("; ")
    return f"{data.title} *({labelled})*" if labelled else data.title


def percent(share: float | None) -> str:
    """A share as percent with two decimals."""
    return NONE if share is None else f"{100 * share:.2f}"


def points(ours: float | None, paper: float | None) -> str:
    """The difference of two shares in percentage points, with its sign."""
    if ours is None or paper is None:
        return NONE
    return signed(100 * ours - 100 * paper)


def signed(value: float, digits: int = 2) -> str:
    """A number with its sign; what rounds to zero has none."""
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text


def number(value: float | None, digits: int = 3) -> str:
    """A number with this many decimals."""
    return NONE if value is None else f"{value:.{digits}f}"


def whole(value: float | None) -> str:
    """A count."""
    return NONE if value is None else f"{value:,.0f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are figures."""
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


Cell = tuple[float | None, float | None]  # the paper's share and ours


def three_lines(label: str, cells: Sequence[Cell]) -> list[list[str]]:
    """Paper, ours and the difference in points, one line each, for shares."""
    return [
        [label, "paper", *(percent(paper) for paper, _ in cells)],
        ["", "ours", *(percent(ours) for _, ours in cells)],
        ["", "difference", *(points(ours, paper) for paper, ours in cells)],
    ]


def missing(label: str, columns: int) -> list[str]:
    """A row for a run that is not finished."""
    return [label, NOT_RUN, *([""] * (columns - 2))]


def mean_and_spread(values: Sequence[float]) -> str:
    """Mean and standard deviation (n - 1) of shares, in percent."""
    if not values:
        return NONE
    mean = sum(values) / len(values)
    if len(values) < 2:
        return percent(mean)
    spread = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
    return f"{100 * mean:.2f} ± {100 * spread:.2f}"
