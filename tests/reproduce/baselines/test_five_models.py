"""The published ordering, on the five trained models, and the published figures where the models are the same."""

from __future__ import annotations

import csv
from functools import cache

import pytest

from quad4fhe_reproduce.baselines import measure

MODELS = ("breast_cancer", "diabetes", "shuttle", "otto", "sst5")
METHODS = {"square": "Square", "ola": "OLA", "precise_a11": "Precise-11"}
METHODS |= {f"ls_poly_{d}": f"LS-{d}" for d in (2, 3, 5, 7)} | {f"remez_{d}": f"Remez-{d}" for d in (2, 3, 5, 7)}


@pytest.fixture(scope="module")
def compared(trained):
    @cache
    def run(name):
        model = trained(name)
        return measure(model.mlp, model.X_cal, model.X_test, model.y_test)

    return run


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("part", ["agreement_cal", "agreement_test"])
def test_square_is_last_remez_and_ola_between_and_precise_at_relu_level(compared, name, part):
    result = compared(name)
    keeps = {row.name: getattr(row, part) for row in result.rows}
    assert keeps["Square"] < min(keeps["Remez-7"], keeps["OLA"])
    assert max(keeps["Remez-7"], keeps["OLA"]) <= keeps["Precise-11"]
    assert keeps["Precise-11"] >= 0.995
    assert keeps["Remez-2"] <= keeps["Remez-5"] <= keeps["Remez-7"]


@pytest.mark.parametrize("name", MODELS)
def test_precise_keeps_the_accuracy_of_relu(compared, name):
    result = compared(name)
    assert result["Precise-11"].accuracy == pytest.approx(result["ReLU"].accuracy, abs=0.005)


@pytest.mark.parametrize("name", MODELS)
def test_nothing_overflows(compared, name):
    result = compared(name)
    assert all(row.nonfinite_samples == 0 for row in result.rows)


@pytest.mark.parametrize(("name", "published_name"), [("breast_cancer", "BWC"), ("diabetes", "Diabetes")])
def test_where_the_trained_models_are_the_same_the_published_figures_are_met(trained, compared, name, published_name):
    published = trained(name).path.parents[2] / "paper" / "published_results.csv"
    if not published.exists():
        pytest.skip(f"no published results to compare with: looked for {published}")
    result = compared(name)
    with published.open() as file:
        chosen = [
            line
            for line in csv.DictReader(file)
            if (line["dataset"], line["protocol"], line["width"]) == (published_name, "fulltrain", "256")
        ]
    for line in chosen:
        if line["method"] in METHODS:
            row = result[METHODS[line["method"]]]
            assert row.agreement_cal == pytest.approx(float(line["cal_agreement"]), abs=1e-3), row.name
            assert row.agreement_test == pytest.approx(float(line["test_agreement"]), abs=1e-3), row.name
