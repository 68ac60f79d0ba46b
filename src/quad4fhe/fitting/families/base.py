"""What a family is: its free numbers, its words for the reader, and how it is learned."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.mlp import MLP
from quad4fhe.polynomial import PolynomialModel, QuadraticModel

if TYPE_CHECKING:
    from quad4fhe.fitting.result import Fit


class Curves(NamedTuple):
    """Quadratics alpha u^2 + beta u + eta to draw, each (units,), and how much each weighs.

    Without an `eta` each curve is to be shifted so that it meets ReLU on average.
    """

    alpha: Array
    beta: Array
    eta: Array | None
    weight: Array


class Replacement(NamedTuple):
    """A model of a family with the coefficients that a fit shows; None for those that the family does not have."""

    model: PolynomialModel
    alpha: Any = None
    beta: Any = None
    eta: Any = None


class Family(ABC):
    """Which numbers are free, and everything that depends on it.

    `replaced` says in words what replaces the ReLU, `drawn` what the report's curve shows, `remark` what to know about
    that curve. `is_free` says that a unit has a polynomial for every class, not one for all of them.
    """

    name: ClassVar[str]
    degree: ClassVar[int] = 2
    is_learned: ClassVar[bool] = False
    is_free: ClassVar[bool] = False
    replaced: ClassVar[str]
    drawn: ClassVar[str]
    remark: ClassVar[str]

    @abstractmethod
    def numbers(self, mlp: MLP) -> int:
        """How many numbers are free."""

    @abstractmethod
    def formula(self, mlp: MLP) -> str:
        """A sentence with the formula that replaces the ReLU."""

    @abstractmethod
    def coefficients(self, fit: Fit) -> str:
        """The coefficients of a fit in one line."""

    @abstractmethod
    def values(self, fit: Fit) -> dict[str, float | Array]:
        """The free numbers of a fit by name."""

    @abstractmethod
    def curves(self, fit: Fit) -> Curves:
        """The quadratics that stand in ReLU's place."""


class Parametrisation(Protocol):
    """How a family turns unknowns into weights on the standardised features, for a stack of problems."""

    def strengthen(self, strength: float) -> None:
        """Set the ridge: strength/2 times the squared distance of the weights from the prior."""

    def expand(self, x: Array) -> tuple[Array, Array]:
        """Weights (problems, K, p m) and constants (problems, K) of the unknowns x (problems, size)."""

    def gather(self, weights: Array, constant: Array) -> Array:
        """The gradient in x of a function with these gradients in weights and constants."""

    def solve(self, weights: Array, constant: Array) -> Array:
        """The unknowns that `expand` to these weights and constants, which must belong to the family."""

    def penalty(self, x: Array) -> tuple[Array, Array]:
        """The ridge (problems,) and its gradient in x."""


class LearnedFamily(Family):
    """A family that is fitted to the ReLU model's logits, with least squares of the activation as its prior."""

    is_learned = True

    @abstractmethod
    def problem(self, mlp: MLP, prior: Array, constant: Array, moments: Array, sharpness: float) -> Parametrisation:
        """The unknowns for priors (problems, K, p m), constants (problems, K) and the features' moments (p m, p m).

        The logits are `sharpness` times those of the model that is wanted.
        """

    @abstractmethod
    def replacement(self, mlp: MLP, scaled: MLP, S: Array, T: Array, c: Array, power: int) -> Replacement:
        """The model of `mlp` for S, T and c that were fitted to `scaled`, the same model with logits over 2^power."""


def times_power(model: PolynomialModel, power: int) -> PolynomialModel:
    """Logits times a power of two: the same decisions, and the same numbers but for their exponents."""
    if power == 0:
        return model
    S, T, c = (np.ldexp(each, power) for each in (model.A[1], model.A[0], model.c))
    return QuadraticModel(model.W1, model.b1, S, T, c)
