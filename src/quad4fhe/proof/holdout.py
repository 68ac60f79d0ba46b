"""A promise about new inputs, counted on rows that neither the ReLU model nor the fit has seen.

Splits rows off before a fit and counts lost decisions on them; `promise` turns the counts into bounds and words.
Whether the rows are fresh is up to the caller; no computation can show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quad4fhe._arrays import Array, BoolArray, IntArray, samples_sha256
from quad4fhe.errors import InputError
from quad4fhe.io.rows import ArrayRows, ChosenRows, Rows
from quad4fhe.mlp import MLP
from quad4fhe.polynomial import PolynomialModel
from quad4fhe.proof.exact import shard_decisions
from quad4fhe.proof.guarantee import delta_of
from quad4fhe.proof.promise import CLOSE, Guarantee, Split, guarantee
from quad4fhe.proof.reliable import best_power, curve, norms_of, relative, rounded, walk
from quad4fhe.workers.shards import SHARD_ROWS, Shard, Shards


def hold_out(
    mlp: MLP,
    model: PolynomialModel,
    rows: Rows,
    confidence: float,
    split: Split | None = None,
    *,
    level: float | None = None,
    seen: Rows | None = None,
) -> Guarantee:
    """The promise for `model` as the replacement of `mlp`, from fresh rows; decisions are compared exactly.

    Parameters
    ----------
    mlp, model
        The ReLU model and its replacement.
    rows
        The hold-out rows (n, d).
    confidence
        The confidence of the promise.
    split
        How the rows were split off, if they were.
    level
        Also find the margin above which this share of decisions is kept.
    seen
        The calibration rows, at whose quantiles that margin is tried.
    """
    delta_of(confidence)
    if rows.shape[0] == 0:
        raise InputError("X_holdout has no rows, so it can't promise anything; leave it out, or give fresh rows")
    found = _judge(mlp, model, rows, "X_holdout")
    target, kept, low = found.target, found.kept, found.low
    decided = [target == c for c in range(mlp.classes)]
    counts = [(int(np.count_nonzero(of)), int(np.count_nonzero(of & ~kept))) for of in decided]
    reliable = None
    if level is not None:
        if seen is None:
            raise InputError("reliable decisions need the calibration rows, whose margins are what is tried")
        known = _judge(mlp, model, seen, "X_cal")
        power = best_power(known.gap, known.norm, known.kept)
        steps = curve(relative(known.gap, known.norm, power), relative(found.gap, found.norm, power), kept)
        reliable = walk(steps, len(target), level, confidence, power)
    near = np.flatnonzero(kept)[np.argsort(low[kept], kind="stable")[:CLOSE]]
    close = sorted((rounded(float(low[i]), up=False), int(target[i])) for i in near)
    return guarantee(counts, confidence, samples_sha256("X_holdout", rows), split, close, reliable)


def refuse_seen(rows: Rows, seen: Rows) -> None:
    """Reject a hold-out with mostly calibration rows: the fit has used them.

    Some equal rows are natural where features take few values, so up to half of them may be calibration rows.
    """
    held = {row.tobytes() for start in range(0, rows.shape[0], SHARD_ROWS) for row in _part(rows, start)}
    again = {
        key
        for start in range(0, seen.shape[0], SHARD_ROWS)
        for row in _part(seen, start)
        if (key := row.tobytes()) in held
    }
    if 2 * len(again) > len(held):
        raise InputError(
            f"{len(again)} of the {len(held)} different rows of X_holdout are calibration rows too; "
            "a promise needs rows that the fit has not seen"
        )


def _part(rows: Rows, start: int) -> Sequence[np.ndarray[tuple[int], np.dtype[np.float64]]]:
    part = rows.part(start, min(start + SHARD_ROWS, rows.shape[0]))
    return list(np.ascontiguousarray(part, dtype=np.float64) + 0.0)


@dataclass(frozen=True)
class _Judged:
    """Per row (n,): the ReLU model's class, the replacement's, its margin, a lower bound, its norm."""

    target: IntArray
    label: IntArray
    gap: Array
    low: Array
    norm: Array

    @property
    def kept(self) -> BoolArray:
        """Which decisions are kept."""
        same: BoolArray = self.target == self.label
        return same


def _judge(mlp: MLP, model: PolynomialModel, rows: Rows, name: str) -> _Judged:
    with Shards(rows, SHARD_ROWS, mlp, name=name) as shards:
        parts = [part for _, part in sorted(shards.stream(_judged, model), key=lambda found: found[0])]
    return _Judged(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _judged(shard: Shard, model: PolynomialModel) -> tuple[IntArray, IntArray, Array, Array, Array]:
    mlp: MLP = shard.subject
    target, own = shard_decisions(mlp, shard).label, shard_decisions(model, shard)
    norm = np.empty(shard.samples)
    with np.errstate(over="ignore", invalid="ignore"):  # inputs near the end of the float range have no finite norm
        for rows, chunk in shard.chunks(8 * (model.features + 4 * model.units)):
            norm[rows] = norms_of(model.logits(chunk))
    return target, own.label, own.gap, own.gap - own.gap_error, norm


def split_of(rows: int, share: float, seed: int) -> Split:
    """The split of `rows` rows; raises InputError unless both parts have some."""
    if not 0 < share < 1:
        raise InputError(f"holdout is {share!r}, wanted a share between 0 and 1, such as 0.1, or rows of their own")
    held = int(share * rows + 0.5)
    if not 0 < held < rows:
        raise InputError(
            f"holdout={share!r} of {rows} rows leaves none on one side; use another share, or give rows of their own"
        )
    return Split(rows=rows, held=held, seed=seed)


def split_rows(rows: Rows, split: Split) -> tuple[Rows, Rows]:
    """The calibration rows and the hold-out rows, both in the order of `rows`."""
    # The raw stream of PCG64 is the same in every version of NumPy; that of permutation() is not promised to be.
    order = np.argsort(np.random.PCG64(split.seed).random_raw(split.rows), kind="stable")
    return _chosen(rows, np.sort(order[split.held :])), _chosen(rows, np.sort(order[: split.held]))


def calibration_part(split: Split | None, rows: Rows) -> Rows:
    """The calibration rows of a fit, where `rows` may be all the rows that they were split from."""
    return rows if split is None or rows.shape[0] != split.rows else split_rows(rows, split)[0]


def _chosen(rows: Rows, at: IntArray) -> Rows:
    return ArrayRows(rows.array[at]) if isinstance(rows, ArrayRows) else ChosenRows(rows, at)
