"""What is promised about new inputs: counts of hold-out rows, treated as a deployment treats its inputs.

A client refuses inputs outside its range, moves them to its edge, or takes all as they are. Each is another
population, so each counts other rows. `HoldOut` keeps what is needed to count: what both models say of each row, not
the row itself. `holdout` computes that from rows, `bounds` has the theorems. Clients load this module, no row sources.

A decision with a large margin is kept more often. The margin that decisions are flagged by may be a relative one,
divided by a power of the norm of the logits: a polynomial grows where the network does not, so the largest plain
margins are not the safest. The power and the thresholds that are tried rest on calibration rows alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Literal

import msgspec
import numpy as np

from quad4fhe._arrays import Array, BoolArray
from quad4fhe.errors import InputError
from quad4fhe.proof.bounds import by_class, delta_of, fallback, lost_share_bound

Count = Annotated[int, msgspec.Meta(ge=0)]
Margin = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Power = Annotated[float, msgspec.Meta(ge=0, le=2)]
Confidence = Annotated[float, msgspec.Meta(gt=0, lt=1)]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Step = tuple[float, int, int]
Inputs = Literal["as given", "inside", "moved"]

STEPS = 100
"""How many thresholds are tried."""
COLUMNS = ("target", "inside", "label", "margin", "norm", "moved label", "moved margin", "moved norm")
"""What is kept of a hold-out row, as it is and moved to the edge of the box; target is the network's class."""
_GIVEN, _MOVED = slice(2, 5), slice(5, 8)
_BITS = 20  # of stored margins and norms, so that the last bits of a sum, which depend on the machine, do not matter
_ROUNDED = 2.0**-18  # more than that rounding, and that of the sums, can change

_POPULATION: dict[Inputs, str] = {
    "as given": "new inputs",
    "inside": "new inputs inside the range",
    "moved": "all new inputs, those outside the range moved to its edge,",
}
_TREATED: dict[Inputs, str] = {"as given": "", "inside": "; {} outside, refused", "moved": "; {} outside, moved"}
_HOLDS_FOR = (
    "inputs drawn independently from where the hold-out rows came from, if neither the ReLU model nor the fit, nor any "
    "choice between fits, has used these rows"
)


