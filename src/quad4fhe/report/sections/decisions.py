"""Section "The decisions": margins before and after, and where decisions are lost."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from quad4fhe.fitting import Fit
from quad4fhe.fitting.summary import percent
from quad4fhe.proof.certificate import no_room
from quad4fhe.report.drawing import Palette, Picture, apart, asinh_axis, crosses, dots, legend, number
from quad4fhe.report.findings import Measured
from quad4fhe.report.section import Section

_TENTHS = 10
_ORDINALS = {0.01: "1st", 0.1: "10th", 0.5: "50th", 0.9: "90th"}
_LEVELS = list(_ORDINALS)


class Decisions(Section):
    """How far the decisions are from changing."""

    title = "The decisions"
    template = "<p>{{ proved }}</p>{{ figures(pictures, pairs(margins)) }}"

    def values(self) -> dict[str, Any]:
        """What follows from the certificate, and the smallest margins."""
        seen = self.found.calibration
        margins = {
            "smallest margin with ReLU": seen.before,
            "smallest margin now": seen.gap,
            "smallest margin of a ReLU decision now": seen.after,
        }
        return {
            "proved": _proved(self.found.fit),
            "margins": [(name, number(float(each.min()))) for name, each in margins.items()],
        }

    @cached_property
    def pictures(self) -> list[Picture]:
        """Margins, and, if any decision is lost, where."""
        seen = self.found.calibration
        return [_margins(seen), *([_where_lost(seen)] if seen.agreement.mismatches else [])]


def _proved(fit: Fit) -> str:
    """What follows from the certificate about keeping every decision with one shared quadratic."""
    claim, binary = fit.certificate, fit.mlp.classes == 2
    if claim.impossible is not None:
        at = " at the zero threshold" if claim.impossible.geometry == "pairs" and binary else ""
        said = no_room(claim, fit.mlp).removesuffix(" keeps all" + at)
        return f"N{said[1:]} keeps every calibration decision{at}: the certificate holds samples that prove it."
    what = "quadratic" if fit.degree == 2 else f"polynomial of degree {fit.degree}"
    if _is_shared(fit) and claim.statement == "lossless":
        where = "the convex hulls of the two classes do not meet" if binary else "all margins can be positive"
        return f"One shared {what} keeps every calibration decision: {where}."
    return f"The certificate does not tell whether one shared {what} can keep every calibration decision."


def _is_shared(fit: Fit) -> bool:
    if fit.degree > 2:
        return fit.model.a is not None and bool((fit.model.a == fit.model.a[:, :1]).all())
    return fit.alpha is not None and np.ndim(fit.alpha) == 0


def _margins(seen: Measured) -> Picture:
    lost, count = seen.lost, seen.agreement.mismatches
    before, after = np.quantile(seen.before, _LEVELS), np.quantile(seen.after, _LEVELS)
    rows = [
        (f"{_ORDINALS[level]} percentile", number(a), number(b))
        for level, a, b in zip(_LEVELS, before.tolist(), after.tolist(), strict=True)
    ]
    rows.append(("smallest", number(float(seen.before.min())), number(float(seen.after.min()))))
    alt = (
        f"Margin of each of {seen.target.size:,} calibration decisions: the ReLU model's own across, the replacement's "
        "upwards. "
    )
    if count:
        alt += (
            f"{count:,} lie below zero, where the decision is lost; their median ReLU margin is "
            f"{np.median(seen.before[lost]):.3g}, that of all decisions {np.median(seen.before):.3g}."
        )
    else:
        alt += "All lie above zero, so no decision is lost."
    caption = (
        "How far each decision was from changing, before (across) and after (up). Below zero it has changed. "
        "Both axes are linear near zero and logarithmic beyond; points that would cover each other are drawn once."
    )

    def draw(figure: Any, colours: Palette) -> None:
        axes = figure.subplots()
        across, up = asinh_axis(axes, "x", seen.before), asinh_axis(axes, "y", seen.after)
        axes.axhline(0, color=colours["muted"], linewidth=0.8)
        x, y = seen.before[~lost], seen.after[~lost]
        at = apart(across(x), up(y))
        dots(axes, x[at], y[at], colours["blue"], "kept")
        if count:
            x, y = seen.before[lost], seen.after[lost]
            at = apart(across(x), up(y))
            crosses(axes, x[at], y[at], colours["lost"])
            legend(axes)
        axes.set_xlabel("margin with ReLU")
        axes.set_ylabel("margin with the replacement")

    return Picture("margins", "Margins before and after", alt, caption, draw, ("", "before", "after"), rows, height=310)


def _where_lost(seen: Measured) -> Picture:
    order = np.argsort(seen.before, kind="stable")
    parts = np.array_split(seen.lost[order], _TENTHS)
    margins = np.array_split(seen.before[order], _TENTHS)
    shares = [float(part.mean()) if part.size else 0.0 for part in parts]
    rows = [
        (f"{k + 1}", f"{number(float(m[0]))} to {number(float(m[-1]))}", f"{int(part.sum()):,}", percent(1 - share))
        for k, (part, m, share) in enumerate(zip(parts, margins, shares, strict=True))
        if part.size
    ]
    first, total = int(parts[0].sum()), seen.agreement.mismatches
    alt = (
        f"Share of decisions lost by tenths of the calibration set, from the least to the most certain of the ReLU "
        f"model: {percent(shares[0])} in the first tenth, {percent(shares[-1])} in the last. "
        f"{first:,} of the {total:,} lost decisions are in the first."
    )
    caption = (
        f"Lost decisions by how certain the ReLU model was of them: {first:,} of {total:,} are among the least certain "
        "tenth."
    )

    def draw(figure: Any, colours: Palette) -> None:
        axes = figure.subplots()
        axes.bar(range(1, _TENTHS + 1), [100 * share for share in shares], color=colours["lost"], width=0.72)
        axes.set_xticks(range(1, _TENTHS + 1))
        axes.set_xlabel("tenths of the samples, by margin with ReLU")
        axes.set_ylabel("lost, %")

    head = ("tenth", "margin with ReLU", "lost", "kept")
    return Picture("where-lost", "Where decisions are lost", alt, caption, draw, head, rows)
