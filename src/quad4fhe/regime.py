"""The name of the problem that a fit's coefficients solve, such as "rch(0.01)" or "soft(0.1)+polish".

Decides which names exist. A name says how a fit was made; nothing that is certified rests on it.
"""

from __future__ import annotations

import re
from typing import Literal, cast

from quad4fhe.errors import InputError

Kind = Literal["hard", "rch", "soft", "kl"]
_FORM = re.compile(r"(?:(hard)|(rch|soft)\(([^()]+)\)(\+polish)?|(kl)(\+hinge)?)", re.ASCII)


class Regime(str):
    """A regime: a string that is one of the names a fit can have, with its parts as attributes.

    `kind` is hard, rch, soft or kl; `parameter` is the cap of rch or the weight of soft, to the six digits of the name.
    """

    __slots__ = ()

    def __new__(cls, name: str) -> Regime:
        """Parse a name; InputError if no fit can have it."""
        found = _FORM.fullmatch(name)
        if found is None or (found[3] is not None and not _is_parameter(found[2], found[3])):
            shown = ascii(name if len(name) <= 40 else name[:37] + "...")
            raise InputError(f"the regime {shown} is unknown, wanted hard, rch(mu), soft(C) or kl")
        return super().__new__(cls, name)

    @property
    def kind(self) -> Kind:
        """The problem without its parameter."""
        return cast(Kind, re.split(r"[(+]", self)[0])

    @property
    def parameter(self) -> float | None:
        """The cap of rch or the weight of soft."""
        found = re.search(r"\((.*)\)", self)
        return None if found is None else float(found[1])

    @property
    def polished(self) -> bool:
        """Whether the coefficients were moved afterwards to keep more decisions."""
        return self.endswith("+polish")

    def belongs_to(self, family: str) -> bool:
        """Whether fits of this family can have this regime."""
        return (self.kind == "kl") == (family != "shared")


def _is_parameter(kind: str, text: str) -> bool:
    """Whether the text is how a cap in (0, 1] or a positive weight is printed; no number has two names."""
    try:
        value = float(text)
    except ValueError:
        return False
    return f"{value:g}" == text and 0 < value <= (1 if kind == "rch" else 1e300)
