"""The replacements of ReLU that quad4fhe is compared with, and how they are measured."""

from __future__ import annotations

from quad4fhe.baselines.compare import measure
from quad4fhe.baselines.comparison import Comparison, Row, comparison_table
from quad4fhe.baselines.least_squares import least_squares
from quad4fhe.baselines.ola import OLA, fit_ola, ola
from quad4fhe.baselines.polynomial import Polynomial, Schedule, Series, schedule
from quad4fhe.baselines.preactivations import PreActivations, preactivations
from quad4fhe.baselines.precise import precise
from quad4fhe.baselines.registry import BASELINES, Baseline, Problem, fitted, published_names
from quad4fhe.baselines.remez import Minimax, Piece, minimax, remez
from quad4fhe.baselines.square import square

__all__ = [
    "BASELINES",
    "OLA",
    "Baseline",
    "Comparison",
    "Minimax",
    "Piece",
    "Polynomial",
    "PreActivations",
    "Problem",
    "Row",
    "Schedule",
    "Series",
    "comparison_table",
    "fit_ola",
    "fitted",
    "least_squares",
    "measure",
    "minimax",
    "ola",
    "preactivations",
    "precise",
    "published_names",
    "remez",
    "schedule",
    "square",
]
