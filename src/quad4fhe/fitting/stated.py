"""What a fit file states beside its certificate, compared with the certificate.

Decides which statements contradict each other. That the certificate itself holds is left to `certificate`; what is
stated of the making of a fit and has no counterpart there can't be checked at all, and is shown only as that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quad4fhe.certificate import check_without_data
from quad4fhe.errors import CertificateError, InputError
from quad4fhe.fitting.diagnostics import PACKAGES, Agreement
from quad4fhe.fitting.notes import is_note
from quad4fhe.fitting.words import kept
from quad4fhe.proof.holdout import CLOSE, Guarantee, compressed, guarantee
from quad4fhe.proof.reliable import Reliable, thresholds, walk

if TYPE_CHECKING:
    from quad4fhe.fitting.result import Fit


def check_stated(fit: Fit) -> None:
    """Raise CertificateError where two statements of a fit can't both be true."""
    check_without_data(fit)
    d, claim = fit.diagnostics, fit.certificate
    held = kept(claim)
    calibration = Agreement(samples=d.samples, agreement=held.agreement, mismatches=held.mismatches)
    K, d_in, m = fit.mlp.outputs, fit.mlp.features, fit.mlp.units
    _agree("the shape of the replacement", fit.S.shape, (K, m))
    _agree("the shape of the box", fit.box.shape, (2, d_in))
    _agree("the number of margins", fit.margins.shape, (claim.samples,))
    _agree("whether box and margins are finite", all(np.isfinite(a).all() for a in (fit.box, fit.margins)), True)
    _agree("the number of classes", d.classes, fit.mlp.classes)
    _agree("the number of calibration rows", d.samples, claim.samples)
    _agree("the calibration agreement", d.calibration, calibration)
    if d.test is not None:
        _agree("the test agreement", d.test, _counted(d.test.samples, d.test.mismatches))
    _agree("whether a shared quadratic is impossible", d.hard == "infeasible", claim.impossible is not None)
    _agree("the versions", sorted(fit.versions), sorted(PACKAGES))
    _check_regime(fit)
    _check_guarantee(fit)
    for note in d.notes:
        if not is_note(note):
            raise CertificateError(f"the fit holds the remark {note[:60]!a}, which no fit makes")


def _check_guarantee(fit: Fit) -> None:
    """The bounds must be those of the counts; the counts are for `verify`, which wants the hold-out rows."""
    said = fit.guarantee
    if said is None:
        return
    if said.kind == "compression":
        _check_compression(fit, said)
        return
    _agree("the rows that determine a fit with a hold-out", said.support, [])
    if said.holdout_sha256 is None:
        raise CertificateError("the fit contradicts itself: its promise names no hold-out rows")
    _agree("the number of promises", len(said.by_class), fit.mlp.classes)
    if any(part.lost > part.samples for part in said.by_class):
        raise CertificateError("the fit contradicts itself: a class has more lost hold-out rows than hold-out rows")
    total = sum(part.samples for part in said.by_class)  # compared before any bound is computed: bounds take time
    _agree("the number of hold-out rows", said.samples, total)
    if said.split is not None:
        _agree("the number of rows set aside", said.split.held, total)
        _agree("the number of rows that were split", said.split.rows, total + fit.certificate.samples)
    counts = [(part.samples, part.lost) for part in said.by_class]
    try:
        reliable = None if said.reliable is None else _walked(fit, said, said.reliable)
        found = guarantee(counts, said.confidence, said.holdout_sha256, said.split, said.close, reliable)
    except InputError as error:
        raise CertificateError(f"the fit makes a promise that can't be checked: {error}") from None
    if found != said or not _is_close_list(said):
        raise CertificateError("the fit contradicts itself: its promise is not the one that its own counts give")


def _walked(fit: Fit, said: Guarantee, claim: Reliable) -> Reliable:
    """The threshold that the counts of a promise give; each threshold accepts what the stricter ones do."""
    steps = [(accepted - lost, lost) for _, accepted, lost in claim.curve]
    _agree("the thresholds", [step[0] for step in claim.curve], thresholds(fit.margins))
    _agree("the counts of thresholds", steps, _rising(steps))
    _agree("the counts without a threshold", steps[-1], (said.samples - said.lost, said.lost))
    return walk(claim.curve, said.samples, claim.level, said.confidence)


def _rising(steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    kept, lost = (np.maximum.accumulate([0, *column])[1:].tolist() for column in zip(*steps, strict=True))
    return list(zip(kept, lost, strict=True))


def _is_close_list(said: Guarantee) -> bool:
    kept, classes = said.samples - said.lost, len(said.by_class)
    return (
        said.close == sorted(said.close)
        and len(said.close) == min(kept, CLOSE)
        and all(c < classes for _, c in said.close)
    )


def _check_compression(fit: Fit, said: Guarantee) -> None:
    """Only that the bound is that of its own numbers; which rows determine the fit is for `verify`."""
    _agree("the number of rows of the promise", said.samples, fit.certificate.samples)
    _agree("whether the promise is of a lossless fit", fit.certificate.mismatches, [])
    if len(said.support) > said.samples or said != compressed(said.samples, said.support, said.confidence):
        raise CertificateError("the fit contradicts itself: its promise is not the one that its own numbers give")


def _check_regime(fit: Fit) -> None:
    d, regime = fit.diagnostics, fit.regime
    if regime.kind == "hard":
        _agree("what the exact test found", d.hard, "feasible")
    for kind, value in (("rch", d.mu), ("soft", d.weight)):
        stated = None if value is None else f"{value:g}"
        own = f"{regime.parameter:g}" if regime.kind == kind else None
        _agree(f"the parameter of {kind}", stated, own)


def _counted(samples: int, lost: int) -> Agreement | None:
    if not 0 <= lost <= samples or samples == 0:
        return None
    return Agreement(samples=samples, agreement=(samples - lost) / samples, mismatches=lost)


def _agree(what: str, stated: object, other: object) -> None:
    if stated != other:
        raise CertificateError(f"the fit contradicts itself: {what} is stated as {stated}, and elsewhere as {other}")
