"""Requests, replies and evaluation keys, and the binary container that carries them.

Every size follows from the plan: a reader knows the exact length before it allocates anything, and compares the sizes
in the header with it. There is no container for a secret key, so none can be sent.

    magic 8 | version u16 | kind u8 | bytes per word u8 | plan hash 32 | model hash 32 | key id 16 | nonce 16
    shape 4 x u32 | payload length u64 | payload: words, little-endian, C order | SHA-256 of all before it

Shape and bytes per word are those of the last array of the payload.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from quad4fhe.errors import InputError
from quad4fhe.layouts import layout_of
from quad4fhe.layouts.forms import Form, Words
from quad4fhe.layouts.forms import Kind as Kind
from quad4fhe.planning.plan import Plan

VERSION = 1
MAGIC = b"Q4FHE\r\n\x1a"
_HEADER = struct.Struct("<8sHBB32s32s16s16s4IQ")
HEADER_BYTES = _HEADER.size
DIGEST_BYTES = 32
_BLOCK = 2**20


@dataclass(frozen=True)
class Identity:
    """The identity of a message: the hashes of its plan and model, the id of its key, and the nonce of the request.

    A request and its reply have the same identity. Evaluation keys have a nonce of zeros.
    """

    plan: bytes
    model: str
    key: bytes
    nonce: bytes = bytes(16)

    @classmethod
    def of(cls, plan: Plan, key: bytes, nonce: bytes = bytes(16)) -> Identity:
        """The identity of a message for this plan."""
        return cls(plan.sha256, plan.model_id, key, nonce)

    def belongs_to(self, plan: Plan) -> bool:
        """Whether the message is for this plan and its model."""
        return (self.plan, self.model) == (plan.sha256, plan.model_id)

    def mismatch(self, plan: Plan) -> str:
        """Say in words what the message was made for, and what is wanted instead."""
        wanted = f"plan {plan.sha256.hex()[:12]} of model {plan.model_id[:12]} (layout {plan.layout})"
        came = f"plan {self.plan.hex()[:12]} of model {self.model[:12]}"
        return f"made for another plan or model: {came}, wanted {wanted}"


@dataclass(frozen=True, eq=False)
class Request:
    """Encrypted samples: chunks of the arrays that the plan's layout prescribes.

    `Client.stream` makes the chunks while they are read, once; `Client.encrypt` returns them as a list. The kind
    `prepared` is for a server that has prepared its reply; `seed`, without samples, asks it to.
    """

    identity: Identity
    chunks: Iterable[Words]
    kind: Kind = Kind.request


@dataclass(frozen=True, eq=False)
class Reply:
    """Encrypted logits: the arrays that the plan's layout prescribes.

    The kind `halves` answers a seed, and `answers` a request that was prepared.
    """

    identity: Identity
    chunks: Iterable[Words]
    kind: Kind = Kind.reply

    @property
    def size(self) -> int:
        """Bytes of all arrays."""
        return sum(chunk.nbytes for chunk in self.chunks)


@dataclass(frozen=True, eq=False)
class EvaluationKeys:
    """The keys that a server needs once, before a client's first request; they are public, but large."""

    chunks: Iterable[Words]

    @property
    def size(self) -> int:
        """Bytes of all arrays."""
        return sum(chunk.nbytes for chunk in self.chunks)


class Readable(Protocol):
    """Anything bytes can be read from."""

    def read(self, size: int, /) -> bytes | memoryview:
        """At most `size` bytes; none at the end."""


class View:
    """Reads memory, such as a mapped file, without copying it."""

    def __init__(self, data: memoryview) -> None:
        self._left = data

    def read(self, size: int, /) -> memoryview:
        """At most `size` bytes; none at the end."""
        part, self._left = self._left[:size], self._left[size:]
        return part


def form(plan: Plan, kind: Kind) -> Form:
    """The arrays of a container of this kind for this plan."""
    found = find_form(plan, kind)
    if found is None:
        missing = "has no evaluation keys" if kind is Kind.keys else "prepares no replies"
        raise InputError(f"layout {plan.layout} {missing}; send the request alone")
    return found


def find_form(plan: Plan, kind: Kind) -> Form | None:
    """The same, or None where the plan has no such messages."""
    layout = layout_of(plan)
    return (
        layout.form(plan, kind) if kind in (Kind.request, Kind.reply, Kind.keys) else layout.prepared_form(plan, kind)
    )


def size(plan: Plan, kind: Kind) -> int:
    """The exact number of bytes of a container."""
    return HEADER_BYTES + form(plan, kind).payload + DIGEST_BYTES


def write_request(plan: Plan, request: Request) -> Iterator[bytes]:
    """Yield the bytes of a request, made while they are read."""
    return _write(plan, request.kind, request.identity, request.chunks)


def write_reply(plan: Plan, reply: Reply) -> Iterator[bytes]:
    """Yield the bytes of a reply."""
    return _write(plan, reply.kind, reply.identity, reply.chunks)


def write_keys(plan: Plan, key_id: bytes, keys: EvaluationKeys) -> Iterator[bytes]:
    """Yield the bytes of evaluation keys: residues only, without SEAL's framing."""
    return _write(plan, Kind.keys, Identity.of(plan, key_id), keys.chunks)


def peek(data: bytes) -> tuple[Kind, Identity]:
    """Read the kind and identity that a container claims from its first HEADER_BYTES; nothing else is checked."""
    kind, _, (plan, model, key, nonce, *_) = _fields(data)
    return kind, Identity(plan, model.hex(), key, nonce)


