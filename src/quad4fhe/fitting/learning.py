"""The rows that families learn from, and the figures of a candidate, which are measured on all rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quad4fhe._arrays import Array, IntArray
from quad4fhe.errors import InputError
from quad4fhe.fitting import notes
from quad4fhe.fitting.diagnostics import Conditioning
from quad4fhe.fitting.features import blends_for, stratified_rows
from quad4fhe.fitting.run import Candidate, Run
from quad4fhe.io.rows import ArrayRows
from quad4fhe.mlp import MLP
from quad4fhe.polynomial import PolynomialModel
from quad4fhe.proof.exact import target_labels
from quad4fhe.workers.shards import Shard

MOST = 100_000
"""Rows fetched of a data set that is not in memory. Strengths are counted in rows, so more would only refine them."""
_SMALLEST, _LARGEST = 2.0**-16, 2.0**16  # logits in this range are fitted as they are


class Learned(NamedTuple):
    """Samples X (n, d) and the ReLU model's decisions on them (n,)."""

    X: NDArray[Any]
    target: IntArray


class NoRoomError(InputError):
    """The rows that families learn from do not fit in the memory allowed."""


def learned(run: Run, memory: int | None) -> Learned:
    """All rows if they are one array in this process, else at most MOST, every class in its share."""
    shards = run.shards
    if shards.in_memory and isinstance(shards.rows, ArrayRows):
        return Learned(shards.rows.array, np.concatenate(shards.map(_targets)))
    share = min(1.0, MOST / shards.samples)
    rows = round(share * shards.samples)
    features, filled = shards.rows.shape[1], rows * (1 + blends_for(rows))
    wanted = 8 * filled * (features + 6 * run.design.classes)
    if filled > rows:
        wanted += 8 * rows * features  # made rows stand behind a copy of the real ones
    if memory is not None and 2 * wanted > memory:
        raise NoRoomError(
            f"families other than shared keep {rows} rows in memory, {wanted / 1e6:.0f} MB, which may be at most half "
            f"of the {memory / 1e6:.0f} MB allowed; allow {2 * wanted / 1e6:.0f} MB, or use family='shared'"
        )
    parts = dict(shards.stream(_some_rows, share, run.seed))
    X, target = (np.concatenate([parts[k][part] for k in range(shards.count)]) for part in (0, 1))
    if share < 1:
        run.notes.append(notes.SOME_ROWS.format(target.size, shards.samples))
    return Learned(X, target)


def _targets(shard: Shard) -> IntArray:
    return target_labels(shard, shard.subject)[0]


def _some_rows(shard: Shard, share: float, seed: int) -> Learned:
    target = _targets(shard)
    chosen = np.arange(shard.samples)
    if share < 1:
        chosen = stratified_rows(target, round(share * shard.samples), seed + shard.index)
    kept = [
        chunk[chosen[(chosen >= rows.start) & (chosen < rows.stop)] - rows.start]
        for rows, chunk in shard.chunks(8 * shard.subject.features)
    ]
    return Learned(np.concatenate(kept), target[chosen])


def measure(run: Run, candidate: Candidate) -> Candidate:
    """Certify a candidate and take its margins on all rows."""
    run.certify(candidate)
    candidate.margin = float(run.shards.total(min, _worst_of, run.mlp, candidate.model))
    candidate.normalised_margin = candidate.margin / _norm((*candidate.model.A[::-1], candidate.model.c))
    return candidate


def power_of(mlp: MLP, X: ArrayLike) -> int:
    """The power of two that divides the logits while families are fitted, so that no square of them overflows.

    A softmax is meaningful only at the scale of trained logits, so logits of ordinary size stay as they are.
    """
    logits = mlp.logits(X)
    largest = float(np.abs(logits if logits.shape[1] == 1 else logits - logits[:, :1]).max())
    return 0 if not 0 < largest < np.inf or _SMALLEST <= largest <= _LARGEST else int(np.frexp(largest)[1]) - 4


def scaled_head(mlp: MLP, power: int) -> MLP:
    """The model with logits over 2^-power, exactly."""
    return mlp if power == 0 else mlp.scaled(power)


def _worst_of(shard: Shard, mlp: MLP, model: PolynomialModel) -> float:
    """The smallest difference between the target's logit and its strongest rival's."""
    worst = np.inf
    labels, _ = target_labels(shard, mlp)
    for rows, chunk in shard.chunks(8 * (model.features + 2 * model.units)):
        y = chunk @ model.W1.T + model.b1
        logits = model.head(y)
        target = labels[rows]
        if logits.shape[1] == 1:
            worst = min(worst, float(np.where(target == 1, logits[:, 0], -logits[:, 0]).min()))
            continue
        at = np.arange(target.size)
        own = logits[at, target]
        logits[at, target] = -np.inf
        worst = min(worst, float((own - logits.max(axis=1)).min()))
    return worst


def _norm(arrays: Iterable[Array]) -> float:
    flat = np.concatenate([array.ravel() for array in arrays])
    largest = float(np.abs(flat).max())
    return largest * float(np.linalg.norm(flat / largest)) if largest else 1.0


def conditioning(run: Run, family: str, model: PolynomialModel) -> Conditioning:
    """How much a model must cancel on the calibration rows."""
    terms, largest = run.shards.total(np.maximum, _sizes_of, model)
    sizes = (np.abs(model.A).max(), np.abs(model.c).max())
    amplification = float(terms / largest) if largest else 1.0
    return Conditioning(family=family, largest=float(max(sizes)), amplification=amplification)


def _sizes_of(shard: Shard, model: PolynomialModel) -> Array:
    """The largest sum of absolute terms of a logit, and the largest logit."""
    terms, largest = 0.0, 0.0
    A, c = np.abs(model.A), np.abs(model.c)
    for _, chunk in shard.chunks(8 * (model.features + 3 * model.units)):
        y = chunk @ model.W1.T + model.b1
        largest = max(largest, float(np.abs(model.head(y)).max()))
        powers = np.abs(y) ** model.degree
        total = powers @ A[-1].T
        for k in range(model.degree - 1, 0, -1):
            total = total + (np.abs(y) ** k) @ A[k - 1].T
        terms = max(terms, float((total + c).max()))
    return np.array([terms, largest])
