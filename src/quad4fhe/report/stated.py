"""The section of the page that repeats what a fit says of its own making.

Decides what is shown only there: everything that can't be computed again from the model and the data. It is numbers and
words of a fixed list, under a heading that says whose word they are, so that no other section has to trust a file.
"""

from __future__ import annotations

from quad4fhe.circuit.forecast import readable_seconds
from quad4fhe.fitting.diagnostics import Diagnostics
from quad4fhe.fitting.words import REPLACED, percent
from quad4fhe.report.costs import estimate
from quad4fhe.report.findings import Findings
from quad4fhe.report.ink import number
from quad4fhe.report.markup import Markup, details, element, from_fit, join, pairs, table
from quad4fhe.report.regimes import explain

NOT_CHECKED = (
    "The fit says this about its own making. It can't be computed again without repeating the fit, so it is not "
    "checked and not certified; everything else on this page is."
)
Lines = list[tuple[str, str]]


def stated(found: Findings) -> Markup:
    """How the fit was made, in its own words."""
    fit, d = found.fit, found.fit.diagnostics
    parts = [element("h2", "How it was made, as the fit states"), element("p", NOT_CHECKED)]
    parts += [element("p", f"Replacement: {REPLACED[fit.family]}."), element("p", explain(fit))]
    stages = ", ".join(f"{stage} {readable_seconds(seconds)}" for stage, seconds in d.seconds.items())
    versions = ", ".join(f"{name} {version}" for name, version in fit.versions.items())
    lines: Lines = [("regime", from_fit("regime", fit.regime, fit.regime)), *_solved(found), *_judged(d)]
    lines += [
        ("threshold", from_fit("threshold", fit.threshold, fit.threshold)),
        ("seed", from_fit("seed", fit.seed, str(fit.seed))),
        ("fit time", stages),
        ("versions", versions),
    ]
    parts.append(pairs(lines))
    if d.notes:
        parts.append(element("ul", *(element("li", note) for note in d.notes)))
    return element("section", *parts, *_traces(found), id="stated")


def _solved(found: Findings) -> Lines:
    """What the solver found."""
    d = found.fit.diagnostics
    # What the solver of the shared quadratic found is, for a larger family, about the fit it started from.
    of = "" if found.fit.family == "shared" else ", shared"
    lines: Lines = [(f"exact test{of}", from_fit("diagnostics.hard", d.hard, d.hard))]
    normalised = _number("normalised_margin", d.normalised_margin)
    lines.append(("margin of its problem", join([_number("margin", d.margin), " (normalised ", normalised, ")"])))
    if d.mu is not None:
        caps: list[str] = [_number("mu", d.mu)]
        if d.critical_mu is not None:
            caps += [" of the paper's grid; the largest that separates is ", _number("critical_mu", d.critical_mu)]
        lines.append(("cap mu", join(caps)))
    if d.slack is not None:
        s = d.slack
        count = from_fit("diagnostics.slack.count", s.count, f"{s.count:,}")
        total, largest = _number("slack.sum", s.sum), _number("slack.max", s.max)
        lines.append(("slack", join([count, " samples, sum ", total, ", largest ", largest])))
    if d.gap is not None:
        lines.append(("duality gap", from_fit("diagnostics.gap", d.gap, f"{d.gap:.1e}")))
    if d.best_line is not None:
        best = from_fit("diagnostics.best_line.mismatches", d.best_line.mismatches, f"{d.best_line.mismatches:,}")
        proof = " lost, and no line loses fewer" if d.best_line.optimal else " lost is the fewest found for any line"
        lines.append((f"best line{of}", join([best, proof])))
    q = d.quantisation
    if q.decimals is not None and q.bits is not None:
        decimals = from_fit("diagnostics.quantisation.decimals", q.decimals, str(q.decimals))
        bits = from_fit("diagnostics.quantisation.bits", q.bits, str(q.bits))
        safe = join(["to ", decimals, " decimals, or ", bits, " bits after the point, changes no calibration decision"])
        lines.append(("rounding", safe))
    return lines


def _judged(d: Diagnostics) -> Lines:
    lines: Lines = []
    if d.test is not None:
        lines.append(("kept, its test data", f"{percent(d.test.agreement)} of {d.test.samples:,}"))
    return lines + [(f"cross-validated, {trial.family}", estimate(trial)) for trial in d.families]


def _traces(found: Findings) -> list[Markup]:
    d, parts = found.fit.diagnostics, []
    prior = "" if found.fit.family == "shared" else ", of the shared fit it started from"
    if d.soft_trace:
        head = ("weight", "kept", "samples with slack", "sum of slacks", "largest slack", "worst margin", "gap")
        rows = [
            (
                number(step.weight),
                percent(step.agreement),
                f"{step.slack_count:,}",
                number(step.slack_sum),
                number(step.slack_max),
                number(step.margin),
                f"{step.gap:.1e}",
            )
            for step in d.soft_trace
        ]
        tabled = table("The soft problem by weight, as stated", head, rows, 0)
        parts.append(details(f"Every weight of the soft problem{prior}", tabled))
    if d.cap_trace:
        caps = [(number(mu), number(margin) if margin else "the hulls meet") for mu, margin in d.cap_trace]
        tabled = table("Reduced hulls by cap, as stated", ("cap mu", "distance"), caps, 0)
        parts.append(details(f"Every cap that was tried{prior}", tabled))
    return parts


def _number(field: str, value: float) -> Markup:
    return from_fit(f"diagnostics.{field}", value, number(value))
