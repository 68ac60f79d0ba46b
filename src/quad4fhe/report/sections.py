"""The sections of the page about the decisions: what was kept and why, by class, the close ones, the certificate.

Decides which numbers stand beside which picture, and how they are worded. Every number here was computed for the page,
or stands in the part of the fit that was checked for it; the rest of the fit is left to `stated`.
"""

from __future__ import annotations

import numpy as np

from quad4fhe.certificate import no_room
from quad4fhe.fitting.words import percent
from quad4fhe.report.drawing import Picture
from quad4fhe.report.findings import Findings
from quad4fhe.report.ink import number
from quad4fhe.report.markup import NOTHING, Markup, command, details, element, figure, from_fit, join, pairs, table
from quad4fhe.report.measure import Measured
from quad4fhe.report.regimes import proved
from quad4fhe.report.source import Source

_LISTED = 10  # rows of a table of single decisions or of changes
_OPEN = 24  # classes whose table is shown without being asked for


def decisions(found: Findings, shown: list[Picture]) -> Markup:
    """How the decisions were kept: the plane or the margins, and what was measured."""
    names = ("plane", "plane-close", "margins", "where-lost")
    seen = found.calibration
    lines: list[tuple[str, str]] = [
        ("smallest margin with ReLU", number(float(seen.before.min()))),
        ("smallest margin now", number(float(seen.gap.min()))),
        ("smallest margin of a ReLU decision now", number(float(seen.after.min()))),
    ]
    parts = [element("h2", "The decisions"), element("p", proved(found.fit)), _figures(shown, names, pairs(lines))]
    return element("section", *parts, id="decisions")


def activation(found: Findings, shown: list[Picture]) -> Markup:
    """The polynomial and its coefficients."""
    fit = found.fit
    if fit.family == "shared":
        values = [("alpha", fit.alpha), ("beta", fit.beta), ("eta", fit.eta)]
        values += [("tau", fit.tau)] if fit.tau else []
        lines: list[tuple[str, str]] = [(name, from_fit(name, value, number(value))) for name, value in values]
    elif fit.family == "unitwise":
        lines = [
            (
                name,
                f"{number(float(part.min()))} to {number(float(part.max()))}, median {number(float(np.median(part)))}",
            )
            for name, part in (("alpha", fit.alpha), ("beta", fit.beta), ("eta", fit.eta))
        ]
    else:
        lines = [
            (name, f"{part.size:,} numbers, largest {number(float(np.abs(part).max()))} in size")
            for name, part in (("S", fit.S), ("T", fit.T), ("c", fit.c))
        ]
    said = {
        "shared": "Every ReLU becomes q(u) = alpha u² + beta u + eta.",
        "unitwise": f"The ReLU of hidden unit j becomes alpha_j u² + beta_j u + eta_j, for {fit.mlp.units:,} units.",
        "head": "The logits become S (y·y) + T y + c, with y the pre-activations and S, T, c all free.",
    }[fit.family]
    parts = [element("h2", "The polynomial"), element("p", said), _figures(shown, ("activation",), pairs(lines))]
    return element("section", *parts, id="polynomial")


def promise(found: Findings, shown: list[Picture]) -> Markup:
    """What is promised about new inputs, as it was computed again for the page; nothing where it was not."""
    made = found.verified.guarantee
    if made is None:
        return Markup("")
    parts = [element("h2", "New inputs"), _figures(shown, ("coverage",), pairs(made.lines()))]
    return element("section", *parts, id="promise")


def by_class(found: Findings, shown: list[Picture]) -> Markup:
    """Agreement by class, and which decisions turn into which."""
    calibration, test = found.calibration.by_class(), None if found.test is None else found.test.by_class()
    head = ["ReLU decides", "calibration", "lost", "kept"] + ["test", "lost", "kept"] * (test is not None)
    rows = []
    for c, name in enumerate(found.classes):
        row = [name]
        for part in (calibration[c], *([] if test is None else [test[c]])):
            row += (
                ["0", NOTHING, NOTHING]
                if part is None
                else [f"{part.samples:,}", f"{part.mismatches:,}", percent(part.agreement)]
            )
        rows.append(row)
    tabled: Markup = table("Decisions kept, by class", head, rows)
    if len(rows) > _OPEN:
        tabled = details(f"All {len(rows)} classes", tabled)
    beside, changes = Markup(""), found.calibration.changes()
    if changes:
        more = f", the {_LISTED} most frequent of {len(changes)} kinds" if len(changes) > _LISTED else ""
        listed = [(found.classes[a], found.classes[b], f"{count:,}") for a, b, count in changes[:_LISTED]]
        beside = table(f"Calibration decisions that change{more}", ("from", "to", "samples"), listed, text=2)
    parts = [element("h2", "Agreement by class"), _figures(shown, ("by-class",), beside), tabled]
    return element("section", *parts, id="by-class")


