from __future__ import annotations

import numpy as np

from quad4fhe import MLP, PolynomialModel
from quad4fhe_reproduce.ciphertexts import (
    PAPER_GRID,
    SMALL_GRID,
    Configuration,
    minimum_configuration,
    minimum_plan,
    precision_sweep,
    run_paper,
    table,
)
from quad4fhe_reproduce.circuit import SQUARE, Activation, quad
from support.standins import random_samples, stand_in

RNG = np.random.default_rng(0)
NETWORK = MLP(RNG.normal(size=(8, 4)) / 2, RNG.normal(size=8) * 0.3, RNG.normal(size=(3, 8)), RNG.normal(size=3))
QUAD = quad(0.1, 0.5, 0.2)
X = random_samples(20, 4)


def test_the_grids_are_the_papers_and_secure_rows_below_it() -> None:
    assert [(row.ring, row.depth, row.log_q) for row in PAPER_GRID] == [
        (2**14, 4, 280), (2**14, 5, 320), (2**15, 5, 320), (2**15, 6, 360),
    ]  # fmt: skip
    assert {row.ring for row in SMALL_GRID} == {2**12, 2**13}
    assert all(row.log_q <= {2**12: 106, 2**13: 214}[row.ring] for row in SMALL_GRID)


def test_the_precision_sweep_reports_every_scheme_at_every_scale() -> None:
    rows = precision_sweep(NETWORK, [QUAD], X, np.zeros(20), scales=(30, 40))
    assert [(row.scheme, row.log2_scale) for row in rows] == [("Quad", 30), ("Quad", 40)]
    assert rows[1].max_error < rows[0].max_error
    assert rows[1].feasible
    assert rows[1].accuracy is not None


def test_the_search_goes_down_the_grid_to_the_first_feasible_row() -> None:
    grid = (Configuration(2**13, 4), Configuration(2**14, 3), Configuration(2**14, 4), Configuration(2**14, 5))
    rows = minimum_configuration(NETWORK, [QUAD], X, grid=grid)
    assert [row.feasible for row in rows] == [False, False, True]
    assert "secure" in rows[0].reason
    assert "depth 4" in rows[1].reason


def test_the_folded_circuit_is_feasible_below_the_papers_grid() -> None:
    model = PolynomialModel.shared(NETWORK, 0.1, 0.5, 0.2)
    rows = minimum_plan(stand_in(model, X), X)
    assert all(row.feasible and row.ring < 2**14 for row in rows)


def test_a_scale_too_small_for_the_coefficients_is_reported_as_not_feasible() -> None:
    tiny = Activation("tiny", (0.0, 1e-12, 1e-12))
    row = run_paper(NETWORK, tiny, Configuration(2**14, 4, log2_scale=25), X)
    assert not row.feasible
    assert "constant" in row.reason
    words = table([row, run_paper(NETWORK, SQUARE, Configuration(2**14, 4), X)])
    assert "Square" in words
    assert "does not complete" in words
