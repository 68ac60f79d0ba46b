"""What every section of a report builds on: the checked certificate, and both models' decisions on the data.

The certificate is checked first: a page about a fit whose certificate fails is never written.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quad4fhe._arrays import Array, BoolArray, IntArray, samples
from quad4fhe._box import widened
from quad4fhe._progress import Progress, silent
from quad4fhe.errors import InputError
from quad4fhe.fitting import Fit
from quad4fhe.fitting.diagnostics import Agreement
from quad4fhe.fitting.summary import verdict
from quad4fhe.names import Names, class_ids
from quad4fhe.planning.plan import Precision
from quad4fhe.proof.exact import decisions
from quad4fhe.proof.verification import Verified, verify

if TYPE_CHECKING:
    from quad4fhe.he.predict import Bill

Extent = Literal["none", "shared", "all"]


@dataclass(frozen=True)
class Options:
    """How much a report computes.

    `ladder` names the families to fit for comparison, `samples` is how many are scored together. The plan's box is
    wider than the calibration range by the share `widen` of it on both sides; None takes the default. `bill` is the
    bill of an actual encrypted run, which the page shows beside the forecasts.
    """

    ladder: Extent = "shared"
    samples: int = 2048
    precision: Precision = "strict"
    widen: float | None = None
    bill: Bill | None = None


@dataclass(frozen=True)
class Source:
    """The title of the page and the files that the commands on it name."""

    title: str = "A fit"
    fit: str = "fit.safetensors"
    calibration: str = "calib.npz"
    test: str | None = None

    def verify(self) -> str:
        """The command that rechecks the certificate."""
        return _command("verify", self.fit, self.calibration)

    def plan(self, samples: int, layout: str, precision: str, widen: float | None) -> str:
        """The command that makes a plan of the page again."""
        options = ["--samples", str(samples), "--layout", layout, "--precision", precision, "--calib", self.calibration]
        return _command("plan", self.fit, *options, *(["--widen", f"{widen:g}"] if widen is not None else []))

    def ladder(self) -> str:
        """The command that fits every rung of the ladder."""
        test = [] if self.test is None else ["--test", self.test]
        return _command("report", self.fit, self.calibration, *test, "--ladder", "all")


@dataclass(frozen=True, eq=False)
class Measured:
    """The decisions of a ReLU model and its replacement on n samples.

    `target` (n,) are the ReLU model's decisions and `label` (n,) the replacement's, both exact. `before` (n,) is the
    ReLU model's gap between its decision and the next class; `after` (n,) is the replacement's gap between that same
    class and its strongest rival, negative where the decision is lost; `gap` (n,) is the replacement's gap between its
    own decision and the next class. `accuracy` holds the accuracies of the ReLU model and the replacement if the data
    has labels.
    """

    target: IntArray
    label: IntArray
    before: Array
    after: Array
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
        return Agreement.of(self.target.size, int(np.count_nonzero(self.lost)))

    def by_class(self) -> list[Agreement | None]:
        """Agreement on the samples that the ReLU model assigns to each class; None for a class without samples."""
        counts = np.bincount(self.target, minlength=self.classes).tolist()
        losses = np.bincount(self.target[self.lost], minlength=self.classes).tolist()
        return [Agreement.of(n, lost) if n else None for n, lost in zip(counts, losses, strict=True)]

    def changes(self) -> list[tuple[int, int, int]]:
        """(from, to, how many) of the decisions that change, most frequent first."""
        pairs, counts = np.unique(
            np.column_stack([self.target[self.lost], self.label[self.lost]]), axis=0, return_counts=True
        )
        found = [(int(a), int(b), int(n)) for (a, b), n in zip(pairs, counts, strict=True)]
        return sorted(found, key=lambda change: (-change[2], change[:2]))


@dataclass(frozen=True, eq=False)
class Findings:
    """A fit whose certificate holds, and what was measured of it on X (n, d) and, if given, on X_test."""

    fit: Fit
    verified: Verified
    classes: list[str]
    X: NDArray[Any]
    X_test: NDArray[Any] | None
    calibration: Measured
    test: Measured | None
    options: Options
    source: Source
    made: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def verdict(self) -> str:
        """What was checked and measured here, in a sentence."""
        return verdict(self.fit, None if self.test is None else self.test.agreement)


def find(
    fit: Fit,
    X_cal: ArrayLike,
    X_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    *,
    X_holdout: ArrayLike | None = None,
    classes: Sequence[str] | None = None,
    options: Options | None = None,
    source: Source | None = None,
    progress: Progress = silent,
) -> Findings:
    """Check the certificate of `fit` on X_cal (n, d), then ask both models about every sample."""
    options = options or Options()
    if options.ladder not in get_args(Extent):
        raise InputError(f"ladder is {options.ladder!r}, wanted one of {', '.join(map(repr, get_args(Extent)))}")
    if options.samples < 1:
        raise InputError(f"samples is {options.samples}, wanted at least 1")
    widened(fit.box, options.widen or 0.0)  # rejects a share that makes no sense, before the work
    names = class_names(fit.names.classes if classes is None else classes, fit.mlp.classes)
    X = fit.mlp.marked(samples("X_cal", fit.mlp.inputs(X_cal), fit.mlp.features))
    unseen = None if X_test is None else samples("X_test", fit.mlp.inputs(X_test), fit.mlp.features)
    if unseen is not None and len(unseen) == 0:
        raise InputError("X_test has no rows; leave it out, or pass at least one test sample")
    labels = None if unseen is None or y_test is None else _ids(y_test, len(unseen), names)

    def staged(what: str, done: int, total: int) -> None:
        progress(f"certificate: {what}", done, total)

    verified = verify(fit, None, X, staged, X_holdout=X_holdout)
    X = fit.calibration_part(X)
    progress("decisions of both models", 0, 0)
    calibration = measure(fit, X, "X_cal", progress=progress)
    test = None if unseen is None else measure(fit, unseen, "X_test", labels, progress)
    return Findings(fit, verified, names, X, unseen, calibration, test, options, source or Source())


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
    after = own - logits.max(axis=1)
    # Rounding can flip the sign; the exact decision does not.
    after = np.where(relu.label == kept.label, np.abs(after), -np.abs(after))
    accuracy = None if y is None else (float(np.mean(relu.label == y)), float(np.mean(kept.label == y)))
    return Measured(relu.label, kept.label, relu.gap, after, kept.gap, fit.mlp.classes, accuracy)


def class_names(given: Sequence[str] | None, classes: int) -> list[str]:
    """One name for each class: the given one, or one made from its number."""
    if given is None:
        return [f"class {c}" for c in range(classes)]
    # Invisible characters have no place in a page, and some would make it invalid.
    names = ["".join(c if c.isprintable() else " " for c in str(name)).strip() for name in given]
    if len(names) != classes:
        raise InputError(f"{len(names)} class names were given, and the model has {classes} classes; give one for each")
    if not all(names) or len(set(names)) != classes:
        raise InputError("class names must be different and not empty; two of them are equal or blank")
    return names


def _ids(y: ArrayLike, n: int, names: list[str]) -> NDArray[Any] | None:
    """Labels as class ids: integers as they are, names by their place; None if they are neither."""
    labels = np.asarray(y)
    if labels.shape != (n,):
        raise InputError(f"y_test has shape {labels.shape}, wanted one label for each of the {n} test samples")
    return class_ids(labels, Names(classes=tuple(names)), len(names))


def _command(*words: str) -> str:
    return shlex.join(["quad4fhe", *words])
