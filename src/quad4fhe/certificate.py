"""Exact evidence about a fit: written when it is made, checked without it.

Three statements, never mixed up: *lossless* (these float64 numbers keep every calibration decision), *impossible* (no
shared quadratic can, by a combination of a few rows), *measured* (a relaxed fit with the decisions it loses). Checking
starts at the weights and inputs, in exact arithmetic, and uses nothing of the solvers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from quad4fhe._arrays import Array, IntArray, samples, samples_sha256
from quad4fhe._progress import Progress, silent
from quad4fhe.errors import CertificateError, InputError
from quad4fhe.exact import Decisions, WholeNumbers, decisions
from quad4fhe.mlp import MLP
from quad4fhe.quadratic import QuadraticModel

FORMAT = 1


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Samples whose rows have a nonnegative combination that leaves no room for any shared quadratic.

    In the `plane` (two classes, any threshold) the rows are s (Q, L, 1) with s = +1 or -1 by target, at most four: a
    point common to both hulls. For `pairs` (the threshold as it is) they are the pairwise lifts against `rivals`, at
    most five, the row lambda > 0 among them if `scale`: Farkas' alternative. A decision for the lower of two classes
    survives a tie, so at least one row with weight must be for the higher one, or be the scale row.
    """

    geometry: Literal["plane", "pairs"]
    samples: list[int]
    rivals: list[int] = []
    scale: bool = False


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """What is claimed of a fit on its calibration set, and the hashes that tie the claim to its subject.

    `mismatches` are the calibration rows whose decision is lost, `ties` counts exact ties of the ReLU logits,
    `margin` is the smallest gap between the winning logit and the next of a lossless replacement. A replacement that
    keeps every decision, but some only by the tie rule, is not called lossless.
    """

    format: int
    statement: Literal["lossless", "measured"]
    samples: int
    mismatches: list[int]
    ties: int
    margin: float | None
    impossible: Evidence | None
    model_sha256: str
    replacement_sha256: str
    calibration_sha256: str
    targets_sha256: str


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


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """What a successful check found: the statement that holds, and how it was established.

    `rational` counts the decisions that needed exact arithmetic (the others are certain by a rounding-error bound);
    `weights` are those of the impossibility evidence, rounded to floats; they add up to one.
    """

    statement: Literal["lossless", "measured"]
    samples: int
    mismatches: int
    agreement: float
    ties: int
    impossible: bool
    rational: int
    weights: list[float]


def certify(
    mlp: MLP,
    model: QuadraticModel,
    X: NDArray[Any],
    impossible: Evidence | None = None,
    progress: Progress = silent,
) -> tuple[Certificate, Decisions]:
    """State what `model` keeps of the decisions of `mlp` on X (n, d); also returns the replacement's decisions."""
    targets, kept = decisions(mlp, X, "X_cal", progress), decisions(model, X, "X_cal", progress)
    statement = _statement(targets, kept)
    certificate = Certificate(
        format=FORMAT,
        statement=statement,
        samples=int(X.shape[0]),
        mismatches=np.flatnonzero(targets.label != kept.label).tolist(),
        ties=targets.ties,
        margin=float(kept.gap.min()) if statement == "lossless" else None,
        impossible=impossible,
        model_sha256=mlp.sha256,
        replacement_sha256=model.sha256,
        calibration_sha256=samples_sha256("X_cal", X),
        targets_sha256=_labels_sha256(targets.label),
    )
    return certificate, kept


def _statement(targets: Decisions, kept: Decisions) -> Literal["lossless", "measured"]:
    return "lossless" if np.array_equal(targets.label, kept.label) and kept.strict.all() else "measured"


def no_room(claim: Certificate, mlp: MLP) -> str:
    """The impossibility that the evidence of a certificate shows, in words."""
    fixed = claim.impossible is not None and claim.impossible.geometry == "pairs" and mlp.classes == 2
    return "no shared quadratic keeps all" + (" at the zero threshold" if fixed else "")


