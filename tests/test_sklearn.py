from __future__ import annotations

import pickle
import sys
import warnings
from typing import Any

import numpy as np
import pytest

import quad4fhe
from quad4fhe import MLP, InputError, MissingExtraError, fit, verify

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.base import clone, is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

from quad4fhe import QuadraticReplacement


def untrained(**options: Any) -> MLPClassifier:
    return MLPClassifier(**({"hidden_layer_sizes": (8,), "solver": "lbfgs", "random_state": 0} | options))


def trained(X: Any, y: Any, *steps: Any) -> Any:
    return make_pipeline(*steps, untrained(max_iter=100)).fit(X, y)


def problem(classes: int = 2, n: int = 150) -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, 4)) * [1.0, 5.0, 0.2, 2.0] + [0.0, 10.0, 1.0, -3.0]
    score = X[:, 0] + 0.3 * (X[:, 1] - 10) + rng.normal(scale=0.3, size=n)
    return X, np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))


# An untrained classifier makes an estimator like any other: nothing is expected to fail.
@parametrize_with_checks([QuadraticReplacement(untrained(hidden_layer_sizes=(16,), max_iter=500), family="shared")])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_an_untrained_classifier_passes_every_check_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


# What a trained classifier can't do, and why. The data of the checks are scikit-learn's own, the classifier is ours.
EXPECTED_MESSAGES = {
    "but MLPClassifier is expecting 3 features": "the classifier was trained on three features, the check has others",
    "so there is no decision to keep": "the classifier takes one decision for all of the check's data",
}
EXPECTED_CHECKS = {
    "check_classifiers_one_label": "the classes are those the classifier was trained on, y is not used",
    "check_classifiers_regression_target": "y is not used, so a continuous one is no mistake",
    "check_supervised_y_2d": "y is not used, so its shape is no mistake",
}