def closest(found: Findings) -> Markup:
    """The decisions that hang by a thread, and the surest ones that are lost."""
    seen = found.calibration
    order = np.argsort(seen.gap, kind="stable")[:_LISTED]
    head = ("calibration row", "ReLU decides", "replacement decides", "margin with ReLU", "margin now")
    parts = [
        element("h2", "The closest decisions"),
        element(
            "p",
            "Where the replacement's winning logit is least ahead of the next: these decisions would change first, "
            "under noise, rounding or a small change of the input.",
        ),
        table(
            f"The {len(order)} closest calibration decisions", head, [_decision(found, seen, int(i)) for i in order], 3
        ),
    ]
    lost = np.flatnonzero(seen.lost)
    if lost.size:
        surest = lost[np.argsort(-seen.before[lost], kind="stable")[:_LISTED]]
        title = f"The surest of the {lost.size:,} lost decisions, by the ReLU model's own margin"
        parts.append(table(title, head, [_decision(found, seen, int(i)) for i in surest], 3))
    return element("section", *parts, id="closest")


def _decision(found: Findings, seen: Measured, i: int) -> list[str]:
    now = found.classes[int(seen.label[i])]
    return [
        str(i),
        found.classes[int(seen.target[i])],
        element("span", now, **{"class": "lost"}) if seen.lost[i] else now,
        number(float(seen.before[i])),
        number(float(seen.gap[i])),
    ]


def certificate(found: Findings, source: Source) -> Markup:
    """What is certified and how anyone can check it."""
    fit, claim, checked = found.fit, found.fit.certificate, found.verified
    lost = len(claim.mismatches)
    said = {
        "lossless": f"Lossless: these float64 coefficients keep each of the {claim.samples:,} calibration decisions, "
        "all with a strict winner.",
        "measured": f"Measured: exactly {lost:,} of the {claim.samples:,} calibration decisions change, and the "
        "certificate lists them.",
    }[claim.statement]
    parts = [element("h2", "The certificate"), element("p", said)]
    if claim.impossible is not None:
        rows = ", ".join(map(str, claim.impossible.samples))
        proof = f"Impossible: {no_room(claim, fit.mlp)}. Calibration rows {rows} contradict each other, exactly."
        parts.append(element("p", proof))
    exact = f"{checked.rational:,} decisions needed exact arithmetic; a rounding-error bound settles the others."
    parts.append(
        element(
            "p",
            element("span", "It holds: ", **{"class": "mark"}),
            f"it was checked when this page was made, from the weights and the inputs, without the solvers. {exact} "
            "Check it yourself:",
        )
    )
    parts.append(command(source.verify()))
    if claim.impossible is not None:
        parts.append(
            element("p", "It speaks of the calibration set. New data is measured on a test set, never promised.")
        )
    else:
        parts.append(
            element("p", "It speaks of the calibration set; on new data agreement is measured, never promised.")
        )
    named = [
        ("statement", claim.statement),
        ("samples", claim.samples),
        ("ties", claim.ties),
        ("model_sha256", claim.model_sha256),
        ("replacement_sha256", claim.replacement_sha256),
        ("calibration_sha256", claim.calibration_sha256),
        ("targets_sha256", claim.targets_sha256),
    ]
    lines: list[tuple[str, str]] = [
        (key.replace("_sha256", " hash"), _code(f"certificate.{key}", value)) for key, value in named
    ]
    lines.insert(2, ("smallest margin", number(checked.margin)))
    parts.append(pairs(lines))
    if lost:
        every = ", ".join(map(str, claim.mismatches))
        parts.append(details(f"The {lost:,} calibration rows that change", element("p", every)))
    return element("section", *parts, id="certificate")


def _figures(shown: list[Picture], names: tuple[str, ...], beside: Markup) -> Markup:
    """The pictures of a section in two columns where there is room, with `beside` in the place that is left."""
    chosen = [figure(picture) for picture in shown if picture.name in names]
    if len(chosen) % 2 == 0:
        return join([element("div", *chosen, **{"class": "figures"}), beside]) if chosen else beside
    return element("div", *chosen, element("div", beside), **{"class": "figures"})


def _code(path: str, value: str | int) -> Markup:
    return element("code", from_fit(path, value, f"{value:,}" if isinstance(value, int) else value))
