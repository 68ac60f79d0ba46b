"""Builds the Fit from a run and its certified candidate, and measures how coarsely the coefficients can be rounded."""

from __future__ import annotations

import operator
import platform
from collections.abc import Callable
from importlib.metadata import version
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from quad4fhe._arrays import Array, IntArray
from quad4fhe.errors import InputError
from quad4fhe.fitting.design import offsets, shard_block
from quad4fhe.fitting.diagnostics import Accuracy, Agreement, Diagnostics, Quantisation, Slack
from quad4fhe.fitting.families import FAMILIES
from quad4fhe.fitting.labels import accuracy, both_decisions, labels_of
from quad4fhe.fitting.result import Fit
from quad4fhe.fitting.run import Candidate, Run
from quad4fhe.fitting.warnings import about_other_rows
from quad4fhe.io.rows import Rows
from quad4fhe.mlp import MLP
from quad4fhe.polynomial import PolynomialModel
from quad4fhe.proof.exact import shard_decisions
from quad4fhe.proof.guarantee import HoldOut
from quad4fhe.workers.shards import Shard

_DECIMALS, _BITS = 17, 52  # beyond these a float64 of order one does not change
_Four = tuple[float, float, float, float]


class Seen(NamedTuple):
    """The labels of the calibration rows (n,), if there are any, and the network's decisions on them (n,)."""

    labels: IntArray | None
    decided: IntArray


def assemble(
    run: Run, candidate: Candidate, holdout: HoldOut | None, seen: Seen, test: Rows | None, y_test: ArrayLike | None
) -> Fit:
    """The Fit of a certified candidate, with what `test` rows say of it."""
    with run.stage("diagnostics"):
        exact = FAMILIES.get(candidate.family).is_learned or candidate.model.degree > 2
        decimals, bits = (None, None) if exact else coarsest(run, candidate)
        kept = Agreement.of(candidate.certified.samples, len(candidate.certified.mismatches))
        right = None if seen.labels is None else accuracy(seen.labels, seen.decided, _decided(run, candidate))
        other, other_right = (None, None) if test is None else _tested(run, candidate, test, y_test)
        unseen = other or _held_out(run, holdout)
        run.warnings += [] if unseen is None else about_other_rows(kept, unseen, right, other_right)
    certificate, step, cap = candidate.certified, candidate.step, candidate.caps
    diagnostics = Diagnostics(
        samples=certificate.samples,
        classes=run.design.classes,
        hard=run.hard,
        calibration=kept,
        test=other,
        margin=candidate.margin,
        normalised_margin=candidate.normalised_margin,
        slack=None if step is None else Slack(count=step.slack_count, sum=step.slack_sum, max=step.slack_max),
        mu=None if cap is None else cap.mu,
        mu_plus=None if cap is None else cap.plus,
        mu_minus=None if cap is None else cap.minus,
        critical_mu=run.critical_mu,
        weight=None if step is None else step.weight,
        gap=None if step is None else step.gap,
        cap_trace=run.cap_trace,
        soft_trace=run.soft_trace,
        quantisation=Quantisation(tolerance=candidate.tolerance, decimals=decimals, bits=bits),
        sweeps=run.sweeps,
        notes=run.notes,
        seconds=run.seconds,
        families=run.families,
        family_trace=run.family_trace,
        conditioning=run.conditioning,
        accuracy=right,
        test_accuracy=other_right,
        warnings=run.warnings,
    )
    return Fit(
        mlp=run.mlp,
        model=candidate.model,
        family=candidate.family,
        regime=candidate.regime,
        threshold=run.threshold,
        alpha=candidate.alpha,
        beta=candidate.beta,
        eta=candidate.eta,
        tau=candidate.tau,
        seed=run.seed,
        box=run.design.box,
        margins=candidate.margins,
        diagnostics=diagnostics,
        certificate=certificate,
        versions={
            "quad4fhe": version("quad4fhe"),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scipy": scipy.__version__,
        },
        holdout=holdout,
    )


def _decided(run: Run, candidate: Candidate) -> IntArray:
    """The decisions of the candidate on the calibration rows (n,)."""
    return np.concatenate(run.shards.map(_labels, candidate.model))


def _tested(run: Run, candidate: Candidate, test: Rows, y_test: ArrayLike | None) -> tuple[Agreement, Accuracy | None]:
    """What is kept of the decisions on other rows, and how many are right if there are labels."""
    if test.shape[0] == 0:
        raise InputError("X_test has no rows, so there is no agreement to measure")
    labels, said = labels_of(run.mlp, "y_test", test, y_test)
    run.notes += [note for note in said if note not in run.notes]
    own, replaced = both_decisions(run.mlp, candidate.model, test, "X_test")
    right = None if labels is None else accuracy(labels, own, replaced)
    return Agreement.of(own.size, int(np.count_nonzero(own != replaced))), right


def _held_out(run: Run, holdout: HoldOut | None) -> Agreement | None:
    """What is kept on the hold-out rows of a promise, if there are some."""
    if holdout is None:
        return None
    promise = holdout.guarantee(run.mlp.classes)
    return Agreement.of(promise.samples, promise.lost)


def coarsest(run: Run, candidate: Candidate) -> tuple[int | None, int | None]:
    """The fewest decimals, and the fewest bits after the point, to which alpha, beta, eta and tau can be rounded.

    Every decision stays, including those that differ from the ReLU model's.
    """
    exact = (candidate.alpha, candidate.beta, candidate.eta, candidate.tau)
    model, B_b = candidate.model, offsets(run.mlp)

    def first(limit: int, rounded: Callable[[float, int], float]) -> int | None:
        for places in range(limit + 1):
            alpha, beta, eta, tau = (rounded(value, places) for value in exact)
            # The statistics quickly reject most roundings; only the model itself can accept one.
            if not run.shards.total(operator.and_, _seems_same, model, (alpha, beta, eta, tau), *B_b):
                continue
            near = PolynomialModel.shared(run.mlp, alpha, beta, eta, tau)
            if run.shards.total(operator.and_, _is_same, model, near):
                return places
        return None

    decimals = first(_DECIMALS, round)
    return decimals, first(_BITS, lambda value, bits: float(np.ldexp(np.rint(np.ldexp(value, bits)), -bits)))


def _labels(shard: Shard, model: PolynomialModel) -> IntArray:
    """The decisions of the unrounded model, which `certify` stored here; computed again if a worker was lost."""
    mlp: MLP = shard.subject
    small = np.min_scalar_type(mlp.classes - 1)
    labels: IntArray
    (labels,) = shard.keep(("labels", model.sha256), lambda: (shard_decisions(model, shard).label.astype(small),))
    return labels


def _seems_same(shard: Shard, model: PolynomialModel, near: _Four, B: Array, b: Array) -> bool:
    labels = _labels(shard, model)
    alpha, beta, eta, tau = near
    block = shard_block(shard, B, b - tau * (np.arange(b.size) == b.size - 1), None)
    theta = np.array([alpha, beta, eta, 1.0])
    return all(np.array_equal(np.argmax(block.scores(P, theta), axis=1), labels[rows]) for rows, P, _ in block.chunks)


def _is_same(shard: Shard, model: PolynomialModel, near: PolynomialModel) -> bool:
    return np.array_equal(shard_decisions(near, shard).label, _labels(shard, model))
