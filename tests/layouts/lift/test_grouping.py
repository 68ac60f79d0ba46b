"""How many outputs share a ciphertext of a reply: the cheapest number, by seconds and bytes."""

from __future__ import annotations

import pytest

from quad4fhe.layouts.lift.costs import lift_forecast
from quad4fhe.layouts.lift.monomials import Placement
from quad4fhe.layouts.lift.search import MOST_INPUTS, groupings, lift_chains
from quad4fhe.planning.costs import Forecast

CHAIN = next(iter(lift_chains("private")))


def price(size: int, outputs: int, group: int) -> Forecast:
    return lift_forecast(Placement(CHAIN.ring, size, outputs, group, 1), CHAIN, 1, 41, private=True)


@pytest.mark.parametrize(("size", "outputs"), [(4465, 9), (4095, 77), (4095, 200), (33153, 10), (55, 7), (5, 1)])
def test_the_cheapest_group_is_among_those_that_are_tried(size: int, outputs: int) -> None:
    every = [g for g in range(1, outputs + 1) if Placement(CHAIN.ring, size, outputs, g, 1).inputs <= MOST_INPUTS]
    tried = groupings(CHAIN.ring, size, outputs)
    assert set(tried) <= set(every)
    assert min(price(size, outputs, g).price for g in tried) == min(price(size, outputs, g).price for g in every)


# From whole exchanges over g, measured before there was a formula: minima are flat, so neighbours are as good.
@pytest.mark.parametrize(
    ("size", "outputs", "best"), [(4465, 9, (1, 2)), (4095, 77, (4, 8)), (4095, 200, (8, 10)), (33153, 10, (1, 1))]
)
def test_the_formula_finds_the_groups_that_were_cheapest_when_measured(
    size: int, outputs: int, best: tuple[int, int]
) -> None:
    found = min(groupings(CHAIN.ring, size, outputs), key=lambda g: price(size, outputs, g).price)
    assert best[0] <= found <= best[1]


def test_many_classes_cost_a_fraction_of_a_reply_for_each() -> None:
    one, eight = price(4095, 77, 1), price(4095, 77, 8)
    assert eight.server_seconds < 0.6 * one.server_seconds
    assert eight.download_bytes < 0.15 * one.download_bytes
    assert eight.price < 0.6 * one.price
