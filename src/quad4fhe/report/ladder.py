"""The family ladder: what each family of replacement keeps of the same model on the same samples.

Decides which rungs are fitted (the larger families take longest) and says of the others that they were not. The
fitting is `fit`'s own; under encryption every rung costs the same. Which rung the reported fit is does not follow from
what it says of itself, but from the fit that is made here having the same numbers.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from numpy.typing import NDArray

from quad4fhe._progress import Progress, silent
from quad4fhe.errors import FitError, InputError
from quad4fhe.fitting import Fit, fit
from quad4fhe.fitting.diagnostics import Agreement
from quad4fhe.fitting.trials import FamilyTrial

Extent = Literal["none", "shared", "all"]
NOT_RUN = "not fitted for this page"
OWN = "shared, this fit"
_NOT_NEEDED = "not needed, since one shared quadratic keeps every calibration decision"


@dataclass(frozen=True, eq=False)
class Rung:
    """One family: what it keeps, whether it is the fit that is reported, or why there is nothing to say.

    `regime`, `estimate` (the cross-validated agreement) and `seconds` are known where the rung was fitted here.
    """

    name: str
    numbers: int
    regime: str = ""
    calibration: Agreement | None = None
    test: Agreement | None = None
    estimate: FamilyTrial | None = None
    seconds: float | None = None
    own: bool = False
    reason: str = ""


def climb(
    own: Fit,
    calibration: Agreement,
    test: Agreement | None,
    X: NDArray[Any],
    X_test: NDArray[Any] | None,
    extent: Extent,
    progress: Progress = silent,
) -> list[Rung]:
    """The rungs from the paper's own fit to the free head, and the reported fit `own` in its place among them.

    `calibration` and `test` are what `own` was measured to keep on X and X_test.
    """
    m, K = own.mlp.units, own.mlp.outputs
    measured = partial(replace, calibration=calibration, test=test, own=True)
    fitted = partial(_fitted, own=own, X=X, X_test=X_test, progress=progress)
    rungs: list[Rung] = []
    for name, polish in (("shared, as in the paper", False), ("shared, polished", True)):
        reason = _not_run(polish, rungs, extent)
        rung = Rung(name, 3, reason=reason) if reason else fitted(Rung(name, 3), "shared", polish)
        rungs.append(measured(rung) if rung.own else rung)
    if own.family == "shared" and not any(rung.own for rung in rungs):
        rungs.append(measured(Rung(OWN, 3)))
    for family, numbers in (("unitwise", 3 * m), ("head", (2 * m + 1) * K)):
        rung = Rung(family, numbers)
        if family == own.family:
            rungs.append(measured(rung))
        elif rungs[0].regime == "hard" and extent == "shared":
            rungs.append(replace(rung, reason=_NOT_NEEDED))
        else:
            rungs.append(fitted(rung, family, True) if extent == "all" else replace(rung, reason=NOT_RUN))
    return rungs


def _not_run(polish: bool, below: list[Rung], extent: Extent) -> str:
    """Why a shared rung is left out, or nothing if it is to be fitted."""
    if extent == "none":
        return NOT_RUN
    if polish and below[0].regime == "hard":
        return _NOT_NEEDED if extent == "shared" else "nothing to polish, since every calibration decision is kept"
    if polish and below[0].regime.startswith("rch"):
        return "not polished, since the paper's reduced-hull fit is left as it is"
    return ""


def _fitted(
    rung: Rung,
    family: Any,
    polish: bool,
    *,
    own: Fit,
    X: NDArray[Any],
    X_test: NDArray[Any] | None,
    progress: Progress,
) -> Rung:
    def within(what: str, done: int, total: int) -> None:
        progress(f"family ladder, {rung.name}: {what}", done, total)

    threshold: Any = "free" if own.tau and family == "shared" else "zero"
    start = time.perf_counter()
    try:
        found = fit(own.mlp, X, family=family, polish=polish, threshold=threshold, X_test=X_test, progress=within)
    except (FitError, InputError) as error:
        return replace(rung, reason=str(error))
    d = found.diagnostics
    return replace(
        rung,
        regime=str(found.regime),
        calibration=d.calibration,
        test=d.test,
        estimate=next((trial for trial in d.families if trial.family == family), None),
        seconds=time.perf_counter() - start,
        own=own.family == family and found.model.sha256 == own.model.sha256,
    )
