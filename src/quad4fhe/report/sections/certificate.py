"""Section "The certificate": what is certified, and how anyone can check it."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from quad4fhe.fitting.summary import is_contradicted
from quad4fhe.proof.certificate import no_room
from quad4fhe.report.drawing import number
from quad4fhe.report.markup import from_fit
from quad4fhe.report.section import Section

_SAID = {
    "lossless": "Lossless: these float64 coefficients keep each of the {samples:,} calibration decisions, all with a "
    "strict winner.",
    "measured": "Measured: exactly {lost:,} of the {samples:,} calibration decisions change, and the certificate lists "
    "them.",
}
_FIELDS = (
    "statement",
    "samples",
    "ties",
    "model_sha256",
    "replacement_sha256",
    "calibration_sha256",
    "targets_sha256",
)


class Certified(Section):
    """The certificate, which was checked before anything else."""

    title = "The certificate"
    template = """
{% set claim = found.fit.certificate %}
<p>{{ statement }}</p>
{% if no_room %}
<p>Impossible: {{ no_room }}. Calibration rows {{ claim.impossible.samples | join(", ") }} contradict each
other, exactly.</p>
{% endif %}
<p><span class="mark">It holds: </span>it was checked when this page was made, from the weights and the inputs, without
the solvers. {{ "{:,}".format(found.verified.rational) }} decisions needed exact arithmetic; a rounding-error bound
settles the others. The decisions of the trained model: {{ found.verified.settled.sentence() }}.
{% if not found.verified.settled.is_exact %}So not all of them are proved. {% endif %}Check it yourself:</p>
{{ command(found.source.verify()) }}
<p>The certificate is about the calibration set. On new data, agreement is measured, never promised.</p>
{{ pairs(fields) }}
{% if claim.mismatches %}
<details><summary>The {{ "{:,}".format(claim.mismatches | length) }} calibration rows that change</summary>
<p>{{ claim.mismatches | join(", ") }}</p></details>
{% endif %}
"""

    def values(self) -> dict[str, Any]:
        """The statement, the evidence if there is any, and the fields."""
        claim = self.found.fit.certificate
        fields: list[tuple[str, str]] = []
        for name in _FIELDS:
            value = getattr(claim, name)
            shown = f"{value:,}" if isinstance(value, int) else value
            code = Markup("<code>{}</code>").format(from_fit(f"certificate.{name}", value, shown))
            fields.append((name.replace("_sha256", " hash"), code))
        fields.insert(2, ("smallest margin", number(self.found.verified.margin)))
        return {
            "statement": _SAID[claim.statement].format(samples=claim.samples, lost=len(claim.mismatches)),
            "no_room": no_room(claim, self.found.fit.mlp) if is_contradicted(self.found.fit) else None,
            "fields": fields,
        }
