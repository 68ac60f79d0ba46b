"""Exact evidence about a fit on its calibration set, written when the fit is made.

Three statements: *lossless* (these float64 numbers keep every calibration decision), *impossible* (no shared quadratic
can, by a combination of a few rows) and *measured* (a relaxed fit, with the decisions it loses). `verification` checks
them, in exact arithmetic and without the solvers.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from quad4fhe._arrays import Array, samples_sha256
from quad4fhe._progress import Progress, silent
from quad4fhe.io.rows import Rows, as_rows
from quad4fhe.mlp import MLP
from quad4fhe.polynomial import PolynomialModel
from quad4fhe.proof.evidence import Evidence
from quad4fhe.proof.exact import shard_decisions, target_labels, target_settled
from quad4fhe.proof.guarantee import Count, Guarantee, HoldOut, Sha256
from quad4fhe.proof.settled import Settled
from quad4fhe.regime import Regime
from quad4fhe.workers.pool import Workers
from quad4fhe.workers.shards import SHARD_ROWS, Shard, Shards

FORMAT = 2


class Certificate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The claims about a fit on its calibration set, and the hashes that tie them to it.

    `mismatches` are the calibration rows whose decision is lost, `ties` counts exact ties of the ReLU logits,
    `margin` is the smallest gap between the winning logit and the next of a lossless replacement. A replacement that
    keeps every decision, but some only by the tie rule, is not called lossless. `settled` counts how the trained
    model's own decisions were settled.
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
    settled: Settled


@dataclass(frozen=True, eq=False, kw_only=True)
class Certified:
    """The part of a fit that a certificate covers, and that `verify` checks.

    `mlp` is the ReLU model, `model` its replacement, and `threshold` says whether `tau` was free. `Fit` describes the
    other attributes and adds how the fit was made.
    """

    mlp: MLP
    model: PolynomialModel
    family: str
    regime: Regime
    threshold: str
    alpha: Any
    beta: Any
    eta: Any
    tau: float
    box: Array
    margins: Array
    certificate: Certificate
    holdout: HoldOut | None = None

    @cached_property
    def guarantee(self) -> Guarantee | None:
        """The promise about new inputs as they are given; None without hold-out rows."""
        return None if self.holdout is None else self.holdout.guarantee(self.mlp.classes)


class Examined(NamedTuple):
    """One shard: labels (k,) of both models, ties, whether the replacement is strict, its gaps, how many were exact.

    `settled` are the counts of how the trained model's decisions were settled, and `close` of those at the limit of
    the float bound.
    """

    target: NDArray[Any]
    label: NDArray[Any]
    ties: int
    strict: bool
    gap: Array
    gap_error: Array
    rational: int
    settled: list[int]
    close: int


def examine(shard: Shard, mlp: MLP, model: PolynomialModel) -> Examined:
    """Both models' decisions on every row of a shard, computed from scratch."""
    targets, kept = shard_decisions(mlp, shard), shard_decisions(model, shard)
    small = np.min_scalar_type(mlp.classes - 1)
    return Examined(
        targets.label.astype(small),
        kept.label.astype(small),
        targets.ties,
        bool(kept.strict.all()),
        kept.gap,
        kept.gap_error,
        targets.rational + kept.rational,
        targets.settled.counts(),
        targets.close,
    )


def _certify(shard: Shard, mlp: MLP, model: PolynomialModel) -> Examined:
    """The same, with the targets that a fit keeps; keeps the replacement's labels for the search of a rounding."""
    label, strict = target_labels(shard, mlp)
    kept = shard_decisions(model, shard)
    small = np.min_scalar_type(mlp.classes - 1)
    (own,) = shard.keep(("labels", model.sha256), lambda: (kept.label.astype(small),))
    ties = int(np.count_nonzero(~strict))
    strict_all, settled = bool(kept.strict.all()), target_settled(shard, mlp).counts()
    return Examined(label.astype(small), own, ties, strict_all, kept.gap, np.empty(0), 0, settled, 0)


@dataclass
class Found:
    """Both models' decisions on all shards; `margins` (n,) are the gaps."""

    targets: NDArray[Any]
    margins: Array
    mismatches: list[NDArray[np.int64]]
    ties: int = 0
    strict: bool = True
    settled: Settled = field(default_factory=Settled.of)
    close: int = 0

    @classmethod
    def none(cls, n: int, classes: int) -> Found:
        """Room for n samples."""
        return cls(np.empty(n, dtype=np.min_scalar_type(classes - 1)), np.empty(n), [])

    def add(self, rows: slice, part: Examined) -> None:
        """Add the shard that has these rows."""
        self.targets[rows], self.margins[rows] = part.target, part.gap
        self.mismatches.append(np.flatnonzero(part.target != part.label) + rows.start)
        self.ties += part.ties
        self.strict = self.strict and part.strict
        self.settled += Settled.of(part.settled)
        self.close += part.close

    @property
    def lost(self) -> list[int]:
        """The rows whose decision is lost, in order."""
        rows: list[int] = np.sort(np.concatenate(self.mismatches)).tolist()
        return rows

    @property
    def statement(self) -> Literal["lossless", "measured"]:
        """Lossless if every decision is kept, and none only by the tie rule."""
        return "lossless" if self.strict and not any(part.size for part in self.mismatches) else "measured"


def certify(
    mlp: MLP,
    model: PolynomialModel,
    X: ArrayLike | Rows | Shards,
    impossible: Evidence | None = None,
    progress: Progress = silent,
    *,
    calibration_sha256: str | None = None,
) -> tuple[Certificate, Array]:
    """State which decisions of `mlp` on X (n, d) `model` keeps; also returns the replacement's gaps (n,).

    Parameters
    ----------
    mlp
        The ReLU model.
    model
        The replacement.
    X
        The calibration samples; also shards that are open already.
    impossible
        Evidence that no shared quadratic keeps every decision.
    progress
        Progress callback (what, done, total).
    calibration_sha256
        The hash of X, if it is known.
    """
    shards = X if isinstance(X, Shards) else shards_of(as_rows("X_cal", X, mlp.features), mlp)
    found = Found.none(shards.samples, mlp.classes)
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
        targets_sha256=labels_sha256(found.targets),
        settled=found.settled,
    )
    return certificate, found.margins


def shards_of(rows: Rows, mlp: MLP, pool: Workers | None = None) -> Shards:
    """The shards in which both models decide."""
    return Shards(rows, SHARD_ROWS, mlp, pool=pool)


def no_room(claim: Certificate, mlp: MLP) -> str:
    """What the evidence of a certificate shows, in words."""
    fixed = claim.impossible is not None and claim.impossible.geometry == "pairs" and mlp.classes == 2
    power = 2 if claim.impossible is None else claim.impossible.power
    what = "quadratic" if power == 2 else f"polynomial of degree {power}"
    where = " under the derived head" if mlp.has_derived_head else ""
    return f"no shared {what}{where} keeps all" + (" at the zero threshold" if fixed else "")


def labels_sha256(labels: NDArray[Any]) -> str:
    """A hash of decisions (n,)."""
    digest = hashlib.sha256(b"quad4fhe-labels-1")
    for start in range(0, labels.size, SHARD_ROWS):
        digest.update(labels[start : start + SHARD_ROWS].astype("<i8").tobytes())
    return digest.hexdigest()