def test_with_a_trained_classifier_every_check_that_fails_is_explained() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 3, size=(80, 3))
    estimator = QuadraticReplacement(trained(X, X.sum(axis=1) > 3.5)[-1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what each check would warn of is not what is asked here
        results = check_estimator(estimator, on_fail=None, on_skip=None)
    unexplained = {
        result["check_name"]: result["exception"]
        for result in results
        if result["status"] == "failed"
        and result["check_name"] not in EXPECTED_CHECKS
        and not any(words in message for message in _chain(result["exception"]) for words in EXPECTED_MESSAGES)
    }
    assert not unexplained
    assert sum(result["status"] == "passed" for result in results) >= 20


def _chain(error: BaseException | None) -> list[str]:
    messages = []
    while error is not None:
        messages.append(str(error))
        error = error.__cause__ or error.__context__
    return messages


@pytest.mark.parametrize("classes", [2, 3])
def test_it_is_fit_with_labels(classes: int) -> None:
    X, index = problem(classes)
    y = np.array(["low", "mid", "high"])[index]
    model = trained(X, y, StandardScaler())
    replaced = QuadraticReplacement(model).fit(X)
    direct = fit(MLP.from_sklearn(model), X)
    assert replaced.fit_.model.sha256 == direct.model.sha256
    np.testing.assert_array_equal(replaced.predict(X), model.classes_[direct.predict(X)])
    np.testing.assert_array_equal(replaced.decision_function(X), direct.decision_function(X))
    assert replaced.classes_.tolist() == model.classes_.tolist()
    assert replaced.agreement(X) == np.mean(replaced.predict(X) == model.predict(X))
    assert replaced.score(X, y) == np.mean(replaced.predict(X) == y)
    verify(replaced.fit_, None, X)
    assert is_classifier(replaced)
    assert not hasattr(replaced, "predict_proba")


@pytest.mark.parametrize("wrap", [lambda model: model, FrozenEstimator])
def test_a_trained_classifier_is_never_trained_again(wrap: Any) -> None:
    X, y = problem()
    model = trained(X, y)[-1]
    before = [array.copy() for array in model.coefs_]
    replaced = QuadraticReplacement(wrap(model)).fit(X, 1 - y)  # labels that would teach it the opposite
    assert clone(replaced).estimator is replaced.estimator
    assert all((a == b).all() for a, b in zip(before, model.coefs_, strict=True))
    assert replaced.agreement(X) > 0.9


def test_a_clone_shares_the_trained_classifier_but_not_the_fit() -> None:
    X, y = problem()
    replaced = QuadraticReplacement(trained(X, y), family="head", seed=7).fit(X)
    copy = clone(replaced)
    assert copy.estimator is replaced.estimator
    assert (copy.family, copy.seed) == ("head", 7)
    with pytest.raises(NotFittedError):
        copy.predict(X)


def test_an_untrained_classifier_is_trained_on_a_clone() -> None:
    X, y = problem()
    inner = make_pipeline(StandardScaler(), untrained(max_iter=1000))
    replaced = QuadraticReplacement(inner).fit(X, y)
    with pytest.raises(NotFittedError):
        inner.predict(X)
    assert clone(replaced).estimator is not inner
    assert replaced.agreement(X) == np.mean(replaced.predict(X) == replaced.estimator_.predict(X))


def test_it_works_behind_a_scaler_and_in_cross_validation() -> None:
    X, y = problem(3)
    scaler = StandardScaler().fit(X)
    model = trained(scaler.transform(X), y)[-1]
    pipeline = Pipeline([("scale", FrozenEstimator(scaler)), ("net", QuadraticReplacement(model, family="shared"))])
    scores = cross_val_score(pipeline, X, y, cv=3, error_score="raise")
    assert (scores > 0.6).all()
    agreed = cross_val_score(
        QuadraticReplacement(trained(X, y, StandardScaler()), family="shared"),
        X,
        y,
        cv=3,
        scoring=lambda replaced, X, y: replaced.agreement(X),
        error_score="raise",
    )
    assert (agreed > 0.7).all()


def test_grid_search_chooses_among_families() -> None:
    X, y = problem()
    search = GridSearchCV(QuadraticReplacement(trained(X, y)), {"family": ["shared", "head"]}, cv=2).fit(X, y)
    assert search.best_estimator_.fit_.family == search.best_params_["family"]


def test_probabilities_come_from_calibration() -> None:
    X, y = problem()
    replaced = QuadraticReplacement(trained(X, y)).fit(X)
    calibrated = CalibratedClassifierCV(FrozenEstimator(replaced)).fit(X, y)
    proba = calibrated.predict_proba(X)
    np.testing.assert_allclose(proba.sum(axis=1), 1.0)
    # Platt's map is monotone: the order of samples is that of the polynomial model's scores.
    order = np.argsort(replaced.decision_function(X), kind="stable")
    assert (np.diff(proba[order, 1]) >= -1e-12).all()


def test_the_names_of_features_are_kept_and_checked() -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: no table with named columns")
    X, y = problem()
    table = arrow.table(dict(zip("abcd", X.T, strict=True)))
    replaced = QuadraticReplacement(trained(table, y)).fit(table)
    assert replaced.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    with pytest.raises(ValueError, match="feature names"):
        replaced.predict(table.select(["b", "a", "c", "d"]))
    with pytest.raises(ValueError, match="feature names"):
        QuadraticReplacement(replaced.estimator).fit(table.select(["b", "a", "c", "d"]))


def test_it_survives_pickle_and_shows_itself_in_a_notebook() -> None:
    X, y = problem()
    unfitted = QuadraticReplacement(trained(X, y))
    assert "certificate" not in unfitted._repr_html_()
    replaced = unfitted.fit(X)
    again = pickle.loads(pickle.dumps(replaced))
    np.testing.assert_array_equal(again.decision_function(X), replaced.decision_function(X))
    page = replaced._repr_html_()
    assert replaced.fit_._repr_html_() in page
    assert "QuadraticReplacement" in page
    assert replaced.fit_._repr_html_() in replaced._repr_mimebundle_()["text/html"]
    assert str(replaced.fit_.regime) in page


def test_parameters_of_a_trained_classifier_cannot_be_set() -> None:
    X, y = problem()
    replaced = QuadraticReplacement(trained(X, y)[-1])
    with pytest.raises(InputError, match=r"estimator__alpha belongs to a classifier that is fitted"):
        replaced.set_params(estimator__alpha=1.0)
    fresh = QuadraticReplacement(untrained()).set_params(estimator__alpha=0.5, family="auto")
    assert (fresh.estimator.alpha, fresh.family) == (0.5, "auto")


@pytest.mark.parametrize(
    ("estimator", "options", "says"),
    [
        (None, {}, "estimator is None, wanted an MLPClassifier"),
        (MLPClassifier, {}, "wanted an MLPClassifier"),
        (untrained(), {}, "call fit(X, y)"),
        ("regressor", {}, "wanted an MLPClassifier"),
        ("trained", {"family": "best"}, "family is 'best'"),
        ("trained", {"regime": "hard", "family": "head"}, "regime='hard'"),
        ("trained", {"target_agreement": 2.0}, "target_agreement is 2.0"),
    ],
)
def test_a_mistake_is_one_line(estimator: Any, options: Any, says: str) -> None:
    X, y = problem()
    made = {
        "trained": lambda: trained(X, y),
        "regressor": lambda: MLPRegressor(hidden_layer_sizes=(3,), solver="lbfgs", max_iter=2000, tol=1.0).fit(
            X, X[:, 0]
        ),
    }
    inner = made[estimator]() if isinstance(estimator, str) else estimator
    with pytest.raises(InputError) as caught:
        QuadraticReplacement(inner, **options).fit(X)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "quad4fhe.sklearn")
    monkeypatch.delitem(vars(quad4fhe), "QuadraticReplacement", raising=False)  # loaded names are kept there
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'quad4fhe\[sklearn\]'"):
        _ = quad4fhe.QuadraticReplacement
