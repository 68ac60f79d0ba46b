"""Exact evidence about a fit: written when it is made, checked without it.

Three statements, never mixed up: *lossless* (these float64 numbers keep every calibration decision), *impossible* (no
shared quadratic can, by a combination of a few rows), *measured* (a relaxed fit with the decisions it loses). Checking
starts at the weights and inputs, in exact arithmetic, and uses nothing of the solvers.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from quad4fhe._arrays import Array, samples_sha256
from quad4fhe._progress import Progress, silent
from quad4fhe._rows import Rows, as_rows, left_alone
from quad4fhe._threads import few_threads
from quad4fhe.data.files import Given, rows_of
from quad4fhe.engines import Engine
from quad4fhe.errors import CertificateError, InputError
from quad4fhe.evidence import Evidence, check_evidence
from quad4fhe.exact import shard_decisions, target_labels
from quad4fhe.mlp import MLP
from quad4fhe.proof.check import check_promise, parts
from quad4fhe.proof.holdout import Guarantee
from quad4fhe.quadratic import QuadraticModel
from quad4fhe.regime import Regime
from quad4fhe.shards import SHARD_ROWS, Report, Shard, Shards, engine_for

FORMAT = 1
Count = Annotated[int, msgspec.Meta(ge=0)]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class Certificate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is claimed of a fit on its calibration set, and the hashes that tie the claim to its subject.

    `mismatches` are the calibration rows whose decision is lost, `ties` counts exact ties of the ReLU logits,
    `margin` is the smallest gap between the winning logit and the next of a lossless replacement. A replacement that
    keeps every decision, but some only by the tie rule, is not called lossless.
    """

    format: int
    statement: Literal["lossless", "measured"]
    samples: Count
    mismatches: list[Count]
    ties: Count
    margin: float | None
    impossible: Evidence | None
    model_sha256: Sha256
    replacement_sha256: Sha256
    calibration_sha256: Sha256
    targets_sha256: Sha256


class Certified(Protocol):
    """What of a fit is certified; any object with these attributes will do."""

    @property
    def mlp(self) -> MLP:
        """The ReLU model."""

    @property
    def model(self) -> QuadraticModel:
        """The replacement."""

    @property
    def family(self) -> str:
        """Which numbers were free."""

    @property
    def alpha(self) -> Any:
        """Weight of the squares."""

    @property
    def beta(self) -> Any:
        """Weight of the pre-activations."""

    @property
    def eta(self) -> Any:
        """Constant."""

    @property
    def tau(self) -> float:
        """Threshold moved into c."""

    @property
    def regime(self) -> str:
        """Which problem the coefficients solve."""

    @property
    def threshold(self) -> str:
        """Whether tau was free."""

    @property
    def box(self) -> Array:
        """The range of each feature on the calibration set."""

    @property
    def margins(self) -> Array:
        """The gap of each calibration sample."""

    @property
    def certificate(self) -> Certificate:
        """What is claimed."""

    @property
    def guarantee(self) -> Guarantee | None:
        """What is promised about new inputs."""


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """What a successful check found: the statement that holds, and how it was established.

    Every figure was computed by the check itself. `margin` is the smallest gap between a winning logit and the next.
    `rational` counts the decisions that needed exact arithmetic (the others are certain by a rounding-error bound);
    `weights` are those of the impossibility evidence, rounded to floats; they add up to one. `guarantee` is the promise
    about new inputs, if the hold-out rows were given.
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
    guarantee: Guarantee | None = None


class _Examined(NamedTuple):
    """One shard: labels (k,) of both models, ties, whether the replacement is strict, its gaps, how many were exact."""

    target: NDArray[Any]
    label: NDArray[Any]
    ties: int
    strict: bool
    gap: Array
    gap_error: Array
    rational: int


def _examine(shard: Shard, mlp: MLP, model: QuadraticModel) -> _Examined:
    """Both decisions on every row of a shard, from scratch."""
    targets, kept = shard_decisions(mlp, shard), shard_decisions(model, shard)
    small = np.min_scalar_type(mlp.classes - 1)
    return _Examined(
        targets.label.astype(small),
        kept.label.astype(small),
        targets.ties,
        bool(kept.strict.all()),
        kept.gap,
        kept.gap_error,
        targets.rational + kept.rational,
    )


def _certify(shard: Shard, mlp: MLP, model: QuadraticModel) -> _Examined:
    """The same, with what the fit remembers of its shard; the replacement's labels are remembered for its rounding."""
    label, strict = target_labels(shard, mlp)
    kept = shard_decisions(model, shard)
    small = np.min_scalar_type(mlp.classes - 1)
    (own,) = shard.keep(("labels", model.sha256), lambda: (kept.label.astype(small),))
    ties = int(np.count_nonzero(~strict))
    return _Examined(label.astype(small), own, ties, bool(kept.strict.all()), kept.gap, np.empty(0), 0)


