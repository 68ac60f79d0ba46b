"""How the decisions of the trained model were settled: counted in the certificate, and counted again by `verify`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from quad4fhe.activations import LIBRARY
from quad4fhe.mlp import MLP

_Count = Annotated[int, msgspec.Meta(ge=0)]
WAYS = ("bound", "trusted", "fractions", "intervals", "level", "measured")
BITS = (96, 256, 1024)
"""Bits of the intervals, step by step."""


class Settled(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The number of rows whose decision by the trained model was settled in each way.

    Parameters
    ----------
    bound
        By floats with a proved rounding-error bound.
    trusted
        By floats with such a bound, which trusts the library's exp, tanh, erf and log1p to 2^-38.
    fractions
        In exact arithmetic, where floats leave a doubt.
    intervals
        By rigorous intervals, where floats leave a doubt.
    level
        By none of these: two logits that intervals of 1,024 bits can't tell apart, taken as a tie.
    measured
        As onnxruntime computed them, in floats without an error bound: nothing is proved about these decisions.
    """

    bound: _Count
    trusted: _Count
    fractions: _Count
    intervals: _Count
    level: _Count
    measured: _Count

    def __add__(self, other: Settled) -> Settled:
        return Settled(**{way: getattr(self, way) + getattr(other, way) for way in WAYS})

    @property
    def total(self) -> int:
        """The number of rows."""
        return sum(self.counts())

    @property
    def is_exact(self) -> bool:
        """Whether every decision is proved, and trusts nothing but float arithmetic."""
        return not (self.trusted or self.level or self.measured)

    def counts(self) -> list[int]:
        """The counts in the order of WAYS."""
        return [getattr(self, way) for way in WAYS]

    @classmethod
    def of(cls, counts: Sequence[int] = (0,) * len(WAYS)) -> Settled:
        """Read what `counts` made; without it all are zero."""
        return cls(**dict(zip(WAYS, counts, strict=True)))

    def sentence(self) -> str:
        """The counts in words."""
        return ", ".join(f"{count:,} {_WORDS[way]}" for way, count in zip(WAYS, self.counts(), strict=True) if count)


_TRUST = f"2^{LIBRARY.hex().rpartition('p')[2]}"
_WORDS = {
    "bound": "by a proved rounding-error bound",
    "trusted": f"by floats trusted to {_TRUST}",
    "fractions": "exactly in fractions",
    "intervals": "by rigorous intervals",
    "level": f"level at {BITS[-1]:,} bits and taken as ties",
    "measured": "as onnxruntime computed them, measured and not proved",
}
_POSSIBLE = {
    "fractions": {"bound", "fractions"},
    "intervals": {"trusted", "intervals", "level"},
    "graph": {"measured"},
}


def problem(claim: Settled, mlp: MLP, samples: int) -> str | None:
    """What is wrong with counts for any data; None if nothing is."""
    if claim.total != samples:
        return f"the certificate says how {claim.total} decisions were settled, and speaks of {samples} rows"
    for way in WAYS:
        if getattr(claim, way) and way not in _possible(mlp):
            return f"the certificate says that decisions were settled {_WORDS[way]}, which this model's are not"
    return None


def float_way(mlp: MLP) -> str:
    """How floats settle the decisions of a model."""
    return "bound" if "bound" in _possible(mlp) else "trusted"


def _possible(mlp: MLP) -> set[str]:
    # Intervals are also used for exact functions whose fractions grow too long; floats trust no library there.
    if mlp.settled_by == "intervals" and all(each.is_exact for each in mlp.activations):
        return {"bound", "intervals", "level"}
    return _POSSIBLE[mlp.settled_by]
