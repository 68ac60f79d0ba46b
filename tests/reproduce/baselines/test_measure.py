from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from sklearn.metrics import accuracy_score, f1_score

from quad4fhe import MLP, InputError, PolynomialModel, _arrays, fit
from quad4fhe.deep import DeepMLP
from quad4fhe_reproduce.baselines import Polynomial, Problem, Series, compare, comparison_table, fitted, measure
from quad4fhe_reproduce.baselines.remez import remez
from quad4fhe_reproduce.baselines.square import square
from support.cases import PAIRS, PAIRS_X

NAMES = [
    "ReLU",
    "Square",
    *(f"LS-{d}" for d in (2, 3, 5, 7)),
    *(f"Remez-{d}" for d in (2, 3, 5, 7)),
    "OLA",
    "Precise-11",
]


def problem(outputs=4, seed=0, n=400):
    rng = np.random.default_rng(seed)
    mlp = MLP(rng.normal(size=(16, 5)), rng.normal(size=16), rng.normal(size=(outputs, 16)), rng.normal(size=outputs))
    X_cal, X_test = rng.normal(size=(n, 5)), 1.3 * rng.normal(size=(n, 5))
    return mlp, X_cal, X_test, rng.integers(0, mlp.classes, n)


def decisions(mlp, X, activation):
    logits = activation(X @ mlp.W1.T + mlp.b1) @ mlp.W2.T + mlp.b2
    return logits.argmax(axis=1) if mlp.outputs > 1 else (logits[:, 0] > 0).astype(int)


@pytest.mark.parametrize("outputs", [1, 2, 4])
def test_every_figure_is_what_a_plain_computation_gives(outputs):
    mlp, X_cal, X_test, y_test = problem(outputs)
    hidden = X_cal @ mlp.W1.T + mlp.b1
    lo, hi = hidden.min(), hidden.max()
    result = measure(mlp, X_cal, X_test, y_test)
    assert [row.name for row in result.rows] == NAMES
    assert result.interval == pytest.approx((lo, hi), rel=1e-12)
    outside = (X_test @ mlp.W1.T + mlp.b1 < lo) | (X_test @ mlp.W1.T + mlp.b1 > hi)
    for name, activation in {"Square": np.square, "Remez-3": remez(3, lo, hi)}.items():
        row, found = result[name], decisions(mlp, X_test, activation)
        assert row.agreement_cal == np.mean(decisions(mlp, X_cal, activation) == mlp.decide(X_cal))
        assert row.agreement_test == np.mean(found == mlp.decide(X_test))
        assert row.accuracy == pytest.approx(accuracy_score(y_test, found), rel=1e-14)
        assert row.macro_f1 == pytest.approx(f1_score(y_test, found, average="macro"), rel=1e-14)
    assert result["Remez-3"].outside_values == pytest.approx(outside.mean(), rel=1e-14)
    assert result["Remez-3"].outside_samples == pytest.approx(outside.any(axis=1).mean(), rel=1e-14)
    assert result["Square"].outside_values is None
    relu = result["ReLU"]
    assert (relu.agreement_cal, relu.agreement_test, relu.degree, relu.depth) == (1.0, 1.0, None, None)
    assert relu.accuracy == pytest.approx(accuracy_score(y_test, mlp.decide(X_test)), rel=1e-14)
    assert result["Precise-11"].clipped


def test_chunks_do_not_change_the_result(monkeypatch):
    mlp, X_cal, X_test, y_test = problem()
    whole = measure(mlp, X_cal, X_test, y_test, replacements={"Square": square(), "Remez-5": remez(5, -9.0, 9.0)})
    monkeypatch.setattr(_arrays, "CHUNK_BYTES", 8 * 16 * 4 * 7)
    assert (
        measure(mlp, X_cal, X_test, y_test, replacements={"Square": square(), "Remez-5": remez(5, -9.0, 9.0)}).rows
        == whole.rows
    )


def test_without_labels_there_is_no_accuracy():
    mlp, X_cal, X_test, _ = problem()
    assert all(row.accuracy is None and row.macro_f1 is None for row in measure(mlp, X_cal, X_test).rows)