@dataclass
class _Found:
    """What the shards together say; `margins` (n,) are the gaps."""

    targets: NDArray[Any]
    margins: Array
    mismatches: list[NDArray[np.int64]]
    ties: int = 0
    strict: bool = True

    @classmethod
    def none(cls, n: int, classes: int) -> _Found:
        return cls(np.empty(n, dtype=np.min_scalar_type(classes - 1)), np.empty(n), [])

    def add(self, rows: slice, part: _Examined) -> None:
        self.targets[rows], self.margins[rows] = part.target, part.gap
        self.mismatches.append(np.flatnonzero(part.target != part.label) + rows.start)
        self.ties += part.ties
        self.strict = self.strict and part.strict

    @property
    def lost(self) -> list[int]:
        rows: list[int] = np.sort(np.concatenate(self.mismatches)).tolist()
        return rows

    @property
    def statement(self) -> Literal["lossless", "measured"]:
        return "lossless" if self.strict and not any(part.size for part in self.mismatches) else "measured"


def certify(
    mlp: MLP,
    model: QuadraticModel,
    X: ArrayLike | Rows | Shards,
    impossible: Evidence | None = None,
    progress: Progress = silent,
    *,
    calibration_sha256: str | None = None,
) -> tuple[Certificate, Array]:
    """State what `model` keeps of the decisions of `mlp` on X (n, d); also returns the replacement's gaps (n,).

    X may be shards that are at work already; their hash can be given if it is known.
    """
    shards = X if isinstance(X, Shards) else _shards(as_rows("X_cal", X, mlp.features), mlp)
    found = _Found.none(shards.samples, mlp.classes)
    report = partial(progress, "decisions of the replacement")
    for index, part in shards.stream(_certify, mlp, model, report=report):
        found.add(shards.span(index), part)
    statement = found.statement
    certificate = Certificate(
        format=FORMAT,
        statement=statement,
        samples=shards.samples,
        mismatches=found.lost,
        ties=found.ties,
        margin=float(found.margins.min()) if statement == "lossless" else None,
        impossible=impossible,
        model_sha256=mlp.sha256,
        replacement_sha256=model.sha256,
        calibration_sha256=calibration_sha256 or samples_sha256("X_cal", shards.rows),
        targets_sha256=_labels_sha256(found.targets),
    )
    return certificate, found.margins


def _shards(rows: Rows, mlp: MLP, engine: Any = None) -> Shards:
    return Shards(rows, SHARD_ROWS, mlp, engine=engine)


def no_room(claim: Certificate, mlp: MLP) -> str:
    """The impossibility that the evidence of a certificate shows, in words."""
    fixed = claim.impossible is not None and claim.impossible.geometry == "pairs" and mlp.classes == 2
    return "no shared quadratic keeps all" + (" at the zero threshold" if fixed else "")


