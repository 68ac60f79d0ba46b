"""The family ladder: what each family of replacement keeps of the same model on the same samples.

Decides which rungs are fitted (the larger families take longest) and says of the others that they were not. The
fitting is `fit`'s own; under encryption every rung costs the same.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Literal

from numpy.typing import NDArray

from quad4fhe._progress import Progress, silent
from quad4fhe.errors import FitError, InputError
from quad4fhe.fit import Fit, fit
from quad4fhe.fit.diagnostics import Agreement
from quad4fhe.fit.trials import FamilyTrial

Extent = Literal["none", "shared", "all"]
NOT_RUN = "not fitted for this page"


@dataclass(frozen=True, eq=False)
class Rung:
    """One family: what it keeps, whether it is the fit that is reported, or why there is nothing to say.

    `estimate` is the cross-validated agreement where the fit that is reported holds one.
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
    own_test: Agreement | None,
    X: NDArray[Any],
    X_test: NDArray[Any] | None,
    extent: Extent,
    progress: Progress = silent,
) -> list[Rung]:
    """The rungs from the paper's own fit to the free head, with the reported fit `own` in its place among them."""
    m, K = own.mlp.units, own.mlp.outputs
    sizes = {"shared": 3, "unitwise": 3 * m, "head": (2 * m + 1) * K}
    estimates = {trial.family: trial for trial in own.diagnostics.families}
    rungs: list[Rung] = []
    for name, family, polish in (
        ("shared, as in the paper", "shared", False),
        ("shared, polished", "shared", True),
        ("unitwise", "unitwise", True),
        ("head", "head", True),
    ):
        rung = Rung(name, sizes[family])
        # The shared fit that was cross-validated is the polished one, unless there is nothing to polish.
        if polish and (family != "shared" or not _is_final(rungs[0])):
            rung = replace(rung, estimate=estimates.get(family))
        if family == own.family and (family != "shared" or polish == own.regime.endswith("+polish")):
            rungs.append(replace(_told(rung, own), test=own_test, own=True))
        elif reason := _not_run(family, polish, rungs, extent):
            rungs.append(replace(rung, reason=reason))
        else:
            rungs.append(_fitted(rung, own, family, polish, X, X_test, progress))
    if _is_final(rungs[0]):
        rungs[0] = replace(rungs[0], estimate=estimates.get("shared"))
    return rungs


def _is_final(first: Rung) -> bool:
    """Whether the paper's fit is left as it is: a lossless one, or reduced hulls."""
    return first.regime.startswith(("hard", "rch"))


def _not_run(family: str, polish: bool, below: list[Rung], extent: Extent) -> str:
    """Why a rung is left out, or nothing if it is to be fitted."""
    first = below[0] if below else None
    if first is not None and first.regime == "hard" and extent != "all":
        return "not needed, since one shared quadratic keeps every calibration decision"
    if first is not None and family == "shared" and polish:
        if first.regime == "hard":
            return "nothing to polish, since every calibration decision is kept"
        if first.regime.startswith("rch"):
            return "not polished, since the paper's reduced-hull fit is left as it is"
    return NOT_RUN if extent == "none" or (extent == "shared" and family != "shared") else ""


def _fitted(
    rung: Rung,
    own: Fit,
    family: Any,
    polish: bool,
    X: NDArray[Any],
    X_test: NDArray[Any] | None,
    progress: Progress,
) -> Rung:
    def within(what: str, done: int, total: int) -> None:
        progress(f"family ladder, {rung.name}: {what}", done, total)

    threshold: Any = own.threshold if family == "shared" else "zero"
    start = time.perf_counter()
    try:
        found = fit(
            own.mlp, X, family=family, polish=polish, threshold=threshold, seed=own.seed, X_test=X_test, progress=within
        )
    except (FitError, InputError) as error:
        return replace(rung, reason=str(error))
    return replace(_told(rung, found), seconds=time.perf_counter() - start)


def _told(rung: Rung, found: Fit) -> Rung:
    d = found.diagnostics
    return replace(rung, regime=found.regime, calibration=d.calibration, test=d.test)
