"""The fit as a whole: the paper's figures on its models, and the answers to unusual and unusable input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings

from quad4fhe import (
    MLP,
    CertificateError,
    FitError,
    InputError,
    PolynomialModel,
    TargetNotReachedError,
    fit,
    verify,
)
from quad4fhe.fitting import margins
from quad4fhe.fitting.hulls import Apart
from quad4fhe.fitting.pairs import OutOfRounds
from support.strategies import seeds, whole_number_mlps


def random_problem(seed: int, classes: int = 3, n: int = 60, scale: float = 1.0) -> tuple[MLP, np.ndarray]:
    rng = np.random.default_rng(seed)
    K = 1 if classes == 2 else classes
    mlp = MLP(rng.normal(size=(6, 4)), rng.normal(size=6), rng.normal(size=(K, 6)), rng.normal(size=K) * 0.1)
    return mlp, rng.normal(size=(n, 4)) * scale


# ---- the paper's figures ---------------------------------------------------------------------------------------------


def test_breast_cancer_is_hard_with_the_published_coefficients(trained) -> None:
    model = trained("breast_cancer")
    found = fit(model.mlp, model.X_cal, X_test=model.X_test, family="shared")
    assert found.regime == "hard"
    assert [found.alpha, found.beta, found.eta] == pytest.approx([0.3971317, 0.9177616, 0.7710232], abs=1e-6)
    assert found.diagnostics.margin == pytest.approx(0.5478398, abs=1e-6)
    assert found.certificate.statement == "lossless"
    assert found.diagnostics.test.mismatches == 0
    assert found.diagnostics.hard == "feasible"


def test_diabetes_is_rch_with_the_published_coefficients_and_mismatches(trained) -> None:
    model = trained("diabetes")
    found = fit(model.mlp, model.X_cal, X_test=model.X_test, family="shared", polish=False)
    assert found.regime == "rch(0.01)"
    assert [found.alpha, found.beta, found.eta] == pytest.approx([0.1099084, 0.9939417, -5.2019369], abs=1e-3)
    assert found.diagnostics.margin == pytest.approx(0.4524304, abs=1e-3)
    assert (found.diagnostics.calibration.mismatches, found.diagnostics.test.mismatches) == (47, 10)
    assert found.diagnostics.hard == "infeasible"
    assert len(found.certificate.impossible.samples) <= 4
    assert 0.01 < found.diagnostics.critical_mu < 0.02
    verify(found, model.mlp, model.X_cal)


@pytest.mark.parametrize("regime", ["auto", "soft"])
def test_the_polish_reaches_the_best_line_for_diabetes(trained, regime: str) -> None:
    """No line in the plane loses fewer than 22: an exact sweep over all of them proved it for version 0.2."""
    model = trained("diabetes")
    found = fit(model.mlp, model.X_cal, family="shared", regime=regime)
    assert found.regime.kind == "soft"
    assert found.regime.polished
    assert found.diagnostics.calibration.mismatches == 22


@pytest.mark.parametrize(
    ("name", "plain", "polished"), [("otto", 86.0, 88.3), ("shuttle", 97.4, 99.0), ("sst5", 92.1, 92.4)]
)
def test_the_multiclass_models_reach_the_papers_agreement_and_the_polish_passes_it(
    trained, name: str, plain: float, polished: float
) -> None:
    model = trained(name)
    paper = fit(model.mlp, model.X_cal, polish=False, family="shared")
    ours = fit(model.mlp, model.X_cal, family="shared")
    assert 100 * paper.diagnostics.calibration.agreement >= plain
    assert 100 * ours.diagnostics.calibration.agreement >= polished
    assert not paper.regime.polished
    assert ours.regime == f"{paper.regime}+polish"
    for found in (paper, ours):
        assert max(step.gap for step in found.diagnostics.soft_trace) <= 1e-6
        assert found.diagnostics.hard == "infeasible"
        evidence = found.certificate.impossible
        assert len(evidence.samples) + evidence.scale <= 5
        verify(found, model.mlp, model.X_cal)


# ---- any model -------------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(seeds)
def test_whatever_is_claimed_is_verified(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mlp, X = random_problem(seed, classes=int(rng.integers(2, 6)), n=int(rng.integers(3, 80)))
    if np.unique(mlp.decide(X)).size < 2:
        return
    found = fit(mlp, X, family="shared")
    checked = verify(found, mlp, X)
    assert checked.mismatches == np.count_nonzero(found.predict(X) != mlp.decide(X))
    assert (found.regime == "hard") == (found.diagnostics.hard == "feasible")
    if found.regime == "hard":
        assert checked.statement == "lossless"
    if checked.impossible:
        assert found.diagnostics.hard == "infeasible"
        assert checked.mismatches > 0


@given(whole_number_mlps(), seeds)
def test_models_full_of_ties_get_a_right_answer_or_a_clear_refusal(mlp: MLP, seed: int) -> None:
    X = np.random.default_rng(seed).integers(-3, 4, (12, mlp.features)).astype(float)
    try:
        found = fit(mlp, X, family="shared")
    except (InputError, FitError):
        return  # their wording is tested below
    verify(found, mlp, X)
    if found.diagnostics.hard == "infeasible":
        assert found.certificate.statement == "measured"


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("scale", [1e-8, 1e8])
@settings(max_examples=8)
@given(seeds)
@example(209)  # the best point so far is zero, which is no direction to search in
def test_the_scale_of_the_input_gives_no_wrong_claim(classes: int, scale: float, seed: int) -> None:
    mlp, X = random_problem(seed, classes, n=30, scale=scale)
    if np.unique(mlp.decide(X)).size < 2:
        return
    found = fit(mlp, X, family="shared")
    verify(found, mlp, X)


@settings(max_examples=15)
@given(seeds)
@example(46397564)  # two weights with the same solution but for rounding
def test_two_logits_are_fitted_as_the_one_score_they_amount_to(seed: int) -> None:
    one, X = random_problem(seed, classes=2)
    two = MLP(one.W1, one.b1, np.vstack([np.zeros(6), one.W2]), np.append(0.0, one.b2))
    if np.unique(one.decide(X)).size < 2:
        return
    a, b = fit(one, X, family="shared"), fit(two, X, family="shared")
    assert a.regime == b.regime
    assert [a.alpha, a.beta, a.eta] == pytest.approx([b.alpha, b.beta, b.eta], rel=1e-6)
    assert np.array_equal(a.predict(X), b.predict(X))


@settings(max_examples=15)
@given(seeds)
def test_a_free_threshold_is_moved_into_the_constant(seed: int) -> None:
    mlp, X = random_problem(seed, classes=2)
    if np.unique(mlp.decide(X)).size < 2:
        return
    zero, free = (
        fit(mlp, X, polish=False, family="shared"),
        fit(mlp, X, polish=False, threshold="free", family="shared"),
    )
    assert zero.regime == free.regime
    assert (free.eta, zero.tau) == (0.0, 0.0)
    np.testing.assert_allclose(zero.decision_function(X), free.decision_function(X), atol=1e-9)
    verify(free, mlp, X)


def test_a_head_that_sums_to_zero_is_fitted_at_the_zero_threshold_and_says_so() -> None:
    rng = np.random.default_rng(0)
    half = rng.integers(-4, 5, (1, 3)).astype(float)
    mlp = MLP(rng.normal(size=(6, 2)), rng.normal(size=6), np.hstack([half, -half]), [0.25])
    X = rng.normal(size=(40, 2))
    found = fit(mlp, X, family="shared")
    assert any(note.startswith("B = 0") for note in found.diagnostics.notes)
    verify(found, mlp, X)
    with pytest.raises(InputError, match="B = 0"):
        fit(mlp, X, regime="rch")
    verify(fit(mlp, X, threshold="free", family="shared"), mlp, X)


def test_the_same_seed_gives_the_same_fit_to_the_last_bit() -> None:
    mlp, X = random_problem(3, classes=4, n=400)
    assert fit(mlp, X, family="shared").model.sha256 == fit(mlp, X, family="shared").model.sha256


def test_constant_and_dead_units_are_no_trouble() -> None:
    mlp, X = random_problem(5, classes=3)
    W1, b1 = mlp.W1.copy(), mlp.b1.copy()
    W1[:2], b1[:2] = 0.0, (-1.0, 2.0)
    changed = MLP(W1, b1, mlp.W2, mlp.b2)
    verify(fit(changed, X, family="shared"), changed, X)


def test_duplicates_of_two_samples_are_kept() -> None:
    mlp, X = random_problem(7, classes=2)
    labels = mlp.decide(X)
    pair = np.vstack([X[labels == 0][:1], X[labels == 1][:1]])
    repeated = np.repeat(pair, 20, axis=0)
    assert fit(mlp, repeated, family="shared").certificate.statement == "lossless"


def test_running_out_of_rounds_is_reported_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    mlp, X = random_problem(11, classes=4)
    monkeypatch.setattr(margins, "separate_pairs", lambda sweeper: OutOfRounds(1))
    found = fit(mlp, X, family="shared")
    assert found.diagnostics.hard == "undecided"
    assert found.regime.kind == "soft"
    assert any("still open after 1 rounds" in note for note in found.diagnostics.notes)


def test_a_hard_solution_that_does_not_survive_exact_arithmetic_is_not_called_hard(
    monkeypatch: pytest.MonkeyPatch, trained
) -> None:
    model = trained("breast_cancer")
    honest = margins.closest

    def optimistic(positive, negative, cap):
        found = honest(positive, negative, cap)
        return replace(found, direction=-found.direction) if cap == 1.0 and isinstance(found, Apart) else found

    monkeypatch.setattr(margins, "closest", optimistic)
    found = fit(model.mlp, model.X_cal, family="shared")
    assert found.regime != "hard"
    assert found.diagnostics.hard == "undecided"


def test_equal_biases_are_as_good_as_none() -> None:
    """The variance of equal numbers is rounding, not zero; it must not pass for a scale."""
    rng = np.random.default_rng(0)
    W1, b1, W2 = rng.normal(size=(16, 5)), rng.normal(size=16) * 0.3, rng.normal(size=(3, 16))
    X = rng.normal(size=(400, 5))
    without, equal = (fit(MLP(W1, b1, W2, np.full(3, b)), X, polish=False, family="shared") for b in (0.0, 0.1))
    assert equal.diagnostics.calibration == without.diagnostics.calibration
    assert equal.diagnostics.gap <= 1e-6
    few = fit(MLP(W1, b1, W2, np.full(3, 0.1)), X[:5], family="shared")
    assert few.regime == "hard"
    assert few.diagnostics.normalised_margin > 0.5


def test_a_decision_kept_only_on_a_tie_is_neither_lossless_nor_impossible() -> None:
    rng = np.random.default_rng(3)
    W2 = rng.normal(size=(3, 4))
    W2[2] = W2[1]  # classes 1 and 2 are the same, so class 1 wins by the tie rule alone
    mlp = MLP(rng.normal(size=(4, 2)), rng.normal(size=4), W2, [0.0, 0.2, 0.2])
    X = rng.normal(size=(6, 2))
    found = fit(mlp, X, family="shared")
    checked = verify(found, mlp, X)
    assert not (checked.impossible and checked.mismatches == 0)
    assert checked.statement == "measured"


@settings(max_examples=8)
@given(seeds)
def test_the_advised_rounding_changes_no_decision(seed: int) -> None:
    mlp, X = random_problem(seed, classes=4, n=50)
    if np.unique(mlp.decide(X)).size < 2:
        return
    found = fit(mlp, X, family="shared")
    places = found.diagnostics.quantisation.decimals
    rounded = [round(value, places) for value in (found.alpha, found.beta, found.eta)]
    assert np.array_equal(PolynomialModel.shared(mlp, *rounded).decide(X), found.predict(X))


@settings(max_examples=15)
@given(seeds)
def test_a_polish_keeps_no_fewer_decisions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mlp = MLP(rng.integers(-2, 3, (4, 2)), rng.integers(-1, 2, 4), rng.integers(-2, 3, (1, 4)), rng.integers(-1, 2, 1))
    X = rng.integers(-3, 4, (40, 2)).astype(float)
    if np.unique(mlp.decide(X)).size < 2:
        return
    line = fit(mlp, X, regime="soft")
    if line.regime.polished:
        # Equal where the plain line keeps a decision by less than rounding, which a polish counts as lost.
        plain = fit(mlp, X, regime="soft", polish=False)
        assert line.diagnostics.calibration.mismatches <= plain.diagnostics.calibration.mismatches


def test_a_constant_unit_changes_no_claim() -> None:
    rng = np.random.default_rng(8)
    W1, b1, W2 = rng.normal(size=(6, 3)), rng.normal(size=6), rng.normal(size=(1, 6))
    X = rng.normal(size=(300, 3))
    b2 = -np.median(np.maximum(X @ W1.T + b1, 0) @ W2.T, axis=0)
    plain = fit(MLP(W1, b1, W2, b2), X, polish=False, family="shared")
    big = 2.0**20
    changed = MLP(np.vstack([W1, np.zeros(3)]), np.append(b1, big), np.hstack([W2, [[1.0]]]), b2 - big)
    assert fit(changed, X, polish=False, family="shared").regime == plain.regime


def test_row_sums_that_differ_by_rounding_count_as_equal() -> None:
    rng = np.random.default_rng(4)
    W2 = rng.normal(size=(2, 5))
    W2[1, 0] += W2[0].sum() - W2[1].sum()
    mlp = MLP(rng.normal(size=(5, 3)), rng.normal(size=5), W2, [0.0, 0.1])
    X = rng.normal(size=(30, 3))
    found = fit(mlp, X, family="shared")
    assert abs(found.eta) < 1e6
    verify(found, mlp, X)


def test_a_target_that_is_reached_exactly_is_reached() -> None:
    for n in range(20, 60, 8):
        mlp, X = random_problem(21, classes=4, n=n)
        kept = np.count_nonzero(fit(mlp, X, polish=False, family="shared").predict(X) == mlp.decide(X))
        fit(mlp, X, polish=False, target_agreement=kept / n, family="shared")


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_the_soft_problem_is_solved_at_extreme_scales_too(scale: float) -> None:
    mlp, X = random_problem(5, classes=4, n=300)
    scaled = MLP(mlp.W1 * scale, mlp.b1 * scale, mlp.W2, mlp.b2 * scale)
    ordinary, extreme = fit(mlp, X, polish=False, family="shared"), fit(scaled, X, polish=False, family="shared")
    assert extreme.diagnostics.gap <= 1e-6
    kept = (ordinary.diagnostics.calibration.agreement, extreme.diagnostics.calibration.agreement)
    assert kept[1] == pytest.approx(kept[0], abs=0.03)


# ---- refusals --------------------------------------------------------------------------------------------------------

MODEL, DATA = random_problem(1, classes=3)
BINARY, BINARY_DATA = random_problem(2, classes=2)


@pytest.mark.parametrize(
    ("mlp", "X", "options", "says"),
    [
        (MODEL, np.empty((0, 4)), {}, "X_cal has no rows"),
        (MODEL, DATA[:1], {}, "for all 1 rows"),
        (MODEL, np.repeat(DATA[:1], 9, axis=0), {}, "no decision to keep"),
        (
            MODEL,
            np.where(np.arange(4) == 2, np.nan, DATA),
            {},
            "X_cal has 60 NaN or infinite values, the first at [0, 2]",
        ),
        (MODEL, DATA * np.inf, {}, "NaN or infinite"),
        (MODEL, DATA[:, :3], {}, "X_cal has 3 columns, but the model takes 4 features"),
        (MODEL, DATA[0], {}, "for one sample"),
        (MODEL, DATA * 1e200, {}, "overflows the hidden layer"),
        (MODEL, DATA, {"family": "cubic"}, "family is 'cubic'"),
        (MODEL, DATA, {"regime": "easy"}, "regime is 'easy'"),
        (MODEL, DATA, {"regime": "rch"}, "needs two classes"),
        (MODEL, DATA, {"threshold": "free"}, "threshold='free' is for two classes"),
        (BINARY, BINARY_DATA, {"threshold": "five"}, "threshold is 'five'"),
        (MODEL, DATA, {"target_agreement": 99}, "wanted a share in (0, 1]"),
        (MODEL, DATA, {"target_agreement": "0.9"}, "wanted a share in (0, 1]"),
        (MODEL, DATA, {"X_test": DATA[:, :1]}, "X_test has 1 columns"),
        (MODEL, DATA, {"X_test": np.full((2, 4), np.nan)}, "X_test has 8 NaN"),
        (MODEL, DATA, {"seed": -1}, "seed is -1"),
        (MODEL, DATA, {"seed": 1.5}, "seed is 1.5"),
        (None, DATA, {}, "the model is a NoneType"),
        (MODEL, np.ma.masked_less(DATA, 0), {}, "masked"),
        (
            MLP([[1.0], [0.5]], [0, 0], [[1.0, 0], [-1.0, 0]], [0, 1.0]),
            np.array([[1.2e154], [-1.2e154], [-1.1e154]]),
            {},
            "overflow",
        ),
    ],
)
def test_unusable_input_is_refused_in_one_line(mlp: MLP, X: np.ndarray, options: dict[str, object], says: str) -> None:
    with pytest.raises(InputError) as caught:
        fit(mlp, X, **options)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_impossible_wish_names_the_rows_that_contradict_it(trained) -> None:
    model = trained("diabetes")
    with pytest.raises(FitError, match=r"no shared quadratic keeps every decision \(calibration rows \["):
        fit(model.mlp, model.X_cal, regime="hard")
    with pytest.raises(TargetNotReachedError, match=r"99\.712%, below the target of 99\.900%"):
        fit(model.mlp, model.X_cal, target_agreement=0.999, family="shared")


def test_a_model_of_other_weights_is_not_the_certified_one(trained) -> None:
    model = trained("breast_cancer")
    found = fit(model.mlp, model.X_cal, family="shared")
    other = MLP(model.mlp.W1, model.mlp.b1, model.mlp.W2, model.mlp.b2 + 1e-12)
    with pytest.raises(CertificateError, match="the model that was given"):
        verify(found, other, model.X_cal)
