from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, softmax

from quad4fhe import MLP, InputError, MissingExtraError
from support.reference_models import Net, assert_refused, nets

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    RobustScaler,
    StandardScaler,
)

SCALERS = {
    "none": lambda: "passthrough",
    "standard": StandardScaler,
    "standard, centre only": lambda: StandardScaler(with_std=False),
    "standard, scale only": lambda: StandardScaler(with_mean=False),
    "minmax": lambda: MinMaxScaler(feature_range=(-2, 3)),
    "maxabs": MaxAbsScaler,
    "robust": lambda: RobustScaler(quantile_range=(10, 80)),
    "robust, scale only": lambda: RobustScaler(with_centering=False),
    "pca": lambda: PCA(n_components=0.999),
    "whitened pca": lambda: PCA(n_components=1, whiten=True),
}


def fitted(net: Net, *steps: Any, labels: Any = None, **options: Any) -> Any:
    X = net.samples()
    y = np.arange(len(X)) % net.classes if labels is None else labels
    options = {"hidden_layer_sizes": (net.m,), "max_iter": 3, "random_state": net.seed} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # three epochs do not converge
        return make_pipeline(*steps, MLPClassifier(**options)).fit(X, y)


NET = Net(d=3, m=4, classes=3, seed=5)


@settings(max_examples=60, deadline=None)
@given(nets(), st.sampled_from(sorted(SCALERS)), st.sampled_from(sorted(SCALERS)))
def test_a_pipeline_is_imported_with_its_own_probabilities_and_decisions(net: Net, first: str, second: str) -> None:
    model = fitted(net, SCALERS[first](), SCALERS[second]())
    mlp = MLP.from_sklearn(model)
    X = net.samples(60)
    proba = model.predict_proba(X)
    logits = mlp.logits(X)
    mine = softmax(logits, axis=1) if net.classes > 2 else np.hstack([expit(-logits), expit(logits)])
    np.testing.assert_allclose(mine, proba, rtol=1e-7, atol=1e-10)
    ranked = np.sort(proba, axis=1)
    clear = ranked[:, -1] - ranked[:, -2] > 1e-9
    np.testing.assert_array_equal(model.classes_[mlp.decide(X)][clear], model.predict(X)[clear])


def test_a_bare_classifier_keeps_its_weights_to_the_last_bit() -> None:
    model = fitted(NET)[-1]
    mlp = MLP.from_sklearn(model)
    np.testing.assert_array_equal(mlp.W1, model.coefs_[0].T)
    np.testing.assert_array_equal(mlp.b2, model.intercepts_[1])


def test_a_binary_classifier_is_one_score_positive_for_its_second_class() -> None:
    net = Net(d=3, m=4, classes=2, seed=1)
    model = fitted(net, labels=np.array(["no", "yes"])[np.arange(40) % 2])
    mlp = MLP.from_sklearn(model)
    assert mlp.outputs == 1
    X = net.samples()
    np.testing.assert_array_equal(np.array(["no", "yes"])[mlp.decide(X)], model.predict(X))


def test_frozen_estimators_and_nested_pipelines_are_unwrapped() -> None:
    frozen = pytest.importorskip("sklearn.frozen", reason="scikit-learn before 1.6 has no FrozenEstimator")
    model = fitted(NET, StandardScaler(), MinMaxScaler())
    wrapped = Pipeline(
        [("scalers", frozen.FrozenEstimator(model[:2])), ("nothing", None), ("net", frozen.FrozenEstimator(model[-1]))]
    )
    assert MLP.from_sklearn(frozen.FrozenEstimator(wrapped)).sha256 == MLP.from_sklearn(model).sha256


class Doubler(TransformerMixin, BaseEstimator):  # type: ignore[misc] # its base has no types
    def fit(self, X: Any, y: Any = None) -> Doubler:
        self.fitted_ = True
        return self

    def transform(self, X: Any) -> Any:
        return 2 * X


def broken(**weights: Any) -> Any:
    model = fitted(NET)
    for name, value in weights.items():
        getattr(model[-1], name)[0] = value
    return model


REFUSALS = {
    "not fitted": (lambda: MLPClassifier(), ["MLPClassifier is not fitted", "fit(X, y)"]),
    "scaler not fitted": (
        lambda: Pipeline([("scale", StandardScaler()), ("net", fitted(NET)[-1])]),
        ["step 'scale' (StandardScaler) is not fitted"],
    ),
    "no hidden layer": (lambda: fitted(NET, hidden_layer_sizes=()), ["has 0 hidden layers"]),
    "identity": (lambda: fitted(NET, activation="identity"), ["hidden layer", "'identity'", "the model is linear"]),
    "multilabel": (
        lambda: fitted(NET, labels=np.arange(80).reshape(40, 2) % 3 % 2),
        ["(MLPClassifier) is multilabel (2 labels)", "one class per sample"],
    ),
    "unknown transformer": (lambda: fitted(NET, Doubler()), ["Doubler", "skl2onnx can't write", "example="]),
    "another classifier": (
        lambda: LogisticRegression().fit(NET.samples(), np.arange(40) % 2),
        ["ends in LogisticRegression", "wanted an MLPClassifier"],
    ),
    "a regressor": (
        lambda: MLPRegressor(hidden_layer_sizes=(3,), solver="lbfgs", tol=1e9).fit(NET.samples(), np.arange(40)),
        ["ends in MLPRegressor"],
    ),
    "no steps left": (lambda: Pipeline([("only", "passthrough")]), ["the Pipeline has no steps"]),
    "not an estimator": (lambda: 3, ["got int", "wanted a scikit-learn estimator"]),
    "a class": (lambda: MLPClassifier, ["wanted a scikit-learn estimator"]),
    "NaN weight": (lambda: broken(coefs_=np.full((3, 4), np.nan)), ["weight of the hidden layer of step", "NaN"]),
    "wrong shape": (lambda: broken(coefs_=np.ones((3, 5))), ["the hidden layer of step", "5 rows"]),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_imported_is_refused_in_one_line_that_names_it(case: str) -> None:
    make, words = REFUSALS[case]
    with pytest.raises(InputError) as caught:
        MLP.from_sklearn(make())
    assert_refused(str(caught.value), *words)


def test_without_scikit_learn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.exceptions", None)
    with pytest.raises(MissingExtraError, match=r"quad4fhe\[sklearn\]"):
        MLP.from_sklearn(object())
