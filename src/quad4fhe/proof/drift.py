"""Drift: whether inputs still look like the hold-out rows that a promise about new inputs was counted on.

A fit keeps a summary of its hold-out rows. A client compares what it decrypts with that summary: the margins, the
decisions, and how many samples lie outside the fit's box. The test is a conformal test martingale, so it may be checked
after every query: if queries come from the same source as the hold-out rows, the probability that a watch ever raises
an alarm is at most 1%. Nothing leaves the client, and the work does not depend on what is found.

References: Vovk, Gammerman and Shafer, "Algorithmic learning in a random world", 2nd edition (2022), chapter 8; Vovk,
"Testing randomness online", Statistical Science 36 (2021), arXiv 1906.09256.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array, BoolArray, IntArray
from quad4fhe.errors import InputError
from quad4fhe.mlp import decide
from quad4fhe.proof.reliable import Count, Margin, margins_of, rounded

FALSE_ALARMS = 0.01
"""The probability, over its whole life, that a watch raises an alarm without drift."""
WINDOW = 2000
"""Queries after which the bets start again, so that a long time without drift does not outweigh a late one."""
_BINS = 32
_CELLS = 16  # of p-values, in the finest of the histograms that bet on them
_BETS = (2, 4, 8, 16)
_NEAR = 2.0**-18  # margins that differ by less than this share of themselves count as one
_SHARED = 1 / 500  # of the calibration rows: a margin that more of them share is not split
Alarm = Literal["margins", "decisions", "box"]
_WATCHED: tuple[Alarm, ...] = ("margins", "decisions", "box")

_ALARMS = {
    "margins": "their margins are not distributed like those of the hold-out rows",
    "decisions": "their decisions are not distributed like those of the hold-out rows",
    "box": "not as many of them lie outside the box of the calibration data as of the hold-out rows",
}


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """What a watch found so far. An alarm stays; `false_alarms` is the probability of one without drift.

    `alarm` says what differs from the hold-out rows: "margins", "decisions", "box" (how many samples lie outside the
    calibration box), or None.
    """

    queries: int
    alarm: Alarm | None
    false_alarms: float

    def to_dict(self) -> dict[str, Any]:
        """Plain literals, ready for JSON."""
        return {"queries": self.queries, "alarm": self.alarm, "false_alarms": self.false_alarms}

    def sentence(self) -> str | None:
        """The warning in one line; None without an alarm."""
        if self.alarm is None:
            return None
        return (
            f"the promise about new inputs was made for other inputs than these: {_ALARMS[self.alarm]} "
            f"({self.queries} queries so far; false alarms: at most {100 * self.false_alarms:g}%)"
        )


class Reference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A summary of the hold-out rows.

    Of the rows inside the fit's box, `margins` counts those between two of the `edges`, and `classes` those that the
    polynomial model decides for each class; `outside` rows lie outside the box. The edges are quantiles of the
    calibration margins, so they do not depend on the hold-out. `box` is the fit's box in a plan that has another one.
    """

    edges: Annotated[list[Margin], msgspec.Meta(min_length=_BINS - 1, max_length=_BINS - 1)]
    margins: Annotated[list[Count], msgspec.Meta(min_length=_BINS, max_length=_BINS)]
    classes: list[Count]
    outside: Count
    box: list[list[float]] | None = None

    @property
    def inside(self) -> int:
        """How many rows lie inside the box."""
        return sum(self.classes)

    def check(self, classes: int, features: int) -> None:
        """Raise InputError if no hold-out has such a summary."""
        fine = self.edges == sorted(self.edges) and len(self.classes) == classes and sum(self.margins) == self.inside
        if self.box is not None:
            fine = fine and [len(side) for side in self.box] == [features] * 2
        if not fine:
            raise InputError("the summary of the hold-out rows contradicts itself; fit and plan again")


