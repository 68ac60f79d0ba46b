"""The families of replacement: which numbers of the polynomial are free, in words and in counts.

Each is a linear subspace of the weights, in `subspaces`. How `verify` recomputes a family is a rule in
`quad4fhe.proof.families`, because checking shares no code with solving.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quad4fhe.errors import InputError

if TYPE_CHECKING:
    from quad4fhe.fitting.result import Fit
    from quad4fhe.mlp import MLP

AUTO = "auto"
"""Asks `fit` for the smallest family that cross-validates best."""
DEGREES = (2, 3, 4, 6, 8)
"""The degrees that a fit may have."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Which numbers are free, and the words for the reader.

    `replaced` says what replaces the ReLU, `drawn` what the report's curve shows, `remark` what to know about that
    curve. `formula`, `coefficients` and `values` are about degree 2. `is_free` says that a unit has a polynomial for
    every class, not one for all of them.
    """

    name: str
    replaced: str
    drawn: str
    remark: str
    numbers: Callable[[MLP], int]
    formula: Callable[[MLP], str]
    coefficients: Callable[[Fit], str]
    values: Callable[[Fit], dict[str, Any]]
    is_learned: bool = True
    is_free: bool = False


def _three(fit: Fit) -> dict[str, Any]:
    values = {"alpha": fit.alpha, "beta": fit.beta, "eta": fit.eta}
    return values | ({"tau": fit.tau} if fit.tau else {})


_SHARED = Family(
    name="shared",
    replaced="one quadratic in place of every ReLU",
    drawn="the one quadratic that replaces it",
    remark="It need not be close to ReLU: only the decisions count, and they fix neither scale nor offset.",
    numbers=lambda mlp: 3,
    formula=lambda mlp: "Every ReLU becomes q(u) = alpha u² + beta u + eta.",
    coefficients=lambda fit: ", ".join(f"{name} {value:.6g}" for name, value in _three(fit).items()),
    values=_three,
    is_learned=False,
)
_UNITWISE = Family(
    name="unitwise",
    replaced="a quadratic of its own for every hidden unit",
    drawn="the median of the quadratics of all units, with the middle 80% as a band",
    remark="Units count by the size of their head weights.",
    numbers=lambda mlp: 3 * mlp.units,
    formula=lambda mlp: f"The ReLU of hidden unit j becomes alpha_j u² + beta_j u + eta_j, for {mlp.units:,} units.",
    coefficients=lambda fit: f"alpha, beta and eta for each of {fit.mlp.units} hidden units",
    values=_three,
)
_HEAD = Family(
    name="head",
    replaced="a free quadratic head on the hidden layer",
    drawn="the median of the quadratics nearest to the free head, with the middle 80% as a band",
    remark="A free head has no quadratic per unit: drawn is the nearest in least squares over the classes, "
    "shifted to meet ReLU on average.",
    numbers=lambda mlp: (2 * mlp.units + 1) * mlp.outputs,
    formula=lambda mlp: "The logits become S (y·y) + T y + c, with y the pre-activations and S, T, c all free.",
    coefficients=lambda fit: "S and T ({} x {}) and c ({}), all free".format(*fit.S.shape, fit.S.shape[0]),
    values=lambda fit: {"S": fit.S, "T": fit.T, "c": fit.c},
    is_free=True,
)


class Families:
    """The families by name, from the fewest numbers to the most; the first is the paper's."""

    def __init__(self, *families: Family) -> None:
        self._by_name = {family.name: family for family in families}

    def names(self) -> tuple[str, ...]:
        """The names, smallest family first."""
        return tuple(self._by_name)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Family]:
        return iter(self._by_name.values())

    def get(self, name: str) -> Family:
        """The family of this name; an InputError lists the names that exist."""
        if name not in self:
            *others, last = map(repr, self._by_name)
            raise InputError(f"the family is {name!r}, wanted {', '.join(others)} or {last}")
        return self._by_name[name]


FAMILIES = Families(_SHARED, _UNITWISE, _HEAD)
SHARED, UNITWISE, HEAD = FAMILIES.names()
