"""A promise about new inputs, counted on rows that neither the ReLU model nor the fit has seen.

Splits rows off before a fit, counts lost decisions on them, and words the promise. The bounds are those of `guarantee`.
Whether the rows are fresh is up to the caller; no computation can show it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Literal

import msgspec
import numpy as np

from quad4fhe._arrays import Array, BoolArray, IntArray, samples_sha256
from quad4fhe.calibration.shards import SHARD_ROWS, Shard, Shards
from quad4fhe.errors import InputError
from quad4fhe.io.rows import ArrayRows, ChosenRows, Rows
from quad4fhe.mlp import MLP
from quad4fhe.polynomial import PolynomialModel
from quad4fhe.proof.drift import Reference, lies_inside, reference
from quad4fhe.proof.exact import shard_decisions
from quad4fhe.proof.guarantee import by_class, compression_bound, delta_of, lost_share_bound
from quad4fhe.proof.reliable import Margin, Reliable, best_power, curve, margin_word, norms_of, relative, rounded, walk

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


class Split(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which of `rows` rows were set aside: `held` of them, chosen by `seed`.

    Every row has the same chance. A split stratified by decision would round the share of every class, so the hold-out
    would not be a draw from the same source, and rare classes would be biased most.
    """

    rows: Annotated[int, msgspec.Meta(ge=2)]
    held: Annotated[int, msgspec.Meta(ge=1)]
    seed: Annotated[int, msgspec.Meta(ge=0)]


class ClassGuarantee(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The promise for inputs that the ReLU model assigns to one class; 0 without samples."""

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
    encryption could change; `reliable` is the margin above which decisions are kept more often, if it was asked for;
    `reference` is the summary of the hold-out rows that clients compare their queries with.
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
    reference: Reference | None = None

    @property
    def weakest(self) -> int | None:
        """The class with the smallest promise, the lowest of several; None without bounds by class."""
        if not self.by_class:
            return None
        return min(range(len(self.by_class)), key=lambda c: self.by_class[c].agreement)

    def sentence(self) -> str:
        """The promise, for which inputs it holds, and with which confidence."""
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
            f"at least {level} of decisions with a {margin_word(found.power)} of {found.threshold:.6g} or more are "
            f"kept, with confidence {sure}: {100 * found.accepted / self.samples:.2f}% of the hold-out, "
            f"{found.lost} of {found.accepted} lost"
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
    reference: Reference | None = None,
) -> Guarantee:
    """The promise that the counts of a hold-out allow.

    Parameters
    ----------
    counts
        (samples, lost) of every class that the ReLU model can decide.
    confidence
        The confidence of the promise.
    holdout_sha256
        The hash of the hold-out rows.
    split
        How the rows were split off, if they were.
    close
        The smallest margins of kept rows, with their class.
    reliable
        The margin of reliable decisions, if it was asked for.
    reference
        The summary of the hold-out rows that drift is found by.
    """
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
        reference=reference,
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
    model: PolynomialModel,
    rows: Rows,
    confidence: float,
    split: Split | None = None,
    *,
    level: float | None = None,
    seen: Rows | None = None,
    margins: Array | None = None,
    box: Array | None = None,
) -> Guarantee:
    """The promise for `model` in the place of `mlp`, from fresh rows; decisions are compared exactly.

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
    margins, box
        The margins (n,) of the calibration rows and their box (2, d), for the summary that drift is found by.
    """
    delta_of(confidence)
    if rows.shape[0] == 0:
        raise InputError("X_holdout has no rows, so it can't promise anything; leave it out, or give fresh rows")
    found = _judge(mlp, model, rows, "X_holdout", box)
    target, kept, low = found.target, found.kept, found.low
    counts = [(int(np.count_nonzero(of)), int(np.count_nonzero(of & ~kept))) for of in _by_class(target, mlp.classes)]
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
    summary = None if margins is None else reference(margins, found.gap, found.label, found.inside, mlp.classes)
    return guarantee(counts, confidence, samples_sha256("X_holdout", rows), split, close, reliable, summary)


def refuse_seen(rows: Rows, seen: Rows) -> None:
    """Refuse a hold-out with mostly calibration rows: the fit has used them.

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
    """Per row (n,): the ReLU model's class, the replacement's, its margin, a lower bound, its norm, if it is inside."""

    target: IntArray
    label: IntArray
    gap: Array
    low: Array
    norm: Array
    inside: BoolArray

    @property
    def kept(self) -> BoolArray:
        """Which decisions are kept."""
        same: BoolArray = self.target == self.label
        return same


def _judge(mlp: MLP, model: PolynomialModel, rows: Rows, name: str, box: Array | None = None) -> _Judged:
    with Shards(rows, SHARD_ROWS, mlp, name=name) as shards:
        parts = [part for _, part in sorted(shards.stream(_judged, model, box), key=lambda found: found[0])]
    return _Judged(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _judged(
    shard: Shard, model: PolynomialModel, box: Array | None
) -> tuple[IntArray, IntArray, Array, Array, Array, BoolArray]:
    mlp: MLP = shard.subject
    target, own = shard_decisions(mlp, shard).label, shard_decisions(model, shard)
    norm, inside = np.empty(shard.samples), np.ones(shard.samples, dtype=np.bool_)
    with np.errstate(over="ignore", invalid="ignore"):  # inputs near the end of the float range have no finite norm
        for rows, chunk in shard.chunks(8 * (model.features + 4 * model.units)):
            norm[rows] = norms_of(model.logits(chunk))
            if box is not None:
                inside[rows] = lies_inside(chunk, box)
    return target, own.label, own.gap, own.gap - own.gap_error, norm, inside


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
