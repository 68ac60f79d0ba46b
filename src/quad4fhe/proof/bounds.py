"""Bounds on the share of decisions that are lost on new inputs, from counts alone.

Callers make sure that the rows behind the counts qualify. Every bound is rounded to the safe side: sums are in
decimal arithmetic with directed rounding, and the returned value was itself checked, on a grid of 1e-9.

References: Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial",
Biometrika 26 (1934); Angelopoulos, Bates, Candes, Jordan and Lei, "Learn then test", arXiv 2110.01052; Wiens and
Dmitrienko, "The fallback procedure for evaluating a single family of hypotheses", Journal of Biopharmaceutical
Statistics 15 (2005).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import lru_cache

from quad4fhe.errors import InputError

_GRID = 10**9
_MOST = 10**7  # rows: beyond it a bound would take minutes
_TINY = Decimal("1e-33")
_UP = Context(prec=40, rounding=ROUND_CEILING, Emin=-(10**15), Emax=10**15)
_DOWN = Context(prec=40, rounding=ROUND_FLOOR, Emin=-(10**15), Emax=10**15)


def delta_of(confidence: float) -> Decimal:
    """1 - confidence without rounding: 0.95 is taken as the decimal number that is written, not as a binary float."""
    if isinstance(confidence, bool) or not (isinstance(confidence, float | int) and 0 < confidence < 1):
        raise InputError(f"confidence is {confidence!r}, wanted a number between 0 and 1, such as 0.95")
    return 1 - Decimal(repr(float(confidence)))


def lost_share_bound(samples: int, lost: int, delta: float | Decimal) -> Fraction:
    """Clopper and Pearson: the largest share of losses that `lost` of `samples` independent rows leave possible.

    With probability at least 1 - delta over the rows, the true share is at most this. It is the smallest multiple of
    1e-9 found at which so few losses have probability at most delta; 1 where every row is lost, or there is none.
    """
    _check_counts(samples, lost)
    return _lost_share_bound(samples, lost, _level(delta))


@lru_cache(maxsize=4096)
def _lost_share_bound(samples: int, lost: int, level: Decimal) -> Fraction:
    if lost == samples:
        return Fraction(1)
    return _smallest(lambda share: tail_bound(samples, lost, share) <= level)


def tail_bound(samples: int, lost: int, share: Fraction) -> Decimal:
    """An upper bound of P(Bin(samples, share) <= lost), tight to about 30 digits."""
    _check_counts(samples, lost)
    if not 0 <= share <= 1:
        raise InputError(f"the share is {share}, wanted 0 to 1")
    if lost == samples or share == 0:
        return Decimal(1)
    if share == 1:
        return Decimal(0)
    kept = 1 - share
    # Terms from i = lost downwards: C(n, i) p^i q^(n-i), the next is this one times i q / ((n - i + 1) p).
    term = _UP.multiply(_power(share, lost), _power(kept, samples - lost))
    term = _UP.multiply(term, _choices(samples, min(lost, samples - lost)))
    odds, total = kept / share, term
    for i in range(lost, 0, -1):
        rate = _UP.divide(Decimal(i * odds.numerator), Decimal((samples - i + 1) * odds.denominator))
        if (
            rate < 1
            and (rest := _UP.divide(_UP.multiply(term, rate), _DOWN.subtract(Decimal(1), rate))) < _TINY * total
        ):
            total = _UP.add(total, rest)  # the rates fall with i, so a geometric series is above what is left
            break
        term = _UP.multiply(term, rate)
        total = _UP.add(total, term)
    return min(total, Decimal(1))


def by_class(counts: Sequence[tuple[int, int]], delta: float | Decimal) -> list[Fraction]:
    """A bound for every class, from (samples, lost) of each: all of them hold together with probability 1 - delta.

    Bonferroni: each class is given delta over the number of classes, those without samples included.
    """
    if not counts:
        raise InputError("there are no classes, wanted (samples, lost) of at least one")
    level = _DOWN.divide(_level(delta), Decimal(len(counts)))
    return [lost_share_bound(samples, lost, level) for samples, lost in counts]


def fallback(
    counts: Sequence[tuple[int, int]], weights: Sequence[Decimal], share: float | Decimal, delta: float | Decimal
) -> list[int]:
    """Learn then Test: which thresholds pass, from (accepted, lost) at each, in an order fixed without these rows.

    `weights` (one for each threshold, sum at most 1) says where walks begin. The level starts at 0, each threshold adds
    its weight times delta, and passes if a true share of losses above `share` has a p-value within the level; a
    threshold that fails sets the level back to 0. With all weight on the first it is fixed-sequence testing.

    With probability at least 1 - delta no threshold that passes loses more than `share` of what it accepts. Let
    i < j be neighbours among the thresholds that do lose more. If i failed, the level at j is at most the weight of
    i + 1 to j, so j passes with at most that probability; the sum over all of them is at most delta.
    """
    full, most = _level(delta), Fraction(_level(share))
    if len(weights) != len(counts) or min(weights, default=Decimal(0)) < 0 or sum(weights) > 1:
        raise InputError("the weights must be one for each threshold, none below 0, with a sum of at most 1")
    level, passed = Decimal(0), []
    for at, ((accepted, lost), weight) in enumerate(zip(counts, weights, strict=True)):
        level = _DOWN.add(level, _DOWN.multiply(full, weight))
        if level > 0 and accepted > 0 and tail_bound(accepted, lost, most) <= level:
            passed.append(at)
        else:
            level = Decimal(0)
    return passed


def _smallest(holds: Callable[[Fraction], bool]) -> Fraction:
    """The smallest multiple of 1e-9 in [0, 1] that bisection finds to hold; 1 always does."""
    low, high = 0, _GRID
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(Fraction(middle, _GRID)) else (middle, high)
    return Fraction(high, _GRID)


@lru_cache(maxsize=64)
def _choices(n: int, k: int) -> Decimal:
    """C(n, k), rounded up."""
    found = Decimal(1)
    for i in range(1, k + 1):
        found = _UP.divide(_UP.multiply(found, Decimal(n - k + i)), Decimal(i))
    return found


def _power(base: Fraction, exponent: int) -> Decimal:
    """base ** exponent, rounded up, by squaring: the power of the decimal module does not say how it rounds."""
    square = _UP.divide(Decimal(base.numerator), Decimal(base.denominator))
    found = Decimal(1)
    while exponent:
        if exponent & 1:
            found = _UP.multiply(found, square)
        square = _UP.multiply(square, square)
        exponent >>= 1
    return found


def _check_counts(samples: int, part: int) -> None:
    if not (isinstance(samples, int) and isinstance(part, int) and 0 <= part <= samples):
        raise InputError(f"{part!r} of {samples!r} is not a count, wanted whole numbers, the first at most the second")
    if samples > _MOST:
        raise InputError(
            f"{samples} rows are more than the {_MOST} a bound is computed for; take a random part of them"
        )


def _level(delta: float | Decimal) -> Decimal:
    level = delta if isinstance(delta, Decimal) else Decimal(repr(float(delta)))
    if not 0 < level < 1:
        raise InputError(f"the level is {delta}, wanted a number between 0 and 1")
    return level
