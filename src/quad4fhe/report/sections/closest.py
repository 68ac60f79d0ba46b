"""Section "The closest decisions": the samples that would change first, and the lost ones that were most certain."""

from __future__ import annotations

from typing import Any

import numpy as np

from quad4fhe._arrays import IntArray
from quad4fhe.report.drawing import number
from quad4fhe.report.markup import lost
from quad4fhe.report.section import Section

_LISTED = 10


class Closest(Section):
    """Single decisions."""

    title = "The closest decisions"
    template = """
{% set head = ("calibration row", "ReLU decides", "replacement decides", "margin with ReLU", "margin now") %}
<p>In these decisions the replacement's winning logit is least ahead of the next, so noise, rounding or a small change
of the input would change them first.</p>
{{ table("The %d closest calibration decisions" % closest | length, head, closest, 3) }}
{% if surest %}
{% set total = "{:,}".format(found.calibration.agreement.mismatches) %}
{{ table("The most certain of the %s lost decisions, by the ReLU model's own margin" % total, head, surest, 3) }}
{% endif %}
"""

    def values(self) -> dict[str, Any]:
        """The decisions with the smallest margins, and the lost ones of which the ReLU model was most certain."""
        seen = self.found.calibration
        missed = np.flatnonzero(seen.lost)
        return {
            "closest": self._rows(np.argsort(seen.gap, kind="stable")[:_LISTED]),
            "surest": self._rows(missed[np.argsort(-seen.before[missed], kind="stable")[:_LISTED]]),
        }

    def _rows(self, order: IntArray) -> list[list[str]]:
        seen, names = self.found.calibration, self.found.classes
        rows = []
        for i in order.tolist():
            now = names[int(seen.label[i])]
            margins = [number(float(seen.before[i])), number(float(seen.gap[i]))]
            rows.append([str(i), names[int(seen.target[i])], lost(now) if seen.lost[i] else now, *margins])
        return rows
