"""Everything the page says, found out before a line of it is written.

Decides what a report contains and checks the certificate first: a page about a fit whose certificate fails is never
written. Words and pictures are left to `page` and `pictures`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quad4fhe._arrays import samples as checked_samples
from quad4fhe._progress import Progress, silent
from quad4fhe.certificate import Verified, verify
from quad4fhe.circuit.domain import widened
from quad4fhe.circuit.forecast import Machine
from quad4fhe.circuit.plan import Plan, Precision, plan
from quad4fhe.errors import InputError
from quad4fhe.fitting import Fit
from quad4fhe.fitting.words import verdict
from quad4fhe.he.calibrate import calibrate
from quad4fhe.lift import lift
from quad4fhe.polynomials.preactivations import preactivations
from quad4fhe.report.activation import Activation, activation
from quad4fhe.report.geometry import PlaneView, plane_view
from quad4fhe.report.ladder import Extent, Rung, climb
from quad4fhe.report.measure import Measured, measure


@dataclass(frozen=True)
class Options:
    """What can be asked of a report.

    `samples` is how many are scored together. `widen` is the share of each feature's range by which the plan's box is
    wider than the fit's on both sides. `machine` is the one whose times are forecast; None measures this one.
    """

    ladder: Extent = "shared"
    samples: int = 2048
    precision: Precision = "strict"
    widen: float = 0.0
    machine: Machine | None = None


@dataclass(frozen=True, eq=False)
class Findings:
    """A fit and what was found out about it; `plans` holds the one that layout "auto" takes first."""

    fit: Fit
    verified: Verified
    classes: list[str]
    calibration: Measured
    test: Measured | None
    plane: PlaneView | None
    activation: Activation
    ladder: list[Rung]
    plans: list[Plan]
    options: Options
    made: datetime

    @property
    def verdict(self) -> str:
        """The answer in a sentence, of what was checked and measured here."""
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
    progress: Progress = silent,
) -> Findings:
    """Check the certificate of `fit` on X_cal (n, d), then measure, fit and plan what a report shows."""
    options = options or Options()
    if options.ladder not in get_args(Extent):
        raise InputError(f"ladder is {options.ladder!r}, wanted one of {', '.join(map(repr, get_args(Extent)))}")
    if options.samples < 1:
        raise InputError(f"samples is {options.samples}, wanted at least 1")
    widened(fit.box, options.widen)  # refuses a share that is none, before the work
    names = class_names(classes, fit.mlp.classes)
    X = checked_samples("X_cal", X_cal, fit.mlp.features)
    unseen = None if X_test is None else checked_samples("X_test", X_test, fit.mlp.features)
    if unseen is not None and len(unseen) == 0:
        raise InputError("X_test has no rows; leave it out, or pass at least one test sample")
    labels = None if unseen is None or y_test is None else _ids(y_test, len(unseen), names)

    verified = verify(fit, None, X, _staged("certificate", progress), X_holdout=X_holdout)
    X = fit.calibration_part(X)
    progress("decisions of both models", 0, 0)
    calibration = measure(fit, X, "X_cal", progress=progress)
    test = None if unseen is None else measure(fit, unseen, "X_test", labels, progress)
    plane = None
    if fit.mlp.classes == 2:
        progress("lifted plane", 0, 0)
        plane = plane_view(fit, lift(fit.mlp, X).plane())
    seen = preactivations(fit.mlp, X, progress)
    tested = None if test is None else test.agreement
    rungs = climb(fit, calibration.agreement, tested, X, unseen, options.ladder, progress)
    # A promise that was not counted again here must not stand on the page, in a plan neither.
    plans = _plans(replace(fit, guarantee=verified.guarantee), X, options, progress)
    return Findings(
        fit=fit,
        verified=verified,
        classes=names,
        calibration=calibration,
        test=test,
        plane=plane,
        activation=activation(fit, seen),
        ladder=rungs,
        plans=plans,
        options=options,
        made=datetime.now(UTC),
    )


def class_names(given: Sequence[str] | None, classes: int) -> list[str]:
    """One name per class, as given or made from its number."""
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
    """Labels as class ids: whole numbers as they are, names by their place; None where they are neither."""
    labels = np.asarray(y)
    if labels.shape != (n,):
        raise InputError(f"y_test has shape {labels.shape}, wanted one label for each of the {n} test samples")
    if labels.dtype.kind in "biu":
        return labels.astype(np.int64)
    place = {name: c for c, name in enumerate(names)}
    ids = [place.get(str(label)) for label in labels.tolist()]
    return None if None in ids else np.array(ids, dtype=np.int64)


def _plans(fit: Fit, X: NDArray[Any], options: Options, progress: Progress) -> list[Plan]:
    """The plan that is taken for so many samples, that of the other layout, and that of a single query."""
    progress("encryption plan", 0, 3)
    machine, box = options.machine or calibrate(), widened(fit.box, options.widen)

    def made(samples: int, layout: Literal["auto", "batch", "packed"]) -> Plan:
        return plan(fit, samples=samples, layout=layout, precision=options.precision, X=X, box=box, machine=machine)

    found = [made(options.samples, "auto")]
    progress("encryption plan of the other layout", 1, 3)
    try:
        found.append(made(options.samples, "packed" if found[0].layout == "batch" else "batch"))
        progress("encryption plan of a single query", 2, 3)
        if options.samples > 1:
            found.append(made(1, "packed"))
    except InputError:
        pass  # a very wide hidden layer does not fit layout packed, and the table shows it by its absence
    return found


def _staged(stage: str, progress: Progress) -> Progress:
    return lambda what, done, total: progress(f"{stage}: {what}", done, total)
