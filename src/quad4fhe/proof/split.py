"""Rows that are set aside before a fit, so that a promise can be counted on them.

A plain random split: every row has the same chance. A split that is stratified by decision would round the share of
every class, so the hold-out would not be a draw from where the rows came from, and rare classes would be biased most.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np

from quad4fhe._arrays import IntArray
from quad4fhe._rows import ArrayRows, ChosenRows, Rows
from quad4fhe.errors import InputError


class Split(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which of `rows` rows were set aside: `held` of them, chosen by `seed`."""

    rows: Annotated[int, msgspec.Meta(ge=2)]
    held: Annotated[int, msgspec.Meta(ge=1)]
    seed: Annotated[int, msgspec.Meta(ge=0)]


def split_of(rows: int, share: float, seed: int) -> Split:
    """The split of so many rows; InputError unless both parts have some."""
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
