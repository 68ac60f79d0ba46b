"""The promise about new inputs as a document: its numbers, its words, and the bounds that its counts give.

`holdout` counts on fresh rows. A plan carries a promise, so clients and servers load this module and no row sources.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated

import msgspec

from quad4fhe.proof.guarantee import by_class, delta_of, lost_share_bound
from quad4fhe.proof.reliable import Count, Margin, Reliable, margin_word

CLOSE = 256
"""How many of the smallest hold-out margins a promise keeps."""
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]

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


class ClassGuarantee(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The promise for inputs that the ReLU model assigns to one class; 0 without samples."""

    samples: Count
    lost: Count
    agreement: Share


class Guarantee(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A lower bound of the share of decisions that are kept on new inputs.

    `agreement` holds with probability at least `confidence` over the choice of the `samples` hold-out
    rows, of which `lost` lost their decision. The bounds `by_class` hold, all of them together, with the same
    confidence. `split` says which rows of the calibration data they were, if they were set aside from it.

    `close` has the smallest margins of kept hold-out rows with their class, for a plan to count which of them
    encryption could change; `reliable` is the margin above which decisions are kept more often, if it was asked for.
    """

    confidence: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    samples: Count
    lost: Count
    agreement: Share
    by_class: list[ClassGuarantee]
    holdout_sha256: Sha256
    split: Split | None
    close: list[tuple[Margin, Count]]
    reliable: Reliable | None

    @property
    def weakest(self) -> int:
        """The class with the smallest promise, the lowest of several."""
        return min(range(len(self.by_class)), key=lambda c: self.by_class[c].agreement)

    def sentence(self) -> str:
        """The promise, for which inputs it holds, and with which confidence."""
        return (
            f"at least {_down(self.agreement)} of decisions on new inputs are kept, with confidence "
            f"{100 * self.confidence:.10g}% "
            f"({self.lost} of {self.samples} hold-out rows lost)"
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
        worst = self.by_class[self.weakest]
        least = f"class {self.weakest}: at least {_down(worst.agreement)}, {worst.lost} of {worst.samples} lost"
        lines = [("promise", self.sentence()), ("weakest class", least)]
        if self.reliable is not None:
            lines.append(("reliable", self._reliable(self.reliable)))
        return [*lines, ("it holds for", _HOLDS_FOR)]


def guarantee(
    counts: Sequence[tuple[int, int]],
    confidence: float,
    holdout_sha256: str,
    split: Split | None = None,
    close: Sequence[tuple[float, int]] = (),
    reliable: Reliable | None = None,
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
    """
    delta = delta_of(confidence)
    samples, lost = (sum(part) for part in zip(*counts, strict=True))
    classes = [
        ClassGuarantee(samples=n, lost=e, agreement=kept_share(bound))
        for (n, e), bound in zip(counts, by_class(counts, delta), strict=True)
    ]
    return Guarantee(
        confidence=float(confidence),
        samples=samples,
        lost=lost,
        agreement=kept_share(lost_share_bound(samples, lost, delta)),
        by_class=classes,
        holdout_sha256=holdout_sha256,
        split=split,
        close=list(close),
        reliable=reliable,
    )


def kept_share(bound: Fraction) -> float:
    """1 - bound, rounded down."""
    exact = 1 - bound
    nearest = float(exact)
    return nearest if Fraction(nearest) <= exact else math.nextafter(nearest, 0.0)


def _down(share: float) -> str:
    """A share in percent to two decimals, rounded down."""
    return f"{math.floor(Fraction(share) * 10_000) / 100:.2f}%"
