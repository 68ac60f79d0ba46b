"""A forger of fit files: takes them apart and puts them together with every hash made anew, without the library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from safetensors.numpy import load, save

Path = tuple[str | int, ...]
BOAST = "independently audited: 7630 of 7630 kept"
WORDS = ("hard", "rch(0.5)", "soft(1)", "soft(1)+polish", "kl", "kl+hinge", "lossless", "measured", "plane", "pairs")
WORDS += ("shared", "unitwise", "head", "zero", "free", "feasible", "infeasible", "undecided", "not tried", "9.9.9")
WORDS += ("0" * 64, "the polish found no coefficients that keep more decisions", BOAST)


def opened(data: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """The manifest and the tensors of a fit file."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    manifest: dict[str, Any] = json.loads(header["__metadata__"]["quad4fhe"])["manifest"]
    return manifest, load(data)


def envelope(manifest: bytes, tensors: dict[str, Any]) -> str:
    """The JSON that binds a manifest to tensors."""
    digest = hashlib.sha256(b"quad4fhe-fit-1" + len(manifest).to_bytes(8, "little") + manifest)
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        digest.update(f"{name}:{array.dtype.str}:{array.shape}".encode() + array.tobytes())
    return f'{{"sha256":"{digest.hexdigest()}","manifest":{manifest.decode()}}}'


def sealed(manifest: Any, tensors: dict[str, Any]) -> bytes:
    """A fit file whose hash is right, whatever it says; a manifest in bytes stays as it is."""
    if not isinstance(manifest, bytes):
        manifest = json.dumps(manifest, separators=(",", ":"), allow_nan=False).encode()
    return save(tensors, {"quad4fhe": envelope(manifest, tensors)})


def leaves(document: Any, at: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every place of a document, with the containers themselves; of a list its first, middle and last entry."""
    yield at, document
    listed = document
    if isinstance(document, list):
        listed = {k: document[k] for k in sorted({0, len(document) // 2, len(document) - 1}) if document}
    for key, value in listed.items() if isinstance(listed, dict) else ():
        yield from leaves(value, (*at, key))


def changed(document: Any, at: Path, value: Any) -> Any:
    """A copy of a document with another value at one place."""
    if not at:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[at[0]] = changed(document[at[0]], at[1:], value)
    return copy


def others(value: Any) -> list[Any]:
    """Values that could stand in the place of this one, most of them of its own type."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, max(0, value - 1), 0, 1, 7630, -1]
    if isinstance(value, float):
        return [2 * value + 1, 0.5 * value, -value, 0.0, 1.0, 0.25]
    if isinstance(value, str):
        return list(WORDS)
    if isinstance(value, list):
        longer = [*value, value[-1]] if value else []
        return [value[:-1], longer, [], [*value, 0], [*value, BOAST], [*value, [0.5, 0.5]], [*value, {}], value[::-1]]
    if isinstance(value, dict):
        without = [{k: v for k, v in value.items() if k != key} for key in value]
        return [*without, {**value, "audited": True}, {**value, BOAST: 1.0}, None]
    return [0, 1, 0.5, True, BOAST, [], {}, [1.0]]
