"""A fit in one sentence: what was kept, by what, and whether more is possible.

Decides how the answer is worded wherever a person meets it first (a notebook, the report). The figures are those of
the certificate and the diagnostics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quad4fhe.certificate import no_room

if TYPE_CHECKING:
    from quad4fhe.fit.result import Fit

REPLACED = {
    "shared": "one quadratic in the place of every ReLU",
    "unitwise": "a quadratic of its own for every hidden unit",
    "head": "a free quadratic head on the hidden layer",
}


def verdict(fit: Fit) -> str:
    """What became of the model's decisions, in one or two sentences."""
    claim, test = fit.certificate, fit.diagnostics.test
    n, lost, how = claim.samples, len(claim.mismatches), REPLACED[fit.family]
    if claim.statement == "lossless":
        said = f"All {n:,} calibration decisions are kept, exactly, with {how}"
    elif not lost:
        said = f"All {n:,} calibration decisions are kept with {how}, some of them only by the rule for ties"
    else:
        kept = percent(fit.diagnostics.calibration.agreement)
        said = f"{n - lost:,} of {n:,} calibration decisions ({kept}) are kept with {how}"
    if claim.impossible is not None:
        said += f"; {no_room(claim, fit.mlp)}"
    if test is not None:
        every = "all" if test.mismatches == 0 else f"{test.samples - test.mismatches:,} of"
        said += f". On new data, {every} {test.samples:,} test decisions are kept"
        said += "" if test.mismatches == 0 else f" ({percent(test.agreement)})"
    return said + "."


def percent(share: float) -> str:
    """A share in percent, to two decimals or as many as it takes not to call almost all of something all of it."""
    decimals = 2
    while share < 1 and decimals < 12 and float(f"{100 * share:.{decimals}f}") >= 100:
        decimals += 1
    return f"{100 * share:.{decimals}f}%"
