"""A fit in one sentence: what was kept, by what, and whether more is possible.

Decides how the answer is worded wherever a person meets it first (a notebook, the report). The figures are those of
the certificate and the diagnostics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quad4fhe.certificate import no_room
from quad4fhe.fit.diagnostics import Agreement

if TYPE_CHECKING:
    from quad4fhe.fit.result import Fit

REPLACED = {
    "shared": "one quadratic in the place of every ReLU",
    "unitwise": "a quadratic of its own for every hidden unit",
    "head": "a free quadratic head on the hidden layer",
}


def verdict(fit: Fit, test: Agreement | None = None) -> str:
    """What became of the model's decisions, in one sentence; `test` in the place of the fit's own test."""
    claim, test = fit.certificate, test or fit.diagnostics.test
    how = REPLACED[fit.family]
    said = f"{how[0].upper()}{how[1:]} keeps {_kept(fit.diagnostics.calibration)} calibration decisions"
    if claim.statement == "lossless":
        said += ", exactly"
    elif not claim.mismatches:
        said += ", some of them only by the rule for ties"
    if test is not None:
        comma = "" if claim.mismatches else ","
        said += f"{comma} and {_kept(test)} test decisions"
    if claim.impossible is not None:
        said += f"; {no_room(claim, fit.mlp)}"
    return said + "."


def _kept(part: Agreement) -> str:
    return f"{percent(part.agreement)} of {part.samples:,}" if part.mismatches else f"all {part.samples:,}"


def percent(share: float) -> str:
    """A share in percent, to two decimals or as many as it takes not to call almost all of something all of it."""
    decimals = 2
    while share < 1 and decimals < 12 and float(f"{100 * share:.{decimals}f}") >= 100:
        decimals += 1
    return f"{100 * share:.{decimals}f}%"
