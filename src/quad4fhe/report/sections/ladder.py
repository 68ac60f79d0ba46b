"""Section "The family ladder": what each family of replacement keeps of the same model on the same samples.

The larger families take longest, so not every rung is fitted; the page says which were not. The reported fit is
recognised by its numbers, which equal those of a fit made here, not by what it states.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Self

import msgspec
from numpy.typing import NDArray

from quad4fhe._progress import Progress, silent
from quad4fhe.errors import FitError, InputError
from quad4fhe.fitting import Fit, fit
from quad4fhe.fitting.diagnostics import Agreement, FamilyTrial
from quad4fhe.fitting.families import FAMILIES
from quad4fhe.fitting.summary import percent
from quad4fhe.planning.costs import readable_seconds
from quad4fhe.regime import Regime
from quad4fhe.report.findings import Extent, Findings
from quad4fhe.report.markup import NOTHING, marked
from quad4fhe.report.section import Section

NOT_RUN = "not fitted for this page"
OWN = "shared, this fit"
_NOT_NEEDED = "not needed, since one shared quadratic keeps every calibration decision"


@dataclass(frozen=True, eq=False)
class Rung:
    """One family: what it keeps, whether it is the reported fit, or why it was not fitted.

    `regime`, `estimate` (the cross-validated agreement) and `seconds` are known where the rung was fitted here.
    """

    name: str
    numbers: int
    regime: Regime | None = None
    calibration: Agreement | None = None
    test: Agreement | None = None
    estimate: FamilyTrial | None = None
    seconds: float | None = None
    own: bool = False
    reason: str = ""

    @property
    def is_hard(self) -> bool:
        """Whether the rung was fitted and keeps every calibration decision."""
        return self.regime is not None and self.regime.is_hard


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
    measured = partial(replace, calibration=calibration, test=test, own=True)
    fitted = partial(_fitted, own=own, X=X, X_test=X_test, progress=progress)
    rungs: list[Rung] = []
    paper, *larger = FAMILIES
    for name, polish in (("shared, as in the paper", False), ("shared, polished", True)):
        reason = _not_run(polish, rungs, extent)
        rung = Rung(name, paper.numbers(own.mlp), reason=reason)
        if not reason:
            rung = fitted(rung, paper.name, polish)
        rungs.append(measured(rung) if rung.own else rung)
    if own.degree == 2 and own.family == paper.name and not any(rung.own for rung in rungs):
        rungs.append(measured(Rung(OWN, paper.numbers(own.mlp))))
    for family in larger:
        rung = Rung(family.name, family.numbers(own.mlp))
        if own.degree == 2 and family.name == own.family:
            rungs.append(measured(rung))
        elif rungs[0].is_hard and extent == "shared":
            rungs.append(replace(rung, reason=_NOT_NEEDED))
        else:
            rungs.append(fitted(rung, family.name, True) if extent == "all" else replace(rung, reason=NOT_RUN))
    if own.degree > 2:
        units = 1 if own.family == paper.name else own.model.units
        free = own.model.units * own.mlp.outputs if FAMILIES.get(own.family).is_free else 0
        rungs.append(measured(Rung(f"{own.family}, degree {own.degree}", (own.degree + 1) * units + free)))
    return rungs


def _not_run(polish: bool, below: list[Rung], extent: Extent) -> str:
    """Why a shared rung is left out, or nothing if it is to be fitted."""
    if extent == "none":
        return NOT_RUN
    if polish and below[0].is_hard:
        return _NOT_NEEDED if extent == "shared" else "nothing to polish, since every calibration decision is kept"
    if polish and below[0].regime is not None and below[0].regime.is_reduced:
        return "not polished, since the paper leaves a reduced-hull fit as it is"
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

    threshold: Any = "free" if own.tau and family == own.family else "zero"
    start = time.perf_counter()
    try:
        found = fit(own.mlp, X, family=family, polish=polish, threshold=threshold, X_test=X_test, progress=within)
    except (FitError, InputError) as error:
        return replace(rung, reason=str(error))
    d = found.diagnostics
    return replace(
        rung,
        regime=found.regime,
        calibration=d.calibration,
        test=d.test,
        estimate=next((trial for trial in d.families if trial.family == family), None),
        seconds=time.perf_counter() - start,
        own=own.family == family and found.model.sha256 == own.model.sha256,
    )


def estimate(trial: FamilyTrial) -> str:
    """A cross-validated agreement with its standard error."""
    return f"{percent(trial.agreement)} ± {100 * trial.spread:.2f}"


@dataclass(frozen=True, eq=False)
class Ladder(Section):
    """The rungs as a table."""

    title = "The family ladder"
    template = """
<p>What each family of replacement keeps of this model, on the same samples. More free numbers can keep more decisions,
and under encryption every family of degree 2 costs the same: affine, square, affine.</p>
{{ table("What each family keeps", head, rows, 2) }}
{% for reason, names in reasons.items() %}
<p>{{ names | join("; ") }}: {{ reason }}.</p>
{% endfor %}
{% if not_run in reasons %}
<p>The larger families take longest to fit. To see them all:</p>
{{ command(found.source.ladder()) }}
{% endif %}
"""

    rungs: list[Rung]

    @classmethod
    def find(cls, found: Findings, progress: Progress) -> Self | None:
        """Fit the rungs that the options ask for."""
        test = None if found.test is None else found.test.agreement
        extent = found.options.ladder
        return cls(found, climb(found.fit, found.calibration.agreement, test, found.X, found.X_test, extent, progress))

    def values(self) -> dict[str, Any]:
        """A row per rung, in the columns that have something in them, and why rungs were not fitted."""
        tested, judged = any(rung.test for rung in self.rungs), any(rung.estimate for rung in self.rungs)
        head = ["family", "regime", "free numbers", "kept, calibration"]
        head += ["kept, test"] * tested + ["kept, cross-validated"] * judged + ["fitted in"]
        rows, reasons = [], dict[str, list[str]]()
        for rung in self.rungs:
            name = marked(rung.name, "this fit") if rung.own else rung.name
            row = [
                name,
                NOTHING if rung.regime is None else str(rung.regime),
                f"{rung.numbers:,}",
                _kept(rung.calibration),
            ]
            row += [_kept(rung.test)] * tested
            row += [NOTHING if rung.estimate is None else estimate(rung.estimate)] * judged
            rows.append([*row, NOTHING if rung.seconds is None else readable_seconds(rung.seconds)])
            if rung.reason:
                reasons.setdefault(rung.reason, []).append(rung.name)
        return {"head": head, "rows": rows, "reasons": reasons, "not_run": NOT_RUN}

    def to_dict(self) -> dict[str, Any]:
        """The rungs."""
        return {"ladder": [msgspec.to_builtins(asdict(rung)) for rung in self.rungs]}


def _kept(part: Agreement | None) -> str:
    return NOTHING if part is None else percent(part.agreement)
