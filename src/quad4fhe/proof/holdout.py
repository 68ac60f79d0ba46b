"""A promise about new inputs, counted on rows that neither the ReLU model nor the fit has seen.

Decides what is counted and promised, and how the promise is worded. The bounds are those of `guarantee`. That the rows
are fresh is the word of whoever gives them; no computation can show it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Annotated, Literal

import msgspec
import numpy as np

from quad4fhe._arrays import Array, BoolArray, IntArray, samples_sha256
from quad4fhe._rows import Rows
from quad4fhe.errors import InputError
from quad4fhe.exact import shard_decisions
from quad4fhe.mlp import MLP
from quad4fhe.proof.guarantee import by_class, compression_bound, delta_of, lost_share_bound
from quad4fhe.proof.reliable import Margin, Reliable, curve, rounded, walk
from quad4fhe.proof.split import Split
from quad4fhe.quadratic import QuadraticModel
from quad4fhe.shards import SHARD_ROWS, Shard, Shards

Count = Annotated[int, msgspec.Meta(ge=0)]
CLOSE = 256
"""How many of the smallest hold-out margins a promise keeps."""
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]

_HOLDS_FOR = {
    "hold-out": "inputs drawn independently from where the hold-out rows came from, if neither the ReLU model nor the "
    "fit, nor any choice between fits, has used these rows",
    "compression": "inputs drawn independently from where the calibration rows came from, if the ReLU model was not "
    "trained on these rows and nothing else was chosen by them",
}


class ClassGuarantee(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is promised where the ReLU model decides for one class; nothing (0) without samples."""

    samples: Count
    lost: Count
    agreement: Share


