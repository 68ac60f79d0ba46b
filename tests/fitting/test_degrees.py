"""Degrees above two: basis, rounding, hulls in R^p, fits, their files and certificates."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from quad4fhe import MLP, Fit, _forecast, fit, plan, verify
from quad4fhe._arrays import Array
from quad4fhe._progress import silent
from quad4fhe.errors import CertificateError, InputError, TargetNotReachedError
from quad4fhe.fitting.basis import Basis
from quad4fhe.fitting.features import Pool
from quad4fhe.fitting.hulls import Apart, Meet, closest
from quad4fhe.fitting.ladder import _fixed, _Tried
from quad4fhe.fitting.rounding import GRID, Copies, Units, rounded_units
from quad4fhe.fitting.select import Judged, Selection
from quad4fhe.polynomial import PolynomialModel
from quad4fhe.proof.evidence import Evidence, check_evidence


def network(seed: int = 0, features: int = 5, units: int = 12, outputs: int = 3) -> MLP:
    rng = np.random.default_rng(seed)
    W1, W2 = rng.standard_normal((units, features)), rng.standard_normal((outputs, units))
    return MLP(W1, 0.3 * rng.standard_normal(units), W2, 0.1 * rng.standard_normal(outputs))


@pytest.mark.parametrize("degree", [2, 5, 8])
def test_basis_is_orthonormal_over_its_rows(degree: int) -> None:
    mlp = network()
    X = np.random.default_rng(1).standard_normal((800, 5)) ** 3  # heavy tails
    basis = Basis.of(mlp, X, degree)
    F = basis.features(mlp.hidden(X)).astype(np.float64).reshape(len(X), degree, -1)
    gram = np.einsum("nkj,nlj->jkl", F, F) / len(X)
    assert np.abs(gram - np.eye(degree)).max() < 1e-4
    assert np.abs(F.mean(axis=0)).max() < 1e-4


def test_powers_of_the_basis_are_those_of_exact_arithmetic() -> None:
    mlp = network(units=2)
    X = np.random.default_rng(2).standard_normal((50, 5))
    basis = Basis.of(mlp, X, 4)
    middle, radius = np.array([0.25, -1.0]), np.array([4.0, 8.0])
    C = basis.powers(middle, radius)
    for j in range(2):
        u = Fraction(3, 7)
        v = (u * Fraction(radius[j]) + Fraction(middle[j]) - Fraction(basis.mean[j])) / Fraction(basis.spread[j])
        below, at = Fraction(0), Fraction(1)
        for k in range(4):
            centre, back, scale = (Fraction(each[k, j]) for each in (basis.centre, basis.back, basis.scale))
            below, at = at, scale * ((v - centre) * at - back * below)
            by_powers = sum(Fraction(C[k, i, j]) * u**i for i in range(5))
            assert abs(by_powers - at) < Fraction(1, 10**12)


def test_a_constant_unit_has_no_basis_and_no_coefficients() -> None:
    mlp = MLP([[1.0, 0.0], [0.0, 0.0]], [0.0, 2.0], [[1.0, 1.0], [0.0, 1.0]], [0.0, 0.0])
    X = np.random.default_rng(0).standard_normal((40, 2))
    basis = Basis.of(mlp, X, 3)
    assert not basis.features(mlp.hidden(X)).reshape(40, 3, 2)[:, :, 1].any()
    assert not basis.powers(np.zeros(2), np.ones(2))[:, :, 1].any()


def test_finer_rounding_comes_closer_to_the_polynomial() -> None:
    mlp = network(units=20)
    X = np.random.default_rng(3).standard_normal((600, 5))
    y = mlp.hidden(X)
    basis = Basis.of(mlp, X, 4)
    F = basis.features(y).astype(np.float64).reshape(len(X), 4, -1)
    own = np.einsum("nkj,nj->kj", F, np.maximum(y, 0)) / len(X)
    exact = np.einsum("nkj,kj,cj->nc", F, own, mlp.W2) + 1.0
    units = Units.of(y.min(axis=0), y.max(axis=0))
    errors = [
        float(np.abs(rounded_units(mlp, units, basis, own, np.ones(3), bits).logits(X) - exact).max()) for bits in GRID
    ]
    assert errors[0] < 0.1 * np.abs(exact).max()
    assert errors[-1] < errors[0] / 30


def test_a_cubic_separates_what_no_quadratic_can() -> None:
    y = np.array([-3.0, -1.0, 1.0, 3.0])
    labels = y * (y - 2) * (y + 2) > 0
    cubic, flat = (np.stack([y**k for k in range(1, p + 1)], axis=1) for p in (3, 2))
    assert isinstance(closest(cubic[labels], cubic[~labels]), Apart)
    assert isinstance(closest(flat[labels], flat[~labels]), Meet)


@pytest.mark.parametrize("family", ["shared", "unitwise", "head", "auto"])
def test_a_fit_of_degree_three_goes_through_its_file_and_its_check(family: str) -> None:
    mlp = network(outputs=1, units=10)
    X = np.random.default_rng(4).standard_normal((300, 5))
    made = fit(mlp, X, family=family, degree=3)
    assert made.degree == 3
    again = Fit.from_bytes(made.to_bytes())
    assert again.degree == made.degree
    assert again.model.sha256 == made.model.sha256
    assert np.array_equal(again.predict(X), made.predict(X))
    checked = verify(again, mlp, X)
    assert checked.mismatches == int(np.count_nonzero(made.predict(X) != mlp.decide(X)))
    with pytest.raises(InputError, match="degree 2"):
        _ = made.S


def test_polynomials_of_a_head_add_up_to_its_weights() -> None:
    rng = np.random.default_rng(8)
    weights, phi = rng.standard_normal((4, 3 * 7)), rng.standard_normal((50, 3, 7))
    copies = Copies.split(weights, 7)
    assert len(copies) == 3 * 7  # min(K - 1, p) polynomials a unit
    part = copies.first(len(copies))
    assert (np.diff(part.of) >= 0).all()
    found = np.einsum("nkr,kr->nr", phi[:, :, part.of], part.own) @ part.V.T
    exact = phi.reshape(50, -1) @ weights.T
    assert np.allclose(found, exact - exact.mean(axis=1)[:, None])


def test_a_unit_stands_several_times_only_in_a_head() -> None:
    mlp = network(units=10, outputs=4)
    X = np.random.default_rng(4).standard_normal((2_000, 5))  # of fewer rows the prior is taken, which is unitwise
    made = fit(mlp, X, family="head", degree=4)
    assert made.model.units > mlp.units
    assert np.unique(made.model.W1, axis=0).shape[0] <= mlp.units
    again = Fit.from_bytes(made.to_bytes())
    verify(again, mlp, X)
    with pytest.raises(CertificateError, match="one polynomial for each"):
        verify(replace(made, family="unitwise"), mlp, X)
    model = made.model
    foreign = model.W1.copy()
    foreign[0] = -foreign[0]
    assert model.V is not None
    assert model.a is not None
    other = PolynomialModel.by_unit(foreign, model.b1, model.V, model.a, model.c)
    stated = msgspec.structs.replace(made.certificate, replacement_sha256=other.sha256)
    with pytest.raises(CertificateError, match="first layer"):
        verify(replace(made, model=other, certificate=stated), mlp, X)


def test_degree_two_is_what_it_was() -> None:
    mlp = network()
    X = np.random.default_rng(5).standard_normal((200, 5))
    plain, asked = fit(mlp, X, family="shared"), fit(mlp, X, degree=2, family="shared")
    assert plain.model.sha256 == asked.model.sha256
    assert isinstance(plain.model, PolynomialModel)
    assert "degree" not in plain.to_dict()


def test_a_basis_of_some_rows_is_of_ordinary_size_at_the_outliers(monkeypatch) -> None:
    monkeypatch.setattr("quad4fhe.fitting.select._BASIS_ROWS", 500)
    mlp = network(units=8, outputs=3)
    X = np.random.default_rng(5).standard_normal((3000, 5))
    X[[7, 1234]] *= [[100.0], [-80.0]]
    selection = Selection(mlp, X, mlp.decide(X), 8, seed=1, budget=2**28, progress=silent)
    assert np.abs(selection.basis.features(mlp.hidden(X))).max() < 1000  # 10^17 without the outliers among its rows


@pytest.mark.parametrize(("rows", "made"), [(500, 3000), (3000, 9000), (15000, 15000), (25000, 25000), (60000, 0)])
def test_sets_of_some_thousand_rows_are_filled_up(rows: int, made: int) -> None:
    mlp = network(units=4, outputs=3)
    X = np.random.default_rng(5).standard_normal((rows, 5))
    decided = mlp.decide(X)
    selection = Selection(mlp, X, decided, 3, seed=1, budget=2**28, progress=silent)
    pool = selection._pool
    assert (pool.real, pool.features.samples) == (rows, rows + made)
    assert (pool.features.X[:rows] == X).all()
    assert (pool.decided == mlp.decide(pool.features.X)).all()
    mass = (
        min(1.0, 12_500 / rows) if made else 0.0
    )  # of all made rows together: real rows count for more, the more there are
    assert pool.weights(pool.masses)[0, rows:].sum() == pytest.approx(mass / (1 + mass), rel=1e-3)
    assert selection._part.blends == pool.blends  # judged as it is fitted


@pytest.mark.parametrize(("mass", "score"), [(1.0, 0.25), (0.25, 0.4)])
def test_made_rows_count_in_a_choice_for_as_much_as_they_weigh_in_the_fit(mass: float, score: float) -> None:
    kept = np.array([[1, 0], [0, 0], [0, 0]], dtype=np.bool_)  # two real rows, then two made rows for each
    assert Judged("head", None, kept, mass=mass).mean == pytest.approx(score)


@pytest.mark.parametrize("outputs", [1, 3])
def test_rows_near_a_boundary_weigh_more(outputs: int) -> None:
    mlp = network(units=8, outputs=outputs)
    X = np.random.default_rng(5).standard_normal((2000, 5))
    X[3] *= 1000.0
    pool = Selection(mlp, X, mlp.decide(X), 2, seed=1, budget=2**28, progress=silent)._pool
    logits = np.sort(mlp.logits(X), axis=1)
    margins = np.abs(logits[:, 0]) if outputs == 1 else logits[:, -1] - logits[:, -2]
    usual = np.median(margins)
    wanted = np.maximum(np.exp(-margins / usual), 0.01)
    np.testing.assert_allclose(pool.near[:2000], wanted, rtol=1e-5)
    assert pool.near[3] == pytest.approx(0.01)  # small, but not forgotten
    assert pool.weights(pool.near).sum() == pytest.approx(1.0, rel=1e-5)
    by_fold = pool.fold_weights(pool.near)
    assert (by_fold[pool.fold[:2000], np.arange(2000)] == 0).all()  # held-out rows teach nothing


def test_rows_that_tie_do_not_make_all_others_weigh_the_least() -> None:
    mlp = MLP(np.eye(2), np.zeros(2), np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]), np.zeros(3))
    X = np.random.default_rng(5).uniform(1.0, 2.0, (60, 2))
    X[:40, 1] = X[:40, 0] * (1 + 2e-16)  # margins of a rounding error, or none
    pool = Pool.of(mlp, X, np.arange(60) % 5, Basis.of(mlp, X, 2), 2**24, 1)
    assert np.median(pool.near[40:60]) > 0.02
    assert pool.near[:40].min() > 0.99


def test_a_model_that_decides_nothing_weighs_all_rows_alike() -> None:
    mlp = MLP(np.eye(2), np.zeros(2), np.zeros((3, 2)), np.zeros(3))
    X = np.random.default_rng(5).standard_normal((50, 2))
    pool = Pool.of(mlp, X, np.arange(50) % 5, Basis.of(mlp, X, 2), 2**24, 1)
    assert (pool.near == pool.masses).all()


def mixed(*, feature: float = 1.0, unit: float = 1.0) -> tuple[MLP, Array]:
    """The same function of the same rows, with a feature and half of the units on other scales."""
    draw = np.random.default_rng(0)
    X = draw.standard_normal((1000, 6))
    W1, b1 = draw.standard_normal((16, 6)) / 6**0.5, 0.3 * draw.standard_normal(16)
    W2, b2 = draw.standard_normal((3, 16)), 0.1 * draw.standard_normal(3)
    size, row = np.array([1, feature, 1, 1, 1, 1]), np.where(np.arange(16) < 8, unit, 1.0)
    return MLP(W1 / size * row[:, None], b1 * row, W2 / row, b2), X * size


@pytest.mark.parametrize("family", ["unitwise", "head"])
@pytest.mark.parametrize("scales", [{"feature": 1e6}, {"feature": 1e-6}, {"unit": 1e-6}, {"unit": 1e6}])
def test_rounding_keeps_features_and_units_of_any_scale(scales: dict[str, float], family: str) -> None:
    usual, other = mixed(), mixed(**scales)
    kept = [float(fit(mlp, X, family=family, degree=3).agreement(X)) for mlp, X in (usual, other)]
    assert kept[1] == pytest.approx(kept[0], abs=0.015)


def test_a_hard_fit_survives_features_of_mixed_scale() -> None:
    mlp, X = network(units=12, outputs=1), np.random.default_rng(1).standard_normal((60, 5))
    size = np.array([1.0, 1e5, 1.0, 1e-3, 1.0])
    other = MLP(mlp.W1 / size, mlp.b1, mlp.W2, mlp.b2)
    assert fit(mlp, X, family="shared", degree=4).regime.is_hard
    found = fit(other, X * size, family="shared", degree=4)
    assert found.regime.is_hard
    assert verify(found, other, X * size).statement == "lossless"


def test_higher_degrees_keep_more() -> None:
    mlp = network(units=30, outputs=4)
    rng = np.random.default_rng(6)
    X, new = rng.standard_normal((1500, 5)), rng.standard_normal((3000, 5))
    kept = [float(fit(mlp, X, family="unitwise", degree=degree).agreement(new)) for degree in (2, 4)]
    assert kept[1] > kept[0]


@pytest.mark.parametrize(("lost", "taken"), [(0, 4), (3, 4), (40, 3)])
def test_a_lower_degree_is_taken_only_where_it_is_better_by_more_than_an_error(lost: int, taken: int) -> None:
    kept = np.ones((1, 1000), dtype=np.bool_)
    kept[0, 500:505] = False
    worse = kept.copy()
    worse[0, :lost] = False
    worse[0, 500:502] = True  # some rows that the lower degree loses are kept here

    class Judging:
        run = SimpleNamespace(notes=[])

        def judge(self, degree: int) -> Any:
            return _Tried(None, Judged("unitwise", None, worse if degree == 4 else kept))  # type: ignore[arg-type]

        def fit(self, degree: int) -> int:
            return degree

    ladder: Any = Judging()
    assert _fixed(ladder, 4) == taken
    assert bool(ladder.run.notes) == (taken < 4)
    ladder.run.notes.clear()


def _next_degree(found: Fit) -> tuple[int, float]:
    """The degree and the cost that a note of the fit names."""
    (note,) = [each for each in found.diagnostics.notes if "by cross-validation, at about" in each]
    words = note.split()
    return int(words[1]), float(words[words.index("about") + 1])


def test_auto_takes_the_cheapest_degree_that_reaches_the_target() -> None:
    mlp = network(units=20, outputs=3)
    X = np.random.default_rng(7).standard_normal((600, 5))
    easy = fit(mlp, X, family="unitwise", degree="auto", target_agreement=0.6)
    assert easy.degree in (2, 3)
    degree, cost = _next_degree(easy)
    assert degree == easy.degree + 1
    assert 1 < cost < 8
    with pytest.raises(TargetNotReachedError, match="no degree reaches"):
        fit(mlp, X, family="unitwise", degree="auto", target_agreement=1.0)


@pytest.mark.parametrize("degree", [2, 3])
def test_costs_of_degrees_are_those_of_the_plan(degree: int) -> None:
    X = np.random.default_rng(7).standard_normal((200, 5))
    found = fit(network(), X, family="unitwise", degree=degree)
    made = plan(found, samples=8192, X=X, layout="batch")
    forecast = _forecast.server_seconds(found.model, found.box, X, found.margins)
    assert forecast == pytest.approx(made.forecast.server_seconds / 8192)


def test_a_model_that_no_plan_fits_costs_infinitely_much() -> None:
    model = PolynomialModel.quadratic(
        np.ones((1, 1)), np.zeros(1), np.full((1, 1), 1e140), np.zeros((1, 1)), np.zeros(1)
    )
    assert _forecast.server_seconds(model, np.array([[-1e10], [1e10]]), np.ones((1, 1)), np.ones(1)) == np.inf


def test_auto_names_the_next_degree_and_its_cost() -> None:
    X = np.random.default_rng(7).standard_normal((300, 5))
    found = fit(network(), X, family="unitwise", degree="auto")
    assert found.degree == 2
    degree, cost = _next_degree(found)
    assert degree == 3
    assert 1 < cost < 5


def test_auto_takes_what_the_forecast_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forecast that is made up: degree 4 costs what degree 2 does, and degree 6 has no plan."""
    asked = []

    def forecast(model: PolynomialModel, box: Array, X: Array, margins: Array) -> float:
        asked.append(model.degree)
        logits = np.sort(model.logits(X), axis=1)
        assert np.allclose(margins, logits[:, -1] - logits[:, -2])
        assert (box[0] <= X).all()
        assert (box[1] >= X).all()
        return float("inf") if model.degree > 4 else 1e-6

    monkeypatch.setattr(_forecast, "_forecast", [forecast])
    mlp = network(units=20, outputs=3)
    X = np.random.default_rng(6).standard_normal((600, 5))
    found = fit(mlp, X, family="unitwise", degree="auto")
    assert asked == [2, 3, 4, 6]
    assert found.degree == 4
    assert not any("at about" in each for each in found.diagnostics.notes)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"degree": 5}, "degree is 5"),
        ({"degree": True}, "degree is True"),
        ({"degree": 4.0}, "degree is 4.0"),
        ({"degree": 3, "regime": "soft"}, "^regime='soft' is a choice for degree 2, and degree is 3; leave it out"),
        ({"degree": 4, "threshold": "free"}, "^threshold='free' is a choice for degree 2"),
        ({"degree": 4, "cost": 2}, "cost=2 is a choice for degree='auto', and degree is 4"),
        ({"degree": "auto", "cost": 0.5}, "cost is 0.5"),
    ],
)
def test_options_that_no_degree_has_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        fit(network(outputs=1), np.zeros((30, 5)), **options)  # type: ignore[arg-type]


