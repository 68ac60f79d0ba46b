"""What a regime means, in a sentence or two for someone who has not read the paper.

Decides what is said as proved (it follows from the certificate, which holds) and what only as stated by the fit.
"""

from __future__ import annotations

from quad4fhe.fitting import Fit

_PRIOR = "How freely they may move from the best shared quadratic was chosen by cross-validation."


def proved(fit: Fit) -> str:
    """What the certificate, once it is checked, says about keeping every decision with one shared quadratic."""
    claim = fit.certificate
    if claim.impossible is not None:
        at = " at the zero threshold" if claim.impossible.geometry == "pairs" and fit.mlp.classes == 2 else ""
        return f"No shared quadratic keeps every calibration decision{at}: the certificate holds samples that prove it."
    if fit.family == "shared" and claim.statement == "lossless":
        two = fit.mlp.classes == 2
        where = "the convex hulls of the two classes do not meet" if two else "all margins can be positive"
        return f"One shared quadratic keeps every calibration decision: {where}."
    return "Whether one shared quadratic can keep every calibration decision does not follow from the certificate."


def explain(fit: Fit) -> str:
    """How the coefficients were found, by the regime that the fit states."""
    regime, d = fit.regime, fit.diagnostics
    if regime.kind == "kl":
        hinge = " and then on the decisions themselves" if regime.endswith("+hinge") else ""
        return f"The coefficients were fitted to the ReLU model's own logits{hinge}. {_PRIOR}"
    if regime.kind == "hard":
        return "The exact test succeeded, and the widest margin was taken."
    lead = {
        "infeasible": "The exact test failed.",
        "undecided": "The exact test did not decide whether a shared quadratic can keep every decision.",
        "not tried": "Whether a shared quadratic can keep every decision was not asked.",
        "feasible": "A shared quadratic can keep every decision, but another regime was asked for.",
    }[d.hard]
    if regime.kind == "rch":
        return (
            f"{lead} The regime {regime} separates the reduced hulls instead: averages in which no sample weighs more "
            f"than {regime.parameter:g}, so that a few samples on the wrong side no longer stand in the way."
        )
    said = f"{lead} The regime soft({regime.parameter:g}) pays for every margin that is missed, in proportion (slack)."
    if regime.polished:
        said += " A polish then moved the coefficients to keep more decisions; the slack is that of the soft problem."
    return said
