"""Other replacements of ReLU, and how they are measured beside ours."""

from __future__ import annotations

from quad4fhe_reproduce.baselines.comparison import Comparison, Row, comparison_table
from quad4fhe_reproduce.baselines.polynomial import Polynomial, Schedule, Series, schedule
from quad4fhe_reproduce.baselines.problem import Baseline, Problem
from quad4fhe_reproduce.baselines.side_by_side import BASELINES, compare, fitted, measure, published_names

__all__ = [
    "BASELINES",
    "Baseline",
    "Comparison",
    "Polynomial",
    "Problem",
    "Row",
    "Schedule",
    "Series",
    "compare",
    "comparison_table",
    "fitted",
    "measure",
    "published_names",
    "schedule",
]
