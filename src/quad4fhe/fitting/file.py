"""The bytes of a fit file: safetensors with one JSON manifest, read so strictly that only one reading exists.

Decides what a well-formed file is. What the manifest means is left to `result`, whether it is true to `certificate`.
A duplicate key, a gap or an overlap of tensors is no rounding error: two programs would read two different files.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, NoReturn

import numpy as np
from safetensors.numpy import save as save_tensors

from quad4fhe._arrays import Array
from quad4fhe.errors import CertificateError, InputError

TENSORS = ("W1", "b1", "W2", "b2", "S", "T", "c", "box", "margins")
_KEY = "quad4fhe"
_PREFIX = '{{"sha256":"{}","manifest":'
_LONGEST = 2**40  # a tensor's side; products of such sides are exact in Python and no file is that long


def write(manifest: bytes, tensors: dict[str, Array]) -> bytes:
    """The content of a fit file."""
    arrays = {name: np.ascontiguousarray(tensors[name], dtype=np.float64) for name in TENSORS}
    # The hash is over the manifest's own bytes, so they stand in the envelope as they are. One key only: safetensors
    # does not keep the order of several, and equal fits should be equal files.
    return save_tensors(arrays, {_KEY: _PREFIX.format(_digest(manifest, arrays)) + manifest.decode() + "}"})


def read(data: bytes, name: str) -> tuple[dict[str, Any], dict[str, Array]]:
    """The manifest and the tensors; InputError if this is no fit file, CertificateError if it was changed."""
    try:
        size = int.from_bytes(data[:8], "little")
        header = strict_json(data[8 : 8 + size])
        if len(data) < 8 + size or set(header) != {"__metadata__", *TENSORS}:
            raise ValueError("other entries")
        metadata = header.pop("__metadata__")
        tensors = _tensors(header, data, 8 + size)
        if set(metadata) != {_KEY}:
            raise ValueError("other metadata")
        text = metadata[_KEY].encode()
        envelope = strict_json(text)
        prefix = _PREFIX.format(envelope["sha256"]).encode()
        if not isinstance(envelope["manifest"], dict):
            raise ValueError("no manifest")
        if set(envelope) != {"sha256", "manifest"} or not (text.startswith(prefix) and text.endswith(b"}")):
            raise ValueError("another envelope")
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        raise InputError(
            f"{name} is not a fit file; make one with: quad4fhe fit MODEL CALIB -o fit.safetensors"
        ) from None
    if envelope["sha256"] != _digest(text[len(prefix) : -1], tensors):
        raise CertificateError(f"{name} was changed or damaged after it was written: its SHA-256 does not match")
    return envelope["manifest"], tensors


def strict_json(text: bytes) -> dict[str, Any]:
    """A JSON object; ValueError where a key comes twice at any depth, or a number is none (NaN, Infinity, 1e999)."""
    found = json.loads(
        text.decode(), object_pairs_hook=_unique, parse_constant=_refuse_number, parse_float=_finite, parse_int=_whole
    )
    if not isinstance(found, dict):
        raise ValueError("wanted a JSON object")
    json.dumps(found, ensure_ascii=False).encode()  # half of a surrogate pair is no text; this raises a ValueError
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key comes twice")
    return found


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is out of range")
    return value


def _whole(text: str) -> int:
    value = int(text)
    if abs(value) > 2**63:
        raise ValueError(f"{text} is out of range")
    return value


def _tensors(header: dict[str, Any], data: bytes, start: int) -> dict[str, Array]:
    """Float64 arrays that follow each other without gap or overlap and end where the file ends."""
    tensors, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: tuple(map(int, item[1]["data_offsets"]))):
        shape, (first, last) = entry["shape"], entry["data_offsets"]
        if set(entry) != {"dtype", "shape", "data_offsets"} or entry["dtype"] != "F64":
            raise ValueError(f"the entry of {name}")
        if not all(type(side) is int and 0 <= side <= _LONGEST for side in (*shape, first, last)) or len(shape) > 2:
            raise ValueError(f"the numbers of {name}")
        if first != end or last - first != 8 * math.prod(shape) or start + last > len(data):
            raise ValueError(f"the place of {name}")
        values = np.frombuffer(data, dtype="<f8", count=math.prod(shape), offset=start + first)
        tensors[name] = values.astype(np.float64).reshape(shape)
        end = last
    if start + end != len(data):
        raise ValueError("bytes after the last tensor")
    return tensors


def _digest(manifest: bytes, tensors: dict[str, Array]) -> str:
    digest = hashlib.sha256(b"quad4fhe-fit-1")
    digest.update(len(manifest).to_bytes(8, "little") + manifest)
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(f"{name}:{array.dtype.str}:{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
