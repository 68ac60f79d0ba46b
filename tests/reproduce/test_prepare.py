"""Splits, scaling and pools: those of the paper, fitted on the training part alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from conftest import DATA, Trained
from quad4fhe_reproduce.data.prepared import Rows, read_rows
from quad4fhe_reproduce.prepare import Parts, _full_split, _pool_split, _Split, _text_features, draw_pool, prepare
from quad4fhe_reproduce.recipes import RECIPES, Text, recipe

# (calibration, test) rows of the published full-train runs at hand with the paper's own data.
PUBLISHED = {
    "breast_cancer": (455, 114),
    "diabetes": (7630, 1908),
    "otto": (49502, 12376),
    "shuttle": (46400, 11600),
    "sst5": (9645, 2210),
    "sib200_usem": (4800, 1224),
}


def _need(name: str) -> None:
    if not (DATA / recipe(name).data.file).exists():
        pytest.skip(f"no {recipe(name).data.file}: set QUAD4FHE_DATA to the data folder (looked in {DATA})")


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_full_train_split_has_the_published_sizes(name: str) -> None:
    _need(name)
    rows = read_rows(recipe(name).data, DATA)
    split = _full_split(recipe(name), rows, rows.y, 2026)
    assert (split.train.size + split.val.size, split.test.size) == PUBLISHED[name]
    assert np.unique(np.concatenate([split.train, split.val, split.test])).size == rows.y.size


@pytest.mark.parametrize("name", ["breast_cancer", "diabetes", "shuttle", "otto"])
def test_the_arrays_are_those_the_reference_models_were_trained_on(
    name: str, trained: Callable[[str], Trained]
) -> None:
    reference = trained(name)
    parts = prepare(recipe(name), DATA, 2026, pool=False)
    np.testing.assert_allclose(parts.X_cal, reference.X_cal, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(parts.X_test, reference.X_test, rtol=1e-5, atol=1e-5)
    assert np.array_equal(parts.y_test, reference.y_test)


def test_scaling_is_fitted_on_the_training_part_alone() -> None:
    _need("diabetes")
    parts = prepare(recipe("diabetes"), DATA, 2027, pool=False)
    np.testing.assert_allclose(parts.X_train.mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(parts.X_train.std(axis=0), 1.0, atol=1e-4)
    assert np.abs(parts.X_test.mean(axis=0)).max() > 1e-3


@pytest.mark.parametrize("name", ["diabetes", "sst5", "ag_news", "sib200_usem"])
def test_the_small_pool_parts_are_disjoint_and_have_the_stated_shares(name: str) -> None:
    _need(name)
    rows = read_rows(recipe(name).data, DATA)
    split = _pool_split(recipe(name), rows, rows.y, 2026)
    parts = [split.train, split.val, split.test, split.reserve]
    assert np.unique(np.concatenate(parts)).size == sum(part.size for part in parts)
    for part, share in ((split.train, 0.5), (split.val, 0.1), (split.reserve, 0.2)):
        assert part.size == pytest.approx(share * split.rows, abs=2)
    if recipe(name).pool == "train":
        assert rows.split is not None
        assert np.array_equal(split.test, np.flatnonzero(rows.split == rows.split.max()))
    else:
        assert split.test.size == pytest.approx(0.2 * split.rows, abs=2)


def _reserve(counts: list[int], rows: int) -> Parts:
    y = np.repeat(np.arange(len(counts)), counts)
    X, none = np.zeros((y.size, 1), dtype=np.float32), np.zeros(0, dtype=np.int64)
    few = X[:0]
    return Parts(few, none, few, none, few, none, X, y, classes=len(counts), rows=rows, sha256="", origin="")


def test_a_pool_is_stratified_to_within_one_row_of_each_class() -> None:
    parts = _reserve([500, 300, 195, 5], rows=5000)
    drawn = draw_pool(parts, 0.05, 2026)
    assert drawn.size == 250
    assert np.unique(drawn).size == 250
    counts = np.bincount(parts.y_reserve[drawn], minlength=4)
    assert np.abs(counts - np.array([125, 75, 48.75, 1.25])).max() < 1
    assert not np.array_equal(drawn, draw_pool(parts, 0.05, 2027))


def test_the_largest_pool_is_the_whole_reserve() -> None:
    parts = _reserve([500, 300, 195, 5], rows=5000)
    assert np.array_equal(draw_pool(parts, 0.2, 2026), np.arange(1000))


def test_a_pool_with_fewer_rows_than_classes_is_not_drawn() -> None:
    assert draw_pool(_reserve([2] * 50, rows=500), 0.05, 2026).size == 0


def test_text_features_are_fitted_on_the_training_part_alone() -> None:
    rows = Rows(None, ["good film", "bad film", "dull plot", "fine plot", "unseen word"], np.arange(5), None, "", "")
    order = np.arange(5)
    split = _Split(order[:4], order[:0], order[4:], order[:0], 5)
    X = _text_features(rows, Text(words=10, dimensions=2), split, 2026)
    assert X.shape == (5, 2)
    assert np.abs(X[4]).max() == 0.0  # none of its words is known
    assert np.abs(X[:4]).max() > 0.1


def test_every_recipe_has_its_data_set_and_its_published_row() -> None:
    from quad4fhe_reproduce.published import fulltrain

    for each in RECIPES:
        assert fulltrain(each.paper, 256) is not None
        assert each.same == (not each.data.labelled)
