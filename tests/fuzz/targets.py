"""What strangers' bytes meet, as functions of bytes: messages, plans and fit files.

A target returns True where the bytes were accepted and False where they were refused by an error of ours in one line;
anything else is a crash. The first byte of an input says what it is to be taken for. Some values make the target put
the right SHA-256 at its place first, since without it no mutation would get past the digest.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from quad4fhe import MLP, Fit, Plan, fit
from quad4fhe.errors import CertificateError, InputError
from quad4fhe.he import message
from quad4fhe.he.message import Kind
from quad4fhe.planning.describe import describe


@dataclass(frozen=True)
class Target:
    """A reader, and valid inputs to start from."""

    run: Callable[[bytes], bool]
    seeds: Callable[[], list[bytes]]


@cache
def vectors() -> Any:
    """The generator of the known-answer vectors, whose files are the seeds."""
    path = Path(__file__).parents[1] / "vectors" / "generate.py"
    spec = importlib.util.spec_from_file_location("vectors_generate", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def plans() -> dict[str, Plan]:
    """One small plan of each layout."""
    return {layout: Plan.from_dict(entry["plan"]) for layout, entry in vectors().plans().items()}


@cache
def folder() -> Path:
    """A folder for inputs that are read from files; in memory where the system has such a place."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    kept = tempfile.TemporaryDirectory(prefix="quad4fhe-fuzz-", dir=place)
    _KEPT.append(kept)
    return Path(kept.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []  # removed when the process ends


def _refused(read: Callable[[], Any]) -> bool:
    """Whether the input was refused as it should be: one line, and an error of ours."""
    try:
        read()
    except (InputError, CertificateError) as error:
        text = str(error)
        if not text or "\n" in text:
            raise AssertionError(f"an error of {text.count(chr(10)) + 1} lines: {text!r}") from error
        return True
    return False


def _sealed(body: bytes) -> bytes:
    return body[:-32] + hashlib.sha256(body[:-32]).digest()


def messages(data: bytes) -> bool:
    """Read a request or a reply, as the first byte says."""
    flag, body = (data[0], data[1:]) if data else (0, b"")
    if flag & 1:
        body = _sealed(body)
    kind = Kind.reply if flag & 2 else Kind.request

    def read() -> None:
        arrays = message.read(plans()["batch"], kind, body)
        assert arrays[-1].ndim == 4
        message.check_digest(body)

    return not _refused(read)


def message_seeds() -> list[bytes]:
    """Every kind, with and without a digest that the target repairs."""
    names = list(vectors().KINDS)
    return [bytes([2 * i + repair]) + vectors().message(name) for i, name in enumerate(names) for repair in (0, 1)]


def plan_files(data: bytes) -> bool:
    """Read a plan as `quad4fhe query --plan` does, and use what was accepted."""
    path = folder() / "plan.json"
    path.write_bytes(data[1:])

    def read() -> None:
        plan = Plan.load(path)
        assert len(plan.sha256) == 32
        describe(plan)
        for kind in Kind:
            message.size(plan, kind)
        Plan.from_dict(json.loads(json.dumps(plan.to_dict())))

    return not _refused(read)


def plan_seeds() -> list[bytes]:
    """Both layouts."""
    return [b"\x00" + json.dumps(entry["plan"]).encode() for entry in vectors().plans().values()]


@cache
def small_fit() -> Fit:
    """A fit of a few weights."""
    rng = np.random.default_rng(0)
    mlp = MLP(rng.normal(size=(3, 2)), rng.normal(size=3), rng.normal(size=(3, 3)), np.zeros(3))
    return fit(mlp, 3 * rng.normal(size=(40, 2)), family="shared")


def _fit_file(manifest: bytes, tensors: dict[str, Any]) -> bytes:
    """A fit file with the right SHA-256, whatever the manifest holds."""
    digest = hashlib.sha256(b"quad4fhe-fit-1" + len(manifest).to_bytes(8, "little") + manifest)
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(f"{name}:{array.dtype.str}:{array.shape}".encode() + array.tobytes())
    envelope = f'{{"sha256":"{digest.hexdigest()}","manifest":'.encode() + manifest + b"}"
    return save_tensors(tensors, {"quad4fhe": envelope.decode("utf-8", "replace")})


@cache
def _fit_parts() -> tuple[bytes, bytes, dict[str, Any]]:
    data = small_fit().to_bytes()
    header = msgspec.json.decode(data[8 : 8 + int.from_bytes(data[:8], "little")])
    manifest = header["__metadata__"]["quad4fhe"].split('"manifest":', 1)[1][:-1].encode()
    return data, manifest, load_tensors(data)


def fit_files(data: bytes) -> bool:
    """Read a fit file: raw bytes, a manifest beside the true tensors, or other numbers in the tensors."""
    flag, body = (data[0] % 3, data[1:]) if data else (0, b"")
    _, manifest, tensors = _fit_parts()
    if flag == 1:
        body = _fit_file(body, tensors)
    elif flag == 2:
        filled, place = {}, 0
        for name, array in tensors.items():
            part = body[place : place + array.nbytes].ljust(array.nbytes, b"\x00")
            filled[name] = np.frombuffer(part, dtype=np.float64).reshape(array.shape)
            place += array.nbytes
        body = _fit_file(manifest, filled)

    def read() -> None:
        found = Fit.from_bytes(body)
        assert str(found)
        found.model.logits(np.zeros((1, found.model.features)))
        Fit.from_bytes(found.to_bytes())

    with np.errstate(all="ignore"):  # a stranger's finite numbers may overflow in a product
        return not _refused(read)


def fit_seeds() -> list[bytes]:
    """The whole file, its manifest, its numbers."""
    data, manifest, tensors = _fit_parts()
    return [b"\x00" + data, b"\x01" + manifest, b"\x02" + b"".join(array.tobytes() for array in tensors.values())]


TARGETS = {
    "messages": Target(messages, message_seeds),
    "plans": Target(plan_files, plan_seeds),
    "fits": Target(fit_files, fit_seeds),
}
