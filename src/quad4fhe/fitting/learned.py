"""The rows that families beyond the shared quadratic learn from: all of them in memory, or a sample of what is not.

Decides which rows are fetched from the shards. Judging and fitting families on them is left to `families`; what they
are worth on all rows is certified on all rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import IntArray
from quad4fhe._rows import ArrayRows
from quad4fhe.errors import InputError
from quad4fhe.exact import target_labels
from quad4fhe.fitting import notes
from quad4fhe.fitting.pool import stratified_rows
from quad4fhe.fitting.run import Run
from quad4fhe.shards import Shard

MOST = 100_000
"""Rows fetched of a data set that is not in memory. Strengths are counted in rows, so more would only refine them."""


class Learned(NamedTuple):
    """Samples X (n, d) and the ReLU model's decisions on them (n,)."""

    X: NDArray[Any]
    target: IntArray


def learned(run: Run, memory: int | None, *, everything: bool) -> Learned:
    """All rows of an array that is here anyway (`everything`), else at most MOST, every class in its share."""
    shards = run.shards
    if everything and isinstance(shards.rows, ArrayRows):
        return Learned(shards.rows.array, np.concatenate(shards.map(_targets)))
    share = min(1.0, MOST / shards.samples)
    rows = round(share * shards.samples)
    wanted = rows * 8 * (shards.rows.shape[1] + 6 * run.lift.classes)
    if memory is not None and 2 * wanted > memory:
        raise InputError(
            f"families other than shared keep {rows} rows in memory, {wanted / 1e6:.0f} MB, which may be at most half "
            f"of the {memory / 1e6:.0f} MB allowed; allow {2 * wanted / 1e6:.0f} MB, or use family='shared'"
        )
    found = dict(shards.stream(_some_rows, share, run.seed))
    X, target = (np.concatenate([found[k][part] for k in range(shards.count)]) for part in (0, 1))
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
