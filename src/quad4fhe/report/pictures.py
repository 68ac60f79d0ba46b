"""The pictures of a report: each a drawing, a sentence for those who can't see it, and its numbers.

Decides what is drawn and said for each question a reader has. Colours, fonts and files are left to `drawing`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from quad4fhe.fitting.diagnostics import Agreement
from quad4fhe.fitting.words import percent
from quad4fhe.proof.holdout import Guarantee
from quad4fhe.proof.reliable import Reliable
from quad4fhe.report.drawing import Palette, Picture
from quad4fhe.report.findings import Findings
from quad4fhe.report.ink import apart, asinh_axis, crosses, dots, legend, number, short
from quad4fhe.report.plane import plane_pictures

_BARS = 20  # classes in the picture by class; the table has them all
_TENTHS = 10


def pictures(found: Findings) -> list[Picture]:
    """Every picture that this fit has something to show in."""
    shown = []
    if found.plane is not None:
        shown += plane_pictures(found)
    shown.append(_margins(found))
    if found.calibration.agreement.mismatches:
        shown.append(_where_lost(found))
    shown.append(_activation(found))
    if found.calibration.agreement.mismatches or (found.test is not None and found.test.agreement.mismatches):
        shown.append(_by_class(found))
    if found.verified.guarantee is not None and found.verified.guarantee.reliable is not None:
        shown.append(_coverage(found.verified.guarantee, found.verified.guarantee.reliable))
    return shown


def _margins(found: Findings) -> Picture:
    seen = found.calibration
    kept, lost = ~seen.lost, seen.lost
    levels = [0.01, 0.1, 0.5, 0.9]
    before, after = np.quantile(seen.before, levels), np.quantile(seen.after, levels)
    rows = [
        (f"{100 * level:g}th percentile", number(a), number(b))
        for level, a, b in zip(levels, before.tolist(), after.tolist(), strict=True)
    ]
    rows.append(("smallest", number(float(seen.before.min())), number(float(seen.after.min()))))
    count = int(np.count_nonzero(lost))
    alt = (
        f"Margin of each of {seen.target.size:,} calibration decisions: the ReLU model's own across, the replacement's "
        f"upwards. {count:,} lie below zero, where the decision is lost; their median ReLU margin is "
        f"{np.median(seen.before[lost]):.3g}, that of all decisions {np.median(seen.before):.3g}."
        if count
        else f"Margin of each of {seen.target.size:,} calibration decisions: the ReLU model's own across, the "
        "replacement's upwards. All lie above zero, so no decision is lost."
    )
    caption = (
        "How far each decision was from changing, before (across) and after (up). Below zero it has changed. "
        "Both axes are linear near zero and logarithmic beyond; points that would cover each other are drawn once."
    )

    def draw(figure: Any, colours: Palette) -> None:
        axes = figure.subplots()
        across, up = asinh_axis(axes, "x", seen.before), asinh_axis(axes, "y", seen.after)
        axes.axhline(0, color=colours["muted"], linewidth=0.8)
        for part in (kept, lost):
            x, y = seen.before[part], seen.after[part]
            at = apart(across(x), up(y))
            if part is kept:
                dots(axes, x[at], y[at], colours["blue"], "kept")
            elif count:
                crosses(axes, x[at], y[at], colours["lost"])
        axes.set_xlabel("margin with ReLU")
        axes.set_ylabel("margin with the replacement")
        if count:
            legend(axes)

    return Picture("margins", "Margins before and after", alt, caption, draw, ("", "before", "after"), rows, height=310)


def _where_lost(found: Findings) -> Picture:
    seen = found.calibration
    order = np.argsort(seen.before, kind="stable")
    parts = np.array_split(seen.lost[order], _TENTHS)
    margins = np.array_split(seen.before[order], _TENTHS)
    shares = [float(part.mean()) if part.size else 0.0 for part in parts]
    rows = [
        (f"{k + 1}", f"{number(float(m[0]))} to {number(float(m[-1]))}", f"{int(part.sum()):,}", percent(1 - share))
        for k, (part, m, share) in enumerate(zip(parts, margins, shares, strict=True))
        if part.size
    ]
    first = int(parts[0].sum())
    total = seen.agreement.mismatches
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


def _activation(found: Findings) -> Picture:
    shape, fit = found.activation, found.fit
    what = {
        "shared": "the one quadratic that replaces it",
        "unitwise": "the median of the quadratics of all units, with the middle 80% as a band",
        "head": "the median of the quadratics nearest to the free head, with the middle 80% as a band",
    }[fit.family]
    caption = f"ReLU (dashed) and {what}, over the pre-activations of the calibration set (below). "
    caption += {
        "shared": "It need not be close to ReLU: only the decisions count, and they fix neither scale nor offset.",
        "unitwise": "Units count by the size of their head weights.",
        "head": "A free head has no quadratic per unit: drawn is the nearest in least squares over the classes, "
        "shifted to meet ReLU on average.",
    }[fit.family]
    if shape.covered < 1:
        caption += f" The axis holds {percent(shape.covered)} of the pre-activations, which range from "
        caption += f"{shape.lo:.4g} to {shape.hi:.4g}."
    points = np.linspace(float(shape.u[0]), float(shape.u[-1]), 7)
    cuts = [float(np.interp(u, shape.u, curve)) for curve in (shape.relu, shape.middle) for u in points]
    below = np.interp(points, shape.edges, np.append(0.0, np.cumsum(shape.shares)))
    rows = [
        (number(float(u)), number(r), number(q), percent(float(share)))
        for u, r, q, share in zip(points, cuts[:7], cuts[7:], below, strict=True)
    ]
    alt = (
        f"ReLU and {what}, from u = {shape.u[0]:.3g} to {shape.u[-1]:.3g}, above a histogram of the pre-activations, "
        f"which range from {shape.lo:.4g} to {shape.hi:.4g}."
    )

    def draw(figure: Any, colours: Palette) -> None:
        top, bottom = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": (3, 1)})
        if shape.band is not None:
            top.fill_between(shape.u, *shape.band, color=colours["blue"], alpha=0.18, linewidth=0)
        top.plot(shape.u, shape.relu, "--", color=colours["orange"], linewidth=1.6, label="ReLU")
        top.plot(shape.u, shape.middle, "-", color=colours["blue"], linewidth=1.8, label="replacement")
        top.axhline(0, color=colours["line"], linewidth=0.8, zorder=0)
        top.set_ylabel("activation")
        legend(top)
        bottom.stairs(100 * shape.shares, shape.edges, fill=True, color=colours["muted"], alpha=0.55)
        bottom.set_ylabel("share, %")
        bottom.set_xlabel("pre-activation u")
        bottom.set_xlim(float(shape.u[0]), float(shape.u[-1]))

    head = ("u", "ReLU", "replacement", "pre-activations below u")
    return Picture("activation", "The polynomial over ReLU", alt, caption, draw, head, rows, height=330)


def _coverage(made: Guarantee, reliable: Reliable) -> Picture:
    steps = [(threshold, accepted, lost) for threshold, accepted, lost in reliable.curve if accepted]
    covered = np.array([accepted / made.samples for _, accepted, _ in steps])
    kept = np.array([1 - lost / accepted for _, accepted, lost in steps])
    taken = (
        None if reliable.threshold is None else (reliable.accepted / made.samples, reliable.lost / reliable.accepted)
    )
    chosen = "no margin passes the test" if taken is None else f"the margin taken covers {percent(taken[0])}"
    alt = (
        f"Share of hold-out decisions kept against the share that is accepted, for margins from the strictest to none; "
        f"all of them: {percent(float(kept[-1]))} kept; {chosen}."
    )
    caption = (
        f"Accept only decisions with at least some margin: how many of the {made.samples:,} hold-out rows that covers, "
        f"and how many of them are kept. Asked for: {percent(reliable.level)} with confidence "
        f"{percent(made.confidence)}; {chosen}."
    )
    places = np.unique(np.linspace(0, len(steps) - 1, 11).astype(int))
    rows = [(number(steps[i][0]), percent(float(covered[i])), percent(float(kept[i]))) for i in places]

    def draw(figure: Any, colours: Palette) -> None:
        axes = figure.subplots()
        axes.plot(100 * covered, 100 * kept, "-", color=colours["blue"], linewidth=1.8, label="hold-out rows")
        axes.axhline(100 * reliable.level, color=colours["muted"], linewidth=1.0, linestyle="--", label="asked for")
        if taken is not None:
            axes.plot([100 * taken[0]], [100 * (1 - taken[1])], "o", color=colours["orange"], label="margin taken")
        axes.set_xlabel("accepted, %")
        axes.set_ylabel("kept of them, %")
        axes.set_xlim(0, 100)
        legend(axes)

    head = ("margin", "accepted", "kept of them")
    return Picture("coverage", "Decisions one may rely on", alt, caption, draw, head, rows, height=300)


def _by_class(found: Findings) -> Picture:
    calibration, test = found.calibration.by_class(), None if found.test is None else found.test.by_class()
    present = [c for c, part in enumerate(calibration) if part is not None]
    worst_first = sorted(present, key=lambda c: (-_lost(calibration[c]), c))
    listed = sorted(worst_first[:_BARS])
    left_out = len(present) - len(listed)
    worst = worst_first[0]
    alt = (
        f"Share of decisions lost for each class the ReLU model decides; on the calibration set most for "
        f"{found.classes[worst]}, with {percent(_lost(calibration[worst]))}."
    )
    caption = "Decisions lost, by the class the ReLU model decides; in brackets how many it decides so."
    caption += f" The {_BARS} classes that lose the most; {left_out} more lose no larger share." if left_out else ""

    def draw(figure: Any, colours: Palette) -> None:
        axes = figure.subplots()
        height = 0.62 if test is None else 0.36
        places = np.arange(len(listed), dtype=np.float64)
        shares = [100 * _lost(calibration[c]) for c in listed]
        axes.barh(
            places - (0 if test is None else height / 2), shares, height, color=colours["blue"], label="calibration"
        )
        if test is not None:
            shares = [100 * _lost(test[c]) for c in listed]
            axes.barh(places + height / 2, shares, height, color=colours["orange"], label="test")
            legend(axes)
        labels = [f"{short(found.classes[c])} ({_samples(calibration[c]):,})" for c in listed]
        axes.set_yticks(places, labels, parse_math=False)
        axes.invert_yaxis()
        axes.set_xlim(left=0)
        axes.set_xlabel("lost, %")
        axes.tick_params(axis="y", length=0)

    height = min(600, 80 + 26 * len(listed) + (0 if test is None else 22))
    return Picture("by-class", "Lost by class", alt, caption, draw, (), (), height=height)


def _lost(part: Agreement | None) -> float:
    return float("nan") if part is None else part.mismatches / part.samples


def _samples(part: Agreement | None) -> int:
    return 0 if part is None else part.samples
