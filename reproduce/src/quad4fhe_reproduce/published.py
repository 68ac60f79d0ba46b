"""The figures the authors published, to stand beside ours.

Decides nothing: `published.csv` holds the plaintext results of the authors' repository (only what the tables show), the
tuples below the encrypted tables of the paper's text.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Published:
    """One published row; a figure that was not published is None. Shares are in [0, 1]."""

    regime: str
    n_cal: int
    n_test: int
    pairs: float | None
    alpha: float | None
    beta: float | None
    eta: float | None
    agreement_cal: float | None
    agreement_test: float | None
    mismatches_cal: float | None
    mismatches_test: float | None
    margin: float | None
    normalised_margin: float | None
    slack_count: float | None
    slack_sum: float | None
    slack_max: float | None
    accuracy: float | None
    macro_f1: float | None
    auc: float | None


@dataclass(frozen=True)
class PublishedCircuit:
    """A row of the paper's table of minimum configurations; latency in milliseconds a sample, 32 threads."""

    task: str
    scheme: str
    accuracy: float
    depth: int
    log_q: int
    activation_ms: float
    total_ms: float


@dataclass(frozen=True)
class PublishedOperations:
    """A row of the paper's table of operation counts for one encrypted batch."""

    task: str
    scheme: str
    encryptions: int
    ct_ct: int
    ct_pt: int
    rotations: int
    rescales: int


@cache
def _rows() -> dict[tuple[str, str, int, str, str], Published]:
    text = files("quad4fhe_reproduce").joinpath("published.csv").read_text(encoding="utf-8")
    rows = {}
    for row in csv.DictReader(text.splitlines()):
        key = (row["set"], row["protocol"], int(row["width"]), row["pool"], row["method"])
        figures = {name: _number(row[name]) for name in Published.__dataclass_fields__ if name in row}
        figures.update(regime=row["regime"], n_cal=int(row["n_cal"]), n_test=int(row["n_test"]))
        rows[key] = Published(**figures)  # type: ignore[arg-type]
    return rows


def _number(cell: str) -> float | str | None:
    return float(cell) if cell and cell[0] in "-0123456789" else None


def fulltrain(paper: str, width: int, method: str = "Quad") -> Published | None:
    """A row of the full-train experiments; baselines at width 256 only."""
    return _rows().get((paper, "fulltrain", width, "", method))


def smallpool(paper: str, share: float, method: str = "Quad") -> Published | None:
    """A row of the small-pool experiments, width 256; Quad and ReLU only."""
    return _rows().get((paper, "smallpool", 256, f"{share:g}", method))


CIRCUITS = (
    PublishedCircuit("otto", "Quad", 76.05, 4, 280, 0.219, 7.43),
    PublishedCircuit("otto", "Square", 38.53, 4, 280, 0.180, 7.30),
    PublishedCircuit("otto", "Remez-2", 60.59, 4, 280, 0.210, 7.30),
    PublishedCircuit("otto", "Remez-3", 61.10, 4, 280, 0.309, 7.42),
    PublishedCircuit("otto", "Remez-5", 68.63, 5, 320, 0.670, 9.10),
    PublishedCircuit("otto", "Remez-7", 71.87, 5, 320, 0.826, 9.27),
    PublishedCircuit("cub200_lite0", "Quad", 78.25, 4, 280, 0.222, 46.81),
    PublishedCircuit("cub200_lite0", "Square", 25.50, 4, 280, 0.167, 46.39),
    PublishedCircuit("cub200_lite0", "Remez-2", 73.80, 4, 280, 0.202, 46.49),
    PublishedCircuit("cub200_lite0", "Remez-3", 75.70, 4, 280, 0.314, 46.53),
    PublishedCircuit("cub200_lite0", "Remez-5", 78.10, 5, 320, 0.771, 79.24),
    PublishedCircuit("cub200_lite0", "Remez-7", 78.75, 5, 320, 0.912, 78.83),
    PublishedCircuit("massive_en_minilm", "Quad", 85.45, 4, 280, 0.231, 50.05),
    PublishedCircuit("massive_en_minilm", "Square", 52.40, 4, 280, 0.186, 49.68),
    PublishedCircuit("massive_en_minilm", "Remez-2", 83.51, 4, 280, 0.217, 49.35),
    PublishedCircuit("massive_en_minilm", "Remez-3", 85.14, 4, 280, 0.318, 49.55),
    PublishedCircuit("massive_en_minilm", "Remez-5", 85.40, 5, 320, 0.711, 58.75),
    PublishedCircuit("massive_en_minilm", "Remez-7", 85.49, 5, 320, 0.863, 58.96),
)
OPERATIONS = (
    PublishedOperations("otto", "Quad", 1, 2, 139, 93, 14),
    PublishedOperations("otto", "Remez-7", 1, 5, 141, 93, 19),
    PublishedOperations("cub200_lite0", "Quad", 3, 2, 870, 890, 105),
    PublishedOperations("cub200_lite0", "Remez-7", 3, 5, 872, 890, 110),
    PublishedOperations("massive_en_minilm", "Quad", 4, 2, 1086, 600, 65),
    PublishedOperations("massive_en_minilm", "Remez-7", 4, 5, 1088, 600, 70),
)
