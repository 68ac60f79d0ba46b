"""Figures of a run against scikit-learn's and against counting by hand."""

from __future__ import annotations

import numpy as np
import pytest

from quad4fhe_reproduce.measure import auc, class_agreement, class_f1, deciles, margins

rng = np.random.default_rng(5)


def test_f1_by_class_is_that_of_scikit_learn() -> None:
    from sklearn.metrics import f1_score

    truth, decided = rng.integers(0, 6, 400), rng.integers(0, 6, 400)
    wanted = f1_score(truth, decided, average=None)
    assert class_f1(truth, decided, 6) == pytest.approx(list(wanted), abs=1e-5)


def test_a_class_that_never_occurs_has_no_f1_and_no_agreement() -> None:
    truth, decided = np.array([0, 0, 2]), np.array([0, 2, 2])
    assert class_f1(truth, decided, 4) == [pytest.approx(2 / 3, abs=1e-5), None, pytest.approx(2 / 3, abs=1e-5), None]
    assert class_agreement(truth, decided, 4) == [0.5, None, 1.0, None]


def area_by_pairs(positive: np.ndarray, scores: np.ndarray) -> float:
    """The share of pairs in which the positive scores above the negative, ties counting half."""
    gaps = scores[positive][:, None] - scores[~positive][None, :]
    return float(np.mean((gaps > 0) + 0.5 * (gaps == 0)))


@pytest.mark.parametrize("classes", [3, 7])
def test_auc_is_the_mean_over_classes_of_the_share_of_pairs_in_order(classes: int) -> None:
    truth = rng.integers(0, classes, 300)
    logits = rng.normal(size=(300, classes)) + 2 * np.eye(classes)[truth]
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    wanted = np.mean([area_by_pairs(truth == label, shares[:, label]) for label in range(classes)])
    assert auc(truth, logits) == pytest.approx(wanted, abs=1e-12)


def test_auc_of_one_score_is_the_share_of_pairs_in_order() -> None:
    truth, score = rng.integers(0, 2, 200), rng.normal(size=(200, 1)).round(1)
    assert auc(truth, score) == pytest.approx(area_by_pairs(truth == 1, score[:, 0]), abs=1e-12)


def test_auc_is_unknown_where_a_class_has_no_samples_or_a_logit_overflows() -> None:
    logits = rng.normal(size=(20, 3))
    assert auc(np.arange(20) % 2, logits) is None
    logits[0, 0] = np.inf
    assert auc(np.arange(20) % 3, logits) is None


def test_tenths_go_from_the_least_sure_to_the_surest() -> None:
    sureness = rng.permutation(100).astype(float)
    kept = sureness >= 15
    assert deciles(sureness, kept) == [0.0, 0.5] + [1.0] * 8


def test_margins_are_the_gap_of_the_two_largest_logits_or_the_size_of_the_score() -> None:
    assert margins(np.array([[1.0, 5.0, 3.5], [2.0, 2.0, -9.0]])).tolist() == [1.5, 0.0]
    assert margins(np.array([[-0.25], [3.0]])).tolist() == [0.25, 3.0]
