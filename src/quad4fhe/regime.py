"""The problem that a fit's coefficients solve, such as rch(0.01) or soft(0.1)+polish.

A regime says how a fit was made. No certificate depends on it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast

from quad4fhe.errors import InputError

Kind = Literal["hard", "rch", "soft", "kl"]
_FORM = re.compile(r"(?:(hard)|(rch|soft)\(([^()]+)\)(\+polish)?|(kl)(\+hinge)?)", re.ASCII)


@dataclass(frozen=True, eq=False)
class Regime:
    """A problem, its parameter, and whether the coefficients were improved afterwards.

    `kind` is "hard", "rch" (reduced convex hulls), "soft" or "kl" (divergence from the ReLU model's softmax).
    `parameter` is the cap of rch or the weight of soft, rounded to the six digits that are printed. `polished` says
    that the coefficients were then moved to keep more decisions: by the polish of a soft fit, the hinge of a kl fit.

    A regime prints as its name. It is equal to another regime, and to a string, with the same name:
    `fit.regime == "hard"` works.
    """

    kind: Kind
    parameter: float | None = None
    polished: bool = False

    def __post_init__(self) -> None:
        if self.parameter is not None:
            object.__setattr__(self, "parameter", float(f"{self.parameter:g}"))
        _checked(str(self))

    @classmethod
    def parse(cls, name: str) -> Regime:
        """Read a name; raises InputError if no fit can have it."""
        found = _checked(name)
        kind = cast(Kind, found[1] or found[2] or found[5])
        parameter = None if found[3] is None else float(found[3])
        return cls(kind, parameter, bool(found[4] or found[6]))

    @property
    def is_hard(self) -> bool:
        """Whether the coefficients are the widest exact separation."""
        return self.kind == "hard"

    @property
    def is_reduced(self) -> bool:
        """Whether the coefficients separate reduced hulls (rch)."""
        return self.kind == "rch"

    @property
    def is_learned(self) -> bool:
        """Whether the coefficients were fitted to the ReLU model's logits (kl)."""
        return self.kind == "kl"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __str__(self) -> str:
        value = "" if self.parameter is None else f"({self.parameter:g})"
        finish = "+hinge" if self.is_learned else "+polish"
        return f"{self.kind}{value}{finish if self.polished else ''}"

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other) if isinstance(other, Regime | str) else NotImplemented

    def __hash__(self) -> int:
        return hash(str(self))


def _checked(name: str) -> re.Match[str]:
    found = _FORM.fullmatch(name)
    if found is None or (found[3] is not None and not _is_parameter(found[2], found[3])):
        shown = ascii(name if len(name) <= 40 else name[:37] + "...")
        raise InputError(f"the regime {shown} is unknown, wanted hard, rch(mu), soft(C) or kl")
    return found


def _is_parameter(kind: str, text: str) -> bool:
    """Whether the text is a cap in (0, 1] or a positive weight, in exactly the printed form."""
    try:
        value = float(text)
    except ValueError:
        return False
    return f"{value:g}" == text and 0 < value <= (1 if kind == "rch" else 1e300)
