"""The promise of a fit, computed again from the data.

Decides whether what a fit promises about new inputs is what its rows give. That the rows are fresh can't be checked.
"""

from __future__ import annotations

from typing import Protocol

from quad4fhe._arrays import Array, samples_sha256
from quad4fhe._rows import Rows
from quad4fhe.errors import CertificateError
from quad4fhe.mlp import MLP
from quad4fhe.proof.compression import determines
from quad4fhe.proof.holdout import Guarantee, compressed, hold_out
from quad4fhe.proof.split import split_rows
from quad4fhe.quadratic import QuadraticModel


class Promising(Protocol):
    """What of a fit a promise rests on."""

    @property
    def mlp(self) -> MLP:
        """The ReLU model."""

    @property
    def model(self) -> QuadraticModel:
        """The replacement."""

    @property
    def margins(self) -> Array:
        """The gap of each calibration row."""

    @property
    def threshold(self) -> str:
        """Whether a binary threshold was free."""

    @property
    def guarantee(self) -> Guarantee | None:
        """What is promised about new inputs."""


def parts(fit: Promising, rows: Rows, held: Rows | None) -> tuple[Rows, Rows | None]:
    """The calibration rows and the hold-out rows, if they are here; `rows` may be all that they were split from."""
    split = None if fit.guarantee is None else fit.guarantee.split
    if split is None or rows.shape[0] != split.rows:
        return rows, held
    if held is not None:
        raise CertificateError("the hold-out rows are among the calibration data that was given; leave out X_holdout")
    return split_rows(rows, split)


def check_promise(fit: Promising, rows: Rows, held: Rows | None) -> Guarantee | None:
    """The promise, computed again: from the calibration rows, or on the hold-out rows; None where they are not here."""
    claim = fit.guarantee
    if claim is not None and claim.kind == "compression" and held is None:
        return _check_compression(fit, rows, claim)
    if held is None:
        return None
    if claim is None or claim.holdout_sha256 is None:
        raise CertificateError("hold-out rows were given, but the fit promises nothing about new inputs by such rows")
    sha256 = samples_sha256("X_holdout", held)
    if sha256 != claim.holdout_sha256:
        raise CertificateError(
            f"the hold-out data is not what was certified: its SHA-256 is {sha256[:16]}..., the fit says "
            f"{claim.holdout_sha256[:16]}..."
        )
    level = None if claim.reliable is None else claim.reliable.level
    found = hold_out(fit.mlp, fit.model, held, claim.confidence, claim.split, level=level, margins=fit.margins)
    if found != claim:
        raise CertificateError(
            f"the hold-out rows promise: {found.sentence()}; the fit says otherwise of it, a class or a margin: "
            f"{claim.sentence()}"
        )
    return found


def _check_compression(fit: Promising, rows: Rows, claim: Guarantee) -> Guarantee:
    if not determines(fit.mlp, fit.model, rows, claim.support, fit.threshold):
        raise CertificateError(
            f"the fit says that {len(claim.support)} calibration rows determine it, and these rows do not; "
            "its promise about new inputs has no ground"
        )
    found = compressed(rows.shape[0], claim.support, claim.confidence)
    if found != claim:
        raise CertificateError(f"the calibration rows promise: {found.sentence()}; the fit says: {claim.sentence()}")
    return found
