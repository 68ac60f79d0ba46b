"""Section "New inputs": the promise about new inputs, counted again for the page."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Self

import numpy as np

from quad4fhe._progress import Progress
from quad4fhe.fitting.summary import percent
from quad4fhe.proof.guarantee import Guarantee, Reliable, Step, margin_word
from quad4fhe.report.drawing import Palette, Picture, legend, number
from quad4fhe.report.findings import Findings
from quad4fhe.report.section import Section


class Promise(Section):
    """The promise, if its hold-out rows were given."""

    title = "New inputs"
    template = "{{ figures(pictures, pairs(found.verified.guarantee.lines())) }}"

    @classmethod
    def find(cls, found: Findings, progress: Progress) -> Self | None:
        """No section unless the promise was counted again."""
        return None if found.verified.guarantee is None else cls(found)

    @cached_property
    def pictures(self) -> list[Picture]:
        """Coverage against agreement, if a reliable margin was asked for."""
        made = self.found.verified.guarantee
        own = self.found.fit.holdout
        if made is None or own is None or made.reliable is None:
            return []
        return [_coverage(made, made.reliable, own.curve())]


def _coverage(made: Guarantee, reliable: Reliable, curve: list[Step]) -> Picture:
    steps = [(threshold, accepted, lost) for threshold, accepted, lost in curve if accepted]
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
        f"If only decisions with at least a given {margin_word(reliable.power)} are accepted: the share of the "
        f"{made.samples:,} hold-out rows that this covers, and the share of those that is kept. Asked for: "
        f"{percent(reliable.level)} with confidence {percent(made.confidence)}; {chosen}."
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

    head = (margin_word(reliable.power), "accepted", "kept of them")
    return Picture("coverage", "Decisions you can rely on", alt, caption, draw, head, rows, height=300)