def verify(fit: Certified, mlp: MLP | None, X_cal: ArrayLike, progress: Progress = silent) -> Verified:
    """Recheck the certificate of `fit` against its calibration data, exactly; raises CertificateError if it fails.

    With `mlp` given, also checks that the fit was made for this very model. Besides the certificate's own claims this
    covers the coefficients, threshold, regime, box and margins the fit shows; its diagnostics are a report of the run
    and are not certified.
    """
    claim = fit.certificate
    X = samples("X_cal", X_cal, fit.mlp.features)
    if claim.format != FORMAT:
        raise CertificateError(f"the certificate has format {claim.format}, this version checks format {FORMAT}")
    progress("hashes", 0, 4)
    _same("the model that was given", None if mlp is None else mlp.sha256, claim.model_sha256)
    _same("the model in the fit", fit.mlp.sha256, claim.model_sha256)
    _same("the replacement in the fit", fit.model.sha256, claim.replacement_sha256)
    if claim.samples != X.shape[0] or claim.samples == 0:
        raise CertificateError(
            f"the certificate speaks of {claim.samples} calibration rows, but X_cal has {X.shape[0]}"
        )
    _same("the calibration data", samples_sha256("X_cal", X), claim.calibration_sha256)
    _check_family(fit)

    progress("decisions of the ReLU model", 1, 4)
    targets = decisions(fit.mlp, X, "X_cal", progress)
    _same("the ReLU model's decisions", _labels_sha256(targets.label), claim.targets_sha256)
    if targets.ties != claim.ties:
        raise CertificateError(f"the ReLU logits tie on {targets.ties} rows, the certificate says {claim.ties}")

    progress("decisions of the replacement", 2, 4)
    kept = decisions(fit.model, X, "X_cal", progress)
    _check_decisions(claim, targets, kept)
    _check_shown(fit, X, kept)

    progress("evidence of impossibility", 3, 4)
    weights: list[Fraction] = []
    if claim.impossible is not None:
        if not claim.mismatches and fit.family == "shared":
            raise CertificateError("the certificate says that every decision is kept and that this is impossible")
        if claim.impossible.geometry == "pairs" and fit.mlp.classes == 2 and fit.threshold != "zero":
            raise CertificateError("evidence for pairs speaks of the zero threshold, and this fit has a free one")
        weights = check_evidence(fit.mlp, X, targets.label, claim.impossible)
    progress("done", 4, 4)
    lost = len(claim.mismatches)
    return Verified(
        statement=claim.statement,
        samples=claim.samples,
        mismatches=lost,
        agreement=(claim.samples - lost) / claim.samples,
        ties=claim.ties,
        impossible=claim.impossible is not None,
        rational=targets.rational + kept.rational,
        weights=[float(weight) for weight in weights],
    )


def _same(what: str, found: str | None, claimed: str) -> None:
    if found is not None and found != claimed:
        raise CertificateError(
            f"{what} is not what was certified: its SHA-256 is {found[:16]}..., the certificate says {claimed[:16]}..."
        )


def _labels_sha256(labels: IntArray) -> str:
    return hashlib.sha256(b"quad4fhe-labels-1" + labels.astype("<i8").tobytes()).hexdigest()


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
    if (fit.threshold == "zero" or fit.family != "shared") and fit.tau != 0:
        raise CertificateError(f"the threshold is said to be zero, and tau is {fit.tau!r}")


def _check_shared(fit: Certified) -> None:
    coefficients = (fit.alpha, fit.beta, fit.eta, fit.tau)
    if not all(isinstance(value, float) and np.isfinite(value) for value in coefficients):
        raise CertificateError(f"alpha, beta, eta and tau are {coefficients}, wanted four finite numbers")
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


def _check_decisions(claim: Certificate, targets: Decisions, kept: Decisions) -> None:
    wrong = np.flatnonzero(targets.label != kept.label)
    if wrong.tolist() != claim.mismatches:
        unsaid = sorted(set(wrong.tolist()) ^ set(claim.mismatches))
        where = f"they differ first at calibration row {unsaid[0]}" if unsaid else "its list is out of order"
        raise CertificateError(
            f"{wrong.size} decisions change and the certificate lists {len(claim.mismatches)}; {where}"
        )
    statement = _statement(targets, kept)
    if claim.statement != statement:
        raise CertificateError(f"the certificate says {claim.statement}, but the replacement is {statement}")
    if statement == "measured":
        if claim.margin is not None:
            raise CertificateError("only a lossless replacement has a margin, and this one is measured")
        return
    lowest, highest = float((kept.gap - kept.gap_error).min()), float((kept.gap + kept.gap_error).min())
    if claim.margin is None or not lowest <= claim.margin <= highest:
        raise CertificateError(f"the smallest margin is {kept.gap.min()!r}, the certificate says {claim.margin!r}")


def _check_shown(fit: Certified, X: NDArray[Any], kept: Decisions) -> None:
    """What the encryption plan relies on must be true of the calibration data too."""
    if fit.regime == "hard" and fit.certificate.statement != "lossless":
        raise CertificateError("the regime is said to be hard, but the replacement is not lossless")
    low, high = X.min(axis=0), X.max(axis=0)
    if not (fit.box.shape == (2, X.shape[1]) and np.array_equal(fit.box, np.stack([low, high]).astype(np.float64))):
        raise CertificateError("the box is not the range of the calibration data")
    # Both were rounded, here and where the fit was made.
    if fit.margins.shape != kept.gap.shape or not (np.abs(fit.margins - kept.gap) <= 2 * kept.gap_error).all():
        raise CertificateError("the margins are not those of the replacement on the calibration data")