def check_digest(stream: Readable, length: int) -> None:
    """Check the SHA-256 at the end of a container of `length` bytes, without parsing anything."""
    digest, left = hashlib.sha256(), length - DIGEST_BYTES
    while left > 0:
        part = _exactly(stream, min(left, _BLOCK))
        digest.update(part)
        left -= len(part)
    _compare(stream, digest)


def read_request(plan: Plan, stream: Readable, kind: Kind = Kind.request, *, hashed: bool = False) -> Request:
    """Read a request; its chunks are read from the stream and checked while they are used.

    The digest is checked before the last chunk is yielded, so no evaluation of damaged bytes finishes. With `hashed`,
    the caller has run `check_digest`, and this check is skipped.
    """
    identity, digest = _open(plan, kind, stream)
    wanted = form(plan, kind)
    return Request(identity, wanted.checked("the request", _chunks(stream, wanted, None if hashed else digest)), kind)


def read_reply(plan: Plan, stream: Readable, kind: Kind = Kind.reply) -> Reply:
    """Read a reply; raises InputError if any byte has changed."""
    identity, digest = _open(plan, kind, stream)
    wanted = form(plan, kind)
    return Reply(identity, wanted.checked("the reply", _chunks(stream, wanted, digest)).held(), kind)


def read_keys(plan: Plan, stream: Readable) -> tuple[bytes, EvaluationKeys]:
    """Read a key id and its evaluation keys."""
    identity, digest = _open(plan, Kind.keys, stream)
    wanted = form(plan, Kind.keys)
    return identity.key, EvaluationKeys(wanted.checked("the key set", _chunks(stream, wanted, digest)).held())


def _write(plan: Plan, kind: Kind, identity: Identity, chunks: Iterable[Words]) -> Iterator[bytes]:
    wanted = form(plan, kind)
    if not identity.belongs_to(plan) or (len(identity.key), len(identity.nonce)) != (16, 16):
        raise InputError("the message belongs to another plan or model; encrypt again with this plan")
    names = (identity.plan, bytes.fromhex(identity.model), identity.key, identity.nonce)
    first = _HEADER.pack(MAGIC, VERSION, kind, wanted.width, *names, *wanted.shape, wanted.payload)
    digest = hashlib.sha256(first)
    yield first
    for part, chunk in wanted.placed(f"the {kind.name}", map(np.asarray, chunks)):
        data = part.encode(chunk)
        digest.update(data)
        yield data
    yield digest.digest()


def _fields(data: bytes) -> tuple[Kind, int, tuple[Any, ...]]:
    if len(data) < HEADER_BYTES or not data.startswith(MAGIC):
        raise InputError("not a quad4fhe container: its first bytes are missing or wrong; send what this library wrote")
    _, version, kind, width, *fields = _HEADER.unpack(data[:HEADER_BYTES])
    if version != VERSION:
        raise InputError(f"container version {version}, this library reads version {VERSION}; use the same release")
    if kind not in tuple(Kind):
        raise InputError(f"container kind {kind}, wanted one of {', '.join(k.name for k in Kind)}; send one of these")
    return Kind(kind), width, tuple(fields)


def _open(plan: Plan, kind: Kind, stream: Readable) -> tuple[Identity, Any]:
    """Read the header, check that it is exactly the one that this plan prescribes, and start the digest."""
    wanted = form(plan, kind)
    data = bytes(_exactly(stream, HEADER_BYTES))
    found, identity = peek(data)
    if found is not kind:
        raise InputError(f"the container holds {found.name}, wanted {kind.name}; send that")
    if not identity.belongs_to(plan):
        raise InputError(f"the container was {identity.mismatch(plan)}; encrypt again with the wanted plan")
    _, width, (*_, a, b, c, d, payload) = _fields(data)
    if ((a, b, c, d), payload, width) != (wanted.shape, wanted.payload, wanted.width):
        raise InputError(
            f"the container claims shape {(a, b, c, d)} in {payload} bytes, this plan has {wanted.shape} in "
            f"{wanted.payload}; fetch the plan and encrypt again"
        )
    return identity, hashlib.sha256(data)


def _chunks(stream: Readable, wanted: Form, digest: Any) -> Iterator[Words]:
    last = wanted.parts[-1]
    for part in wanted.parts:
        rows, step = part.shape[0], part.step or part.shape[0]
        for start in range(0, rows, step):
            count = min(step, rows - start)
            data = _exactly(stream, count * part.row_bytes)
            if digest is not None:
                digest.update(data)
            if part is last and start + count == rows:
                _compare(stream, digest)
            yield part.decode(data, count)


def _compare(stream: Readable, digest: Any) -> None:
    """Read the end of a container and compare its digest; without a digest, check only that nothing follows."""
    found = _exactly(stream, DIGEST_BYTES)
    if digest is not None and found != digest.digest():
        raise InputError("the container's SHA-256 does not match its content: it was damaged on the way; send it again")
    if stream.read(1):
        raise InputError("bytes follow the end of the container; send one container alone")


def _exactly(stream: Readable, count: int) -> bytes | memoryview:
    parts, missing = [], count
    while missing:
        part = stream.read(missing)
        if not part:
            raise InputError(f"the container ends {missing} bytes early; send it again")
        parts.append(part)
        missing -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