class Guarantee(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A lower bound of the share of decisions that are kept on new inputs.

    From a hold-out: `agreement` holds with probability at least `confidence` over the choice of the `samples` hold-out
    rows, of which `lost` lost their decision. The bounds `by_class` hold, all of them together, with the same
    confidence. `split` says which rows of the calibration data they were, if they were set aside from it.

    By compression: `samples` are the calibration rows, none of them lost, and `support` the few that determine the fit.
    Then there is no bound by class.

    `close` has the smallest margins of kept hold-out rows with their class, for a plan to count which of them
    encryption could change; `reliable` is the margin above which decisions are kept more often, if it was asked for.
    """

    kind: Literal["hold-out", "compression"]
    confidence: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    samples: Count
    lost: Count
    agreement: Share
    by_class: list[ClassGuarantee]
    holdout_sha256: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")] | None
    split: Split | None
    support: list[Count]
    close: list[tuple[Margin, Count]]
    reliable: Reliable | None

    @property
    def weakest(self) -> int | None:
        """The class with the smallest promise, the lowest of several; None without bounds by class."""
        if not self.by_class:
            return None
        return min(range(len(self.by_class)), key=lambda c: self.by_class[c].agreement)

    def sentence(self) -> str:
        """What is promised, for which inputs, and with which confidence."""
        shown = f"{self.lost} of {self.samples} hold-out rows lost"
        if self.kind == "compression":
            shown = f"{len(self.support)} of {self.samples} calibration rows determine the fit"
        return (
            f"at least {_down(self.agreement)} of decisions on new inputs are kept, with confidence "
            f"{100 * self.confidence:.10g}% ({shown})"
        )

    def _reliable(self, found: Reliable) -> str:
        level, sure = f"{100 * found.level:.10g}%", f"{100 * self.confidence:.10g}%"
        if found.threshold is None:
            return f"no margin above which {level} are kept was found with confidence {sure}; use more hold-out rows"
        return (
            f"at least {level} of decisions with a margin of {found.threshold:.6g} or more are kept, with confidence "
            f"{sure}: {100 * found.accepted / self.samples:.2f}% of the hold-out, {found.lost} of {found.accepted} lost"
        )

    def lines(self) -> list[tuple[str, str]]:
        """The promise in words: (name, value) lines."""
        lines = [("promise", self.sentence())]
        if self.weakest is not None:
            worst = self.by_class[self.weakest]
            least = f"class {self.weakest}: at least {_down(worst.agreement)}, {worst.lost} of {worst.samples} lost"
            lines.append(("weakest class", least))
        if self.reliable is not None:
            lines.append(("reliable", self._reliable(self.reliable)))
        return [*lines, ("it holds for", _HOLDS_FOR[self.kind])]


def guarantee(
    counts: Sequence[tuple[int, int]],
    confidence: float,
    holdout_sha256: str,
    split: Split | None = None,
    close: Sequence[tuple[float, int]] = (),
    reliable: Reliable | None = None,
) -> Guarantee:
    """The promise that (samples, lost) of every decided class allow."""
    delta = delta_of(confidence)
    samples, lost = (sum(part) for part in zip(*counts, strict=True))
    classes = [
        ClassGuarantee(samples=n, lost=e, agreement=kept_share(bound))
        for (n, e), bound in zip(counts, by_class(counts, delta), strict=True)
    ]
    return Guarantee(
        kind="hold-out",
        confidence=float(confidence),
        samples=samples,
        lost=lost,
        agreement=kept_share(lost_share_bound(samples, lost, delta)),
        by_class=classes,
        holdout_sha256=holdout_sha256,
        split=split,
        support=[],
        close=list(close),
        reliable=reliable,
    )


def compressed(samples: int, support: Sequence[int], confidence: float) -> Guarantee:
    """The promise that a lossless fit allows which `support` of its `samples` calibration rows determine."""
    return Guarantee(
        kind="compression",
        confidence=float(confidence),
        samples=samples,
        lost=0,
        agreement=kept_share(compression_bound(samples, len(support), delta_of(confidence))),
        by_class=[],
        holdout_sha256=None,
        split=None,
        support=list(support),
        close=[],
        reliable=None,
    )


def hold_out(
    mlp: MLP,
    model: QuadraticModel,
    rows: Rows,
    confidence: float,
    split: Split | None = None,
    *,
    level: float | None = None,
    margins: Array | None = None,
) -> Guarantee:
    """The promise for `model` in the place of `mlp`, from fresh rows (n, d); decisions are compared exactly.

    With a `level`, also the margin above which decisions are reliable, tried at the quantiles of calibration `margins`.
    """
    delta_of(confidence)
    if rows.shape[0] == 0:
        raise InputError("X_holdout has no rows, so it can't promise anything; leave it out, or give fresh rows")
    with Shards(rows, SHARD_ROWS, mlp, name="X_holdout") as shards:
        parts = [part for _, part in sorted(shards.stream(_judged, model), key=lambda found: found[0])]
    target, kept, gap, low = (np.concatenate(column) for column in zip(*parts, strict=True))
    counts = [(int(np.count_nonzero(of)), int(np.count_nonzero(of & ~kept))) for of in _by_class(target, mlp.classes)]
    reliable = None
    if level is not None:
        steps = curve(np.empty(0) if margins is None else margins, gap, kept)
        reliable = walk(steps, len(target), level, confidence)
    near = np.flatnonzero(kept)[np.argsort(low[kept], kind="stable")[:CLOSE]]
    close = sorted((rounded(float(low[i]), up=False), int(target[i])) for i in near)
    return guarantee(counts, confidence, samples_sha256("X_holdout", rows), split, close, reliable)


def refuse_seen(rows: Rows, seen: Rows) -> None:
    """Refuse a hold-out most of whose rows are calibration rows: it was used already.

    Some equal rows are natural where features take few values, so less than half of them is let pass.
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


def _judged(shard: Shard, model: QuadraticModel) -> tuple[IntArray, BoolArray, Array, Array]:
    """Per row: what the ReLU model decides, whether it is kept, the replacement's margin and a lower bound of it."""
    mlp: MLP = shard.subject
    target, own = shard_decisions(mlp, shard).label, shard_decisions(model, shard)
    return target, target == own.label, own.gap, own.gap - own.gap_error


def _by_class(target: IntArray, classes: int) -> Iterator[BoolArray]:
    return (target == c for c in range(classes))


def kept_share(bound: Fraction) -> float:
    """1 - bound, rounded down."""
    exact = 1 - bound
    nearest = float(exact)
    return nearest if Fraction(nearest) <= exact else math.nextafter(nearest, 0.0)


def _down(share: float) -> str:
    """A share in percent to two decimals, rounded down."""
    return f"{math.floor(Fraction(share) * 10_000) / 100:.2f}%"
