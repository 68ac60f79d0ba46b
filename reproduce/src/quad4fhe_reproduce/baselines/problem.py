"""What every baseline is: a way to fit replacements of ReLU to a model and its calibration samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from quad4fhe._progress import Progress, silent
from quad4fhe.mlp import MLP
from quad4fhe.polynomial import PolynomialModel
from quad4fhe.report.preactivations import PreActivations, preactivations
from quad4fhe_reproduce.baselines.polynomial import Polynomial

DEGREES = (2, 3, 5, 7)
"""The degrees of baselines that take any degree; those of the paper's tables."""

Replacement = Polynomial | PolynomialModel
"""What replaces ReLU: a scalar polynomial, or a fitted model that keeps the hidden layer."""


@dataclass(frozen=True, eq=False)
class Problem:
    """The model and the calibration samples (n, d) that every baseline is fitted to.

    `auto` also fits the family that cross-validates best; `seed` is the seed of the fits. With a `degree`, baselines
    that take any degree are fitted at this one too, and so is a polynomial for every unit.
    """

    mlp: MLP
    X_cal: NDArray[Any]
    auto: bool = False
    seed: int = 2026
    progress: Progress = silent
    degree: int | None = None

    @property
    def degrees(self) -> tuple[int, ...]:
        """The degrees of the paper's tables, and the one that was asked for."""
        return DEGREES if self.degree is None or self.degree in DEGREES else (*DEGREES, self.degree)

    @cached_property
    def preactivations(self) -> PreActivations:
        """The range and the distribution of the hidden layer's pre-activations."""
        return preactivations(self.mlp, self.X_cal, self.progress)


@dataclass(frozen=True)
class Baseline:
    """One way to replace ReLU.

    Parameters
    ----------
    words
        What it is, for people.
    names
        The names of its rows in a comparison, one for each degree or option.
    fit
        Fits it to a problem; returns the replacements by name.
    published
        Whether it is a baseline from the literature; the others are ours.
    """

    words: str
    names: tuple[str, ...]
    fit: Callable[[Problem], Mapping[str, Replacement]]
    published: bool = True
