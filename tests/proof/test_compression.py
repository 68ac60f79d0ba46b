"""The rows that determine a hard fit: found exactly, enough by themselves, and never forged into a promise."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from quad4fhe import MLP, CertificateError, Fit, InputError, fit, verify
from quad4fhe.cli import main
from quad4fhe.io.rows import ArrayRows
from quad4fhe.proof.compression import determines, find_support
from quad4fhe.proof.guarantee import compression_bound
from support.cases import PAIRS, PAIRS_X
from support.forging import changed, opened, sealed

Case = tuple[MLP, np.ndarray[Any, np.dtype[np.float64]]]


def quadratic_case(outputs: int, n: int, seed: int = 0) -> Case:
    """A network whose units never switch off on its inputs: nearly linear, so that a shared quadratic keeps all."""
    rng = np.random.default_rng(seed)
    W1, W2 = rng.normal(size=(8, 3)), rng.normal(size=(outputs, 8))
    X = rng.uniform(-1, 1, size=(n, 3))
    b1 = np.abs(W1).sum(axis=1) + rng.uniform(-0.5, 0.2, 8)
    centre = np.median(np.maximum(X @ W1.T + b1, 0) @ W2.T, axis=0)
    return MLP(W1, b1, W2, -centre), X


@cache
def case(outputs: int, n: int = 300) -> tuple[MLP, Any, Fit]:
    for seed in range(60):
        mlp, X = quadratic_case(outputs, n, seed)
        found = fit(mlp, X, fresh=True, family="shared")
        if found.guarantee is not None:
            return mlp, X, found
    raise AssertionError("no hard fit among the cases")


@pytest.mark.parametrize("outputs", [1, 2, 3, 4])
def test_the_rows_that_determine_a_fit_give_it_alone(outputs: int) -> None:
    mlp, X, found = case(outputs)
    made = found.guarantee
    assert made is not None
    assert (made.kind, made.samples, made.lost, made.by_class) == ("compression", len(X), 0, [])
    assert 2 <= len(made.support) <= (3 if mlp.classes == 2 else 4)
    assert made.agreement == pytest.approx(1 - float(compression_bound(len(X), len(made.support), 0.05)), abs=2e-9)
    alone = fit(mlp, X[made.support], family="shared")
    assert str(alone.regime) == "hard"
    ours = [found.alpha, found.beta, found.eta]
    assert np.allclose([alone.alpha, alone.beta, alone.eta], ours, rtol=1e-7, atol=1e-9 * np.abs(ours).max())


@pytest.mark.parametrize("outputs", [1, 3])
def test_an_independent_solver_finds_the_same_rows(outputs: int) -> None:
    mlp, X, found = case(outputs)
    assert found.guarantee is not None
    y, target = mlp.hidden(X), mlp.decide(X)
    Q, L, B, b = y**2 @ mlp.W2.T, y @ mlp.W2.T, mlp.W2.sum(axis=1), mlp.b2
    if outputs == 1:
        s = 2.0 * target - 1
        A, free = np.column_stack([s * Q[:, 0], s * L[:, 0], s]), 1
        owner = np.arange(len(X))
    else:
        pairs = [(i, c) for i in range(len(X)) for c in range(3) if c != target[i]]
        owner = np.array([i for i, _ in pairs])
        A = np.array([[Q[i, t] - Q[i, c], L[i, t] - L[i, c], B[t] - B[c], b[t] - b[c]]
                      for i, c in pairs for t in [target[i]]])  # fmt: skip
        A, free = np.vstack([A, [0, 0, 0, 1.0]]), 0
        owner = np.append(owner, -1)
    # Start from the fit itself, scaled to margin 1, and let scipy say that nothing narrower will do.
    start = np.array([found.alpha, found.beta, found.eta, 1.0])
    if outputs == 1:
        start = np.array([found.alpha, found.beta, found.eta * B[0] + b[0]])
    start /= (A @ start).min()
    dims = 2 if free else 4
    solved = minimize(
        lambda v: 0.5 * v[:dims] @ v[:dims], 1.5 * start, jac=lambda v: np.r_[v[:dims], np.zeros(free)],
        constraints={"type": "ineq", "fun": lambda v: A @ v - 1, "jac": lambda v: A}, method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-14},
    )  # fmt: skip
    assert np.allclose(solved.x, start, rtol=1e-3, atol=1e-3 * np.abs(start).max())
    tight = {int(i) for i in owner[(A @ start) < 1 + 1e-7] if i >= 0}
    assert sorted(tight) == found.guarantee.support


@pytest.mark.parametrize("outputs", [1, 3])
def test_other_rows_do_not_determine_it(outputs: int) -> None:
    mlp, X, found = case(outputs)
    assert found.guarantee is not None
    rows, support = ArrayRows(X), found.guarantee.support
    other = next(i for i in range(len(X)) if i not in support)
    assert determines(mlp, found.model, rows, support, "zero")
    wrong = [support[:-1], support[1:], sorted([*support, other]), [*support, support[-1]], support[::-1], [], [-1]]
    for named in [*wrong, [*support[:-1], len(X)], sorted([*support[:-1], other])]:
        assert not determines(mlp, found.model, rows, named, "zero")
    moved = type(found.model)(mlp.W1, mlp.b1, found.S * (1 + 1e-6), found.T, found.c)
    assert not determines(mlp, moved, rows, support, "zero")
    without = np.delete(np.arange(len(X)), support[0])
    assert find_support(mlp, found.model, ArrayRows(X[without]), found.margins[without], "zero") is None


def test_a_row_that_comes_twice_counts_twice() -> None:
    mlp, X, found = case(1)
    assert found.guarantee is not None
    double = fit(mlp, np.vstack([X, X[found.guarantee.support[:1]]]), fresh=True, family="shared").guarantee
    assert double is not None
    assert len(double.support) == len(found.guarantee.support) + 1


def test_there_is_none_without_the_word_and_none_for_other_regimes() -> None:
    mlp, X, found = case(1)
    assert fit(mlp, X, family="shared").guarantee is None
    soft = fit(PAIRS.mlp, PAIRS_X, fresh=True, family="shared")
    assert soft.guarantee is None
    assert any("no promise about new inputs" in note for note in soft.diagnostics.notes)
    assert fit(mlp, X, family="shared").model.sha256 == found.model.sha256


def test_a_forged_support_never_passes() -> None:
    _, X, found = case(3)
    made = found.guarantee
    assert made is not None
    assert verify(Fit.from_bytes(found.to_bytes()), None, X).guarantee == made
    manifest, tensors = opened(found.to_bytes())
    fewer = {**manifest["guarantee"], "support": made.support[:-1]}
    fewer["agreement"] = 1 - float(compression_bound(made.samples, len(made.support) - 1, 0.05))
    forged: list[tuple[tuple[str, ...], Any]] = [
        ((), fewer),
        (("support",), made.support[:-1]),
        (("support",), []),
        (("support",), [i + 1 for i in made.support]),
        (("confidence",), 0.99),
        (("agreement",), 1.0),
        (("samples",), made.samples + 1),
        (("kind",), "hold-out"),
        (("lost",), 1),
        (("holdout_sha256",), "0" * 64),
    ]
    for place, value in forged:
        file = sealed(changed(manifest, ("guarantee", *place), value), tensors)
        with pytest.raises((CertificateError, InputError)):
            verify(Fit.from_bytes(file), None, X)


def test_the_commands_make_and_recheck_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    mlp, X, _ = case(1)
    np.savez("model.npz", W1=mlp.W1, b1=mlp.b1, W2=mlp.W2, b2=mlp.b2)
    np.savez("calib.npz", X=X)
    assert main(["fit", "model.npz", "calib.npz", "--fresh"]) == 0
    assert "determine the fit" in " ".join(capsys.readouterr().out.split())
    assert main(["verify", "fit.safetensors", "calib.npz"]) == 0
    assert "determine the fit" in " ".join(capsys.readouterr().out.split())


def test_breast_cancer_promises_what_three_rows_of_455_allow() -> None:
    datasets, network = pytest.importorskip("sklearn.datasets"), pytest.importorskip("sklearn.neural_network")
    X, y = datasets.load_breast_cancer(return_X_y=True)
    for seed in range(8):
        order = np.random.default_rng(seed).permutation(len(X))
        train, fresh = order[:114], order[114:]
        Z = (X - X[train].mean(axis=0)) / X[train].std(axis=0)
        trained = network.MLPClassifier((64,), max_iter=2000, random_state=seed).fit(Z[train], y[train])
        made = fit(MLP.from_sklearn(trained), Z[fresh], fresh=True, family="shared").guarantee
        if made is not None:
            assert (made.samples, len(made.support)) == (455, 3)
            assert made.agreement >= 0.976
            return
    raise AssertionError("no hard fit")