def reference(margins: Array, gaps: Array, labels: IntArray, inside: BoolArray, classes: int) -> Reference:
    """The summary of hold-out rows with these gaps, decisions and places (n,), by the calibration `margins`."""
    edges = edges_of(margins)
    return Reference(
        edges=edges,
        margins=np.bincount(_bins(edges, gaps[inside]), minlength=_BINS).tolist(),
        classes=np.bincount(labels[inside], minlength=classes).tolist(),
        outside=int(np.count_nonzero(~inside)),
    )


def edges_of(margins: Array) -> list[float]:
    """The quantiles of calibration margins that hold-out rows are counted between.

    A quantile that many rows share is moved up, half way to the next margin. Encryption's noise would put about half of
    such queries above it and half below, where all hold-out rows are on one side, and that is not drift.
    """
    ordered = np.sort(margins)
    return sorted(_edge(ordered, float(ordered[len(ordered) * step // _BINS])) for step in range(1, _BINS))


def _edge(ordered: Array, value: float) -> float:
    first = int(np.searchsorted(ordered, value * (1 - _NEAR), side="left"))
    after = int(np.searchsorted(ordered, value * (1 + _NEAR), side="right"))
    if after - first > max(2, len(ordered) * _SHARED):
        value = (value + float(ordered[after])) / 2 if after < len(ordered) else 1.25 * value
    return rounded(value, up=True)


def lies_inside(X: NDArray[Any], box: Array) -> BoolArray:
    """Which samples (n, d) lie inside a box (2, d)."""
    inside: BoolArray = ((box[0] <= X) & (box[1] >= X)).all(axis=1)
    return inside


def _bins(edges: Sequence[float], gaps: Array) -> IntArray:
    return np.searchsorted(np.asarray(edges), gaps, side="right")


class Stream(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One thing that is watched: in this window, how many queries are in each category, p-values by cell, and bets."""

    window: Annotated[int, msgspec.Meta(ge=1)]
    rows: Count
    counts: list[Count]
    cells: Annotated[list[Count], msgspec.Meta(min_length=_CELLS, max_length=_CELLS)]
    capital: Annotated[list[float], msgspec.Meta(min_length=len(_BETS), max_length=len(_BETS))]

    @classmethod
    def empty(cls, categories: int, window: int = 1) -> Stream:
        """A window without queries."""
        return cls(window=window, rows=0, counts=[0] * categories, cells=[0] * _CELLS, capital=[0.0] * len(_BETS))

    def observe(self, known: IntArray, categories: IntArray, draws: Array, counted: BoolArray) -> float:
        """Bet on queries (n,) that fit into the window; the logarithm of the largest capital on the way.

        Those that are not `counted` change nothing, and take the same time.

        A p-value is the share of hold-out rows (`known`, by category) and earlier queries in a lower category, with
        ties broken by `draws`. If all of them are exchangeable, such p-values are independent and uniform. Each bet is
        a histogram of the earlier p-values, a density, so its capital is a martingale, and so is the mean of the bets.
        """
        before = _running(categories, counted, self.counts)
        rows, seen = np.arange(len(categories)), before.sum(axis=1)
        of = known + before
        level = of[rows, categories]
        below = np.cumsum(of, axis=1)[rows, categories] - level
        p = (below + draws * (level + 1)) / (known.sum() + seen + 1)
        cell = np.minimum((p * _CELLS).astype(np.int64), _CELLS - 1)
        earlier = _running(cell, counted, self.cells)
        paths = np.empty((len(_BETS), len(categories)))
        for at, cells in enumerate(_BETS):
            coarse = earlier.reshape(len(categories), cells, -1).sum(axis=2)
            count = coarse[rows, cell * cells // _CELLS]
            paths[at] = self.capital[at] + np.cumsum(counted * np.log(cells * (count + 1) / (seen + cells)))
        self.rows += len(categories)
        self.counts = _added(self.counts, categories, counted)
        self.cells = _added(self.cells, cell, counted)
        self.capital = paths[:, -1].tolist()
        return float(np.logaddexp.reduce(paths, axis=0).max() - math.log(len(_BETS)))


def _added(counts: list[int], values: IntArray, counted: BoolArray) -> list[int]:
    more = np.bincount(values, counted, len(counts)).astype(np.int64)
    total: list[int] = (np.asarray(counts, dtype=np.int64) + more).tolist()
    return total


def _running(values: IntArray, counted: BoolArray, start: Sequence[int]) -> IntArray:
    """How often each value occurred before each row, (n, k), counting on from `start` (k,)."""
    hot = np.zeros((len(values), len(start)), dtype=np.int64)
    hot[np.arange(len(values)), values] = counted
    counts: IntArray = np.asarray(start, dtype=np.int64) + np.cumsum(hot, axis=0) - hot
    return counts


class State(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a watch remembers: plain numbers, for a file."""

    seen: Count
    streams: Annotated[list[Stream], msgspec.Meta(min_length=len(_WATCHED), max_length=len(_WATCHED))]
    alarm: Alarm | None


class Watch:
    """Compares queries with the hold-out rows of a promise, call after call.

    Parameters
    ----------
    reference
        The summary of the hold-out rows.
    box
        The box (2, d) of the calibration data.
    state
        What an earlier watch of the same reference remembered; it raises InputError if that does not fit.
    rng
        Draws the random numbers that break ties.
    """

    def __init__(
        self, reference: Reference, box: Array, *, state: State | None = None, rng: np.random.Generator | None = None
    ) -> None:
        counted = (reference.margins, reference.classes, [reference.inside, reference.outside])
        self._known = [np.asarray(known, dtype=np.int64) for known in counted]
        self._edges, self._box = reference.edges, np.asarray(box)
        self._rng = np.random.default_rng() if rng is None else rng
        fresh = [Stream.empty(len(known)) for known in counted]
        self.state = State(seen=0, streams=fresh, alarm=None) if state is None else state
        for stream, known in zip(self.state.streams, counted, strict=True):
            if len(stream.counts) != len(known) or not sum(stream.counts) == sum(stream.cells) <= stream.rows < WINDOW:
                raise InputError("the state of this watch belongs to another plan; remove it to start again")

    def observe(self, logits: Array, X: NDArray[Any] | None = None, *, refused: bool = True) -> None:
        """Take in the logits (n, K) of one call, and the samples X (n, d) as they were before clipping.

        `refused` says that samples outside the plan's box get no decision, so their number is not compared. The rows of
        a call are taken in random order, at most `WINDOW` of them: a file may be sorted, and that is not drift.
        """
        order = self._rng.permutation(len(logits))[:WINDOW]
        taken = logits[order]
        inside = np.ones(len(order), dtype=np.bool_) if X is None else lies_inside(X[order], self._box)
        self._bet(0, _bins(self._edges, margins_of(taken)), inside)
        self._bet(1, decide(taken), inside)
        if not refused:
            self._bet(2, (~inside).astype(np.int64), np.ones_like(inside))
        self.state.seen += len(order)

    def _bet(self, at: int, categories: IntArray, counted: BoolArray) -> None:
        streams, known = self.state.streams, self._known[at]
        if known.sum() == 0:
            return
        while len(categories):
            stream = streams[at]
            part = slice(0, WINDOW - stream.rows)
            draws = self._rng.random(len(categories[part]))
            capital = stream.observe(known, categories[part], draws, counted[part])
            # Three streams, and windows 1, 2, ... with a share of 1 / (w (w + 1)) each: together at most 1.
            enough = math.log(len(_WATCHED) * stream.window * (stream.window + 1) / FALSE_ALARMS)
            if capital >= enough and self.state.alarm is None:
                self.state.alarm = _WATCHED[at]
            if stream.rows >= WINDOW:
                streams[at] = Stream.empty(len(known), stream.window + 1)
            categories, counted = categories[part.stop :], counted[part.stop :]

    @property
    def drift(self) -> Drift:
        """What was found so far."""
        return Drift(queries=self.state.seen, alarm=self.state.alarm, false_alarms=FALSE_ALARMS)
