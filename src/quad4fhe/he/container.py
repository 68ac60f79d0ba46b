"""Requests, replies and evaluation keys as bytes: one framed, versioned, length-first container.

Decides the layout below and what a reader refuses. Every size follows from the plan, so a reader knows the length to
the byte before it allocates anything, and what a stranger claims is only ever compared. What the residues mean is left
to `batch` and `packed`; there is no kind for a secret key, so none can be sent.

    magic 8 | version u16 | kind u8 | bytes per residue u8 | plan hash 32 | model hash 32 | key id 16 | nonce 16
    shape 4 x u32 | payload length u64 | payload: residues, little-endian, C order | SHA-256 of all before it
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quad4fhe.circuit.plan import Plan
from quad4fhe.errors import InputError
from quad4fhe.he import batch
from quad4fhe.he.packed import EvaluationKeys
from quad4fhe.he.seal import Context
from quad4fhe.he.session import Header, Reply, Request

VERSION = 1
MAGIC = b"Q4FHE\r\n\x1a"
_HEADER = struct.Struct("<8sHBB32s32s16s16s4IQ")
HEADER_BYTES = _HEADER.size
_DIGEST = 32
_BLOCK = 2**20


class Kind(IntEnum):
    """What a container holds."""

    request = 1
    reply = 2
    keys = 3


class Readable(Protocol):
    """Anything bytes can be read from."""

    def read(self, size: int, /) -> bytes | memoryview:
        """At most `size` bytes; none at the end."""


class View:
    """Memory, such as a mapped file, read without a copy: what is read stays a part of it."""

    def __init__(self, data: memoryview) -> None:
        self._left = data

    def read(self, size: int, /) -> memoryview:
        """At most `size` bytes; none at the end."""
        part, self._left = self._left[:size], self._left[size:]
        return part


@dataclass(frozen=True)
class Form:
    """The shape (rows, polynomials, primes, N) that a plan fixes for one kind of container, and its primes."""

    shape: tuple[int, int, int, int]
    primes: tuple[int, ...]

    @property
    def width(self) -> int:
        """Bytes of one residue: four where every prime fits."""
        return 4 if max(self.primes) < 1 << 32 else 8

    @property
    def payload(self) -> int:
        """Bytes of all residues."""
        return math.prod(self.shape) * self.width


def form(plan: Plan, kind: Kind) -> Form:
    """What a container of this kind looks like under this plan."""
    primes, ring = plan.chain.primes, plan.chain.ring
    if kind is Kind.keys:
        if plan.layout == "batch":
            raise InputError("layout batch has no evaluation keys; send the request alone")
        every = plan.chain.every
        count = 1 + len(plan.packing.steps())
        return Form((count * len(primes), 2, len(every), ring), every)
    if plan.layout == "batch":
        rows, size = (plan.shape.features, 2) if kind is Kind.request else (plan.shape.outputs, 3)
        return Form((rows, size, len(primes), ring), primes)
    if kind is Kind.request:
        return Form((plan.packing.chunks, 2, len(primes), ring), primes)
    return Form((1, 2, len(primes) - 1, ring), primes[:-1])


def size(plan: Plan, kind: Kind) -> int:
    """The exact number of bytes of a container: its lower and upper limit."""
    return HEADER_BYTES + form(plan, kind).payload + _DIGEST


def write_request(plan: Plan, request: Request) -> Iterator[bytes]:
    """The bytes of a request, made while they are read."""
    chunks = (np.asarray(chunk) if plan.layout == "batch" else np.asarray(chunk)[None] for chunk in request.chunks)
    return _write(plan, Kind.request, request.header, chunks)


def write_reply(plan: Plan, reply: Reply) -> Iterator[bytes]:
    """The bytes of a reply."""
    return _write(plan, Kind.reply, reply.header, [reply.residues.reshape(form(plan, Kind.reply).shape)])


def write_keys(plan: Plan, key_id: bytes, keys: EvaluationKeys) -> Iterator[bytes]:
    """The bytes of evaluation keys: their residues alone; SEAL's own framing is put back by the reader."""
    wanted = form(plan, Kind.keys)
    context = Context(plan.chain)
    parts = [
        context.switching_words(keys.relin, [0], single=True),
        context.switching_words(keys.galois, plan.packing.steps()),
    ]
    header = Header(plan.sha256, plan.model_id, key_id, bytes(16))
    return _write(plan, Kind.keys, header, [part.reshape(-1, *wanted.shape[1:]) for part in parts])


@dataclass(frozen=True)
class Claim:
    """What a container's first bytes claim to be: enough to find the plan, and the keys, to read it with."""

    kind: Kind
    plan: bytes
    model: str
    key: bytes


def peek(data: bytes) -> Claim:
    """What a container claims to be, from its first HEADER_BYTES; nothing else of it is checked."""
    kind, _, fields = _fields(data)
    return Claim(kind, fields[0], fields[1].hex(), fields[2])


def check_digest(stream: Readable, length: int) -> None:
    """Compare the SHA-256 at the end of a container of `length` bytes with what comes before it; parse nothing."""
    digest, left = hashlib.sha256(), length - _DIGEST
    while left > 0:
        part = _exactly(stream, min(left, _BLOCK))
        digest.update(part)
        left -= len(part)
    _compare(stream, digest)


def read_request(plan: Plan, stream: Readable, *, hashed: bool = False) -> Request:
    """A request whose chunks are read from the stream while they are used.

    The digest is checked before the last chunk is handed out, so nothing is computed to its end on damaged bytes. A
    caller whose bytes are `hashed`, by `check_digest`, does without this check, but not without any other.
    """
    header, digest = _open(plan, Kind.request, stream)
    step = batch.chunk_features(plan.chain) if plan.layout == "batch" else 1
    chunks = _chunks(stream, form(plan, Kind.request), step, None if hashed else digest)
    if plan.layout == "batch":
        return Request(header, chunks)
    return Request(header, (chunk[0].astype(np.uint64, copy=False) for chunk in chunks))


