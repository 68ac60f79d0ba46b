"""`fit` as a scikit-learn meta-estimator that replaces the ReLU of a trained classifier."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quad4fhe._arrays import Array
from quad4fhe.errors import InputError, MissingExtraError
from quad4fhe.fitting import Fit, fit
from quad4fhe.fitting.cascade import RegimeChoice, Threshold
from quad4fhe.mlp import MLP

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
    from sklearn.exceptions import NotFittedError
    from sklearn.utils import estimator_html_repr
    from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
except ImportError:
    raise MissingExtraError("scikit-learn>=1.6", "sklearn", "QuadraticReplacement") from None


class QuadraticReplacement(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier whose ReLU is replaced with a quadratic that keeps its decisions, ready for encryption.

    After fitting, `fit_` is the Fit (certificate, plan, export), `estimator_` the trained classifier, and `classes_`,
    `n_features_in_` and `feature_names_in_` are as in every classifier.

    There is no predict_proba: the replacement keeps which logit is largest, not by how much, so a softmax of its logits
    would not be a probability. CalibratedClassifierCV computes one from decision_function.

    Parameters
    ----------
    estimator
        An MLPClassifier with one hidden layer, alone or at the end of a Pipeline. Preprocessing that can't be folded
        (ColumnTransformer, encoders, imputers) becomes the feature part of `fit_.mlp`. A fitted classifier, or one
        in a FrozenEstimator, is never trained again: `fit(X)` uses X as the calibration set, and clones (in
        `cross_val_score`, `GridSearchCV`, Pipelines) share the classifier. An unfitted classifier is cloned and first
        trained by `fit(X, y)`.
    family
        As in `quad4fhe.fit`: the name of a family, or "auto".
    degree
        As in `quad4fhe.fit`: 2, 3, 4, 6, 8 or "auto".
    cost
        As in `quad4fhe.fit`: for degree="auto", the largest server time, as a multiple of that of degree 2.
    regime
        As in `quad4fhe.fit`: "auto", "hard", "rch" or "soft".
    threshold
        As in `quad4fhe.fit`: "zero" or "free".
    polish
        Search near a soft fit for one that keeps more decisions.
    target_agreement
        The share of calibration decisions below which fitting raises TargetNotReachedError.
    seed
        Seed of the polish, of the folds of the cross-validation and of the split for `holdout`.
    holdout
        A share of the rows to set aside before the fit, for a promise about new inputs (`fit_.guarantee`).
    confidence
        The confidence of that promise.
    fresh
        States that the classifier was not trained on the rows that are passed to `fit`.
    reliable
        Find the margin above which at least this share of decisions is kept, as in `quad4fhe.fit`.
    """

    def __init__(
        self,
        estimator: Any,
        *,
        family: str = "auto",
        degree: int | Literal["auto"] = 2,
        cost: float = 1.0,
        regime: RegimeChoice = "auto",
        threshold: Threshold = "zero",
        polish: bool = True,
        target_agreement: float | None = None,
        seed: int = 2026,
        holdout: float | None = None,
        confidence: float = 0.95,
        fresh: bool = False,
        reliable: float | None = None,
    ) -> None:
        self.estimator = estimator
        self.family = family
        self.degree = degree
        self.cost = cost
        self.regime = regime
        self.threshold = threshold
        self.polish = polish
        self.target_agreement = target_agreement
        self.seed = seed
        self.holdout = holdout
        self.confidence = confidence
        self.fresh = fresh
        self.reliable = reliable

    def fit(self, X: Any, y: Any = None) -> QuadraticReplacement:
        """Replace the ReLU, with X (n, d) as the calibration set; y is needed only if the classifier is not trained."""
        if isinstance(self.estimator, type) or not hasattr(self.estimator, "fit"):
            raise InputError(f"estimator is {self.estimator!r}, wanted an MLPClassifier or a Pipeline that ends in one")
        checked = self._checked(X, reset=True)
        if y is not None:
            check_consistent_length(X, y)
        if _fitted(self.estimator):
            trained = self.estimator
            # scikit-learn's message for features that differ from those in training
            validate_data(trained, X, reset=False, skip_check_array=True)
        elif y is None:
            raise InputError(
                f"the {type(self.estimator).__name__} is not fitted and requires y to be passed, but the target y is "
                "None; train it first, or call fit(X, y)"
            )
        elif self.fresh:
            raise InputError(
                "fresh=True says that X is new to the classifier, but fit would train it on X; train it first"
            )
        else:
            trained = clone(self.estimator).fit(X, y)
        mlp = MLP.from_sklearn(trained, example=X if _is_pipeline(trained) else None)
        self.estimator_ = trained
        self.classes_ = trained.classes_
        options = self.get_params(deep=False)
        del options["estimator"]
        self.fit_: Fit = fit(mlp, checked, **options)
        return self

    def decision_function(self, X: Any) -> Array:
        """The polynomial model's logits (n, K), or for two classes scores (n,), positive for classes_[1]."""
        return self._fitted().decision_function(self._checked(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """The polynomial model's decisions (n,), as labels of `classes_`."""
        decided = self._fitted().predict(self._checked(X))
        labels: NDArray[Any] = self.classes_[decided]
        return labels

    def is_reliable(self, X: Any) -> NDArray[np.bool_]:
        """Mark the reliable decisions on X, (n,); needs holdout, fresh and reliable."""
        return self._fitted().is_reliable(self._checked(X))

    def agreement(self, X: ArrayLike) -> float:
        """The share of the trained classifier's own decisions on X that are kept, in exact arithmetic."""
        return self._fitted().agreement(self._checked(X))

    def set_params(self, **params: Any) -> QuadraticReplacement:
        """Set parameters; rejects those of a fitted classifier (`estimator__...`), because it is not trained again."""
        inner = sorted(name for name in params if name.startswith("estimator__"))
        if inner and "estimator" not in params and _fitted(self.estimator):
            raise InputError(
                f"{inner[0]} belongs to a classifier that is fitted and not trained again; "
                "pass one that is not fitted, and it is trained by fit(X, y)"
            )
        super().set_params(**params)
        return self

    def _fitted(self) -> Fit:
        check_is_fitted(self, "fit_")
        return self.fit_

    def _checked(self, X: Any, *, reset: bool = False) -> Any:
        """X as numbers; as it is for a Pipeline whose preprocessing takes text or missing values."""
        try:
            return validate_data(self, X, dtype=np.float64, reset=reset)
        except ValueError:
            if not _is_pipeline(self.estimator):
                raise
            validate_data(self, X, reset=reset, skip_check_array=True)
            return X

    def __sklearn_clone__(self) -> QuadraticReplacement:
        params = self.get_params(deep=False)
        kept = params.pop("estimator")
        copies = {name: clone(value, safe=False) for name, value in params.items()}
        return type(self)(kept if _fitted(kept) else clone(kept), **copies)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "fit_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = not _fitted(self.estimator)
        tags.input_tags.sparse = False
        return tags

    def _repr_html_inner(self) -> str:
        """scikit-learn's diagram, followed by the results of the fit."""
        diagram = str(estimator_html_repr(self))
        return diagram + self.fit_._repr_html_() if hasattr(self, "fit_") else diagram

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**options)
        return bundle | ({"text/html": self._repr_html_inner()} if "text/html" in bundle else {})


def _is_pipeline(estimator: Any) -> bool:
    """Whether other steps may come before the classifier, also inside a FrozenEstimator."""
    return hasattr(getattr(estimator, "estimator", estimator), "steps")


def _fitted(estimator: Any) -> bool:
    """Whether the classifier is trained; then it stays unchanged."""
    try:
        check_is_fitted(estimator)
    except (NotFittedError, TypeError):  # TypeError: not an estimator, which `fit` rejects
        return False
    return True