def check_evidence(mlp: MLP, X: NDArray[Any], targets: IntArray, evidence: Evidence) -> list[Fraction]:
    """The exact weights (adding up to one) with which the rows of `evidence` contradict each other."""
    rows = evidence_rows(mlp, X, targets, evidence)
    most = 4 if evidence.geometry == "plane" else 5
    if not 1 <= len(rows) <= most:
        raise CertificateError(f"evidence in the {evidence.geometry} has 1 to {most} rows, this one has {len(rows)}")
    weights = evidence_weights(targets, evidence, rows)
    if weights is None:
        raise CertificateError(f"the rows of samples {evidence.samples} do not contradict each other")
    return weights


def evidence_weights(targets: IntArray, evidence: Evidence, rows: list[list[Fraction]]) -> list[Fraction] | None:
    """The weights with which these rows contradict each other although ties are kept by the lower class, or None."""
    weights = contradiction_weights(rows)
    if weights is None or evidence.geometry == "plane":
        return weights  # a combination in the plane has both sides, and the positive one must be strict
    pairs = weights[1:] if evidence.scale else weights
    strict = any(
        weight > 0 and int(targets[i]) > c
        for weight, i, c in zip(pairs, evidence.samples, evidence.rivals, strict=True)
    )
    return weights if strict or (evidence.scale and weights[0] > 0) else None


def evidence_rows(mlp: MLP, X: NDArray[Any], targets: IntArray, evidence: Evidence) -> list[list[Fraction]]:
    """The rows that `evidence` names, exact from the weights and inputs."""
    _check_indices(mlp, targets, evidence)
    whole = WholeNumbers(mlp)
    zero, one = Fraction(0), Fraction(1)
    B, b = whole.offsets()
    rows = [[zero, zero, zero, one]] if evidence.scale else []
    for at, i in enumerate(evidence.samples):
        Q, L = whole.lift(np.asarray(X[i], dtype=np.float64))
        t = int(targets[i])
        c = 1 - t if evidence.geometry == "plane" else evidence.rivals[at]
        if evidence.geometry == "plane":
            rows.append([Q[t] - Q[c], L[t] - L[c], one if t == 1 else -one])
        else:
            rows.append([Q[t] - Q[c], L[t] - L[c], B[t] - B[c], b[t] - b[c]])
    return rows


def _check_indices(mlp: MLP, targets: IntArray, evidence: Evidence) -> None:
    if evidence.geometry == "plane" and (mlp.classes != 2 or evidence.rivals or evidence.scale):
        raise CertificateError("evidence in the plane is for two classes, without rivals or scale")
    if evidence.geometry == "pairs" and len(evidence.rivals) != len(evidence.samples):
        raise CertificateError("evidence for pairs names one rival per sample")
    for i in evidence.samples:
        if not 0 <= i < targets.size:
            raise CertificateError(f"evidence names calibration row {i}, but there are {targets.size}")
    for i, c in zip(evidence.samples, evidence.rivals, strict=False):
        if not 0 <= c < mlp.classes or c == int(targets[i]):
            raise CertificateError(f"class {c} is no rival of the decision on calibration row {i}")


def contradiction_weights(rows: Sequence[Sequence[Fraction]]) -> list[Fraction] | None:
    """Nonnegative weights, adding up to one, with which the rows combine to zero; None unless they are unique.

    Only the one combination that affinely independent rows allow is looked for: minimal evidence has no other.
    """
    columns = len(rows)
    system = [list(equation) for equation in zip(*rows, strict=True)]
    pivots: list[int] = []
    for column in range(columns):
        done = len(pivots)
        pivot = next((r for r in range(done, len(system)) if system[r][column] != 0), None)
        if pivot is None:
            continue
        system[done], system[pivot] = system[pivot], system[done]
        lead = system[done][column]
        system[done] = [value / lead for value in system[done]]
        for r, equation in enumerate(system):
            if r != done and equation[column] != 0:
                factor = equation[column]
                system[r] = [value - factor * base for value, base in zip(equation, system[done], strict=True)]
        pivots.append(column)
    free = [column for column in range(columns) if column not in pivots]
    if len(free) != 1:
        return None
    weights = [Fraction(0)] * columns
    weights[free[0]] = Fraction(1)
    for r, column in enumerate(pivots):
        weights[column] = -system[r][free[0]]
    if min(weights) < 0:
        return None
    total = sum(weights, Fraction(0))
    return [weight / total for weight in weights]
