"""Section "Agreement by class": what is kept of each class, and which decisions change into which."""

from __future__ import annotations

from functools import cached_property
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from quad4fhe.fitting.diagnostics import Agreement
from quad4fhe.fitting.summary import percent
from quad4fhe.report.drawing import Palette, Picture, legend, short
from quad4fhe.report.markup import NOTHING
from quad4fhe.report.section import Section

_BARS = 20  # classes in the picture; the table has them all
_OPEN = 24  # classes whose table is shown without a click
_LISTED = 10  # kinds of changes in the table


class ByClass(Section):
    """Agreement by class."""

    title = "Agreement by class"
    template = """
{% set kept = table("Decisions kept, by class", head, rows) %}
{{ figures(pictures, table(caption, ("from", "to", "samples"), changes, 2) if changes else "") }}
{% if folded %}
<details><summary>All {{ rows | length }} classes</summary>{{ kept }}</details>
{% else %}
{{ kept }}
{% endif %}
"""

    @cached_property
    def parts(self) -> list[list[Agreement | None]]:
        """Agreement by class on the calibration data and, if given, on the test data."""
        test = self.found.test
        return [self.found.calibration.by_class(), *([] if test is None else [test.by_class()])]

    def values(self) -> dict[str, Any]:
        """The table of classes, and the most frequent changes."""
        names, changes = self.found.classes, self.found.calibration.changes()
        more = f", the {_LISTED} most frequent of {len(changes)} kinds" if len(changes) > _LISTED else ""
        return {
            "head": ["ReLU decides", "calibration", "lost", "kept"] + ["test", "lost", "kept"] * (len(self.parts) > 1),
            "rows": [[name, *chain(*map(_cells, parts))] for name, *parts in zip(names, *self.parts, strict=True)],
            "folded": len(names) > _OPEN,
            "caption": f"Calibration decisions that change{more}",
            "changes": [(names[a], names[b], f"{n:,}") for a, b, n in changes[:_LISTED]],
        }

    @cached_property
    def pictures(self) -> list[Picture]:
        """A bar per class, if any decision is lost."""
        seen = [part for part in (self.found.calibration, self.found.test) if part is not None]
        return [self._bars()] if any(part.agreement.mismatches for part in seen) else []

    def _bars(self) -> Picture:
        calibration, names = self.parts[0], self.found.classes
        present = [c for c, part in enumerate(calibration) if part is not None]
        worst_first = sorted(present, key=lambda c: (-_lost(calibration[c]), c))
        listed = sorted(worst_first[:_BARS])
        left_out = len(present) - len(listed)
        worst = worst_first[0]
        alt = (
            f"Share of decisions lost for each class the ReLU model decides; on the calibration set most for "
            f"{names[worst]}, with {percent(_lost(calibration[worst]))}."
        )
        caption = "Share of decisions lost for each class that the ReLU model decides; in brackets, how many there are."
        caption += f" The {_BARS} classes that lose the most; {left_out} more lose no larger share." if left_out else ""
        labels = [f"{short(names[c])} ({part.samples:,})" for c in listed if (part := calibration[c]) is not None]
        shares = [[100 * _lost(part[c]) for c in listed] for part in self.parts]

        def draw(figure: Any, colours: Palette) -> None:
            axes = figure.subplots()
            places = np.arange(len(listed), dtype=np.float64)
            if len(shares) == 1:
                axes.barh(places, shares[0], 0.62, color=colours["blue"])
            else:
                axes.barh(places - 0.18, shares[0], 0.36, color=colours["blue"], label="calibration")
                axes.barh(places + 0.18, shares[1], 0.36, color=colours["orange"], label="test")
                legend(axes)
            axes.set_yticks(places, labels, parse_math=False)
            axes.invert_yaxis()
            axes.set_xlim(left=0)
            axes.set_xlabel("lost, %")
            axes.tick_params(axis="y", length=0)

        height = min(600, 80 + 26 * len(listed) + 22 * (len(shares) - 1))
        return Picture("by-class", "Lost by class", alt, caption, draw, (), (), height=height)

    def to_dict(self) -> dict[str, Any]:
        """Agreement by class, and the changes."""
        calibration, test = [*self.parts, None][:2]
        changes = self.found.calibration.changes()
        return {
            "by_class": {"calibration": msgspec.to_builtins(calibration), "test": msgspec.to_builtins(test)},
            "changes": [{"from": a, "to": b, "samples": n} for a, b, n in changes],
        }


def _cells(part: Agreement | None) -> list[str]:
    if part is None:
        return ["0", NOTHING, NOTHING]
    return [f"{part.samples:,}", f"{part.mismatches:,}", percent(part.agreement)]


def _lost(part: Agreement | None) -> float:
    return float("nan") if part is None else part.mismatches / part.samples
