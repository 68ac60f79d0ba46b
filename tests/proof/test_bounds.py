"""Bounds against scipy, exact binomials in fractions, published numbers and simulation; always on the safe side."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom

from quad4fhe import InputError
from quad4fhe.proof.bounds import by_class, delta_of, fallback, lost_share_bound, tail_bound

STEP = Fraction(1, 10**9)
levels = st.sampled_from([0.5, 0.1, 0.05, 0.01, 0.001, 1e-6, 1e-12])


@st.composite
def counted(draw: st.DrawFn, most: int = 3000) -> tuple[int, int]:
    n = draw(st.integers(1, most))
    return n, draw(st.integers(0, n))


def exact_tail(n: int, e: int, p: Fraction) -> Fraction:
    return sum((math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(e + 1)), Fraction(0))


@given(counted(60), st.fractions(0, 1, max_denominator=1000))
def test_the_tail_is_bounded_from_above_and_tightly(counts: tuple[int, int], p: Fraction) -> None:
    exact = exact_tail(*counts, p)
    bound = Fraction(tail_bound(*counts, p))
    assert exact <= bound <= exact * (1 + Fraction(1, 10**30)) + Fraction(1, 10**300)


@given(counted(60), levels)
def test_the_bound_is_safe_in_exact_arithmetic_and_a_step_less_is_not(counts: tuple[int, int], delta: float) -> None:
    n, e = counts
    bound = lost_share_bound(n, e, delta)
    level = Fraction(Decimal(repr(delta)))
    if e == n:
        assert bound == 1
        return
    assert exact_tail(n, e, bound) <= level
    assert exact_tail(n, e, bound - STEP) >= level  # equal if the bound is on the grid


@given(counted(), levels)
@settings(max_examples=60)
def test_clopper_and_pearson_is_the_quantile_of_a_beta(counts: tuple[int, int], delta: float) -> None:
    n, e = counts
    theirs = 1.0 if e == n else float(beta.isf(delta, e + 1, n - e))
    assert float(lost_share_bound(n, e, delta)) == pytest.approx(theirs, rel=1e-6, abs=2e-9)


@given(st.lists(counted(300), min_size=1, max_size=6), levels)
@settings(max_examples=40)
def test_classes_share_the_level_between_them(counts: list[tuple[int, int]], delta: float) -> None:
    for bound, (n, e) in zip(by_class(counts, delta), counts, strict=True):
        theirs = 1.0 if e == n else float(beta.isf(delta / len(counts), e + 1, n - e))
        assert float(bound) == pytest.approx(theirs, rel=1e-6, abs=2e-9)


def test_a_class_that_was_not_seen_gets_no_promise() -> None:
    assert by_class([(0, 0), (1000, 0)], 0.05)[0] == 1


@given(st.lists(counted(400), min_size=0, max_size=12), st.sampled_from([0.005, 0.01, 0.2]), levels)
def test_the_walk_stops_at_the_first_test_that_fails(counts: list[tuple[int, int]], share: float, delta: float) -> None:
    tails = [float(binom.cdf(e, n, share)) for n, e in counts]
    if any(abs(tail - delta) < 1e-9 * delta for tail in tails):
        return
    expected = next((at for at, tail in enumerate(tails) if tail > delta), len(counts))
    first = [Decimal(at == 0) for at in range(len(counts))]
    assert fallback(counts, first, share, delta) == list(range(expected))


@pytest.mark.parametrize("confidence", [0.9, 0.99])
@pytest.mark.parametrize("share", [0.0, 0.004, 0.05, 0.3])
def test_promises_are_broken_as_rarely_as_they_say(confidence: float, share: float) -> None:
    """20,000 draws: at most delta plus three standard errors of them may be wrong."""
    rng, n, draws = np.random.default_rng(1), 200, 20_000
    delta = float(delta_of(confidence))
    lost = rng.binomial(n, share, draws)
    bounds = {int(e): float(lost_share_bound(n, int(e), delta)) for e in np.unique(lost)}
    broken = np.mean([bounds[int(e)] < share for e in lost])
    assert broken <= delta + 3 * math.sqrt(delta * (1 - delta) / draws)


@pytest.mark.parametrize("weights", [["1", "0", "0", "0"], ["0.5", "0", "0.25", "0.25"], ["0.25"] * 4])
@pytest.mark.parametrize("rates", [[0.0, 0.04, 0.12, 0.2], [0.11, 0.0, 0.05, 0.05], [0.0501] * 4])
def test_the_walk_breaks_its_promise_as_rarely_as_it_says(weights: list[str], rates: list[float]) -> None:
    """Nested thresholds with true shares of loss on both sides of the promised one."""
    rng, draws, delta, share = np.random.default_rng(2), 4000, 0.1, 0.05
    sizes = [100, 100, 100, 100]
    true = np.cumsum(np.multiply(sizes, rates)) / np.cumsum(sizes)
    broken = 0
    for _ in range(draws):
        counts = np.column_stack([np.cumsum(sizes), np.cumsum(rng.binomial(sizes, rates))])
        passed = fallback([(int(n), int(e)) for n, e in counts], [Decimal(w) for w in weights], share, delta)
        broken += any(true[at] > share for at in passed)
    assert broken / draws <= delta + 3 * math.sqrt(delta * (1 - delta) / draws)


def test_a_walk_that_fails_leaves_the_next_its_own_share_and_passes_on_what_it_has() -> None:
    half = Decimal("0.5")
    counts = [(100, 9), (200, 0), (300, 0), (400, 30)]
    assert fallback(counts, [Decimal(1), *[Decimal(0)] * 3], 0.05, 0.05) == []
    assert fallback(counts, [half, half, Decimal(0), Decimal(0)], 0.05, 0.05) == [1, 2]
    # The second test alone has a level of 0.025, with what the first passes on 0.05; its p-value lies in between.
    assert 0.025 < 0.95**60 < 0.05
    assert fallback([(80, 0), (60, 0)], [half, half], 0.05, 0.05) == [0, 1]
    assert fallback([(80, 9), (60, 0)], [half, half], 0.05, 0.05) == []
    with pytest.raises(InputError, match="weights"):
        fallback(counts, [half, half, half, half], 0.05, 0.05)


def test_a_confidence_is_the_decimal_that_is_written() -> None:
    assert delta_of(0.95) == Decimal("0.05")
    assert delta_of(0.999999) == Decimal("0.000001")


@pytest.mark.parametrize("wrong", [0, 1, -0.1, 1.5, "0.9", None, True, float("nan")])
def test_a_confidence_that_is_none_is_refused(wrong: object) -> None:
    with pytest.raises(InputError, match="confidence is"):
        delta_of(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("n", "e"), [(-1, 0), (3, 4), (3, -1), (2.0, 1)])
def test_counts_that_are_none_are_refused(n: int, e: int) -> None:
    with pytest.raises(InputError, match="is not a count"):
        lost_share_bound(n, e, 0.05)
