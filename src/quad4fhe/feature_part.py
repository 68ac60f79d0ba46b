"""The part of a network before its head: an ONNX graph that runs at the client, in onnxruntime.

Raw inputs never leave the client; the features that this part computes travel encrypted. `importers` cut a network
into feature part and head, and a fit file carries the part. The graph may come from a server, so operations that run
subgraphs, other domains and external files are refused before the graph is run.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array
from quad4fhe.errors import InputError, MissingExtraError
from quad4fhe.io.files import check_place, one_line, opened, write_atomically

LARGEST = 2**28
"""Bytes of the largest feature part that is read or downloaded."""
BATCH = 256  # samples of one run, so that large images do not fill the memory
_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
    "tensor(string)": np.object_,
}


class Features(np.ndarray[Any, np.dtype[np.float64]]):
    """The output (n, d) of a feature part, marked as such so that no part is applied to it again.

    `part` is the SHA-256 of the feature part. Slices keep it.
    """

    part: str | None

    @classmethod
    def of(cls, values: Array, part: str) -> Features:
        """Mark an array as the output of the part with this hash."""
        made = np.ascontiguousarray(values, dtype=np.float64).view(cls)
        made.part = part
        return made

    def __array_finalize__(self, source: Any) -> None:
        self.part = getattr(source, "part", None)


@dataclass(frozen=True)
class RawInput:
    """One input of a feature part: its name, its onnxruntime type, and its shape per sample, None where it is open."""

    name: str
    type: str
    shape: tuple[int | None, ...]

    @property
    def is_text(self) -> bool:
        """Whether it takes strings."""
        return self.type == "tensor(string)"

    @property
    def width(self) -> int | None:
        """How many values a sample has in this input; None if it is open."""
        sides = [side for side in self.shape if side is not None]
        return math.prod(sides) if len(sides) == len(self.shape) else None

    def __str__(self) -> str:
        sides = ", ".join("any" if side is None else str(side) for side in self.shape)
        return (
            f"{self.name!r} ({'text' if self.is_text else 'numbers'} of shape (samples{', ' if sides else ''}{sides}))"
        )


@dataclass(frozen=True, eq=False)
class FeaturePart:
    """An ONNX graph from raw inputs to features (n, d); call it with raw inputs.

    Raw inputs are an array with one entry per sample along its first axis, or, for a graph with several inputs, a
    mapping or a DataFrame with a column for each, or a matrix whose columns are in the order of the inputs.
    """

    graph: bytes

    def __post_init__(self) -> None:
        if not self.graph or len(self.graph) > LARGEST:
            raise InputError(
                f"a feature part has 1 to {LARGEST} bytes, this one {len(self.graph)}; export a smaller one"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return FeaturePart, (self.graph,)  # the session can't be sent to other processes

    def __repr__(self) -> str:
        return f"FeaturePart({len(self.graph):,} bytes, {self.sha256[:12]})"

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the graph's bytes."""
        return hashlib.sha256(self.graph).hexdigest()

    @classmethod
    def load(cls, path: str | Path) -> FeaturePart:
        """Read a feature part that `save` or `quad4fhe export --features` wrote."""
        with opened(path) as file:
            return cls(file.read_bytes())

    def save(self, path: str | Path) -> None:
        """Write the graph to one .onnx file."""
        place = check_place(Path(path))
        if place.suffix != ".onnx":
            raise InputError(f"a feature part is saved as .onnx, not {place.name!r}; choose a name such as part.onnx")
        write_atomically(place, self.graph)

    @cached_property
    def _session(self) -> Any:
        try:
            import onnxruntime
        except ImportError:
            raise MissingExtraError("onnxruntime", "features", "the model's feature part") from None
        check_graph(self.graph)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1  # the same sums everywhere, and no idle threads beside numpy's
        options.use_deterministic_compute = True
        try:
            return onnxruntime.InferenceSession(self.graph, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has no common base class of its errors
            raise InputError(
                f"onnxruntime can't run the feature part ({one_line(error)}); export the model again"
            ) from None

    @cached_property
    def inputs(self) -> tuple[RawInput, ...]:
        """What the part takes."""
        found = []
        for each in self._session.get_inputs():
            sides = tuple(side if isinstance(side, int) else None for side in each.shape[1:])
            found.append(RawInput(each.name, each.type, sides))
        return tuple(found)

    def describe(self) -> str:
        """The inputs in words."""
        return " and ".join(map(str, self.inputs))

    def __call__(self, raw: Any) -> Features:
        """The features (n, d) of raw inputs; features of this part are passed through."""
        if isinstance(raw, Features) and raw.part is not None:
            if raw.part != self.sha256:
                raise InputError(
                    f"the features come from part {raw.part[:12]}, but the model has part {self.sha256[:12]}; "
                    "compute them again from the raw inputs"
                )
            return raw
        feed, n = self._feed(raw.part(0, raw.shape[0]) if callable(getattr(raw, "part", None)) else raw)
        parts = [self._run({name: each[at : at + BATCH] for name, each in feed.items()}) for at in range(0, n, BATCH)]
        out = np.concatenate(parts) if parts else np.empty((0, 0))
        bad = np.argwhere(~np.isfinite(out))
        if bad.size:
            raise InputError(
                f"the feature part gives NaN or infinite features, the first for row {int(bad[0][0])}; "
                "remove or impute such samples first"
            )
        return Features.of(out, self.sha256)

    def row_by_row(self, raw: Any) -> Array:
        """The output (n, d) in float64, each row computed alone, so that its bits do not depend on other rows."""
        feed, n = self._feed(np.asarray(raw))
        return np.concatenate([self._run({name: each[i : i + 1] for name, each in feed.items()}) for i in range(n)])

    def _run(self, feed: dict[str, NDArray[Any]]) -> Array:
        n = len(next(iter(feed.values())))
        try:
            (found,) = self._session.run(None, feed)
        except Exception as error:  # onnxruntime has no common base class of its errors
            try:  # a graph that was exported for a batch of one
                rows = [self._session.run(None, {k: v[i : i + 1] for k, v in feed.items()})[0] for i in range(n)]
            except Exception:  # the first message says more
                raise InputError(
                    f"the feature part does not take these inputs ({one_line(error)}); it takes {self.describe()}"
                ) from None
            found = np.concatenate(rows) if rows else np.empty((0, 0))
        out = np.asarray(found, dtype=np.float64)
        if out.ndim == 0 or out.size % max(n, 1):
            raise InputError(f"the feature part gives shape {out.shape} for {n} samples, wanted one row per sample")
        return out.reshape(n, -1)

    def _feed(self, raw: Any) -> tuple[dict[str, NDArray[Any]], int]:
        columns = _columns(raw, self.inputs)
        feed = {each.name: _typed(each, columns[each.name]) for each in self.inputs}
        sizes = {len(array) for array in feed.values()}
        if len(sizes) != 1:
            raise InputError(f"the inputs have {' and '.join(map(str, sorted(sizes)))} samples, wanted equally many")
        return feed, sizes.pop()


def _columns(raw: Any, inputs: tuple[RawInput, ...]) -> dict[str, Any]:
    """The values of each input, by name where there are names, else in order."""
    if hasattr(raw, "columns") and hasattr(raw, "to_numpy"):  # a DataFrame of pandas or polars
        names = [str(name) for name in raw.columns]
        if len(inputs) == 1 and inputs[0].name not in names:
            return {inputs[0].name: raw.to_numpy()}
        raw = {name: raw[original].to_numpy() for name, original in zip(names, raw.columns, strict=True)}
    if isinstance(raw, Mapping):
        missing = [each.name for each in inputs if each.name not in raw]
        if missing and len(inputs) == 1 and len(raw) == 1:
            return {inputs[0].name: next(iter(raw.values()))}
        if missing:
            raise InputError(
                f"the feature part takes {', '.join(repr(each.name) for each in inputs)}, and "
                f"{', '.join(map(repr, missing))} is missing; got {', '.join(map(repr, raw))}"
            )
        return {each.name: raw[each.name] for each in inputs}
    array = np.asarray(raw)
    if len(inputs) == 1:
        return {inputs[0].name: array}
    widths = [each.width for each in inputs]
    if array.ndim != 2 or None in widths or array.shape[1] != sum(width or 0 for width in widths):
        raise InputError(
            f"the samples have shape {array.shape}, but the feature part takes {len(inputs)} inputs: "
            f"{', '.join(map(str, inputs))}; give a table or an .npz with these names"
        )
    ends = np.cumsum([width or 0 for width in widths])[:-1]
    return dict(zip((each.name for each in inputs), np.split(array, ends, axis=1), strict=True))


def _typed(each: RawInput, values: Any) -> NDArray[Any]:
    """The values in the input's type and shape."""
    dtype = _DTYPES.get(each.type)
    if dtype is None:
        raise InputError(
            f"the input {each} has type {each.type}, which is not supported; export it with numbers or text"
        )
    array = np.asarray(values)
    try:
        typed = array.astype(str).astype(object) if each.is_text else array.astype(dtype)
    except (ValueError, TypeError):
        raise InputError(f"the input {each} got {array.dtype} values that are not numbers; check the columns") from None
    if typed.ndim == 0:
        raise InputError(f"the input {each} got a single value; wanted one entry per sample")
    wanted = each.width
    if wanted is not None and typed.ndim != 1 + len(each.shape) and typed[:1].size in (wanted, 0):
        # rows of flattened images, or a single column without its axis
        typed = typed.reshape(len(typed), *(side or 1 for side in each.shape))
    fits = len(each.shape) == typed.ndim - 1
    if not fits or any(want not in (None, side) for want, side in zip(each.shape, typed.shape[1:], strict=True)):
        raise InputError(f"the samples have shape {array.shape}, but the feature part takes {each}")
    return np.ascontiguousarray(typed)


_SUBGRAPHS = frozenset(("If", "Loop", "Scan", "SequenceMap"))
_RANDOM = frozenset(
    ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)
# com.microsoft: operations that every onnxruntime has, such as the Tokenizer that skl2onnx writes for texts.
_DOMAINS = frozenset(("", "ai.onnx", "ai.onnx.ml", "com.microsoft"))


def check_graph(graph: bytes) -> None:
    """Reject what an untrusted feature part may not do: run subgraphs, use other domains, read files, be random.

    A loop could run for a time that depends on the raw input, and whoever waits for the request could see that. Random
    numbers, and layers in training mode, would give the same input a different decision each time.
    """
    try:
        import onnx
    except ImportError:
        raise MissingExtraError("onnx", "features", "the model's feature part") from None
    try:
        model = onnx.load_from_string(graph)
    except Exception as error:  # protobuf's errors have no common base class
        raise InputError(f"the feature part is no ONNX graph ({one_line(error)}); export the model again") from None
    for node in model.graph.node:
        if node.op_type in _SUBGRAPHS or any(
            a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute
        ):
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
    if model.functions:
        raise InputError("the feature part defines functions of its own; export it with inlined functions")
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in model.graph.initializer):
        raise InputError("the feature part reads its weights from another file; save them inside it")


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