def read_reply(plan: Plan, stream: Readable) -> Reply:
    """A reply; raises InputError if a byte of it is not as it was written."""
    header, digest = _open(plan, Kind.reply, stream)
    wanted = form(plan, Kind.reply)
    (residues,) = _chunks(stream, wanted, wanted.shape[0], digest)
    return Reply(header, residues if plan.layout == "batch" else residues[0].astype(np.uint64, copy=False))


def read_keys(plan: Plan, stream: Readable) -> tuple[bytes, EvaluationKeys]:
    """A key id and its evaluation keys, framed for SEAL by this side: none of the sender's framing gets there."""
    header, digest = _open(plan, Kind.keys, stream)
    wanted = form(plan, Kind.keys)
    (residues,) = _chunks(stream, wanted, wanted.shape[0], digest)
    words = residues.astype(np.uint64, copy=False).reshape(-1, len(plan.chain.primes), *wanted.shape[1:])
    context = Context(plan.chain)
    relin = context.switching_bytes(words[:1], [0], single=True)
    return header.key, EvaluationKeys(relin, context.switching_bytes(words[1:], plan.packing.steps()))


def _write(plan: Plan, kind: Kind, header: Header, chunks: Iterable[NDArray[Any]]) -> Iterator[bytes]:
    wanted = form(plan, kind)
    fields = (plan.sha256, bytes.fromhex(plan.model_id), header.key, header.nonce, *wanted.shape, wanted.payload)
    if (header.plan, header.model) != (plan.sha256, plan.model_id) or (len(header.key), len(header.nonce)) != (16, 16):
        raise InputError("the header belongs to another plan or model; encrypt again with this plan")
    first = _HEADER.pack(MAGIC, VERSION, kind, wanted.width, *fields)
    digest = hashlib.sha256(first)
    yield first
    rows = 0
    for chunk in chunks:
        if chunk.ndim != 4 or chunk.shape[1:] != wanted.shape[1:]:
            raise InputError(f"residues of shape {chunk.shape}, wanted {wanted.shape}: were they made by this plan?")
        data = np.ascontiguousarray(chunk, dtype=f"<u{wanted.width}").tobytes()
        digest.update(data)
        rows += len(chunk)
        yield data
    if rows != wanted.shape[0]:
        raise InputError(f"{rows} rows of residues, wanted {wanted.shape[0]}: were they made by this plan?")
    yield digest.digest()


def _fields(data: bytes) -> tuple[Kind, int, tuple[Any, ...]]:
    if len(data) < HEADER_BYTES or not data.startswith(MAGIC):
        raise InputError("not a quad4fhe container: its first bytes are missing or wrong; send what this library wrote")
    _, version, kind, width, *fields = _HEADER.unpack(data[:HEADER_BYTES])
    if version != VERSION:
        raise InputError(f"container version {version}, this library reads version {VERSION}: use the same release")
    if kind not in tuple(Kind):
        raise InputError(f"container kind {kind}, wanted one of {', '.join(k.name for k in Kind)}")
    return Kind(kind), width, tuple(fields)


def _open(plan: Plan, kind: Kind, stream: Readable) -> tuple[Header, Any]:
    """Read the first bytes, refuse what is not exactly what this plan prescribes, and start the digest."""
    wanted, own = form(plan, kind), bytes.fromhex(plan.model_id)
    data = bytes(_exactly(stream, HEADER_BYTES))
    found, width, fields = _fields(data)
    if found is not kind:
        raise InputError(f"the container holds {found.name}, wanted {kind.name}")
    hash_, model, key, nonce, *rest = fields
    if hash_ != plan.sha256 or model != own:
        raise InputError("the container was made for another plan or model; fetch the plan and encrypt again")
    if (*rest, width) != (*wanted.shape, wanted.payload, wanted.width):
        raise InputError(
            f"the container claims shape {tuple(rest[:4])} in {rest[4]} bytes, this plan has {wanted.shape} in "
            f"{wanted.payload}; fetch the plan and encrypt again"
        )
    return Header(hash_, plan.model_id, key, nonce), hashlib.sha256(data)


def _chunks(stream: Readable, wanted: Form, step: int, digest: Any) -> Iterator[NDArray[Any]]:
    rows = wanted.shape[0]
    for start in range(0, rows, step):
        count = min(step, rows - start)
        data = _exactly(stream, count * (wanted.payload // rows))
        if digest is not None:
            digest.update(data)
        chunk = np.frombuffer(data, dtype=f"<u{wanted.width}").reshape(count, *wanted.shape[1:])
        for place, q in enumerate(wanted.primes):
            if int(chunk[:, :, place].max()) >= q:
                raise InputError(f"a residue is not below its prime {q}: the container is damaged or of another plan")
        if start + count == rows:
            _compare(stream, digest)
        yield chunk


def _compare(stream: Readable, digest: Any) -> None:
    """Read the end of a container; without a digest, only that it ends there."""
    found = _exactly(stream, _DIGEST)
    if digest is not None and found != digest.digest():
        raise InputError("the container's SHA-256 does not match its content: it was damaged on the way")
    if stream.read(1):
        raise InputError("bytes follow the end of the container; send one container alone")


def _exactly(stream: Readable, count: int) -> bytes | memoryview:
    parts, missing = [], count
    while missing:
        part = stream.read(missing)
        if not part:
            raise InputError(f"the container ends {missing} bytes early: it is not whole")
        parts.append(part)
        missing -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