def test_fitted_quadratics_stand_in_the_same_table():
    mlp, X_cal, X_test, y_test = problem()
    same = PolynomialModel.shared(mlp, 1.0, 0.0, 0.0)
    rng = np.random.default_rng(5)
    moved = PolynomialModel.quadratic(
        rng.normal(size=(3, 5)), rng.normal(size=3), rng.normal(size=(4, 3)), rng.normal(size=(4, 3)), np.zeros(4)
    )
    result = measure(mlp, X_cal, X_test, y_test, replacements={"Square": square(), "ours": same, "moved": moved})
    ours, baseline = result["ours"], result["Square"]
    assert (ours.agreement_cal, ours.accuracy) == (baseline.agreement_cal, baseline.accuracy)
    assert (ours.degree, ours.depth, ours.products) == (2, 1, 1)
    assert ours.activation_error is None
    assert result["moved"].agreement_test == np.mean(moved.decide(X_test) == mlp.decide(X_test))


def test_overflow_is_counted_and_never_taken_for_a_decision():
    mlp, X_cal, X_test, y_test = problem()
    steep = Polynomial("steep", (Series([0.0] * 31 + [1e300], -1e-9, 1e-9),), (-1e-9, 1e-9))
    result = measure(mlp, X_cal, X_test, y_test, replacements={"steep": steep})
    row = result["steep"]
    assert row.nonfinite_samples == len(X_cal) + len(X_test)
    assert (row.agreement_cal, row.agreement_test, row.accuracy, row.macro_f1) == (0.0, 0.0, 0.0, 0.0)
    assert result.to_dict()["rows"][1]["activation_error"] is None
    json.dumps(result.to_dict(), allow_nan=False)
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(comparison_table(result))
    assert "overflow" in console.export_text()


@pytest.mark.parametrize("bias", [100.0, -100.0])
def test_one_sign_only_keeps_every_decision_of_the_fitted_polynomials(bias):
    rng = np.random.default_rng(0)
    mlp = MLP(rng.normal(size=(6, 3)), np.full(6, bias), rng.normal(size=(3, 6)), rng.normal(size=3))
    X = rng.normal(size=(50, 3))
    result = measure(mlp, X, X)
    for name in NAMES[2:-1]:
        row = result[name]
        assert (row.agreement_cal, row.agreement_test, row.depth) == (1.0, 1.0, 0), name
        assert row.activation_error <= 1e-12


@pytest.mark.parametrize("bias", [0.0, 2.0, -2.0])
def test_constant_pre_activations_keep_every_decision(bias):
    mlp = MLP(np.zeros((4, 2)), np.full(4, bias), np.ones((3, 4)) * [[1], [2], [-1]], [0.0, 0.5, -0.5])
    result = measure(mlp, np.ones((5, 2)), np.ones((1, 2)), [1])
    for row in result.rows[2:]:
        assert (row.agreement_cal, row.agreement_test, row.nonfinite_samples) == (1.0, 1.0, 0), row.name


def test_a_single_sample_with_a_single_unit_works():
    mlp = MLP([[1.0]], [0.0], [[1.0]], [-0.5])
    result = measure(mlp, [[2.0]], [[2.0]])
    assert all(row.agreement_test == 1.0 for row in result.rows)


@settings(deadline=None, max_examples=25)
@given(st.floats(-300.0, 99.0), st.floats(0.0, 8.0))
def test_no_scale_of_the_data_breaks_it(exponent, spread):
    rng = np.random.default_rng(0)
    mlp = MLP(rng.normal(size=(4, 2)), np.zeros(4), rng.normal(size=(2, 4)), np.zeros(2))
    X = rng.normal(size=(20, 2)) * 10.0**exponent
    X[0] *= 10.0**-spread
    for row in measure(mlp, X, X).rows:
        assert 0.0 <= row.agreement_cal <= 1.0
        assert row.activation_error is None or row.activation_error >= 0.0


def test_the_files_hold_what_the_rows_hold():
    mlp, X_cal, X_test, y_test = problem()
    result = measure(mlp, X_cal, X_test, y_test)
    document = json.loads(json.dumps(result.to_dict()))
    assert document["format"] == "quad4fhe-comparison-1"
    assert document["rows"][3]["agreement_test"] == result.rows[3].agreement_test
    lines = list(csv.DictReader(io.StringIO(result.to_csv())))
    assert [line["name"] for line in lines] == NAMES
    assert float(lines[5]["macro_f1"]) == result.rows[5].macro_f1
    assert lines[0]["degree"] == ""


def test_the_table_shows_every_replacement_and_leaves_out_empty_columns():
    mlp, X_cal, X_test, _ = problem()
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(comparison_table(measure(mlp, X_cal, X_test)))
    text = console.export_text()
    assert all(name in text for name in NAMES)
    assert "acc %" not in text


