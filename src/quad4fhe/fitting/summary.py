"""A fit in words: one sentence, and the lines of its summary.

A fit that was made in this process shows its diagnostics. A fit that was read from a file shows only what `verify`
checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quad4fhe.fitting.diagnostics import Accuracy, Agreement
from quad4fhe.fitting.families import FAMILIES, SHARED
from quad4fhe.fitting.warnings import too_few
from quad4fhe.proof.certificate import Certificate, no_room

if TYPE_CHECKING:
    from quad4fhe.fitting.result import Fit

Lines = list[tuple[str, str]]

_STATEMENT = {"lossless": "lossless on the calibration set, exactly", "measured": "measured, not lossless"}


def kept(claim: Certificate) -> Agreement:
    """How many calibration decisions a certificate says are kept."""
    return Agreement.of(claim.samples, len(claim.mismatches))


def verdict(fit: Fit, test: Agreement | None = None) -> str:
    """What the fit keeps of the model's decisions, in one sentence; `test` is the agreement on other data."""
    claim, how = fit.certificate, at_degree(FAMILIES.get(fit.family).replaced, fit.degree)
    said = f"{how[0].upper()}{how[1:]} keeps {_kept(kept(claim))} calibration decisions"
    if too_few(claim.samples, fit.mlp.classes):
        said += f", too few for {fit.mlp.classes} classes to say anything of others"
    elif claim.statement == "lossless":
        said += ", exactly" if fit.mlp.network is None else ", as onnxruntime measured them"
    elif not claim.mismatches:
        said += ", some of them only by the rule for ties"
    if test is not None:
        comma = "" if claim.mismatches else ","
        said += f"{comma} and {_kept(test)} test decisions"
    if is_contradicted(fit):
        said += f"; {no_room(claim, fit.mlp)}"
    return said + "."


def own_lines(fit: Fit) -> Lines:
    """The summary of a fit that was made in this process."""
    d = fit.diagnostics
    lines = [("warning", text) for text in d.warnings]
    lines += [*_model(fit), _family(fit), ("regime", str(fit.regime)), _coefficients(fit), _calibration(fit)]
    if d.accuracy is not None:
        lines.append(("accuracy", _accuracy(d.accuracy)))
    if d.test is not None:
        share = f"{percent(d.test.agreement)} of {d.test.samples} decisions kept"
        lines.append(("test", f"{share}, {d.test.mismatches} lost"))
    if d.test_accuracy is not None:
        lines.append(("test accuracy", _accuracy(d.test_accuracy)))
    for trial in d.families:
        own = (trial.family, trial.degree) == (fit.family, fit.degree)
        chosen = " (chosen)" if own and len(d.families) > 1 else ""
        name = trial.family if trial.degree == 2 and fit.degree == 2 else f"{trial.family}, degree {trial.degree}"
        estimate = f"{100 * trial.agreement:.2f}% ± {100 * trial.spread:.2f}"
        lines.append(("cross-validated", f"{name} {estimate}{chosen}"))
    lines.append(("margin", f"{d.margin:.6g} (normalised {d.normalised_margin:.6g})"))
    if d.gap is not None:
        lines.append(("duality gap", f"{d.gap:.1e} (relative)"))
    lines.append(_certificate(fit))
    if d.quantisation.decimals is not None:
        q = d.quantisation
        places = f"{q.decimals} decimal{'' if q.decimals == 1 else 's'}"
        lines.append(("safe rounding", f"{places} or {q.bits} bit{'' if q.bits == 1 else 's'} after the point"))
    lines += [] if fit.guarantee is None else fit.guarantee.lines()
    return lines + [("note", note) for note in d.notes]


