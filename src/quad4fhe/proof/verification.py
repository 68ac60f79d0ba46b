"""Rechecks a fit against its data, from the weights and inputs, in exact arithmetic and without the solvers."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Literal

import msgspec
import numpy as np

from quad4fhe._arrays import Array, samples_sha256
from quad4fhe._progress import Progress, silent
from quad4fhe._threads import few_threads
from quad4fhe.errors import CertificateError, InputError
from quad4fhe.io.columns import Columns
from quad4fhe.io.rows import Rows, left_alone
from quad4fhe.io.samples import Given
from quad4fhe.mlp import MLP
from quad4fhe.polynomial import PolynomialModel
from quad4fhe.proof.certificate import (
    FORMAT,
    Certificate,
    Certified,
    Examined,
    Found,
    examine,
    labels_sha256,
    shards_of,
)
from quad4fhe.proof.evidence import check_evidence
from quad4fhe.proof.families import is_rounded_layer, rule_of
from quad4fhe.proof.guarantee import Guarantee
from quad4fhe.proof.holdout import hold_out, split_rows
from quad4fhe.proof.settled import WAYS, Settled, problem
from quad4fhe.raw import rows_for
from quad4fhe.regime import Regime
from quad4fhe.workers.pool import Workers
from quad4fhe.workers.shards import Report, Shard, Shards, pool_for


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a successful check: the statement that holds, and how it was established.

    The check computes every figure itself. `margin` is the smallest gap between a winning logit and the next.
    `rational` counts the decisions that needed exact arithmetic (the others are certain by a rounding-error bound);
    `weights` are those of the impossibility evidence, rounded to floats; they add up to one. `settled` counts how the
    trained model's own decisions were settled. `guarantee` is the promise about new inputs, if the hold-out rows were
    given.
    """

    statement: Literal["lossless", "measured"]
    samples: int
    mismatches: int
    agreement: float
    ties: int
    margin: float
    impossible: bool
    rational: int
    weights: list[float]
    settled: Settled
    guarantee: Guarantee | None = None


@few_threads()
def verify(
    fit: Certified,
    mlp: MLP | None,
    X_cal: Given,
    progress: Progress = silent,
    *,
    X_holdout: Given | None = None,
    pool: str | Workers | None = None,
    workers: int | None = None,
    label_column: str | None = None,
) -> Verified:
    """Recheck the certificate of `fit` against its calibration data, exactly; raises CertificateError if it fails.

    This covers the certificate's claims, and the coefficients, box and margins of the fit. Of the regime it checks that
    the family can have it, and that a hard fit is lossless. How the fit was made (its regime, seed, diagnostics) is not
    certified, and no returned figure depends on it.

    Parameters
    ----------
    fit
        The fit to check.
    mlp
        The model that the fit must belong to; None skips this check.
    X_cal
        The calibration data; anything `fit` takes, files are read part by part.
    progress
        Progress callback (what, done, total).
    X_holdout
        The rows that the fit's promise about new inputs was counted on: it is counted again. Where they were set aside
        from the calibration data, X_cal may be all of that data, and they are found in it. That the ReLU
        model has not seen the rows can't be checked.
    pool
        "local", "ray" or a Workers object: share the work among worker processes.
    workers
        How many workers; by default one for each core.
    label_column
        The column of labels in tables, which is not a feature; by default y, label, target or outcome.
    """
    named = Columns(fit.mlp.names.features, label_column)
    rows = rows_for(fit.mlp, "X_cal", X_cal, named=named)
    held = None if X_holdout is None else rows_for(fit.mlp, "X_holdout", X_holdout, "test", named=named)
    with left_alone(rows, held):
        seen, unseen = _parts(fit, rows, held)
        verified = _verified(fit, mlp, seen, pool_for(pool, workers), progress)
        return msgspec.structs.replace(verified, guarantee=_check_promise(fit, seen, unseen))


