"""Section "How it was made, as the fit states": everything that can't be computed again without repeating the fit.

It shows numbers, and words from a fixed list, under a heading that says they are not checked. No other section has to
trust the file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from markupsafe import Markup

from quad4fhe.fitting import Fit
from quad4fhe.fitting.diagnostics import SoftStep
from quad4fhe.fitting.families import FAMILIES
from quad4fhe.fitting.summary import at_degree, percent
from quad4fhe.planning.costs import readable_seconds
from quad4fhe.report.drawing import number
from quad4fhe.report.markup import from_fit
from quad4fhe.report.section import Section
from quad4fhe.report.sections.ladder import estimate

Lines = list[tuple[str, str]]

_EXACT_TEST = {
    "infeasible": "The exact test failed.",
    "undecided": "The exact test did not decide whether a shared quadratic can keep every decision.",
    "not tried": "It was not tested whether a shared quadratic can keep every decision.",
    "feasible": "A shared quadratic can keep every decision, but another regime was asked for.",
}
_SOFT = ("weight", "kept", "samples with slack", "sum of slacks", "largest slack", "worst margin", "gap")


class Stated(Section):
    """How the fit was made, as it states itself."""

    title = "How it was made, as the fit states"
    template = """
<p>The fit states this about its own making. It can't be computed again without repeating the fit, so it is not checked
and not certified; everything else on this page is.</p>
<p>Replacement: {{ replaced }}.</p>
<p>{{ explained }}</p>
{{ pairs(lines) }}
{% if found.fit.diagnostics.notes %}
<ul>{% for note in found.fit.diagnostics.notes %}<li>{{ note }}</li>{% endfor %}</ul>
{% endif %}
{% if weights %}
<details><summary>Every weight of the soft problem{{ prior }}</summary>
{{ table("The soft problem by weight, as stated", weights_head, weights, 0) }}</details>
{% endif %}
{% if caps %}
<details><summary>Every cap that was tried{{ prior }}</summary>
{{ table("Reduced hulls by cap, as stated", ("cap mu", "distance"), caps, 0) }}</details>
{% endif %}
"""

    def values(self) -> dict[str, Any]:
        """Words, lines and traces."""
        fit, d = self.found.fit, self.found.fit.diagnostics
        return {
            "replaced": at_degree(FAMILIES.get(fit.family).replaced, fit.degree),
            "explained": at_degree(_explained(fit), fit.degree),
            "lines": self._lines(),
            "prior": ", of the shared fit" if self._is_larger else "",
            "weights_head": _SOFT,
            "weights": [_step(step) for step in d.soft_trace],
            "caps": [(number(mu), number(margin) if margin else "the hulls meet") for mu, margin in d.cap_trace],
        }

    def _lines(self) -> Lines:
        """Regime, solver, estimates, threshold, seed, times and versions."""
        fit, d = self.found.fit, self.found.fit.diagnostics
        stages = ", ".join(f"{stage} {readable_seconds(seconds)}" for stage, seconds in d.seconds.items())
        versions = ", ".join(f"{name} {version}" for name, version in fit.versions.items())
        lines: Lines = [("regime", from_fit("regime", str(fit.regime), str(fit.regime))), *self._solved()]
        if d.test is not None:
            lines.append(("kept, its test data", f"{percent(d.test.agreement)} of {d.test.samples:,}"))
        for trial in d.families:
            of_degree = "" if fit.degree == 2 else f", degree {trial.degree}"
            lines.append((f"cross-validated, {trial.family}{of_degree}", estimate(trial)))
        return [
            *lines,
            ("threshold", from_fit("threshold", fit.threshold, fit.threshold)),
            ("seed", from_fit("seed", fit.seed, str(fit.seed))),
            ("fit time", stages),
            ("versions", versions),
        ]

    def _solved(self) -> Lines:
        """What the solver found; of a larger family, the solver of the shared quadratic that it starts from."""
        d, of = self.found.fit.diagnostics, ", shared" if self._is_larger else ""
        lines: Lines = [(f"exact test{of}", from_fit("diagnostics.hard", d.hard, d.hard))]
        margins = _number("margin", d.margin), _number("normalised_margin", d.normalised_margin)
        lines.append(("margin of its problem", Markup("{} (normalised {})").format(*margins)))
        if d.mu is not None:
            mu = _number("mu", d.mu)
            if d.critical_mu is not None:
                critical = _number("critical_mu", d.critical_mu)
                mu = Markup("{} of the paper's grid; the largest that separates is {}").format(mu, critical)
            lines.append(("cap mu", mu))
        if d.slack is not None:
            s = d.slack
            count = from_fit("diagnostics.slack.count", s.count, f"{s.count:,}")
            sizes = _number("slack.sum", s.sum), _number("slack.max", s.max)
            lines.append(("slack", Markup("{} samples, sum {}, largest {}").format(count, *sizes)))
        if d.gap is not None:
            lines.append(("duality gap", from_fit("diagnostics.gap", d.gap, f"{d.gap:.1e}")))
        q = d.quantisation
        if q.decimals is not None and q.bits is not None:
            decimals = from_fit("diagnostics.quantisation.decimals", q.decimals, str(q.decimals))
            bits = from_fit("diagnostics.quantisation.bits", q.bits, str(q.bits))
            safe = Markup("to {} decimals, or {} bits after the point, changes no calibration decision")
            lines.append(("rounding", safe.format(decimals, bits)))
        return lines

    @property
    def _is_larger(self) -> bool:
        alpha = self.found.fit.alpha
        return alpha is None or np.ndim(alpha) > 0


def _explained(fit: Fit) -> str:
    """How the coefficients were found, by the regime that the fit states."""
    regime = fit.regime
    if regime.is_learned:
        hinge = " and then on the decisions themselves" if regime.polished else ""
        return (
            f"The coefficients were fitted to the ReLU model's own logits{hinge}. How far they may move from their "
            "start was chosen by cross-validation."
        )
    if regime.is_hard:
        return "The exact test succeeded, and the widest margin was taken."
    lead = _EXACT_TEST[fit.diagnostics.hard]
    if regime.is_reduced:
        return (
            f"{lead} The regime {regime} separates the reduced hulls instead: averages in which no sample weighs more "
            f"than {regime.parameter:g}, so that a few samples on the wrong side do not prevent it."
        )
    said = f"{lead} The regime soft({regime.parameter:g}) pays for each missed margin in proportion (slack)."
    if regime.polished:
        said += " A polish then moved the coefficients to keep more decisions; the slack is that of the soft problem."
    return said


def _step(step: SoftStep) -> tuple[str, ...]:
    slacks = (f"{step.slack_count:,}", number(step.slack_sum), number(step.slack_max))
    return (number(step.weight), percent(step.agreement), *slacks, number(step.margin), f"{step.gap:.1e}")


def _number(field: str, value: float) -> Markup:
    return from_fit(f"diagnostics.{field}", value, number(value))
