"""The part of a network before its head: an ONNX graph that runs at the client, in onnxruntime.

Raw inputs never leave the client; the features that this part computes travel encrypted. `importers` cut a network
into feature part and head, and a fit file carries the part. The graph may come from a server or from a stranger's file:
`feature_checks` refuses what it may not do, and `feature_process` runs it in a process without the client's files.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array
from quad4fhe.errors import InputError
from quad4fhe.io.files import check_place, one_line, opened, write_atomically

if TYPE_CHECKING:
    from quad4fhe.feature_process import GraphProcess

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
    def _process(self) -> GraphProcess:
        from quad4fhe.feature_checks import check_graph
        from quad4fhe.feature_process import GraphProcess

        check_graph(self.graph)
        return GraphProcess(self.graph)

    @cached_property
    def inputs(self) -> tuple[RawInput, ...]:
        """What the part takes."""
        return tuple(
            RawInput(name, kind, tuple(side if isinstance(side, int) else None for side in sides))
            for name, kind, sides in self._process.inputs
        )

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
        out = self._run(feed, n) if n else np.empty((0, 0))
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
        return self._run(feed, n, by_row=True)

    def _run(self, feed: dict[str, NDArray[Any]], n: int, *, by_row: bool = False) -> Array:
        """The output (n, d), computed in batches."""
        batches = ({name: each[at : at + BATCH] for name, each in feed.items()} for at in range(0, n, BATCH))
        return np.concatenate([self._batch(batch, by_row) for batch in batches])

    def _batch(self, feed: dict[str, NDArray[Any]], by_row: bool) -> Array:
        from quad4fhe.feature_process import GraphError

        n = len(next(iter(feed.values())))
        try:
            out = self._process.run(feed, by_row=by_row)
        except GraphError as error:
            raise InputError(
                f"the feature part does not take these inputs ({one_line(error)}); it takes {self.describe()}"
            ) from None
        if out.ndim == 0 or out.size % n:
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