def _verified(fit: Certified, mlp: MLP | None, rows: Rows, team: Workers | None, progress: Progress) -> Verified:
    claim = fit.certificate
    progress("hashes", 0, 4)
    _same("the model that was given", None if mlp is None else mlp.sha256, claim.model_sha256)
    check_without_data(fit)
    if claim.samples != rows.shape[0] or claim.samples == 0:
        raise CertificateError(
            f"the certificate speaks of {claim.samples} calibration rows, but X_cal has {rows.shape[0]}; give the data "
            "that the fit was made from"
        )
    _same("the calibration data", samples_sha256("X_cal", rows), claim.calibration_sha256)
    with shards_of(rows, fit.mlp, team) as shards:
        rational, found = _check_decisions(fit, shards, partial(progress, "decisions of both models"))

    progress("evidence of impossibility", 3, 4)
    weights: list[Fraction] = []
    if claim.impossible is not None:
        if not claim.mismatches and rule_of(fit.family).is_shared:
            raise CertificateError("the certificate says that every decision is kept and that this is impossible")
        if claim.impossible.geometry == "pairs" and fit.mlp.classes == 2 and fit.threshold != "zero":
            raise CertificateError("evidence for pairs speaks of the zero threshold, and this fit has a free one")
        weights = check_evidence(fit.mlp, rows, found.targets, claim.impossible)
    progress("done", 4, 4)
    n, lost = rows.shape[0], len(found.lost)
    return Verified(
        statement=found.statement,
        samples=n,
        mismatches=lost,
        agreement=(n - lost) / n,
        ties=found.ties,
        margin=float(found.margins.min()),
        impossible=claim.impossible is not None,
        rational=rational,
        weights=[float(weight) for weight in weights],
        settled=found.settled,
    )


def _same(what: str, found: str | None, claimed: str) -> None:
    if found is not None and found != claimed:
        raise CertificateError(
            f"{what} is not what was certified: its SHA-256 is {found[:16]}..., the fit says {claimed[:16]}..."
        )


def check_without_data(fit: Certified) -> None:
    """Check what needs no data: the hashes of both models, the coefficients, the regime, and contradictions."""
    claim = fit.certificate
    if claim.format != FORMAT:
        raise CertificateError(f"the certificate has format {claim.format}, this version checks format {FORMAT}")
    wrong = problem(claim.settled, fit.mlp, claim.samples)
    if wrong is not None:
        raise CertificateError(wrong)
    _same("the model in the fit", fit.mlp.sha256, claim.model_sha256)
    _same("the replacement in the fit", fit.model.sha256, claim.replacement_sha256)
    _check_coefficients(fit)
    if claim.mismatches and not all(0 <= row < claim.samples for row in claim.mismatches):
        raise CertificateError(f"the certificate lists calibration rows beyond the {claim.samples} it speaks of")
    if claim.ties > claim.samples:
        raise CertificateError(f"the certificate counts {claim.ties} ties among {claim.samples} rows")


def _check_coefficients(fit: Certified) -> None:
    """The coefficients that are shown must be those that are used, and the regime one that the family can have."""
    if fit.model.degree == 2:
        same = np.array_equal(fit.model.W1, fit.mlp.W1) and np.array_equal(fit.model.b1, fit.mlp.b1)
    else:
        same = is_rounded_layer(fit.model, fit.mlp)
    if not same:
        raise CertificateError("the replacement does not have the model's first layer")
    rule = rule_of(fit.family)
    rule.check(fit)
    if fit.threshold not in ("zero", "free"):
        raise CertificateError(f"the threshold is said to be {fit.threshold!r}, which is neither 'zero' nor 'free'")
    try:
        regime = Regime.parse(str(fit.regime))
    except InputError as error:
        raise CertificateError(str(error)) from None
    if regime.kind not in (rule.regimes if fit.model.degree == 2 else rule.higher):
        raise CertificateError(f"the regime {str(regime)!r} is unknown for the family {fit.family!r}")
    if (fit.threshold == "zero" or not rule.has_threshold) and fit.tau != 0:
        raise CertificateError(f"the threshold is said to be zero, and tau is {fit.tau!r}")


def _check_decisions(fit: Certified, shards: Shards, report: Report) -> tuple[int, Found]:
    """Check every claim about single rows; returns how many needed exact arithmetic, and both models' decisions."""
    claim, n = fit.certificate, shards.samples
    found = Found.none(n, fit.mlp.classes)
    rational, lowest, highest = 0, np.inf, np.inf
    box = np.stack([np.full(fit.mlp.features, np.inf), np.full(fit.mlp.features, -np.inf)])
    wrong_margin = fit.margins.shape != (n,)
    for index, (part, low, high) in shards.stream(_recheck, fit.mlp, fit.model, report=report):
        rows = shards.span(index)
        found.add(rows, part)
        rational += part.rational
        lowest = min(lowest, float((part.gap - part.gap_error).min()))
        highest = min(highest, float((part.gap + part.gap_error).min()))
        box = np.stack([np.minimum(box[0], low), np.maximum(box[1], high)])
        # Both are rounded: here, and when the fit was made.
        if not wrong_margin:
            wrong_margin = not (np.abs(fit.margins[rows] - part.gap) <= 2 * part.gap_error).all()
    decided = "the ReLU model's decisions"
    if fit.mlp.network is not None:
        decided = "the list of decisions that onnxruntime computes here (other versions and processors round otherwise)"
    _same(decided, labels_sha256(found.targets), claim.targets_sha256)
    if found.ties != claim.ties:
        raise CertificateError(f"the ReLU logits tie on {found.ties} rows, the certificate says {claim.ties}")
    _check_settled(claim.settled, found)
    _check_statement(claim, found, lowest, highest)
    # The encryption plan relies on these, so they must hold for the calibration data.
    if str(fit.regime) == "hard" and claim.statement != "lossless":
        raise CertificateError("the regime is said to be hard, but the replacement is not lossless")
    if not (fit.box.shape == box.shape and np.array_equal(fit.box, box)):
        raise CertificateError("the box is not the range of the calibration data")
    if wrong_margin:
        raise CertificateError("the margins are not those of the replacement on the calibration data")
    return rational, found


