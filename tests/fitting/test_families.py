"""The choice of a family: what `fit(family=...)` promises."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quad4fhe import MLP, CertificateError, Fit, InputError, TargetNotReachedError, fit, verify
from quad4fhe.cli import main
from quad4fhe.fitting.families import FAMILIES
from quad4fhe.fitting.features import stratified_rows
from quad4fhe.proof.families import RULES


def draw(seed: int, outputs: int = 3, units: int = 10, features: int = 3, rows: int = 120) -> tuple[MLP, Any]:
    rng = np.random.default_rng(seed)
    first, head = rng.standard_normal((units, features)), rng.standard_normal((outputs, units))
    X = rng.standard_normal((rows, features))
    bias = rng.standard_normal(units)
    # Centred logits, so that every class is decided somewhere.
    logits = np.maximum(X @ first.T + bias, 0) @ head.T
    return MLP(first, bias, head, -logits.mean(axis=0)), X


@pytest.fixture(scope="module")
def problem() -> tuple[MLP, Any]:
    return draw(1)


@pytest.fixture(scope="module")
def unitwise(problem: tuple[MLP, Any]) -> Fit:
    return fit(*problem, family="unitwise")


@pytest.mark.parametrize(("family", "power"), [("unitwise", -400), ("head", 133)])
def test_families_do_not_mind_how_large_the_logits_are(
    problem: tuple[MLP, Any], unitwise: Fit, family: Any, power: int
) -> None:
    mlp, X = problem
    scaled = MLP(mlp.W1, mlp.b1, np.ldexp(mlp.W2, power), np.ldexp(mlp.b2, power))
    fitted = fit(scaled, X, family=family)
    assert verify(fitted, scaled, X)
    assert fitted.diagnostics.calibration.agreement >= unitwise.diagnostics.calibration.agreement - 0.05
    assert abs(int(np.frexp(np.abs(fitted.model.S).max())[1]) - power) < 20


@pytest.mark.parametrize("family", ["unitwise", "head"])
def test_a_fit_of_a_family_verifies_and_survives_its_file(
    problem: tuple[MLP, Any], unitwise: Fit, family: str, tmp_path: Path
) -> None:
    mlp, X = problem
    fitted = unitwise if family == "unitwise" else fit(mlp, X, family="head")
    fitted.save(tmp_path / "fit.safetensors")
    again = Fit.load(tmp_path / "fit.safetensors")
    assert again.family == family
    assert again.regime in ("kl", "kl+hinge")
    assert again.to_dict() == fitted.to_dict()
    assert verify(again, mlp, X).agreement == fitted.diagnostics.calibration.agreement
    assert [trial.family for trial in again.diagnostics.families] == ["shared", family]
    assert any(name == "cross-validated" and family in text for name, text in fitted.summary())
    assert "cross-validated" not in dict(again.summary())
    if family == "head":
        assert again.alpha is again.beta is again.eta is None
    else:
        assert again.alpha.shape == again.beta.shape == again.eta.shape == (mlp.units,)
    assert "coefficients" in again._repr_html_()


def test_verify_refuses_unitwise_coefficients_that_are_not_the_ones_used(
    problem: tuple[MLP, Any], unitwise: Fit
) -> None:
    mlp, X = problem
    shown = unitwise.alpha.copy()
    shown[0] = np.nextafter(shown[0], np.inf)
    with pytest.raises(CertificateError, match="not the coefficients"):
        verify(replace(unitwise, alpha=shown), mlp, X)
    with pytest.raises(CertificateError, match="can't be"):
        verify(replace(unitwise, eta=unitwise.eta[:-1]), mlp, X)
    with pytest.raises(CertificateError, match="unknown"):
        verify(replace(unitwise, family="other"), mlp, X)


def test_a_lossless_family_may_stand_beside_the_proof_that_no_shared_quadratic_is() -> None:
    mlp, X = draw(5, rows=40)
    fitted = fit(mlp, X, family="head")
    assert fitted.certificate.statement == "lossless"
    assert fitted.certificate.impossible is not None
    verified = verify(fitted, mlp, X)
    assert (verified.statement, verified.impossible) == ("lossless", True)


def test_the_same_seed_gives_the_same_numbers_and_so_does_any_memory_budget(
    problem: tuple[MLP, Any], unitwise: Fit
) -> None:
    again = fit(*problem, family="unitwise", memory_budget=0)
    assert again.model.sha256 == unitwise.model.sha256


@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**6), st.integers(1, 3))
def test_auto_never_takes_a_family_that_cross_validates_worse_than_shared(seed: int, outputs: int) -> None:
    mlp, X = draw(seed, outputs=outputs, rows=80)
    fitted = fit(mlp, X, family="auto")
    estimates = {trial.family: trial.agreement for trial in fitted.diagnostics.families}
    if estimates:
        assert set(estimates) == {"shared", "unitwise", "head"}
        assert estimates[fitted.family] >= estimates["shared"]
    else:
        assert fitted.certificate.statement == "lossless"


def test_auto_keeps_a_shared_fit_that_is_lossless_and_says_why() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 2))
    X[:, 0] += np.where(X[:, 0] > 0, 2.0, -2.0)
    mlp = MLP([[1.0, 0.0], [-1.0, 0.0]], [0.0, 0.0], [[1.0, -1.0]], [0.0])
    fitted = fit(mlp, X, family="auto", threshold="free")
    assert fitted.family == "shared"
    assert fitted.certificate.statement == "lossless"
    assert any("no other family" in note for note in fitted.diagnostics.notes)


def test_a_target_takes_the_smallest_family_that_reaches_it() -> None:
    mlp, X = draw(2, rows=100)
    shared = fit(mlp, X, family="shared").diagnostics.calibration.agreement
    middle = fit(mlp, X, family="unitwise").diagnostics.calibration.agreement
    assert shared < middle
    assert fit(mlp, X, family="auto", target_agreement=shared).family == "shared"
    # Without a target, auto prefers the head here.
    assert fit(mlp, X, family="auto", target_agreement=middle).family == "unitwise"


def test_a_target_that_no_family_reaches_is_an_error_that_names_the_best() -> None:
    mlp, X = draw(3, outputs=4, units=40, features=8, rows=600)
    with pytest.raises(TargetNotReachedError, match="the best is"):
        fit(mlp, X, family="auto", target_agreement=1.0)
    with pytest.raises(TargetNotReachedError, match="family='auto'"):
        fit(mlp, X, family="shared", target_agreement=1.0)


@pytest.mark.parametrize("outputs", [1, 2])
def test_two_classes_with_a_free_threshold_have_it_in_the_constant(outputs: int) -> None:
    mlp, X = draw(6, outputs=outputs)
    fitted = fit(mlp, X, family="unitwise", threshold="free")
    assert fitted.tau == 0.0
    verify(fitted, mlp, X)


def test_equal_classes_leave_the_unitwise_relation_intact() -> None:
    mlp, X = draw(9)
    head = mlp.W2.copy()
    head[2] = head[1]
    twin = MLP(mlp.W1, mlp.b1, head, [0.0, 0.3, 0.1])
    verify(fit(twin, X, family="unitwise"), twin, X)


def test_coefficients_stay_of_the_size_of_the_shared_ones(unitwise: Fit) -> None:
    size = {entry.family: entry for entry in unitwise.diagnostics.conditioning}
    assert size["unitwise"].amplification < 10 * size["shared"].amplification
    assert size["unitwise"].amplification >= 0.99


def test_options_that_make_no_sense_together_are_refused(problem: tuple[MLP, Any]) -> None:
    mlp, X = problem
    with pytest.raises(InputError, match="family='shared'"):
        fit(mlp, X, family="head", regime="soft")
    with pytest.raises(InputError, match="at least 10"):
        fit(mlp, np.vstack([X[mlp.decide(X) == k][:3] for k in range(3)]), family="head")
    with pytest.raises(InputError, match="'unitwise'"):
        fit(mlp, X, family="unit")  # type: ignore[arg-type] # the mistake that is tested


def test_the_command_line_takes_a_family(problem: tuple[MLP, Any], tmp_path: Path) -> None:
    mlp, X = problem
    np.savez(tmp_path / "model.npz", W1=mlp.W1, b1=mlp.b1, W2=mlp.W2, b2=mlp.b2)
    np.savez(tmp_path / "calib.npz", X=X)
    names = [str(tmp_path / name) for name in ("model.npz", "calib.npz", "fit.safetensors")]
    assert main(["fit", *names[:2], "-o", names[2], "--family", "unitwise", "--json"]) == 0
    assert Fit.load(names[2]).family == "unitwise"
    assert main(["verify", names[2], names[1]]) == 0


def test_one_percent_of_shuttle_is_enough_for_993_permille(trained: Callable[[str], Any]) -> None:
    shuttle = trained("shuttle")
    rows = stratified_rows(shuttle.mlp.decide(shuttle.X_cal), 464, 0)
    X = shuttle.X_cal[rows]
    fitted = fit(shuttle.mlp, X, family="auto", X_test=shuttle.X_test)
    shared = fit(shuttle.mlp, X, X_test=shuttle.X_test, family="shared")
    assert fitted.diagnostics.test is not None
    assert shared.diagnostics.test is not None
    assert fitted.diagnostics.test.agreement >= max(0.993, shared.diagnostics.test.agreement)


def test_diabetes_keeps_995_permille_of_unseen_decisions(trained: Callable[[str], Any]) -> None:
    diabetes = trained("diabetes")
    fitted = fit(diabetes.mlp, diabetes.X_cal, family="unitwise", X_test=diabetes.X_test)
    assert fitted.diagnostics.test is not None
    assert fitted.diagnostics.test.agreement >= 0.995


def test_the_names_of_families_are_known_without_loading_numpy() -> None:
    program = (
        'import sys; from quad4fhe.fitting.families import FAMILIES as f; print(f.names(), "numpy" in sys.modules)'
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split()[-1] == "False"


def test_checking_and_fitting_know_the_same_families() -> None:
    assert FAMILIES.names() == RULES.names()
    assert all(FAMILIES.get(name).name == name for name in FAMILIES.names())


def test_auto_is_the_default_and_says_what_the_papers_numbers_keep() -> None:
    rng = np.random.default_rng(7)
    X = rng.standard_normal((100, 3))
    mlp = MLP(rng.standard_normal((10, 3)), rng.standard_normal(10), rng.standard_normal((3, 10)), np.zeros(3))
    found, shared = fit(mlp, X), fit(mlp, X, family="shared")
    assert found.model.sha256 == fit(mlp, X, family="auto").model.sha256
    assert found.family != "shared"
    assert any(
        f"keeps {100 * float(shared.agreement(X)):.2f}% (family='shared')" in note for note in found.diagnostics.notes
    )
    assert fit(mlp, X, regime="soft").family == "shared"
