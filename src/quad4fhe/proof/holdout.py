"""Hold-out rows: split off before a fit, and judged by both models as clients with a box would treat them.

Whether the rows are fresh is up to the caller; no computation can show it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from quad4fhe._arrays import Array, BoolArray, IntArray, samples_sha256
from quad4fhe.errors import InputError
from quad4fhe.io.rows import ArrayRows, ChosenRows, Rows
from quad4fhe.mlp import MLP
from quad4fhe.polynomial import PolynomialModel
from quad4fhe.proof.exact import Decisions, decisions, shard_decisions
from quad4fhe.proof.guarantee import COLUMNS, STEPS, HoldOut, Split, Terms, norms_of, relative, rounded
from quad4fhe.workers.shards import SHARD_ROWS, Shard, Shards

POWERS = (0.0, 0.5, 1.0, 1.5, 2.0)
"""Powers of the norm that a margin may be divided by."""


def hold_out(
    mlp: MLP,
    model: PolynomialModel,
    rows: Rows,
    box: Array,
    confidence: float,
    split: Split | None = None,
    *,
    level: float | None = None,
    seen: Rows | None = None,
) -> HoldOut:
    """What both models say of fresh rows (n, d); decisions are compared exactly.

    Parameters
    ----------
    mlp, model
        The ReLU model and its replacement.
    rows
        The hold-out rows.
    box
        The box (2, d) to whose edge clients move rows that lie outside, or outside of which they refuse them.
    confidence
        The confidence of the promise.
    split
        How the rows were split off, if they were.
    level
        Also find the margin above which this share of decisions is kept.
    seen
        The calibration rows, at whose quantiles that margin is tried.
    """
    if rows.shape[0] == 0:
        raise InputError("X_holdout has no rows, so it can't promise anything; leave it out, or give fresh rows")
    power, tried = 0.0, []
    if level is not None:
        if seen is None:
            raise InputError("reliable decisions need the calibration rows, whose margins are what is tried")
        target, _, label, margin, norm, *_ = _judge(mlp, model, seen, "X_cal", None).T
        power = best_power(margin, norm, target == label)
        tried = thresholds(relative(margin, norm, power))
    terms = Terms(
        confidence=float(confidence),
        sha256=samples_sha256("X_holdout", rows),
        split=split,
        level=None if level is None else float(level),
        power=power,
        thresholds=tried,
    )
    return HoldOut(terms, _judge(mlp, model, rows, "X_holdout", box), np.array(box, dtype=np.float64))


def _judge(mlp: MLP, model: PolynomialModel, rows: Rows, name: str, box: Array | None) -> Array:
    """`COLUMNS` of each row (n, 8)."""
    out = np.empty((rows.shape[0], len(COLUMNS)))
    with Shards(rows, SHARD_ROWS, mlp, name=name) as shards:
        for index, part in shards.stream(_judged, model, box):
            out[shards.span(index)] = part
    return out


def _judged(shard: Shard, model: PolynomialModel, box: Array | None) -> Array:
    mlp: MLP = shard.subject
    out = np.empty((shard.samples, len(COLUMNS)))
    out[:, 0], out[:, 1] = shard_decisions(mlp, shard).label, 1.0
    own = shard_decisions(model, shard)
    out[:, 2], out[:, 3] = own.label, _margins(own)
    for rows, chunk in shard.chunks(8 * (model.features + 4 * model.units)):
        out[rows, 4] = _norms(model, chunk)
        out[rows, 5:] = out[rows, 2:5]
        if box is not None:
            outside = ~_lies_inside(chunk, box)
            at = np.arange(rows.start, rows.start + len(chunk))[outside]
            out[at, 1] = 0.0
            if at.size:
                moved = np.clip(chunk[outside], *box)
                decided = decisions(model, moved)
                out[at, 5], out[at, 6], out[at, 7] = decided.label, _margins(decided), _norms(model, moved)
    return out


def _lies_inside(X: Array, box: Array) -> BoolArray:
    inside: BoolArray = ((box[0] <= X) & (box[1] >= X)).all(axis=1)
    return inside


def _margins(decided: Decisions) -> Array:
    return rounded(decided.gap - decided.gap_error)


def _norms(model: PolynomialModel, X: Array) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):  # inputs near the end of the float range have no finite norm
        return rounded(norms_of(model.logits(X)))


def best_power(margins: Array, norms: Array, kept: BoolArray) -> float:
    """The power that best tells kept decisions from lost ones on calibration rows, by the area under the ROC curve.

    With two classes every power below 1 gives the same order, so `norms` are all 0 and the margin stays as it is. With
    no decision lost, or none kept, there is nothing to learn, and 1 is the choice.
    """
    if not norms.any():
        return 0.0
    if kept.all() or not kept.any():
        return 1.0
    return max(POWERS, key=lambda power: _wins(relative(margins, norms, power), kept))


def _wins(scores: Array, kept: BoolArray) -> int:
    """Pairs of a kept and a lost row in which the kept one scores higher, twice; ties count once."""
    above, below = np.sort(scores[kept]), scores[~kept]
    places = np.searchsorted(above, below, "left") + np.searchsorted(above, below, "right")
    return int(2 * len(above) * len(below) - places.sum())


def thresholds(scores: Array) -> list[float]:
    """The thresholds to try, strictest first: percentiles of calibration scores, and 0, which accepts everything."""
    ordered = np.sort(scores)
    places = [(len(ordered) * step) // STEPS for step in range(STEPS - 1, 0, -1)]
    out: list[float] = rounded(ordered[places], up=True).tolist()
    return [*out, 0.0]


def refuse_seen(rows: Rows, seen: Rows) -> None:
    """Reject a hold-out with mostly calibration rows: the fit has used them.

    Some equal rows are natural where features take few values, so up to half of them may be calibration rows.
    """
    held = set(_keys(rows))
    again = {key for key in _keys(seen) if key in held}
    if 2 * len(again) > len(held):
        raise InputError(
            f"{len(again)} of the {len(held)} different rows of X_holdout are calibration rows too; "
            "a promise needs rows that the fit has not seen"
        )


def _keys(rows: Rows) -> Iterator[bytes]:
    for start in range(0, rows.shape[0], SHARD_ROWS):
        part = rows.part(start, min(start + SHARD_ROWS, rows.shape[0]))
        for row in np.ascontiguousarray(part, dtype=np.float64) + 0.0:
            yield row.tobytes()


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
