"""Models from ONNX files, as skl2onnx and both torch exporters write them.

The graph is read, not run: this module follows the data from its input to its outputs, node by node. Where the front
of the graph can't be folded (convolutions, attention, one-hot encoders), `_onnx_split` cuts it off as the feature part.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quad4fhe.errors import InputError, MissingExtraError
from quad4fhe.importers import Importer
from quad4fhe.importers._chain import Chain
from quad4fhe.importers._onnx_first import behind_first_layer
from quad4fhe.importers._onnx_flow import Flow
from quad4fhe.importers._onnx_graph import Graph, Walk
from quad4fhe.importers._onnx_names import class_names
from quad4fhe.importers._onnx_split import AUTO, FIRST, cut_at, split
from quad4fhe.io.files import opened, parsing
from quad4fhe.mlp import MLP

_OLDEST_OPSET = 7  # before it, Add and Gemm broadcast by rules of their own


def from_onnx(path: str | Path, *, binary: bool = False, split: str = AUTO) -> MLP:
    """Import an ONNX graph that ends in Gemm or MatMul+Add, one activation, Gemm or MatMul+Add.

    Scalers and BatchNormalization are folded. What comes before and can't be folded becomes the feature part, which
    runs at the client.

    Parameters
    ----------
    path
        The .onnx file.
    binary
        Take a single output without a Sigmoid as the score of class 1, which is decided where it is positive.
    split
        "auto" cuts the graph only if its front can't be folded, "never" does not cut it, and the name of a tensor or
        node cuts it there: everything up to it is the feature part. "first" reads the first layer alone, and lets
        onnxruntime compute the decisions of the whole graph.
    """
    try:
        import onnx  # noqa: F401 - said before the file is opened
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
    # onnx itself refuses external files outside the model's folder.
    with parsing("the second file, which holds the weights,", "keep both together"):
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
        return _behind(graph, binary)
    if split_at not in (AUTO, "never"):
        found = cut_at(graph, split_at)
        return _checked(graph, found.walk, binary).with_feature_part(found.part)
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
    return _checked(graph, cut.walk, binary).with_feature_part(cut.part)


def _plain(graph: Graph, binary: bool) -> MLP:
    """The whole graph as a classifier, without a feature part."""
    if len(graph.inputs) != 1:
        names = ", ".join(repr(value.name) for value in graph.inputs) or "none"
        raise InputError(
            f"the graph has {len(graph.inputs)} inputs ({names}), wanted one matrix of samples; export it so"
        )
    (start,) = graph.inputs
    shape = _shape(start)
    vector = shape is not None and len(shape) == 1
    mlp = _checked(graph, graph.walk(start.name, Flow(Chain(), "affine", vector=vector)), binary)
    _check_features(shape, mlp.features)
    return mlp


def _behind(graph: Graph, binary: bool) -> MLP:
    """The network behind its first layer, as a graph."""
    mlp, squashed = behind_first_layer(graph, lambda width: _check_features(_shape(graph.inputs[0]), width))
    return _named(graph, mlp, squashed, binary)


def _checked(graph: Graph, walk: Walk, binary: bool) -> MLP:
    return _named(graph, walk.chain.mlp(), walk.is_probability, binary)


def _named(graph: Graph, mlp: MLP, is_probability: bool, binary: bool) -> MLP:
    """The classifier with its names; a single output must be known to be the score of class 1."""
    mlp = mlp.named(class_names(graph.model, mlp.classes))
    if mlp.outputs > 1:
        return mlp
    if not (is_probability or binary):
        raise InputError(
            "the graph has one output and no Sigmoid or label after it, so it may be a regressor; "
            "if it is a score that is positive for class 1, say so with --binary (in Python: binary=True)"
        )
    return mlp.with_notes("one output: read as class 1 where it is positive")


def _shape(value: Any) -> list[int] | None:
    """The declared input shape, 0 where it is left open; None without a declaration."""
    tensor = value.type.tensor_type
    return [int(dim.dim_value) for dim in tensor.shape.dim] if tensor.HasField("shape") else None


def _check_features(shape: list[int] | None, features: int) -> None:
    """A Reshape may cut one sample into several; then the declared width is not the model's."""
    if not shape:
        return
    width = 1
    for size in shape if len(shape) == 1 else shape[1:]:
        width *= size
    if width not in (0, features):
        raise InputError(
            f"the graph takes {width} values per sample, but its first layer {features}; "
            "supported: samples as rows, or images flattened to rows"
        )


IMPORTER = Importer(
    words="an ONNX graph that ends in a classifier with one hidden layer",
    suffixes=(".onnx",),
    extra="onnx",
    read_file=from_onnx,
    options=("binary", "split"),
)