def test_a_comparison_prints_as_a_table() -> None:
    found = compare(PAIRS.mlp, PAIRS_X, PAIRS_X, PAIRS.mlp.decide(PAIRS_X), fits={"ours": PAIRS})
    lines = str(found).splitlines()
    assert repr(found) == str(found)
    assert lines[1].split()[:3] == ["name", "cal", "%"]
    assert [line.split()[0] for line in lines[2 : 2 + len(found.rows)]] == [row.name.split()[0] for row in found.rows]
    own = next(line for line in lines if line.startswith("ours"))
    assert f"{100 * PAIRS.agreement(PAIRS_X):.2f}" in own
    assert max(map(len, lines)) <= 120
    assert "\x1b" not in str(found)


def test_progress_is_told_to_the_end():
    mlp, X_cal, X_test, _ = problem()
    seen = []
    measure(mlp, X_cal, X_test, progress=lambda text, done, total: seen.append((text, done, total)))
    last = {text: (done, total) for text, done, total in seen}
    assert len(last) == 3
    assert all(done == total for done, total in last.values())


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1], "y_test has shape"),
        (np.full(400, 4), "class ids 4 to 4"),
        (np.full(400, -1), "class ids -1 to -1"),
        (np.full(400, 0.5), "whole numbers"),
        (np.full(400, "a"), "whole numbers"),
        (np.full(400, np.nan), "whole numbers"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels, message):
    mlp, X_cal, X_test, _ = problem()
    with pytest.raises(InputError, match=message):
        measure(mlp, X_cal, X_test, labels)


def test_inputs_that_do_not_fit_are_refused():
    mlp, X_cal, X_test, _ = problem()
    with pytest.raises(InputError, match="X_test has no rows"):
        measure(mlp, X_cal, X_test[:0])
    with pytest.raises(InputError, match="X_cal has no rows"):
        measure(mlp, X_cal[:0], X_test)
    with pytest.raises(InputError, match="X_test has 3 columns"):
        measure(mlp, X_cal, X_test[:, :3])
    with pytest.raises(InputError, match="NaN or infinite"):
        measure(mlp, np.where(X_cal > 2.0, np.nan, X_cal), X_test)
    with pytest.raises(InputError, match="the name of the model itself"):
        measure(mlp, X_cal, X_test, replacements={"ReLU": square()})
    other = MLP(np.ones((2, 5)), np.zeros(2), np.ones((3, 2)), np.zeros(3))
    with pytest.raises(InputError, match="takes 5 features to 3 logits"):
        measure(mlp, X_cal, X_test, replacements={"other": PolynomialModel.shared(other, 1.0, 0.0, 0.0)})


def test_quad_is_the_papers_quadratic_also_where_another_family_is_better() -> None:
    rng = np.random.default_rng(5)
    first, head = rng.normal(size=(12, 6)), rng.normal(size=(3, 12))
    mlp, X = MLP(first, rng.normal(size=12), head, rng.normal(size=3)), rng.normal(size=(600, 6))
    found = fitted(Problem(mlp, X, auto=True), published=False)
    for name, options in (("Quad", {"polish": False}), ("Quad+polish", {})):
        assert found[name].sha256 == fit(mlp, X, family="shared", **options).model.sha256
    (auto,) = (name for name in found if name.startswith("auto:"))
    assert auto != "auto:shared"


def test_a_degree_compares_all_methods_at_that_degree() -> None:
    rng = np.random.default_rng(4)  # degree 4 cross-validates clearly better than degree 3
    mlp = MLP(rng.standard_normal((12, 4)), rng.standard_normal(12), rng.standard_normal((3, 12)), np.zeros(3))
    X = rng.standard_normal((600, 4))
    rows = {row.name: row for row in compare(mlp, X, X, degree=4).rows}
    assert {"LS-4", "Remez-4", "OLA-4", "unitwise-4"} <= rows.keys()
    assert {rows[name].degree for name in ("LS-4", "Remez-4", "OLA-4", "unitwise-4")} == {4}
    assert rows["Quad"].degree == 2
    made = fit(mlp, X, family="unitwise", degree=4)
    assert rows["unitwise-4"].agreement_test == float(np.mean(made.model.decide(X) == mlp.decide(X)))
    with pytest.raises(InputError, match="degree is 5"):
        compare(mlp, X, X, degree=5)


def test_a_deeper_network_is_refused() -> None:
    deeper = DeepMLP(np.ones((3, 5)), np.zeros(3), [(np.ones((4, 3)), np.zeros(4)), (np.ones((2, 4)), np.zeros(2))])
    with pytest.raises(InputError, match="compare replaces the activation of one hidden layer, and this network has 2"):
        compare(deeper, np.ones((2, 5)), np.ones((2, 5)))
