"""The fit file: safetensors with one JSON manifest, read so strictly that only one reading exists.

A duplicate key, a gap or an overlap of tensors is refused: two programs could read two different files. `check_stated`
compares what the file says of a fit with its certificate; whether the certificate holds is up to `verify`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from safetensors.numpy import save as save_tensors

from quad4fhe._arrays import Array
from quad4fhe._box import default_share, widened
from quad4fhe.errors import CertificateError, InputError
from quad4fhe.fitting.diagnostics import PACKAGES, Agreement
from quad4fhe.fitting.families import FAMILIES
from quad4fhe.fitting.notes import is_note
from quad4fhe.proof.guarantee import COLUMNS, Guarantee
from quad4fhe.proof.verification import check_without_data

if TYPE_CHECKING:
    from quad4fhe.fitting.result import Fit
    from quad4fhe.mlp import MLP

_COMMON = ("W1", "b1", "W2", "b2", "c", "box", "margins")
TENSORS = ({*_COMMON, "S", "T"}, {*_COMMON, "W", "t", "V", "a"})
"""The arrays of a fit of degree 2, and of one of a higher degree."""
PART = "feature_part"
"""The bytes of the feature part, an ONNX graph; only in the fit of a head."""
NETWORK = "network"
"""The bytes of a network whose first layer alone was read, an ONNX graph."""
HOLDOUT = ("holdout", "holdout_box")
"""What both models say of hold-out rows, and the box for which they say it; only in a fit with such rows."""
BYTES = (PART, NETWORK)
_TYPES: dict[str, np.dtype[Any]] = {"F64": np.dtype("<f8"), "U8": np.dtype("u1")}
_LAYER = re.compile(r"layer([2-9]|[1-9][0-9])\.[Wb]")
_KEY = "quad4fhe"
_PREFIX = '{{"sha256":"{}","manifest":'
_LONGEST = 2**40  # a tensor's side; products of such sides are exact in Python and no file is that long


def write(manifest: bytes, tensors: dict[str, Array]) -> bytes:
    """The content of a fit file."""
    arrays: dict[str, Any] = {
        name: np.ascontiguousarray(tensors[name], dtype=_TYPES["U8" if name in BYTES else "F64"]) for name in tensors
    }
    # The hash is over the manifest's own bytes, so they stand in the envelope as they are. One key only: safetensors
    # does not keep the order of several, and equal fits should be equal files.
    return save_tensors(arrays, {_KEY: _PREFIX.format(_digest(manifest, arrays)) + manifest.decode() + "}"})


def read(data: bytes, name: str) -> tuple[dict[str, Any], dict[str, Array]]:
    """The manifest and the tensors; InputError if this is not a fit file, CertificateError if it was changed."""
    try:
        size = int.from_bytes(data[:8], "little")
        header = strict_json(data[8 : 8 + size])
        named = {key for key in header if key not in ("__metadata__", *BYTES, *HOLDOUT) and not _LAYER.fullmatch(key)}
        if len(data) < 8 + size or named not in TENSORS or "__metadata__" not in header:
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
    """A JSON object; ValueError where a key comes twice at any depth, or for NaN, Infinity and numbers out of range."""
    document = json.loads(
        text.decode(), object_pairs_hook=_unique, parse_constant=_refuse_number, parse_float=_finite, parse_int=_whole
    )
    if not isinstance(document, dict):
        raise ValueError("wanted a JSON object")
    json.dumps(document, ensure_ascii=False).encode()  # raises a ValueError for half of a surrogate pair
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a key comes twice")
    return entries


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


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
    """Float64 arrays, and the bytes of the feature part, without gap or overlap up to the end of the file."""
    tensors, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: tuple(map(int, item[1]["data_offsets"]))):
        shape, (first, last) = entry["shape"], entry["data_offsets"]
        kind = "U8" if name in BYTES else "F64"
        if set(entry) != {"dtype", "shape", "data_offsets"} or entry["dtype"] != kind:
            raise ValueError(f"the entry of {name}")
        if not all(type(side) is int and 0 <= side <= _LONGEST for side in (*shape, first, last)) or len(shape) > 2:
            raise ValueError(f"the numbers of {name}")
        dtype = _TYPES[kind]
        if first != end or last - first != dtype.itemsize * math.prod(shape) or start + last > len(data):
            raise ValueError(f"the place of {name}")
        values = np.frombuffer(data, dtype=dtype, count=math.prod(shape), offset=start + first)
        tensors[name] = values.astype(dtype.newbyteorder("=")).reshape(shape)
        end = last
    if start + end != len(data):
        raise ValueError("bytes after the last tensor")
    return tensors


def layer_tensors(layers: Sequence[tuple[Array, Array]]) -> dict[str, Array]:
    """The layers of a deeper network after its first one, by their names in a fit file."""
    tensors = {}
    for k, (W, b) in enumerate(layers, start=2):
        tensors[f"layer{k}.W"], tensors[f"layer{k}.b"] = W, b
    return tensors


def plain_activations(mlp: MLP) -> list[Any] | None:
    """The activations of a deeper network; None if all are the ReLU, or there is one hidden layer."""
    if not mlp.layers or all(each.is_default for each in mlp.activations):
        return None
    return [each.plain() for each in mlp.activations]


def layers_of(tensors: dict[str, Array]) -> list[tuple[Array, Array]]:
    """The layers that `layer_tensors` named; InputError where one is missing."""
    count = sum(1 for name in tensors if _LAYER.fullmatch(name))
    try:
        return [(tensors[f"layer{k}.W"], tensors[f"layer{k}.b"]) for k in range(2, 2 + (count + 1) // 2)]
    except KeyError as error:
        raise InputError(f"the layer {error} is missing") from None


def _digest(manifest: bytes, tensors: dict[str, Array]) -> str:
    digest = hashlib.sha256(b"quad4fhe-fit-1")
    digest.update(len(manifest).to_bytes(8, "little") + manifest)
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(f"{name}:{array.dtype.str}:{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def check_stated(fit: Fit) -> None:
    """Raise CertificateError where two statements of a fit can't both be true."""
    check_without_data(fit)
    d, claim = fit.diagnostics, fit.certificate
    calibration = Agreement.of(claim.samples, len(claim.mismatches))
    K, d_in, m = fit.mlp.outputs, fit.mlp.features, fit.mlp.units
    if fit.degree > 2 and FAMILIES.get(fit.family).is_free:  # a unit stands once for each of its polynomials
        m = fit.model.units
    shape = (fit.model.outputs, fit.model.units, fit.model.features)
    _agree("the shape of the replacement", shape, (K, m, d_in))
    _agree("the shape of the box", fit.box.shape, (2, d_in))
    _agree("the number of margins", fit.margins.shape, (claim.samples,))
    _agree("whether box and margins are finite", all(np.isfinite(a).all() for a in (fit.box, fit.margins)), True)
    _agree("the number of classes", d.classes, fit.mlp.classes)
    _agree("the number of calibration rows", d.samples, claim.samples)
    _agree("the calibration agreement", d.calibration, calibration)
    if d.test is not None:
        _agree("whether the test agreement is possible", 0 <= d.test.mismatches <= d.test.samples > 0, True)
        _agree("the test agreement", d.test, Agreement.of(d.test.samples, d.test.mismatches))
    named = [*(each.family for each in d.families), *(each.family for each in d.family_trace)]
    unknown = [name for name in (*named, *(each.family for each in d.conditioning)) if name not in FAMILIES]
    _agree("the families that are unknown", unknown, [])
    _agree("whether a shared quadratic is impossible", d.hard == "infeasible", claim.impossible is not None)
    _agree("the versions", sorted(fit.versions), sorted(PACKAGES))
    _check_regime(fit)
    for part in (d.accuracy, d.test_accuracy):
        if part is not None:
            _agree("whether the accuracy is possible", max(part.network, part.replacement) <= part.samples > 0, True)
    for note in (*d.notes, *d.warnings):
        if not is_note(note):
            raise CertificateError(f"the fit holds the remark {note[:60]!a}, which no fit makes")