def certified_lines(fit: Fit) -> Lines:
    """The summary of a fit that was read from a file: what `verify` checks, and that it has not been checked."""
    smallest = ("smallest margin", f"{fit.margins.min(initial=float('inf')):.6g}")
    warning = ("not verified", "read from a file; verify checks every line above, with the calibration data")
    lines = [_family(fit), _coefficients(fit), _calibration(fit), smallest, _certificate(fit), warning]
    return [*_model(fit), *lines]


def _model(fit: Fit) -> Lines:
    """What is particular about the model: its feature part, other activations than ReLU, and how it was decided."""
    lines, mlp = [], fit.mlp
    if mlp.feature_part is not None:
        part = mlp.feature_part
        where = "runs at the client; raw inputs never leave it, and its weights are not secret"
        lines.append(("feature part", f"{len(part.graph):,} bytes, SHA-256 {part.sha256[:16]}...; {where}"))
    kinds = dict.fromkeys(map(str, mlp.activations))
    if list(kinds) != ["ReLU"]:
        lines.append(("activation", " and ".join(kinds)))
    if len(lines) or mlp.has_derived_head:
        lines.append(("settled", f"the model's own decisions: {fit.certificate.settled.sentence()}"))
    return lines


def _coefficients(fit: Fit) -> tuple[str, str]:
    if fit.degree > 2:
        return (
            "coefficients",
            f"{fit.degree} for each of {_polynomials(fit)}, of powers of u = (y - middle) / 2^e",
        )
    return "coefficients", FAMILIES.get(fit.family).coefficients(fit)


def _polynomials(fit: Fit) -> str:
    own, units = fit.model.units, fit.mlp.units
    return f"{units} hidden units" if own == units else f"{own} polynomials on {units} hidden units"


def _family(fit: Fit) -> tuple[str, str]:
    return "family", fit.family if fit.degree == 2 else f"{fit.family}, degree {fit.degree}"


def at_degree(text: str, degree: int) -> str:
    """A sentence about quadratics, said of polynomials of another degree."""
    if degree == 2:
        return text
    for quadratic, polynomial in (("quadratic head", "polynomial head"), ("quadratics", "polynomials")):
        text = text.replace(quadratic, f"{polynomial} of degree {degree}")
    return text.replace("quadratic", f"polynomial of degree {degree}")


def _calibration(fit: Fit) -> tuple[str, str]:
    held = kept(fit.certificate)
    share = f"{percent(held.agreement)} of {held.samples} decisions kept"
    return "calibration", f"{share}, {held.mismatches} lost"


def _certificate(fit: Fit) -> tuple[str, str]:
    held = fit.certificate
    proof = f"; {no_room(held, fit.mlp)} (evidence included)" if is_contradicted(fit) else ""
    said = _STATEMENT[held.statement]
    if too_few(held.samples, fit.mlp.classes):
        said = f"{held.statement} on {held.samples} rows, too few to say anything of others"
    if fit.mlp.network is not None:
        said = said.replace(", exactly", ", as onnxruntime measured it")
    return "certificate", said + proof


def is_contradicted(fit: Fit) -> bool:
    """Whether the evidence of the certificate is about this fit: a shared polynomial of the degree of the evidence.

    A fit of another family carries the same evidence, but may keep what no shared polynomial can.
    """
    evidence = fit.certificate.impossible
    return evidence is not None and fit.family == SHARED and evidence.power == fit.degree


def _accuracy(part: Accuracy) -> str:
    right = (percent(count / part.samples) for count in (part.network, part.replacement))
    return f"the network is right on {next(right)} of {part.samples} labels, its replacement on {next(right)}"


def _kept(part: Agreement) -> str:
    return f"{percent(part.agreement)} of {part.samples:,}" if part.mismatches else f"all {part.samples:,}"


def percent(share: float) -> str:
    """A share in percent, with two decimals, or as many as it takes not to round a share below one to 100%."""
    decimals = 2
    while share < 1 and decimals < 12 and float(f"{100 * share:.{decimals}f}") >= 100:
        decimals += 1
    return f"{100 * share:.{decimals}f}%"
