"""What a feature part may not hold. The list is a first line only: `feature_child` does not depend on it.

Two passes: one over the bytes of the file, which knows the messages of ONNX by their descriptors and so visits every
tensor wherever it is; then, since the file is known to be small enough, one over the operations of the graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from quad4fhe.errors import InputError, MissingExtraError
from quad4fhe.io.files import one_line

MOST_FIELDS = 2**19
"""Fields of the largest graph that is read; a protobuf of 2 MB could fill gigabytes of memory."""
_DEEPEST = 20  # messages inside each other
_SUBGRAPHS = frozenset(("If", "Loop", "Scan", "SequenceMap"))
_RANDOM = frozenset(
    ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)
# com.microsoft: operations that every onnxruntime has, such as the Tokenizer that skl2onnx writes for texts.
_DOMAINS = frozenset(("", "ai.onnx", "ai.onnx.ml", "com.microsoft"))
_ELSEWHERE = "the feature part reads its weights from another file; save them inside it"
_REFUSED = {
    ("TensorProto", "external_data"): _ELSEWHERE,
    ("TensorProto", "data_location"): _ELSEWHERE,
    ("ModelProto", "functions"): "the feature part defines functions of its own; export it with inlined functions",
    ("ModelProto", "training_info"): "the feature part holds a training graph; export it for inference",
}
_DAMAGED = "the feature part is no ONNX graph: its bytes are cut short or damaged; export the model again"


def check_graph(graph: bytes) -> None:
    """Reject what an untrusted feature part may not do: run subgraphs, use other domains, read files, be random.

    A loop could run for a time that depends on the raw input, and whoever waits for the request could see that. Random
    numbers, and layers in training mode, would give the same input a different decision each time.
    """
    try:
        import onnx
    except ImportError:
        raise MissingExtraError("onnx", "features", "the model's feature part") from None
    _check_fields(memoryview(graph), onnx.ModelProto.DESCRIPTOR)
    try:
        model = onnx.load_from_string(graph)
    except Exception as error:  # protobuf's errors have no common base class
        raise InputError(f"the feature part is no ONNX graph ({one_line(error)}); export the model again") from None
    for node in model.graph.node:
        _check_node(model, node)


def _check_node(model: Any, node: Any) -> None:
    import onnx

    subgraph = onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS
    if node.op_type in _SUBGRAPHS or any(each.type in subgraph or each.HasField("g") for each in node.attribute):
        raise InputError(
            f"the feature part has the operation {node.op_type!a}, which runs a subgraph; export without it"
        )
    if node.op_type in _RANDOM:
        raise InputError(
            f"the feature part has the operation {node.op_type!a}, which draws random numbers; export without it"
        )
    if node.op_type in ("Dropout", "BatchNormalization") and _is_training(model.graph, node):
        raise InputError(
            f"the graph has {node.op_type} in training mode, which gives an input different values each time; "
            "export the model with eval()"
        )
    if node.domain not in _DOMAINS:
        raise InputError(f"the feature part has an operation of domain {node.domain!a}, wanted standard ONNX")


def _is_training(graph: Any, node: Any) -> bool:
    """Whether a Dropout or BatchNormalization is in training mode, or in a mode that only running the graph tells."""
    from onnx import numpy_helper

    if node.op_type == "BatchNormalization":
        return any(each.name == "training_mode" and each.i for each in node.attribute)
    if len(node.input) < 3 or not node.input[2]:
        return False
    made = (each for each in graph.node if each.op_type == "Constant" and node.input[2] in each.output)
    known = [tensor for tensor in graph.initializer if tensor.name == node.input[2]]
    known += [each.t for constant in made for each in constant.attribute if each.name == "value"]
    return not known or bool(numpy_helper.to_array(known[0]).any())


# --- the bytes of the file --------------------------------------------------------------------------------------


def _check_fields(data: memoryview, root: Any) -> None:
    """Visit every field of every message in the file, and raise InputError for a field that is refused.

    The bytes are read here rather than by protobuf for two reasons: protobuf would build all objects of a hostile file
    before anything could be counted, and it hides fields that this version of onnx does not know.
    """
    left = MOST_FIELDS
    waiting = [(data, root, 0)]
    while waiting:
        message, kind, depth = waiting.pop()
        if depth > _DEEPEST:
            raise InputError(f"the feature part has messages more than {_DEEPEST} deep; export a simpler one")
        for number, value in _fields(message):
            left -= 1
            if left < 0:
                raise InputError(f"the feature part has more than {MOST_FIELDS} fields; export a smaller one")
            field = kind.fields_by_number.get(number)
            if field is None:
                raise InputError(
                    f"the feature part has a field ({kind.name} {number}) that this version of onnx does not know; "
                    "install a newer one: pip install -U onnx"
                )
            reason = _REFUSED.get((kind.name, field.name))
            if reason is not None and value != 0:
                raise InputError(reason)
            if field.message_type is not None:
                if not isinstance(value, memoryview):
                    raise InputError(_DAMAGED)
                waiting.append((value, field.message_type, depth + 1))


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The fields of one message in protobuf's wire format: their numbers and values, fixed-width ones as bytes."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at, end)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at, end)
            yield key >> 3, value
            continue
        if kind == 2:
            length, at = _varint(data, at, end)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:  # groups, which ONNX does not use
            raise InputError(_DAMAGED)
        if at + length > end:
            raise InputError(_DAMAGED)
        yield key >> 3, data[at : at + length]
        at += length


def _varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """A number of up to ten bytes, and where it ends."""
    value = 0
    for place in range(10):
        if at >= end:
            break
        byte = data[at]
        at += 1
        if byte < 128:
            return value | byte << 7 * place, at
        value |= (byte & 127) << 7 * place
    raise InputError(_DAMAGED)