@few_threads()
def verify(
    fit: Certified,
    mlp: MLP | None,
    X_cal: Given,
    progress: Progress = silent,
    *,
    X_holdout: Given | None = None,
    engine: str | Engine | None = None,
    workers: int | None = None,
) -> Verified:
    """Recheck the certificate of `fit` against its calibration data, exactly; raises CertificateError if it fails.

    Besides the certificate's own claims this covers the coefficients, box and margins of the fit, and of its regime
    that there is one of this name and that a hard one is lossless. How the fit was made (its regime, seed, diagnostics)
    is not certified, and nothing that is returned rests on it.

    Parameters
    ----------
    fit
        The fit to check.
    mlp
        The model that the fit must have been made for; None leaves this check out.
    X_cal
        The calibration data; anything `fit` takes, files are read part by part.
    progress
        Progress callback (what, done, total).
    X_holdout
        The rows that the fit's promise about new inputs was counted on: it is counted again. Where they were set aside
        from the calibration data, X_cal may be all of that data, and they are found in it. A promise by compression is
        computed again from X_cal. That the ReLU model has not seen the rows can't be checked.
    engine
        "local", "ray" or an Engine: shares the work out among processes.
    workers
        How many processes; as many as there are cores by default.
    """
    rows = rows_of("X_cal", X_cal, fit.mlp.features)
    held = None if X_holdout is None else rows_of("X_holdout", X_holdout, fit.mlp.features, "test")
    with left_alone(rows, held):
        seen, unseen = parts(fit, rows, held)
        verified = _verified(fit, mlp, seen, engine_for(engine, workers), progress)
        return msgspec.structs.replace(verified, guarantee=check_promise(fit, seen, unseen))


def _verified(fit: Certified, mlp: MLP | None, rows: Rows, team: Engine | None, progress: Progress) -> Verified:
    claim = fit.certificate
    progress("hashes", 0, 4)
    _same("the model that was given", None if mlp is None else mlp.sha256, claim.model_sha256)
    check_without_data(fit)
    if claim.samples != rows.shape[0] or claim.samples == 0:
        raise CertificateError(
            f"the certificate speaks of {claim.samples} calibration rows, but X_cal has {rows.shape[0]}"
        )
    _same("the calibration data", samples_sha256("X_cal", rows), claim.calibration_sha256)
    with _shards(rows, fit.mlp, team) as shards:
        rational, found = _check_decisions(fit, shards, partial(progress, "decisions of both models"))

    progress("evidence of impossibility", 3, 4)
    weights: list[Fraction] = []
    if claim.impossible is not None:
        if not claim.mismatches and fit.family == "shared":
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
    )


def _same(what: str, found: str | None, claimed: str) -> None:
    if found is not None and found != claimed:
        raise CertificateError(
            f"{what} is not what was certified: its SHA-256 is {found[:16]}..., the certificate says {claimed[:16]}..."
        )


def _labels_sha256(labels: NDArray[Any]) -> str:
    digest = hashlib.sha256(b"quad4fhe-labels-1")
    for start in range(0, labels.size, SHARD_ROWS):
        digest.update(labels[start : start + SHARD_ROWS].astype("<i8").tobytes())
    return digest.hexdigest()


def check_without_data(fit: Certified) -> None:
    """Check what needs no data: the hashes of both models, the coefficients, the regime, and contradictions."""
    claim = fit.certificate
    if claim.format != FORMAT:
        raise CertificateError(f"the certificate has format {claim.format}, this version checks format {FORMAT}")
    _same("the model in the fit", fit.mlp.sha256, claim.model_sha256)
    _same("the replacement in the fit", fit.model.sha256, claim.replacement_sha256)
    _check_family(fit)
    if claim.mismatches and not all(0 <= row < claim.samples for row in claim.mismatches):
        raise CertificateError(f"the certificate lists calibration rows beyond the {claim.samples} it speaks of")
    if claim.ties > claim.samples:
        raise CertificateError(f"the certificate counts {claim.ties} ties among {claim.samples} rows")


def _check_family(fit: Certified) -> None:
    """The coefficients that are shown must be the ones that are used."""
    if not (np.array_equal(fit.model.W1, fit.mlp.W1) and np.array_equal(fit.model.b1, fit.mlp.b1)):
        raise CertificateError("the replacement does not have the model's first layer")
    if fit.family == "shared":
        _check_shared(fit)
    elif fit.family == "unitwise":
        _check_unitwise(fit)
    elif fit.family == "head":
        if not (fit.alpha is None and fit.beta is None and fit.eta is None):
            raise CertificateError("a free head has no alpha, beta and eta, and this one shows some")
    else:
        raise CertificateError(f"the family {fit.family!r} is unknown, so nothing ties its coefficients to S, T and c")
    if fit.threshold not in ("zero", "free"):
        raise CertificateError(f"the threshold is said to be {fit.threshold!r}, which is neither 'zero' nor 'free'")
    try:
        regime = Regime(fit.regime)
    except InputError as error:
        raise CertificateError(str(error)) from None
    if not regime.belongs_to(fit.family):
        raise CertificateError(f"the regime {str(regime)!r} is unknown for the family {fit.family!r}")
    if (fit.threshold == "zero" or fit.family != "shared") and fit.tau != 0:
        raise CertificateError(f"the threshold is said to be zero, and tau is {fit.tau!r}")


