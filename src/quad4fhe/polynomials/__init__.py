"""The replacements of ReLU that quad4fhe is compared with, all of one type, and how they are measured."""

from __future__ import annotations

from quad4fhe.polynomials.comparison import Comparison, Row
from quad4fhe.polynomials.least_squares import least_squares
from quad4fhe.polynomials.measure import baselines, measure
from quad4fhe.polynomials.ola import OLA, fit_ola, ola
from quad4fhe.polynomials.polynomial import Polynomial, Series
from quad4fhe.polynomials.preactivations import PreActivations, preactivations
from quad4fhe.polynomials.precise import precise
from quad4fhe.polynomials.remez import Minimax, Piece, minimax, remez
from quad4fhe.polynomials.schedule import Schedule, schedule
from quad4fhe.polynomials.square import square
from quad4fhe.polynomials.table import comparison_table

__all__ = [
    "OLA",
    "Comparison",
    "Minimax",
    "Piece",
    "Polynomial",
    "PreActivations",
    "Row",
    "Schedule",
    "Series",
    "baselines",
    "comparison_table",
    "fit_ola",
    "least_squares",
    "measure",
    "minimax",
    "ola",
    "preactivations",
    "precise",
    "remez",
    "schedule",
    "square",
]
