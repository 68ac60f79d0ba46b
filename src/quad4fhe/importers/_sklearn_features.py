"""The preprocessing of a scikit-learn Pipeline as a feature part, written by skl2onnx."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from quad4fhe.errors import InputError, MissingExtraError
from quad4fhe.feature_part import FeaturePart
from quad4fhe.io.files import one_line


def feature_part(steps: list[tuple[str, Any]], example: Any) -> FeaturePart:
    """The (label, transformer) steps as one ONNX graph; the types of the columns are those of `example`, if given.

    Numbers are float64 if possible. Some converters of skl2onnx always write float32, and a graph that mixes both can't
    be run; then the graph is written again with float32 throughout.
    """
    part = _written(steps, example, double=True)
    try:
        assert part.inputs  # opens the graph in onnxruntime
    except InputError:
        part = _written(steps, example, double=False)
        assert part.inputs
    return part


def _written(steps: list[tuple[str, Any]], example: Any, *, double: bool) -> FeaturePart:
    try:
        from skl2onnx import to_onnx
        from skl2onnx.common.exceptions import MissingConverter, MissingShapeCalculator
    except ImportError:
        raise MissingExtraError("skl2onnx", "features", "a Pipeline with preprocessing that can't be folded") from None
    from sklearn.pipeline import Pipeline

    front = Pipeline([(f"step{k}", step) for k, (_, step) in enumerate(steps)])
    types = _types(steps[0][1], example, double)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about versions and details of the conversion
            model = to_onnx(front, initial_types=types, target_opset=_OPSETS, options=_text_options(front))
    except (MissingConverter, MissingShapeCalculator):
        names = ", ".join(label for label, _ in steps)
        raise InputError(
            f"skl2onnx can't write {names} as ONNX; use transformers that it supports, or apply them yourself and pass "
            "features"
        ) from None
    except Exception as error:  # its converters raise errors of many kinds
        raise InputError(
            f"skl2onnx can't write the preprocessing ({one_line(error)}); pass a few raw rows as example="
        ) from None
    del model.graph.output[1:]
    return FeaturePart(model.SerializeToString(deterministic=True))


def _text_options(front: Any) -> dict[int, dict[str, str]]:
    """The locale by which vectorisers lower texts: "C", the only one that every machine has."""
    from sklearn.feature_extraction.text import CountVectorizer

    found = [step for _, step in front.steps]
    found += [inner for step in found for _, inner, _ in getattr(step, "transformers_", ())]
    return {id(step): {"locale": "C"} for step in found if isinstance(step, CountVectorizer)}


_OPSETS = {"": 17, "ai.onnx.ml": 3}


def _types(first: Any, example: Any, double: bool) -> list[tuple[str, Any]]:
    """The inputs of the graph: one matrix, or one input per column if columns have names or some hold text."""
    from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType, StringTensorType

    number = DoubleTensorType if double else FloatTensorType
    if hasattr(first, "vocabulary_"):  # a vectoriser of texts
        return [("X", StringTensorType([None, 1]))]
    width = int(getattr(first, "n_features_in_", 0)) or len(_columns(example))
    if not width:
        raise InputError(
            f"skl2onnx can't write a {type(first).__name__} of unknown width; pass a few raw rows as example="
        )
    text = _text_columns(first, width) if example is None else [_is_text(each) for each in _columns(example)]
    names = [str(name) for name in getattr(first, "feature_names_in_", ())]
    if not names and not any(text):
        return [("X", number([None, width]))]
    if not names and all(text):
        return [("X", StringTensorType([None, width]))]
    if not names:
        raise InputError(
            "the Pipeline was fitted on a matrix with both numbers and text; fit it on a DataFrame, whose columns have "
            "names and types"
        )
    kinds = (StringTensorType if is_text else number for is_text in text)
    return [(name, kind([None, 1])) for name, kind in zip(names, kinds, strict=True)]


def _columns(example: Any) -> list[Any]:
    if example is None:
        return []
    if hasattr(example, "columns"):
        return [np.asarray(example[name]) for name in example.columns]
    return list(np.asarray(example).T)


def _is_text(column: Any) -> bool:
    kind = np.asarray(column).dtype.kind
    return kind in "US" or (kind == "O" and any(isinstance(value, str) for value in np.asarray(column).tolist()))


def _text_columns(step: Any, width: int) -> list[bool]:
    """Which columns hold text, judged by the fitted attributes of the transformers."""
    text = [False] * width
    if hasattr(step, "transformers_"):
        names = [str(name) for name in getattr(step, "feature_names_in_", ())]
        for _, inner, columns in step.transformers_:
            at = _indices(columns, names, width)
            for k, is_text in zip(at, _remembered(inner, len(at)), strict=True):
                text[k] = text[k] or is_text
        return text
    return _remembered(step, width)


def _remembered(step: Any, width: int) -> list[bool]:
    inner = getattr(step, "steps", None)
    if inner:
        found = [False] * width
        for _, each in inner:
            seen = _remembered(each, width)
            found = [a or b for a, b in zip(found, seen, strict=True)] if len(seen) == width else found
        return found
    for name in ("categories_", "statistics_"):
        values = getattr(step, name, None)
        if values is not None and len(values) == width:
            return [_is_text(np.atleast_1d(np.asarray(each, dtype=object))) for each in values]
    return [False] * width


def _indices(columns: Any, names: list[str], width: int) -> list[int]:
    if isinstance(columns, slice):
        return list(range(*columns.indices(width)))
    listed = [columns] if isinstance(columns, str | int) else list(columns)
    if listed and isinstance(listed[0], bool | np.bool_):
        return [k for k, taken in enumerate(listed) if taken]
    return [names.index(str(each)) if isinstance(each, str) else int(each) for each in listed]