def _check_settled(claim: Settled, found: Found) -> None:
    """The counts must be those found here, but for rows at the very limit of the float bound.

    Sums of floats differ in their last bits between processors, so such a row may be settled in another way elsewhere.
    No floats settle a row that is level, and the rows of a graph are measured everywhere: these counts are exact.
    """
    for way in WAYS:
        stated, own = getattr(claim, way), getattr(found.settled, way)
        if abs(stated - own) > (0 if way in ("level", "measured") else found.close):
            raise CertificateError(
                f"the certificate says how the model's decisions were settled: {claim.sentence()}; "
                f"the check finds: {found.settled.sentence()}"
            )


def _recheck(shard: Shard, mlp: MLP, model: PolynomialModel) -> tuple[Examined, Array, Array]:
    low, high = np.full(mlp.features, np.inf), np.full(mlp.features, -np.inf)
    for _, chunk in shard.chunks(8 * mlp.features):
        low, high = np.minimum(low, chunk.min(axis=0)), np.maximum(high, chunk.max(axis=0))
    return examine(shard, mlp, model), low, high


def _check_statement(claim: Certificate, found: Found, lowest: float, highest: float) -> None:
    """`lowest` and `highest` bound the smallest gap."""
    wrong = found.lost
    if wrong != claim.mismatches:
        unsaid = sorted(set(wrong) ^ set(claim.mismatches))
        where = f"they differ first at calibration row {unsaid[0]}" if unsaid else "its list is out of order"
        raise CertificateError(
            f"{len(wrong)} decisions change and the certificate lists {len(claim.mismatches)}; {where}"
        )
    if claim.statement != found.statement:
        raise CertificateError(f"the certificate says {claim.statement}, but the replacement is {found.statement}")
    if found.statement == "measured":
        if claim.margin is not None:
            raise CertificateError("only a lossless replacement has a margin, and this one is measured")
        return
    if claim.margin is None or not lowest <= claim.margin <= highest:
        smallest = float(found.margins.min())
        raise CertificateError(f"the smallest margin is {smallest!r}, the certificate says {claim.margin!r}")


def _parts(fit: Certified, rows: Rows, held: Rows | None) -> tuple[Rows, Rows | None]:
    """The calibration rows and the hold-out rows, if they are given; `rows` may be all rows before the split."""
    split = None if fit.holdout is None else fit.holdout.terms.split
    if split is None or rows.shape[0] != split.rows:
        return rows, held
    if held is not None:
        raise CertificateError("the hold-out rows are among the calibration data that was given; leave out X_holdout")
    return split_rows(rows, split)


def _check_promise(fit: Certified, rows: Rows, held: Rows | None) -> Guarantee | None:
    """The promise, counted again on the hold-out rows; None if they are not given."""
    claim = fit.holdout
    if held is None:
        return None
    if claim is None:
        raise CertificateError("hold-out rows were given, but the fit promises nothing about new inputs")
    _same("the hold-out data", samples_sha256("X_holdout", held), claim.terms.sha256)
    terms = claim.terms
    found = hold_out(fit.mlp, fit.model, held, claim.box, terms.confidence, terms.split, level=terms.level, seen=rows)
    counted, said = found.guarantee(fit.mlp.classes), fit.guarantee
    if not found.is_same(claim) or counted != said:
        raise CertificateError(
            f"the hold-out rows promise: {counted.sentence()}; the fit says something else of this, a class, a margin "
            f"or a count: {'' if said is None else said.sentence()}"
        )
    return counted