def check_holdout(fit: Fit, said: Guarantee | None) -> None:
    """Raise CertificateError unless the promise that the file states is the one that its counts give.

    `verify` checks the counts, with the hold-out rows.
    """
    own = fit.holdout
    if own is not None:
        shapes = (own.rows.shape[1:], own.box.shape)
        _agree("the shape of what is known of hold-out rows", shapes, ((len(COLUMNS),), (2, fit.mlp.features)))
        _agree("the box of the promise", own.box.tolist(), widened(fit.box, default_share(fit.degree)).tolist())
        problem = "there are none" if not len(own.rows) else own.problem(fit.mlp.classes)
        if problem is not None:
            raise CertificateError(f"the fit makes a promise that can't be checked: {problem}")
        if own.terms.split is not None:
            total = len(own.rows) + fit.certificate.samples
            _agree("the number of rows that were split", own.terms.split.rows, total)
    if fit.guarantee != said:
        raise CertificateError("the fit contradicts itself: its promise is not the one that its own counts give")


def _check_regime(fit: Fit) -> None:
    d, regime = fit.diagnostics, fit.regime
    if regime.is_hard:
        _agree("what the exact test found", d.hard, "feasible")
    for kind, value in (("rch", d.mu), ("soft", d.weight)):
        stated = None if value is None else f"{value:g}"
        own = f"{regime.parameter:g}" if regime.kind == kind else None
        _agree(f"the parameter of {kind}", stated, own)


def _agree(what: str, stated: object, other: object) -> None:
    if stated != other:
        raise CertificateError(f"the fit contradicts itself: {what} is stated as {stated}, and elsewhere as {other}")
