"""A fit in words: one sentence, and the lines of its summary.

Decides how the answer is worded wherever a person meets it first (a terminal, a notebook, the report), and which
figures may stand there: those of the certificate, and for a fit that was made in this process its diagnostics too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quad4fhe.certificate import Certificate, no_room
from quad4fhe.fitting.diagnostics import Agreement

if TYPE_CHECKING:
    from quad4fhe.fitting.result import Fit

Lines = list[tuple[str, str]]

REPLACED = {
    "shared": "one quadratic in the place of every ReLU",
    "unitwise": "a quadratic of its own for every hidden unit",
    "head": "a free quadratic head on the hidden layer",
}
_STATEMENT = {"lossless": "lossless on the calibration set, exactly", "measured": "measured, not lossless"}


def kept(claim: Certificate) -> Agreement:
    """How many calibration decisions a certificate says are kept."""
    n, lost = claim.samples, len(claim.mismatches)
    return Agreement(samples=n, agreement=(n - lost) / n if n else 0.0, mismatches=lost)


def verdict(fit: Fit, test: Agreement | None = None) -> str:
    """What became of the model's decisions, in one sentence; `test` is what was measured on other data."""
    claim, how = fit.certificate, REPLACED[fit.family]
    said = f"{how[0].upper()}{how[1:]} keeps {_kept(kept(claim))} calibration decisions"
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


def own_lines(fit: Fit) -> Lines:
    """The summary of a fit that was made in this process."""
    d = fit.diagnostics
    lines = [("family", fit.family), ("regime", str(fit.regime)), _coefficients(fit), _calibration(fit)]
    if d.test is not None:
        share = f"{percent(d.test.agreement)} of {d.test.samples} decisions kept"
        lines.append(("test", f"{share}, {d.test.mismatches} lost"))
    for trial in d.families:
        chosen = " (chosen)" if trial.family == fit.family and len(d.families) > 1 else ""
        estimate = f"{100 * trial.agreement:.2f}% ± {100 * trial.spread:.2f}"
        lines.append(("cross-validated", f"{trial.family} {estimate}{chosen}"))
    lines.append(("margin", f"{d.margin:.6g} (normalised {d.normalised_margin:.6g})"))
    if d.gap is not None:
        lines.append(("duality gap", f"{d.gap:.1e} (relative)"))
    lines.append(_certificate(fit))
    if d.quantisation.decimals is not None:
        q = d.quantisation
        lines.append(("safe rounding", f"{q.decimals} decimals or {q.bits} bits after the point"))
    lines += [] if fit.guarantee is None else fit.guarantee.lines()
    return lines + [("note", note) for note in d.notes]


def certified_lines(fit: Fit) -> Lines:
    """The summary of a fit that was read from a file: what `verify` checks, and that it has not been checked."""
    smallest = ("smallest margin", f"{fit.margins.min(initial=float('inf')):.6g}")
    warning = ("not verified", "read from a file; verify checks every line above, with the calibration data")
    return [("family", fit.family), _coefficients(fit), _calibration(fit), smallest, _certificate(fit), warning]


def _coefficients(fit: Fit) -> tuple[str, str]:
    if fit.family == "unitwise":
        said = f"alpha, beta and eta for each of {fit.mlp.units} hidden units"
    elif fit.family == "head":
        K, m = fit.S.shape
        said = f"S and T ({K} x {m}) and c ({K}), all free"
    else:
        tau = f", tau {fit.tau:.6g}" if fit.tau else ""
        said = f"alpha {fit.alpha:.6g}, beta {fit.beta:.6g}, eta {fit.eta:.6g}{tau}"
    return "coefficients", said


def _calibration(fit: Fit) -> tuple[str, str]:
    held = kept(fit.certificate)
    share = f"{percent(held.agreement)} of {held.samples} decisions kept"
    return "calibration", f"{share}, {held.mismatches} lost"


def _certificate(fit: Fit) -> tuple[str, str]:
    held = fit.certificate
    proof = f"; {no_room(held, fit.mlp)} (evidence included)" if held.impossible else ""
    return "certificate", _STATEMENT[held.statement] + proof


def _kept(part: Agreement) -> str:
    return f"{percent(part.agreement)} of {part.samples:,}" if part.mismatches else f"all {part.samples:,}"


def percent(share: float) -> str:
    """A share in percent, to two decimals or as many as it takes not to call almost all of something all of it."""
    decimals = 2
    while share < 1 and decimals < 12 and float(f"{100 * share:.{decimals}f}") >= 100:
        decimals += 1
    return f"{100 * share:.{decimals}f}%"