class Split(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which of `rows` rows were set aside: `held` of them, chosen by `seed`.

    Every row has the same chance. A split stratified by decision would round the share of every class, so the hold-out
    would not be a draw from the same source, and rare classes would be biased most.
    """

    rows: Annotated[int, msgspec.Meta(ge=2)]
    held: Annotated[int, msgspec.Meta(ge=1)]
    seed: Annotated[int, msgspec.Meta(ge=0)]


class Bound(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of `samples` rows, `lost` lost their decision, so at least the share `agreement` of new ones is kept."""

    samples: Count
    lost: Count
    agreement: Share


class Reliable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Decisions whose relative margin is at least `threshold` are kept in at least the share `level` of cases.

    The relative margin is the margin divided by the norm of the centred logits to the `power`; with power 0 it is the
    margin. `accepted` hold-out rows have such a margin, and `lost` of them lost their decision; without a threshold no
    decision is called reliable.
    """

    level: Confidence
    power: Power
    threshold: Margin | None
    accepted: Count
    lost: Count


class Guarantee(Bound, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A lower bound of the share of decisions that are kept on new inputs.

    `agreement` holds with probability at least `confidence` over the choice of the hold-out rows. So do the bounds
    `by_class` (of the class that the network decides), all of them together, and so does `reliable`.

    `inputs` says for which inputs: all "as given"; those "inside" the range, others being refused; or all, those
    outside "moved" to its edge. `samples` are the hold-out rows among these, and `outside` rows lie outside the range.
    A row counts as lost if its decision differs, or if `error`, what encryption may add to a margin, could change it.
    """

    inputs: Inputs
    confidence: Confidence
    outside: Count
    error: Margin
    by_class: list[Bound]
    reliable: Reliable | None

    @property
    def possible(self) -> bool:
        """Whether the counts are ones that some hold-out rows can give; a stranger's plan may say anything."""
        flag = self.reliable
        counts = [(self.lost, self.samples)] + [(bound.lost, bound.samples) for bound in self.by_class]
        if flag is not None:
            counts += [(flag.lost, flag.accepted), (flag.accepted, self.samples)]
            if flag.threshold is not None and not flag.accepted:
                return False  # a margin is named only if some rows have it
        return all(part <= whole for part, whole in counts)

    @property
    def weakest(self) -> int:
        """The class with the smallest promise, the lowest of several."""
        return min(range(len(self.by_class)), key=lambda c: self.by_class[c].agreement)

    def sentence(self) -> str:
        """The promise, for which inputs it holds, and with which confidence."""
        lost = "lost" if not self.error else f"lost or within {self.error:.2g} of a tie"
        return (
            f"at least {_down(self.agreement)} of decisions on {_POPULATION[self.inputs]} are kept, with confidence "
            f"{100 * self.confidence:.10g}% ({self.lost} of {self.samples} hold-out rows {lost}"
            f"{_TREATED[self.inputs].format(self.outside)})"
        )

    def flags(self) -> str:
        """The promise about reliable decisions."""
        assert self.reliable is not None, "no margin was asked for"
        flag, sure = self.reliable, f"{100 * self.confidence:.10g}%"
        level = f"{100 * flag.level:.10g}%"
        if flag.threshold is None:
            return f"no margin above which {level} are kept was found with confidence {sure}; use more hold-out rows"
        return (
            f"at least {level} of decisions with a {margin_word(flag.power)} of {flag.threshold:.6g} or more are kept, "
            f"with confidence {sure}: {100 * flag.accepted / self.samples:.2f}% of the hold-out, {flag.lost} of "
            f"{flag.accepted} lost"
        )

    def lines(self) -> list[tuple[str, str]]:
        """The promise in words: (name, value) lines."""
        lines = [("promise", self.sentence())]
        if self.by_class:
            worst = self.by_class[self.weakest]
            least = f"class {self.weakest}: at least {_down(worst.agreement)}, {worst.lost} of {worst.samples} lost"
            lines.append(("weakest class", least))
        if self.reliable is not None:
            lines.append(("reliable", self.flags()))
        return [*lines, ("it holds for", _HOLDS_FOR)]


class Terms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a promise is asked for, and on which rows: their hash, and how they were split off, if they were.

    With a `level`, the `thresholds` are tried, strictest first, on margins divided by the norm to the `power`.
    """

    confidence: Confidence
    sha256: Sha256
    split: Split | None
    level: Confidence | None
    power: Power
    thresholds: list[Margin]


@dataclass(frozen=True, eq=False)
class HoldOut:
    """What a fit keeps of its hold-out rows: `COLUMNS` of each (n, 8), for clients with this box (2, d)."""

    terms: Terms
    rows: Array
    box: Array

    def is_same(self, other: HoldOut) -> bool:
        """Whether both say the same of the same rows."""
        arrays = np.array_equal(self.rows, other.rows) and np.array_equal(self.box, other.box)
        return arrays and self.terms == other.terms

    def problem(self, classes: int) -> str | None:
        """What no hold-out can say; None if nothing is wrong."""
        labels, margins = self.rows[:, [0, 2, 5]], self.rows[:, [3, 4, 6, 7]]
        tried = self.terms.thresholds
        for what, fine in (
            ("a class", (labels == np.rint(labels)).all() and (labels >= 0).all() and (labels < classes).all()),
            ("a place", np.isin(self.rows[:, 1], (0.0, 1.0)).all()),
            ("a margin", np.isfinite(margins).all() and (margins >= 0).all()),
            ("the number of rows", self.terms.split is None or self.terms.split.held == len(self.rows)),
            ("a threshold", tried == sorted(tried, reverse=True) and (self.terms.level is None) == (not tried)),
        ):
            if not fine:
                return f"{what} is none that a hold-out can have"
        return None

    def guarantee(self, classes: int, inputs: Inputs = "as given", error: float = 0.0) -> Guarantee:
        """The promise for such inputs, if encryption adds at most `error` to the difference of two logits.

        Rows outside are left out for "inside": how many they are is random, but given that number, and which they are,
        the others are independent draws from the inputs inside, so the same bounds hold.
        """
        terms, inside = self.terms, self.rows[:, 1] > 0
        rows = self.rows[inside] if inputs == "inside" else self.rows
        label, margin, norm = rows[:, _MOVED if inputs == "moved" else _GIVEN].T
        kept = (label == rows[:, 0]) & ((margin > error) | (error == 0))
        delta = delta_of(terms.confidence)
        decided = [rows[:, 0] == c for c in range(classes)]
        counts = [(int(np.count_nonzero(of)), int(np.count_nonzero(of & ~kept))) for of in decided]
        samples, lost = len(rows), int(np.count_nonzero(~kept))
        reliable = None
        if terms.level is not None:
            steps = _curve(terms, kept, margin, norm, error, math.sqrt(classes) * error)
            reliable = _walk(terms, steps, samples)
        return Guarantee(
            inputs=inputs,
            confidence=terms.confidence,
            samples=samples,
            lost=lost,
            agreement=_kept_share(lost_share_bound(samples, lost, delta)),
            outside=int(np.count_nonzero(~inside)),
            error=error,
            by_class=[
                Bound(samples=n, lost=e, agreement=_kept_share(bound))
                for (n, e), bound in zip(counts, by_class(counts, delta), strict=True)
            ],
            reliable=reliable,
        )

    def curve(self) -> list[Step]:
        """(threshold, accepted, lost) of each threshold, the strictest first, on the rows as given."""
        label, margin, norm = self.rows[:, _GIVEN].T
        return _curve(self.terms, label == self.rows[:, 0], margin, norm, 0.0, 0.0)


def _curve(terms: Terms, kept: BoolArray, margin: Array, norm: Array, error: float, spread: float) -> list[Step]:
    """(threshold, accepted, lost), for clients that see margins changed by up to `error` and norms by `spread`.

    A kept row counts where a client is certain to accept it, a lost one where it may: no other outcome of the noise has
    a larger p-value, because that grows with a lost row and with a kept one left out.
    """
    spread_of = spread + _ROUNDED * norm
    low = relative(np.maximum(margin - error, 0.0), norm + spread_of, terms.power)
    high = relative(margin * (1 + _ROUNDED) + error, norm - spread_of, terms.power)
    if terms.power > 0:
        high = np.where(norm > spread_of, high, np.inf)
    steps = []
    for threshold in terms.thresholds:
        lost = int(np.count_nonzero(~kept & (high >= threshold)))
        steps.append((threshold, int(np.count_nonzero(kept & (low >= threshold))) + lost, lost))
    return steps


def _walk(terms: Terms, steps: list[Step], samples: int) -> Reliable:
    """The last threshold that passes; none without rows."""
    assert terms.level is not None, "no margin was asked for"
    delta, share = delta_of(terms.confidence), delta_of(terms.level)
    passed: list[int] = []
    if samples:
        weights = _weights(len(steps), samples, float(delta), float(share))
        passed = fallback([(accepted, lost) for _, accepted, lost in steps], weights, share, delta)
    threshold, accepted, lost = steps[passed[-1]] if passed else (None, 0, 0)
    return Reliable(level=terms.level, power=terms.power, threshold=threshold, accepted=accepted, lost=lost)


def _weights(steps: int, samples: int, delta: float, share: float) -> list[Decimal]:
    """Where walks begin: at 2, 4, 8 and 16 times the rows that a test without losses needs; each has half the weight.

    A few lost rows with the largest margins end the first walk, but not the next. Starts beyond three quarters of the
    rows are left out; where that leaves none, the one start is there. None of this depends on the content of the rows.
    """
    needed = math.log(delta) / math.log1p(-share)
    rows = [times * needed for times in (2, 4, 8, 16) if 4 * times * needed <= 3 * samples]
    rows = rows or [max(0.75 * samples, 1.05 * needed)]
    out, left = [Decimal(0)] * steps, Decimal(1)
    for i, count in enumerate(rows):
        part = left if i == len(rows) - 1 else left / 2
        left -= part
        out[min(max(math.ceil(steps * count / samples), 1), steps) - 1] += part
    return out


def check_level(level: float) -> None:
    """Raise InputError unless `level` is a share."""
    if isinstance(level, bool) or not (isinstance(level, float | int) and 0 < level < 1):
        raise InputError(f"reliable is {level!r}, wanted a share between 0 and 1, such as 0.995")


def relative(margins: Array, norms: Array, power: float) -> Array:
    """Margins (n,) divided by a power of the norms of their logits; 0 where a norm is not positive or not finite."""
    if power == 0:
        return margins
    fine = (norms > 0) & np.isfinite(norms)
    out: Array = np.where(fine, margins, 0.0) / np.where(fine, norms, 1.0) ** power
    return out


def norms_of(logits: Array) -> Array:
    """The norm of each row of centred logits (n, K); 0 for two classes, whose margin says as much."""
    if logits.shape[1] < 3:
        return np.zeros(len(logits))
    with np.errstate(over="ignore", invalid="ignore"):
        centred = logits - logits.mean(axis=1, keepdims=True)
        out: Array = np.sqrt((centred * centred).sum(axis=1))
    return out


def margins_of(logits: Array) -> Array:
    """The margin of each row of logits (n, K) or scores (n, 1): the largest minus the next, or the score's size."""
    if logits.shape[1] == 1:
        size: Array = np.abs(logits[:, 0])
        return size
    best = np.partition(logits, -2, axis=1)
    gap: Array = best[:, -1] - best[:, -2]
    return gap


def is_above(logits: Array, rule: Reliable) -> BoolArray:
    """Which rows of logits (n, K), or scores (n, 1), have a relative margin of at least the threshold; none without."""
    if rule.threshold is None:
        return np.zeros(len(logits), dtype=np.bool_)
    above: BoolArray = relative(margins_of(logits), norms_of(logits), rule.power) >= rule.threshold
    return above


def margin_word(power: float) -> str:
    """What a threshold is compared with, in words."""
    return "margin" if power == 0 else "relative margin"


def rounded(values: Array, *, up: bool = False) -> Array:
    """Margins (n,) to 20 bits, never below zero; 0 where they are not finite."""
    mantissa, exponent = np.frexp(np.where(np.isfinite(values), np.maximum(values, 0.0), 0.0))
    scaled = mantissa * 2.0**_BITS
    out: Array = np.ldexp(np.ceil(scaled) if up else np.floor(scaled), exponent - _BITS)
    return out


def _kept_share(bound: Fraction) -> float:
    """1 - bound, rounded down."""
    exact = 1 - bound
    nearest = float(exact)
    return nearest if Fraction(nearest) <= exact else math.nextafter(nearest, 0.0)


def _down(share: float) -> str:
    """A share in percent to two decimals, rounded down."""
    return f"{math.floor(Fraction(share) * 10_000) / 100:.2f}%"
