"""Models from scikit-learn: a fitted MLPClassifier, alone or at the end of a Pipeline.

The decision is an index into the classifier's `classes_`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from quad4fhe.activations import RELU, Activation
from quad4fhe.errors import InputError, MissingExtraError
from quad4fhe.importers import Importer
from quad4fhe.importers._chain import Chain
from quad4fhe.importers._sklearn_features import feature_part
from quad4fhe.mlp import MLP
from quad4fhe.names import names_of

_SUPPORTED = (
    "supported: a fitted MLPClassifier with one hidden layer, alone or at the end of a Pipeline of StandardScaler, "
    "MinMaxScaler, MaxAbsScaler, RobustScaler, PCA, or any preprocessing that skl2onnx can write"
)
_ACTIVATIONS = {"relu": RELU, "tanh": Activation("tanh"), "logistic": Activation("sigmoid")}


def from_sklearn(estimator: Any, *, example: Any = None) -> MLP:
    """Import a fitted MLPClassifier, alone or at the end of a Pipeline.

    A binary classifier becomes one score (K = 1), positive for `classes_[1]`. Scalers and PCA right before the
    classifier are folded into it; if other steps remain, they become the feature part.
    """
    try:
        from sklearn.base import is_regressor
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
        hint = "quad4fhe keeps decisions, and a regressor makes none; " if is_regressor(estimator) else ""
        raise InputError(f"{came}, wanted an MLPClassifier; {hint}{_SUPPORTED}")
    affine = _affine_steps()
    folds = [type(step) in affine and not getattr(step, "clip", False) for _, step in steps[:-1]]
    front = max((k + 1 for k, fold in enumerate(folds) if not fold), default=0)
    chain = Chain()
    for label, step in steps[front:-1]:
        weight, shift = affine[type(step)](step)
        chain = chain.linear(label, weight, shift) if np.ndim(weight) == 2 else chain.scale(label, weight, shift)
    mlp = _classify(chain, *steps[-1])
    classes = steps[-1][1].classes_.tolist()
    if front:
        return mlp.with_feature_part(feature_part(steps[:front], example)).named(names_of(None, classes))
    return mlp.named(names_of(getattr(estimator, "feature_names_in_", None), classes))


def _steps(name: str, estimator: Any) -> Iterator[tuple[str, Any]]:
    """The steps of nested Pipelines in order, without 'passthrough', and with the estimator in a FrozenEstimator."""
    from sklearn.pipeline import Pipeline

    if type(estimator).__name__ == "FrozenEstimator":  # by name: older scikit-learn has no such class
        yield from _steps(name, estimator.estimator)
    elif isinstance(estimator, Pipeline):
        for key, step in estimator.steps:
            yield from _steps(key, step)
    elif estimator is not None and not (isinstance(estimator, str) and estimator == "passthrough"):
        kind = type(estimator).__name__
        yield (f"step {name!r} ({kind})" if name else kind), estimator


def _affine_steps() -> dict[type, Callable[[Any], tuple[Any, Any]]]:
    """The steps that fold into the first layer, by exact type, because a subclass may transform differently.

    Each function gives the weight matrix, or the scale of each feature, and the shift.
    """
    from sklearn import decomposition, preprocessing

    return {
        decomposition.PCA: _rotate,
        # with_mean=False still leaves a mean_ behind, so the option decides and not the attribute.
        preprocessing.StandardScaler: lambda s: _standardise(
            s.mean_ if s.with_mean else 0, s.scale_ if s.with_std else 1
        ),
        preprocessing.RobustScaler: lambda s: _standardise(
            s.center_ if s.with_centering else 0, s.scale_ if s.with_scaling else 1
        ),
        preprocessing.MaxAbsScaler: lambda s: _standardise(0, s.scale_),
        preprocessing.MinMaxScaler: lambda s: (s.scale_, s.min_),
    }


def _rotate(step: Any) -> tuple[Any, Any]:
    rows = step.components_
    if step.whiten:
        rows = rows / np.sqrt(np.maximum(step.explained_variance_, np.finfo(rows.dtype).eps))[:, None]
    return rows, -rows @ step.mean_


def _standardise(centre: Any, spread: Any) -> tuple[Any, Any]:
    """(x - centre) / spread as scale and shift."""
    return np.reciprocal(np.asarray(spread, dtype=np.float64)), -np.asarray(centre, dtype=np.float64) / spread


def _classify(chain: Chain, label: str, classifier: Any) -> MLP:
    hidden = len(classifier.coefs_) - 1
    if hidden < 1:
        raise InputError(f"{label} has {hidden} hidden layers, wanted at least one; refit with one")
    if classifier.activation not in _ACTIVATIONS:
        raise InputError(
            f"the hidden layer of {label} has activation {classifier.activation!r}, wanted one of "
            f"{', '.join(_ACTIVATIONS)}; with 'identity' the model is linear and needs no replacement"
        )
    if classifier.out_activation_ == "logistic" and classifier.n_outputs_ > 1:
        raise InputError(f"{label} is multilabel ({classifier.n_outputs_} labels); supported: one class per sample")
    if len(classifier.classes_) < 2:
        raise InputError(f"{label} was fitted on one class; wanted at least two")
    *inner, last = zip(classifier.coefs_, classifier.intercepts_, strict=True)
    for number, (weight, bias) in enumerate(inner, start=1):
        which = "the hidden layer" if hidden == 1 else f"hidden layer {number}"
        chain = chain.linear(f"{which} of {label}", weight.T, bias)
        chain = chain.activate(label, _ACTIVATIONS[classifier.activation])
    return chain.linear(f"the output layer of {label}", last[0].T, last[1]).mlp()


IMPORTER = Importer(
    words="a fitted scikit-learn MLPClassifier or a Pipeline that ends in one",
    packages=("sklearn",),
    extra="sklearn",
    read_object=from_sklearn,
    options=("example",),
)
