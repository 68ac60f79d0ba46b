"""Models from ONNX files, as skl2onnx and both torch exporters write them.

The graph is read, not run: `_onnx_nodes` follows the data from its input to its outputs, node by node. If the front of
the graph can't be folded (convolutions, attention, one-hot encoders), `_onnx_split` cuts it off as the feature part.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe.errors import InputError, MissingExtraError
from quad4fhe.importers import Importer
from quad4fhe.importers._chain import Chain
from quad4fhe.importers._onnx_flow import Flow, Graph
from quad4fhe.importers._onnx_nodes import Walk, walk
from quad4fhe.importers._onnx_split import AUTO, FIRST, behind_first_layer, cut_at, split
from quad4fhe.io.files import opened, parsing
from quad4fhe.mlp import MLP
from quad4fhe.names import NONE, Names, names_of

_OLDEST_OPSET = 7  # older ones have other broadcasting rules for Add and Gemm
_LABELS = ("classlabels_strings", "classlabels_int64s", "classlabels_ints")


def from_onnx(path: str | Path, *, binary: bool = False, split: str = AUTO) -> MLP:
    """Import an ONNX graph that ends in Gemm or MatMul+Add, one activation, Gemm or MatMul+Add.

    Scalers and BatchNormalization are folded. Whatever else comes before becomes the feature part, which runs at the
    client.

    Parameters
    ----------
    path
        The .onnx file.
    binary
        Read a single output without a Sigmoid as a score: the decision is class 1 where it is positive.
    split
        "auto" cuts the graph only if its front can't be folded, "never" does not cut it, and the name of a tensor or
        node cuts it there: everything up to it is the feature part. "first" reads only the first layer, and onnxruntime
        computes the decisions of the whole graph.
    """
    try:
        import onnx  # noqa: F401 - so that a missing package is reported before a missing file
    except ImportError:
        raise MissingExtraError("onnx", "onnx", "importing an ONNX model") from None
    with opened(path) as file:
        return read_graph(_parsed(file), binary=binary, split_at=split)


def _parsed(file: Path) -> Any:
    import onnx
    from onnx.external_data_helper import load_external_data_for_model

    with parsing("the ONNX model", "export it again"):
        model = onnx.load(file, format="protobuf", load_external_data=False)
    if not model.graph.node:
        raise InputError("holds no ONNX graph; export the model again")
    # onnx itself rejects external files outside the model's folder.
    with parsing("the file of external weights", "keep it in the folder of the model"):
        load_external_data_for_model(model, str(file.parent))
    for opset in model.opset_import:
        if opset.domain in ("", "ai.onnx") and opset.version < _OLDEST_OPSET:
            raise InputError(
                f"uses opset {opset.version}, wanted {_OLDEST_OPSET} or later; export it with a newer opset"
            )
    if model.functions:
        from onnx.inliner import inline_local_functions

        with parsing("the functions of the ONNX model", "export it again"):
            model = inline_local_functions(model)
    return model


def read_graph(model: Any, *, binary: bool = False, split_at: str = AUTO) -> MLP:
    """The model of an onnx.ModelProto; see `from_onnx`."""
    graph = Graph(model)
    if split_at == FIRST:
        mlp, squashed = behind_first_layer(graph)
        return _named(graph, mlp, squashed, binary)
    if split_at not in (AUTO, "never"):
        part, head = cut_at(graph, split_at)
        return _checked(graph, head, binary).with_feature_part(part)
    try:
        return _plain(graph, binary)
    except InputError as error:
        cut = None if split_at == "never" else split(graph)
        if cut is None:
            hint = (
                "; to run the front at the client, name the tensor where the head begins with --split; --split first "
                "puts the polynomial on the first Linear layer, with decisions measured by onnxruntime"
            )
            raise InputError(f"{error}{hint if len(graph.nodes) > 3 else ''}") from None
    part, head = cut
    return _checked(graph, head, binary).with_feature_part(part)


def _plain(graph: Graph, binary: bool) -> MLP:
    """The whole graph as a classifier, without a feature part."""
    if len(graph.inputs) != 1:
        names = ", ".join(repr(value.name) for value in graph.inputs) or "none"
        raise InputError(
            f"the graph has {len(graph.inputs)} inputs ({names}), wanted one matrix of samples; export it with one"
        )
    flow = Flow(Chain(), "affine", vector=len(graph.shape() or ()) == 1)
    mlp = _checked(graph, walk(graph, graph.inputs[0].name, flow), binary)
    graph.check_features(mlp.features)
    return mlp


def _checked(graph: Graph, found: Walk, binary: bool) -> MLP:
    return _named(graph, found.chain.mlp(), found.is_probability, binary)


def _named(graph: Graph, mlp: MLP, is_probability: bool, binary: bool) -> MLP:
    """The classifier with its names; a single output must be known to be the score of class 1."""
    mlp = mlp.named(_class_names(graph.model, mlp.classes))
    if mlp.outputs > 1:
        return mlp
    if not (is_probability or binary):
        raise InputError(
            "the graph has one output and no Sigmoid or label after it, so it may be a regressor; "
            "if it is a score that is positive for class 1, add --binary (in Python: binary=True)"
        )
    return mlp.with_notes("one output: read as class 1 where it is positive")


def _class_names(model: Any, classes: int) -> Names:
    """The names of the classes, as skl2onnx writes them; none if the graph has another number of labels, or none."""
    found = _attributes(model.graph) or _gathered(model.graph)
    return NONE if found is None or len(found) != classes else names_of(classes=found)


def _attributes(graph: Any) -> list[Any] | None:
    """The labels of a ZipMap or a similar node."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in _LABELS and (len(attribute.strings) or len(attribute.ints)):
                return list(attribute.strings) or list(attribute.ints)
    return None


def _gathered(graph: Any) -> list[Any] | None:
    """The labels from which ArrayFeatureExtractor or Gather picks the one at the index of an ArgMax."""
    from onnx import numpy_helper

    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type in ("ArrayFeatureExtractor", "Gather") and node.input and node.input[0] in constants:
            values: NDArray[Any] = np.asarray(numpy_helper.to_array(constants[node.input[0]])).reshape(-1)
            if values.dtype.kind in "iuOSU":
                return list(values.tolist())
    return None


IMPORTER = Importer(
    words="an ONNX graph that ends in a classifier with one hidden layer",
    suffixes=(".onnx",),
    extra="onnx",
    read_file=from_onnx,
    options=("binary", "split"),
)
