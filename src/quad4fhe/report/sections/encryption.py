"""Section "Under encryption": parameters and cost in every layout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from quad4fhe._progress import Progress
from quad4fhe.errors import InputError
from quad4fhe.layouts import LAYOUTS
from quad4fhe.layouts.planner import plan
from quad4fhe.planning.chains import SECURE_BITS
from quad4fhe.planning.costs import groups, readable_bytes, readable_seconds
from quad4fhe.planning.describe import describe
from quad4fhe.planning.plan import Plan
from quad4fhe.report.findings import Findings
from quad4fhe.report.markup import marked
from quad4fhe.report.section import Section, Tile


@dataclass(frozen=True, eq=False)
class Encryption(Section):
    """Plans: the one chosen for `samples`, those of the other layouts, and one for a single sample.

    `reasons` says why a layout has no plan.
    """

    title = "Under encryption"
    template = """
<p>Parameters chosen for this fit, and the bill, in CKKS at 128-bit security.
{% for layout in layouts %}
Layout {{ layout.name }}: {{ layout.purpose }}.
{% endfor %}
For {{ samples }}, {{ plans[0].layout }} is taken.
{% if plans[0].room.share %}
The box of inputs is the calibration range, widened by {{ "%.2g" % plans[0].room.share }} of it on both sides.
{% endif %}
{% for reason in reasons %} {{ reason }}.{% endfor %}</p>
<details><summary>The path of the data, and who sees what</summary>
<div class="figures"><div>{{ diagram("way") }}</div><div>{{ diagram("sight") }}</div></div></details>
{% if run %}
{{ table(ran, ["", "measured"], run) }}
{% endif %}
{{ table(caption, head, rows) }}
{% for plan in plans %}
<details><summary>{{ names[loop.index0] }}, in words</summary><pre>{{ words[loop.index0] }}</pre>
<p>To make this plan again:</p>
{{ command(found.source.plan(plan.samples, plan.layout, plan.precision, found.options.widen)) }}
</details>
{% endfor %}
"""

    plans: list[Plan]
    reasons: list[str]

    @classmethod
    def find(cls, found: Findings, progress: Progress) -> Self | None:
        """Plan in every layout."""
        options = found.options
        # A promise that was not counted again for the page must not appear on it, nor in its plans.
        fit = found.fit if found.verified.guarantee is not None else replace(found.fit, holdout=None)

        def made(samples: int, layout: Any) -> Plan:
            return plan(
                fit,
                samples=samples,
                layout=layout,
                precision=options.precision,
                X=found.X,
                widen=options.widen,
            )

        progress("encryption plan", 0, 0)
        plans, reasons = [made(options.samples, "auto")], []
        for layout in LAYOUTS.names():
            if layout != plans[0].layout:
                progress(f"encryption plan in layout {layout}", 0, 0)
                try:
                    plans.append(made(options.samples, layout))
                except InputError as error:
                    reasons.append(f"Layout {layout} is left out: {error}")
        if options.samples > 1:
            progress("encryption plan of a single query", 0, 0)
            plans.append(made(1, "auto"))
        return cls(found, plans, reasons)

    def values(self) -> dict[str, Any]:
        """The bills side by side, and each plan in words."""
        columns = [_bill(plan) for plan in self.plans]
        names = [f"{plan.layout}, {_count(plan.samples)}" for plan in self.plans]
        options = self.found.options
        bill = options.bill
        return {
            "run": [] if bill is None else [list(line) for line in bill.lines()],
            "ran": "" if bill is None else f"An actual run: layout {bill.layout}, ring N = {bill.ring:,}",
            "samples": _count(options.samples),
            "layouts": list(LAYOUTS),
            "plans": self.plans,
            "reasons": self.reasons,
            "caption": f"Plans at precision {options.precision}; times are forecasts for one reference core",
            "head": ["", marked(names[0], "taken"), *names[1:]],
            "rows": [[name, *(column[name] for column in columns)] for name in columns[0]],
            "names": names,
            "words": [describe(plan) for plan in self.plans],
        }

    @property
    def tiles(self) -> list[Tile]:
        """The time and traffic of the plan taken."""
        plan, bill = self.plans[0], self.plans[0].forecast
        if (run := self.found.options.bill) is not None:
            spent = readable_seconds(run.client_seconds + run.server_seconds)
            changed = f"{run.changed_as_given} decisions differ"
            note = f"{_count(plan.samples)}, {changed}, {readable_bytes(run.upload_bytes)} up"
            return [Tile("Encrypted, measured", spent, note)]
        note = f"{plan.samples:,} samples, N = {plan.chain.ring:,}, {readable_bytes(bill.upload_bytes)} up"
        return [Tile("Encrypted, forecast", readable_seconds(bill.seconds), note)]

    def to_dict(self) -> dict[str, Any]:
        """The plans."""
        return {"plans": [plan.to_dict() for plan in self.plans]}


def _count(samples: int) -> str:
    return "one sample" if samples == 1 else f"{samples:,} samples"


def _bill(plan: Plan) -> dict[str, str]:
    bill, chain, error = plan.forecast, plan.chain, plan.error
    close = "none" if plan.kept else f"{len(error.close):,} of {plan.calibration:,}"
    return {
        "ring N": f"{chain.ring:,}",
        "modulus, bits (128-bit security allows)": f"{chain.bits} ({SECURE_BITS[chain.ring]})",
        "primes, bits": " + ".join(str(q.bit_length()) for q in chain.every),
        "samples in a request": f"{plan.per_request:,}",
        "requests": f"{groups(plan.samples, plan.per_request):,}",
        "upload": readable_bytes(bill.upload_bytes),
        "download": readable_bytes(bill.download_bytes),
        "client time": readable_seconds(bill.client_seconds),
        "server time": readable_seconds(bill.server_seconds),
        "time per sample": readable_seconds(bill.seconds / plan.samples),
        "typical error of a deciding difference": f"{error.typical:.2g}",
        "largest error forecast": f"{error.bound:.2g}",
        "calibration decisions within reach of the error": close,
    }