def test_a_forged_degree_or_coefficient_is_noticed() -> None:
    mlp = network(outputs=1, units=10)
    X = np.random.default_rng(4).standard_normal((300, 5))
    made = fit(mlp, X, family="unitwise", degree=3)
    model = made.model
    assert model.V is not None
    assert model.a is not None
    other = PolynomialModel.by_unit(model.W1, model.b1, model.V, 2 * model.a, model.c)
    with pytest.raises(CertificateError):
        verify(replace(made, model=other), mlp, X)
    with pytest.raises(CertificateError):
        verify(replace(made, family="shared"), mlp, X)


def test_evidence_against_every_cubic_is_checked_exactly() -> None:
    """One unit: decisions that alternate five times on a line contradict every cubic, by five rows."""
    y = np.array([[-2.0], [-1.0], [0.0], [1.0], [2.0]])
    mlp = MLP([[1.0]], [3.0], [[1.0]], [0.0])
    targets = np.array([1, 0, 1, 0, 1])
    weights = check_evidence(mlp, y, targets, Evidence(geometry="plane", samples=[0, 1, 2, 3, 4], degree=3))
    assert weights == [Fraction(1, 16), Fraction(4, 16), Fraction(6, 16), Fraction(4, 16), Fraction(1, 16)]
    with pytest.raises(CertificateError):
        check_evidence(mlp, y, targets, Evidence(geometry="plane", samples=[0, 1, 2, 3], degree=3))
    with pytest.raises(CertificateError):
        check_evidence(mlp, y, targets, Evidence(geometry="plane", samples=[0, 1, 2, 3, 4]))


