"""Models from scikit-learn: a fitted MLPClassifier, alone or behind affine preprocessing in a Pipeline.

Decides what each step does to a sample, as an affine map; folding the maps is left to `_chain`. The decision is an
index into the classifier's `classes_`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from quad4fhe.errors import InputError, MissingExtraError
from quad4fhe.importers._chain import Chain
from quad4fhe.mlp import MLP

_SUPPORTED = (
    "supported: a fitted MLPClassifier with one hidden ReLU layer, alone or in a Pipeline behind StandardScaler, "
    "MinMaxScaler, MaxAbsScaler, RobustScaler or PCA"
)


def from_sklearn(estimator: Any) -> MLP:
    """Import a fitted MLPClassifier, alone or behind scalers in a Pipeline.

    A binary classifier becomes one score (K = 1), positive for `classes_[1]`.
    """
    try:
        from sklearn.exceptions import NotFittedError
        from sklearn.neural_network import MLPClassifier
        from sklearn.utils.validation import check_is_fitted
    except ImportError:
        raise MissingExtraError("scikit-learn", "sklearn", "importing a scikit-learn model") from None

    steps = list(_steps("", estimator))
    for label, step in steps:
        if isinstance(step, type) or not hasattr(step, "fit"):
            raise InputError(f"got {label}, wanted a scikit-learn estimator; {_SUPPORTED}")
        try:
            check_is_fitted(step)
        except NotFittedError:
            raise InputError(f"{label} is not fitted; call fit(X, y) first") from None
    if not steps or not isinstance(steps[-1][1], MLPClassifier):
        came = f"the model ends in {steps[-1][0]}" if steps else "the Pipeline has no steps"
        raise InputError(f"{came}, wanted an MLPClassifier; {_SUPPORTED}")
    chain = Chain()
    for label, step in steps[:-1]:
        chain = _preprocess(chain, label, step)
    return _classify(chain, *steps[-1])


def _steps(name: str, estimator: Any) -> Iterator[tuple[str, Any]]:
    """The steps of nested Pipelines in order; FrozenEstimator is looked through, 'passthrough' left out."""
    from sklearn.pipeline import Pipeline

    if type(estimator).__name__ == "FrozenEstimator":  # by name: older scikit-learn has no such class
        yield from _steps(name, estimator.estimator)
    elif isinstance(estimator, Pipeline):
        for key, step in estimator.steps:
            yield from _steps(key, step)
    elif estimator is not None and not (isinstance(estimator, str) and estimator == "passthrough"):
        kind = type(estimator).__name__
        yield (f"step {name!r} ({kind})" if name else kind), estimator


def _preprocess(chain: Chain, label: str, step: Any) -> Chain:
    from sklearn import decomposition, preprocessing

    if getattr(step, "clip", False):
        raise InputError(f"{label} clips its output, which is not affine; refit it with clip=False")
    # Exact types: a subclass may transform differently.
    if type(step) is decomposition.PCA:
        rows = step.components_
        if step.whiten:
            rows = rows / np.sqrt(np.maximum(step.explained_variance_, np.finfo(rows.dtype).eps))[:, None]
        return chain.linear(label, rows, -rows @ step.mean_)
    maps: dict[type, Callable[[Any], tuple[Any, Any]]] = {
        # with_mean=False still leaves a mean_ behind, so the option decides and not the attribute
        preprocessing.StandardScaler: lambda s: _standardise(
            s.mean_ if s.with_mean else 0, s.scale_ if s.with_std else 1
        ),
        preprocessing.RobustScaler: lambda s: _standardise(
            s.center_ if s.with_centering else 0, s.scale_ if s.with_scaling else 1
        ),
        preprocessing.MaxAbsScaler: lambda s: _standardise(0, s.scale_),
        preprocessing.MinMaxScaler: lambda s: (s.scale_, s.min_),
    }
    if type(step) not in maps:
        raise InputError(f"{label} is not an affine map that can be folded; {_SUPPORTED}")
    return chain.scale(label, *maps[type(step)](step))


def _standardise(centre: Any, spread: Any) -> tuple[Any, Any]:
    """(x - centre) / spread as scale and shift."""
    return np.reciprocal(np.asarray(spread, dtype=np.float64)), -np.asarray(centre, dtype=np.float64) / spread


def _classify(chain: Chain, label: str, classifier: Any) -> MLP:
    hidden = len(classifier.coefs_) - 1
    if hidden != 1:
        raise InputError(f"{label} has {hidden} hidden layers, but only one is supported; refit with one")
    if classifier.activation != "relu":
        raise InputError(
            f"the hidden layer of {label} has activation {classifier.activation!r}, but only 'relu' is supported"
        )
    if classifier.out_activation_ == "logistic" and classifier.n_outputs_ > 1:
        raise InputError(f"{label} is multilabel ({classifier.n_outputs_} labels); supported: one class per sample")
    if len(classifier.classes_) < 2:
        raise InputError(f"{label} was fitted on one class; wanted at least two")
    (first, second), (first_bias, second_bias) = classifier.coefs_, classifier.intercepts_
    chain = chain.linear(f"the hidden layer of {label}", first.T, first_bias).relu(label)
    return chain.linear(f"the output layer of {label}", second.T, second_bias).mlp()
