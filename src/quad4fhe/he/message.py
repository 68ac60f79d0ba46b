"""The two messages: a request, which is all that a server needs, and the reply to it.

Every size follows from the plan: a reader knows the exact length before it allocates anything. A reply names the
request that it answers by that request's SHA-256. There is no message for a secret key, so none can be sent.

    magic 8 | version u16 | kind u8 | 0 u8 | plan hash 32 | SHA-256 of the request 32, zeros in a request | payload
    SHA-256 of all before it 32
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from quad4fhe.errors import InputError
from quad4fhe.layouts import layout_of
from quad4fhe.layouts.forms import Kind, Words
from quad4fhe.planning.plan import Plan

VERSION = 2
MAGIC = b"Q4FHE\r\n\x1a"
_HEADER = struct.Struct("<8sHBB32s32s")
HEADER_BYTES = _HEADER.size
DIGEST_BYTES = 32
_NONE = bytes(DIGEST_BYTES)

Data = bytes | memoryview


@dataclass(frozen=True)
class Head:
    """What the first bytes of a message claim: its kind, its plan's hash, and the request that a reply answers."""

    kind: Kind
    plan: bytes
    answers: bytes


def size(plan: Plan, kind: Kind) -> int:
    """The exact number of bytes of a message."""
    return HEADER_BYTES + layout_of(plan).form(plan, kind).payload + DIGEST_BYTES


def write(plan: Plan, kind: Kind, arrays: Sequence[Words], answers: bytes = _NONE) -> bytes:
    """The bytes of a message."""
    payload = layout_of(plan).form(plan, kind).encode(arrays)
    digest = hashlib.sha256(first := _HEADER.pack(MAGIC, VERSION, kind, 0, plan.sha256, answers))
    digest.update(payload)
    return b"".join((first, payload, digest.digest()))


def peek(data: Data) -> Head:
    """What a message claims in its first HEADER_BYTES; nothing else is checked."""
    if len(data) < HEADER_BYTES or bytes(data[: len(MAGIC)]) != MAGIC:
        raise InputError("not a quad4fhe message: its first bytes are missing or wrong; send what this library wrote")
    _, version, kind, zero, plan, answers = _HEADER.unpack(data[:HEADER_BYTES])
    if version != VERSION:
        raise InputError(f"message version {version}, this library reads version {VERSION}; use the same release")
    if kind not in tuple(Kind) or zero or (kind == Kind.request and answers != _NONE):
        raise InputError(f"message kind {kind}, wanted {', '.join(k.name for k in Kind)}; send one of these")
    return Head(Kind(kind), plan, answers)


def digest(data: Data) -> bytes:
    """The SHA-256 at the end of a message, unchecked; it identifies the message."""
    return bytes(data[-DIGEST_BYTES:])


def check_digest(data: Data) -> None:
    """Check the SHA-256 at the end of a message, without parsing anything."""
    with memoryview(data) as view:
        found = hashlib.sha256(view[:-DIGEST_BYTES]).digest() if len(view) > DIGEST_BYTES else b""
    if found != digest(data):
        raise InputError("the message's SHA-256 does not match its content: it was damaged on the way; send it again")


def read(plan: Plan, kind: Kind, data: Data, *, hashed: bool = False) -> tuple[Words, ...]:
    """The checked arrays of a message; with `hashed` the caller runs `check_digest`, and this check is skipped."""
    head = peek(data)
    if head.kind is not kind:
        raise InputError(f"the message is a {head.kind.name}, wanted a {kind.name}; send that")
    if head.plan != plan.sha256:
        raise InputError(mismatch(head.plan, plan))
    wanted = size(plan, kind)
    if len(data) != wanted:
        raise InputError(f"the {kind.name} has {len(data)} bytes, wanted {wanted}; send the whole message, alone")
    if not hashed:
        check_digest(data)
    payload = memoryview(data)[HEADER_BYTES : wanted - DIGEST_BYTES]
    return layout_of(plan).form(plan, kind).decode(f"the {kind.name}", payload)


def mismatch(came: bytes, plan: Plan) -> str:
    """Say in words which plan a message was made for, and what is wanted instead."""
    wanted = f"plan {plan.sha256.hex()[:12]} of model {plan.model_id[:12]} (layout {plan.layout})"
    return f"made for another plan: {came.hex()[:12]}, wanted {wanted}; encrypt again with the wanted plan"
