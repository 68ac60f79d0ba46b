"""The result of a comparison: one row for each replacement, as a dictionary, JSON or CSV.

Decides what is recorded of each replacement and how it is written down. Measuring is left to `measure`, drawing to
`table`.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any


@dataclass(frozen=True)
class Row:
    """What one replacement keeps of the model, and what it costs.

    Agreement is the share of samples decided as by the ReLU model; a sample whose logits overflow counts as decided
    differently, and is counted in `nonfinite_samples` (calibration and test together). `depth` and `products` are of
    the activation alone, by the schedule of `schedule`. `activation_error` is the largest |p - relu| on the calibration
    interval. The `outside` shares are of the test set: pre-activations beyond the interval the replacement was made
    for, and samples with at least one of them; with `clipped` those values were clipped to the interval. A field is
    None where it has no meaning: no labels, no single scalar activation, no interval.
    """

    name: str
    agreement_cal: float
    agreement_test: float
    accuracy: float | None
    macro_f1: float | None
    degree: int | None
    depth: int | None
    products: int | None
    activation_error: float | None
    outside_values: float | None
    outside_samples: float | None
    clipped: bool
    nonfinite_samples: int


@dataclass(frozen=True, repr=False)
class Comparison:
    """Every replacement side by side, on the same samples; prints as a table.

    `interval` is that of the calibration pre-activations.
    """

    rows: tuple[Row, ...]
    interval: tuple[float, float]
    n_cal: int
    n_test: int
    model_sha256: str

    def __repr__(self) -> str:
        from quad4fhe.polynomials.table import table_text

        return table_text(self)

    def __getitem__(self, name: str) -> Row:
        """The row of one replacement."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def to_dict(self) -> dict[str, Any]:
        """Plain values only; a number that overflowed is null, as JSON has no infinity."""
        rows = [{key: _plain(value) for key, value in asdict(row).items()} for row in self.rows]
        return {
            "format": "quad4fhe-comparison-1",
            "model_sha256": self.model_sha256,
            "n_cal": self.n_cal,
            "n_test": self.n_test,
            "interval": list(self.interval),
            "rows": rows,
        }

    def to_json(self) -> str:
        """One JSON document."""
        return json.dumps(self.to_dict(), allow_nan=False, indent=2)

    def to_csv(self) -> str:
        """One line for each replacement under a header; an empty cell is a field without a meaning or value."""
        out = io.StringIO()
        writer = csv.DictWriter(out, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        for row in self.to_dict()["rows"]:
            writer.writerow({key: "" if value is None else value for key, value in row.items()})
        return out.getvalue()


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not isfinite(value) else value
