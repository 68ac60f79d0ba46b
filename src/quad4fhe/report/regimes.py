"""What a regime means, in a sentence or two for someone who has not read the paper."""

from __future__ import annotations

import re

from quad4fhe.fit import Fit

_PRIOR = "How freely they may move from the best shared quadratic was chosen by cross-validation."


def explain(fit: Fit) -> list[str]:
    """How the decisions were kept, as paragraphs."""
    d = fit.diagnostics
    if fit.family != "shared":
        return [f"{_loss(fit.regime)} {_PRIOR}"]
    if fit.regime == "hard":
        where = "the convex hulls of the two classes do not meet" if d.classes == 2 else "all margins can be positive"
        return [
            f"The exact test succeeded: {where}, so one quadratic keeps every decision. The widest margin was taken."
        ]
    lead = {
        "infeasible": "The exact test showed that no shared quadratic keeps every decision.",
        "undecided": "The exact test did not decide whether a shared quadratic can keep every decision.",
        "not tried": "Whether a shared quadratic can keep every decision was not asked.",
        "feasible": "A shared quadratic can keep every decision, but another regime was asked for.",
    }[d.hard]
    if d.mu is not None:
        return [
            f"{lead} The regime {fit.regime} separates the reduced hulls instead: averages in which no sample weighs "
            f"more than {d.mu:g}, so that a few samples on the wrong side no longer stand in the way."
        ]
    soft = re.sub(r"[+].*", "", fit.regime)
    said = f"{lead} The regime {soft} pays for every margin that is missed, in proportion (slack)."
    if fit.regime.endswith("+polish"):
        said += (
            " A polish then moved the coefficients to keep more decisions; the slack below is that of the soft problem."
        )
    return [said]


def _loss(regime: str) -> str:
    hinge = " and then on the decisions themselves" if regime.endswith("+hinge") else ""
    return f"The coefficients were fitted to the ReLU model's own logits{hinge}."
