"""What is compared: the baselines that the paper names, in its order, and ours."""

from __future__ import annotations

import numpy as np
import pytest

from quad4fhe import MLP, InputError
from quad4fhe_reproduce.baselines import BASELINES, Problem, compare, published_names
from support.cases import PAIRS, PAIRS_X

NAMES = [f"{kind}-{degree}" for kind in ("LS", "Remez") for degree in (2, 3, 5, 7)]


def test_the_published_baselines_come_in_order() -> None:
    assert published_names() == ("Square", *NAMES, "OLA", "Precise-11")
    assert all(entry.words for entry in BASELINES)


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