def test_a_shared_fit_of_higher_degree_is_read_back_and_verified(tmp_path: Path) -> None:
    """Dividing by W2 costs last bits that differ from unit to unit; one polynomial must come out of it."""
    rng = np.random.default_rng(4)
    W2 = rng.normal(size=(4, 24)) * 10.0 ** rng.uniform(-2, 1, size=24)
    mlp = MLP(rng.normal(size=(24, 6)), rng.normal(size=24), W2, rng.normal(size=4))
    X = rng.normal(size=(400, 6))
    made = fit(mlp, X, family="shared", degree=3)
    made.save(tmp_path / "fit.safetensors")
    verify(Fit.load(tmp_path / "fit.safetensors"), mlp, X)


def test_evidence_of_pairs_against_every_cubic_is_checked_exactly() -> None:
    y = np.array([[-2.0], [-1.0], [0.0], [1.0], [2.0]])
    mlp = MLP([[1.0]], [3.0], [[0.0], [1.0]], [0.0, 0.0])
    targets = np.array([1, 0, 1, 0, 1])
    named = Evidence(geometry="pairs", samples=[0, 1, 2, 3, 4], rivals=[0, 1, 0, 1, 0], degree=3)
    assert check_evidence(mlp, y, targets, named) == [Fraction(k, 16) for k in (1, 4, 6, 4, 1)]
    with pytest.raises(CertificateError):
        check_evidence(mlp, y, targets, msgspec.structs.replace(named, degree=4))
    with pytest.raises(CertificateError):
        check_evidence(mlp, y, targets, msgspec.structs.replace(named, samples=[0, 1, 2, 3], rivals=[0, 1, 0, 1]))


def test_three_classes_with_a_shared_polynomial_are_fitted_and_verified() -> None:
    mlp = network(seed=3, outputs=3, units=8)
    X = np.random.default_rng(4).standard_normal((400, 5))
    made = fit(mlp, X, family="shared", degree=4)
    if made.certificate.impossible is not None:
        assert made.certificate.impossible.power == 4
        assert len(made.certificate.impossible.samples) <= 7
    verify(Fit.from_bytes(made.to_bytes()), mlp, X)
    few = fit(mlp, X[:12], family="shared", degree=8)
    assert few.regime.is_hard
    assert few.certificate.statement == "lossless"


def test_the_scale_of_the_logits_changes_no_decision_of_a_shared_fit() -> None:
    mlp = network(outputs=1, units=10)
    X = np.random.default_rng(4).standard_normal((300, 5))
    large = MLP(mlp.W1, mlp.b1, mlp.W2 * 2.0**40, mlp.b2 * 2.0**40)
    assert np.array_equal(
        fit(mlp, X, family="shared", degree=3).predict(X), fit(large, X, family="shared", degree=3).predict(X)
    )