def _check_shared(fit: Certified) -> None:
    coefficients = (fit.alpha, fit.beta, fit.eta, fit.tau)
    if not all(isinstance(value, float) and np.isfinite(value) for value in coefficients):
        raise CertificateError(
            "the family is said to be shared: wanted four finite numbers as alpha, beta, eta and tau"
        )
    if QuadraticModel.shared(fit.mlp, *coefficients).sha256 != fit.model.sha256:
        raise CertificateError(
            f"alpha={fit.alpha!r}, beta={fit.beta!r}, eta={fit.eta!r}, tau={fit.tau!r} are not the coefficients "
            "behind S, T and c"
        )


def _check_unitwise(fit: Certified) -> None:
    try:
        expected = QuadraticModel.unitwise(fit.mlp, fit.alpha, fit.beta, fit.eta)
    except InputError as error:
        raise CertificateError(f"the unitwise coefficients can't be those behind S, T and c: {error}") from None
    if expected.sha256 != fit.model.sha256:
        raise CertificateError("the unitwise alpha, beta and eta are not the coefficients behind S, T and c")


def _check_decisions(fit: Certified, shards: Shards, report: Report) -> tuple[int, _Found]:
    """Every claim about single rows; returns how many needed exact arithmetic, and what all rows say."""
    claim, n = fit.certificate, shards.samples
    found = _Found.none(n, fit.mlp.classes)
    rational, lowest, highest = 0, np.inf, np.inf
    box = np.stack([np.full(fit.mlp.features, np.inf), np.full(fit.mlp.features, -np.inf)])
    wrong_margin = fit.margins.shape != (n,)
    for index, (part, low, high) in shards.stream(_recheck, fit.mlp, fit.model, report=report):
        rows = shards.span(index)
        found.add(rows, part)
        rational += part.rational
        lowest, highest = (
            min(lowest, float((part.gap - part.gap_error).min())),
            min(highest, float((part.gap + part.gap_error).min())),
        )
        box = np.stack([np.minimum(box[0], low), np.maximum(box[1], high)])
        # Both were rounded, here and where the fit was made.
        if not wrong_margin:
            wrong_margin = not (np.abs(fit.margins[rows] - part.gap) <= 2 * part.gap_error).all()
    _same("the ReLU model's decisions", _labels_sha256(found.targets), claim.targets_sha256)
    if found.ties != claim.ties:
        raise CertificateError(f"the ReLU logits tie on {found.ties} rows, the certificate says {claim.ties}")
    _check_statement(claim, found, lowest, highest)
    # What the encryption plan relies on must be true of the calibration data too.
    if fit.regime == "hard" and claim.statement != "lossless":
        raise CertificateError("the regime is said to be hard, but the replacement is not lossless")
    if not (fit.box.shape == box.shape and np.array_equal(fit.box, box)):
        raise CertificateError("the box is not the range of the calibration data")
    if wrong_margin:
        raise CertificateError("the margins are not those of the replacement on the calibration data")
    return rational, found


def _recheck(shard: Shard, mlp: MLP, model: QuadraticModel) -> tuple[_Examined, Array, Array]:
    low, high = np.full(mlp.features, np.inf), np.full(mlp.features, -np.inf)
    for _, chunk in shard.chunks(8 * mlp.features):
        low, high = np.minimum(low, chunk.min(axis=0)), np.maximum(high, chunk.max(axis=0))
    return _examine(shard, mlp, model), low, high


def _check_statement(claim: Certificate, found: _Found, lowest: float, highest: float) -> None:
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
