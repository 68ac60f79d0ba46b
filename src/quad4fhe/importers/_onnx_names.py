"""The class names in an ONNX graph, as skl2onnx writes them: labels of a ZipMap or a tree of label nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe.names import NONE, Names, names_of

_LABELS = ("classlabels_strings", "classlabels_int64s", "classlabels_ints")


def class_names(model: Any, classes: int) -> Names:
    """The names of the classes; none where the graph has no labels, or another number of them."""
    found = _attributes(model.graph) or _gathered(model.graph)
    return NONE if found is None or len(found) != classes else names_of(classes=found)


def _attributes(graph: Any) -> list[Any] | None:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in _LABELS and (len(attribute.strings) or len(attribute.ints)):
                return list(attribute.strings) or list(attribute.ints)
    return None


def _gathered(graph: Any) -> list[Any] | None:
    """The constant that an ArgMax picks from: ArrayFeatureExtractor(classes, index), the label of skl2onnx."""
    from onnx import numpy_helper

    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type in ("ArrayFeatureExtractor", "Gather") and node.input and node.input[0] in constants:
            values: NDArray[Any] = np.asarray(numpy_helper.to_array(constants[node.input[0]])).reshape(-1)
            if values.dtype.kind in "iuOSU":
                return list(values.tolist())
    return None
