"""A new baseline is one file and one line in the registry."""

from __future__ import annotations

import numpy as np
import pytest

from quad4fhe import MLP, InputError, compare
from quad4fhe.baselines import BASELINES, Baseline, Polynomial, Problem, Series, measure, published_names
from support.cases import PAIRS, PAIRS_X

NAMES = [f"{kind}-{degree}" for kind in ("LS", "Remez") for degree in (2, 3, 5, 7)]


def half(problem: Problem) -> dict[str, Polynomial]:
    """ReLU as y / 2."""
    seen = problem.preactivations
    line = Series([0.25 * (seen.lo + seen.hi), 0.25 * (seen.hi - seen.lo)], seen.lo, seen.hi)
    return {"Half": Polynomial("Half", (line,), (seen.lo, seen.hi))}


TOY = Baseline("half of the input", ("Half",), half)


def test_the_published_baselines_come_in_order() -> None:
    assert published_names() == ("Square", *NAMES, "OLA", "Precise-11")
    assert all(entry.words for entry in BASELINES)


def test_a_toy_baseline_is_compared_like_the_others() -> None:
    with BASELINES.added("half", TOY):
        assert published_names()[-1] == "Half"
        row = compare(PAIRS.mlp, PAIRS_X, PAIRS_X, fits={"ours": PAIRS})["Half"]
        assert measure(PAIRS.mlp, PAIRS_X, PAIRS_X)["Half"] == row
    mlp = PAIRS.mlp
    halved = 0.5 * mlp.hidden(PAIRS_X) @ mlp.W2.T + mlp.b2
    assert row.agreement_test == pytest.approx(np.mean(np.argmax(halved, axis=1) == mlp.decide(PAIRS_X)))
    assert (row.degree, row.depth, row.products) == (1, 0, 0)


def test_a_baseline_names_what_it_fits() -> None:
    rng = np.random.default_rng(0)
    mlp = MLP(rng.normal(size=(6, 3)), rng.normal(size=6), rng.normal(size=(3, 6)), np.zeros(3))
    problem = Problem(mlp, rng.normal(size=(60, 3)))
    for entry in BASELINES:
        names = set(entry.fit(problem))
        assert names == set(entry.names) if entry.published else names <= set(entry.names)


def test_a_fit_can_not_have_the_name_of_a_baseline() -> None:
    with pytest.raises(InputError, match="'Square' is a baseline; rename the fit"):
        compare(PAIRS.mlp, PAIRS_X, PAIRS_X, fits={"Square": PAIRS})
