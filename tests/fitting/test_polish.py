"""The polish: exact along lines, never worse than its start."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quad4fhe.fitting import polish as polishing
from quad4fhe.fitting.design import Block, Design
from quad4fhe.fitting.polish import _agreeing, deepest, kept_intervals, polish
from support.strategies import blocks, seeds


@given(st.lists(st.tuples(st.integers(-8, 8), st.integers(-8, 8)), min_size=1, max_size=12))
def test_the_deepest_point_of_intervals_is_found(ends: list[tuple[int, int]]) -> None:
    low, high = (np.array(side, dtype=float) for side in zip(*ends, strict=True))
    depth, at = deepest(low, high)
    tried = np.arange(-9, 9.25, 0.25)
    best = max(int(np.count_nonzero((low < t) & (t < high))) for t in tried)
    assert depth == best
    assert np.count_nonzero((low < at) & (at < high)) == best or best == 0


@given(blocks(), seeds)
def test_a_sample_is_kept_exactly_inside_its_interval(block: Block, seed: int) -> None:
    rng = np.random.default_rng(seed)
    point, direction = rng.normal(size=3), rng.normal(size=3)
    low, high = kept_intervals(block, point, direction)
    for t in rng.normal(size=5):
        p = point + t * direction
        scores = p[0] * block.P[0] + p[1] * block.P[1] + p[2] * block.B + block.b
        own = scores[np.arange(block.samples), block.target]
        scores[np.arange(block.samples), block.target] = -np.inf
        margin = own - scores.max(axis=1)
        sure = np.abs(margin) > 1e-9 * (1 + np.abs(own))
        assert np.array_equal(((low < t) & (t < high))[sure], (margin > 0)[sure])


@settings(max_examples=30)
@given(blocks(), seeds)
def test_a_polish_never_loses_a_decision_in_total(block: Block, seed: int) -> None:
    start = np.random.default_rng(seed).normal(size=3)
    found = polish(Design.of(block), [start], seed)
    assert found.agreeing == _agreeing(Design.of(block), found.coefficients) >= _agreeing(Design.of(block), start)
    again = polish(Design.of(block), [start], seed)
    assert np.array_equal(found.coefficients, again.coefficients)


@settings(max_examples=15)
@given(blocks(), seeds)
def test_a_polish_on_a_sample_of_the_rows_never_loses_either(block: Block, seed: int) -> None:
    start = np.random.default_rng(seed).normal(size=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(polishing, "_ENTRIES", 2 * block.classes)
        found = polish(Design.of(block), [start], seed)
    assert found.agreeing == _agreeing(Design.of(block), found.coefficients) >= _agreeing(Design.of(block), start)
