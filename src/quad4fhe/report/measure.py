"""What both models answer on one data set, decision by decision.

Decides what is measured for the report: labels in exact arithmetic, margins before and after, agreement by class.
How it is shown is left to `pictures` and `page`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array, BoolArray, IntArray, samples
from quad4fhe._progress import Progress, silent
from quad4fhe.exact import decisions
from quad4fhe.fitting import Fit
from quad4fhe.fitting.diagnostics import Agreement


@dataclass(frozen=True, eq=False)
class Measured:
    """The decisions of a ReLU model and its replacement on n samples.

    `target` (n,) are the ReLU model's decisions and `label` (n,) the replacement's, both exact. `before` (n,) is the
    ReLU model's gap between its decision and the next class; `after` (n,) is the replacement's gap between that same
    class and its strongest `rival` (n,), negative where the decision is lost; `gap` (n,) is the replacement's gap
    between its own decision and the next class. `accuracy` holds the shares of the data's
    own labels that the ReLU model and the replacement meet, where there are labels.
    """

    target: IntArray
    label: IntArray
    before: Array
    after: Array
    rival: IntArray
    gap: Array
    classes: int
    accuracy: tuple[float, float] | None = None

    @property
    def lost(self) -> BoolArray:
        """Which decisions change, (n,)."""
        out: BoolArray = self.target != self.label
        return out

    @property
    def agreement(self) -> Agreement:
        """How many decisions are kept."""
        n, mismatches = self.target.size, int(np.count_nonzero(self.lost))
        return Agreement(samples=n, agreement=(n - mismatches) / n, mismatches=mismatches)

    def by_class(self) -> list[Agreement | None]:
        """Agreement on the samples that the ReLU model gives to each class, None where it gives it none."""
        counts = np.bincount(self.target, minlength=self.classes).tolist()
        losses = np.bincount(self.target[self.lost], minlength=self.classes).tolist()
        return [
            Agreement(samples=n, agreement=(n - lost) / n, mismatches=lost) if n else None
            for n, lost in zip(counts, losses, strict=True)
        ]

    def changes(self) -> list[tuple[int, int, int]]:
        """(from, to, how many) of the decisions that change, most frequent first."""
        pairs, counts = np.unique(
            np.column_stack([self.target[self.lost], self.label[self.lost]]), axis=0, return_counts=True
        )
        found = [(int(a), int(b), int(n)) for (a, b), n in zip(pairs, counts, strict=True)]
        return sorted(found, key=lambda change: (-change[2], change[:2]))


def measure(
    fit: Fit, X: NDArray[Any], name: str, y: NDArray[Any] | None = None, progress: Progress = silent
) -> Measured:
    """Ask both models about every row of X (n, d); y (n,) are class ids."""
    checked = samples(name, X, fit.mlp.features)
    relu, kept = decisions(fit.mlp, checked, name, progress), decisions(fit.model, checked, name, progress)
    logits = fit.model.logits(checked)
    if logits.shape[1] == 1:
        logits = np.hstack([np.zeros_like(logits), logits])
    at = np.arange(relu.label.size)
    own = logits[at, relu.label]
    logits[at, relu.label] = -np.inf
    rival: IntArray = np.argmax(logits, axis=1).astype(np.int64)
    after = own - logits[at, rival]
    # Where rounding hides the sign, the exact decision says it.
    after = np.where(relu.label == kept.label, np.abs(after), -np.abs(after))
    accuracy = None if y is None else (float(np.mean(relu.label == y)), float(np.mean(kept.label == y)))
    return Measured(relu.label, kept.label, relu.gap, after, rival, kept.gap, fit.mlp.classes, accuracy)
