from __future__ import annotations

from math import ceil, log2

import pytest

from quad4fhe_reproduce.baselines import schedule


@pytest.mark.parametrize(("degree", "levels"), [(2, 2), (3, 2), (5, 3), (7, 3)])
def test_unfolded_depths_are_those_of_the_papers_circuits(degree, levels):
    # The paper's CKKS table: depth 4 for Remez-2/3 and 5 for Remez-5/7, two of which are the affine maps.
    assert schedule(degree, folds=False).depth == levels


@pytest.mark.parametrize("degree", range(2, 40))
def test_depth_is_the_least_possible(degree):
    # Each level at most doubles the degree. Without a map to fold into, a power of two needs one more level for its
    # leading coefficient.
    assert schedule(degree).depth == ceil(log2(degree))
    assert schedule(degree, folds=False).depth == ceil(log2(degree + 1))


@pytest.mark.parametrize("degree", range(2, 40))
def test_products_lie_between_the_lower_bound_and_horner(degree):
    found = schedule(degree)
    assert max(found.depth, ceil(degree**0.5) - 1) <= found.products <= degree - 1


@pytest.mark.parametrize("degree", [7, 15, 27, 31])
def test_paterson_stockmeyer_pays_well_below_horner_from_degree_seven_on(degree):
    assert schedule(degree).products <= 2 * degree**0.5 + log2(degree)


@pytest.mark.parametrize("degree", range(3, 31, 2))
def test_an_odd_polynomial_costs_no_more_than_a_dense_one(degree):
    odd, dense = schedule(degree, odd=True, folds=False), schedule(degree, folds=False)
    assert odd.depth == dense.depth
    assert odd.products <= dense.products + 1


def test_what_is_linear_is_free():
    assert (schedule(0).depth, schedule(0).products) == (0, 0)
    assert (schedule(1).depth, schedule(1).products) == (0, 0)
    assert schedule(1, folds=False).depth == 1


@pytest.mark.parametrize(("degree", "odd"), [(d, odd) for d in range(2, 40) for odd in (False, True)[: 1 + d % 2]])
def test_every_step_is_a_product_of_two_earlier_steps_at_the_level_it_claims(degree, odd):
    steps = schedule(degree, odd=odd, folds=False).steps
    level = {1: 0}
    for k in steps[1:]:
        # T_k = 2 T_a T_b - T_(a-b), for Chebyshev steps; a = b needs no third one.
        pairs = [(a, k - a) for a in level if k - a in level and (2 * a == k or abs(2 * a - k) in level)]
        assert pairs, (steps, k)
        level[k] = min(max(level[a], level[b]) + 1 for a, b in pairs)
        assert level[k] == ceil(log2(k))
