"""Receives request bodies into files, and rejects bad ones as early as possible.

The headers and the message's first bytes announce a body. If both are right, the body gets a place in the queue (in
`app`) and is spooled; an upload below the minimum rate is rejected. The server process parses only the first bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from quad4fhe.errors import InputError
from quad4fhe.he import message
from quad4fhe.he.message import HEADER_BYTES
from quad4fhe.layouts.forms import Kind
from quad4fhe.planning.plan import Plan
from quad4fhe.serve.admission import Place
from quad4fhe.serve.models import HostedModel
from quad4fhe.serve.spool import Incoming

OCTETS = "application/octet-stream"
UNKNOWN_PLAN = {"Quad4FHE-Plan": "unknown"}  # tells a client that its plan is not served here
FIRST_SECONDS = 10.0  # from the headers to the message's first bytes
GRACE_SECONDS = 5.0  # before the rate of an upload counts
LEAST_RATE = 2**15  # bytes per second, after that


class Upload:
    """An announced body: its plan, from its first bytes, and the rest, which has yet to arrive."""

    def __init__(self, plan: Plan, length: int, first: bytes, rest: AsyncIterator[bytes]) -> None:
        self.plan, self.length = plan, length
        self._first, self._rest = first, rest

    async def spool(self, target: Path, place: Place, deadline: float) -> None:
        """Write the body to a file; raises EvictedError if another sender gets the place meanwhile."""
        started = asyncio.get_running_loop().time()
        grace = min(GRACE_SECONDS, (deadline - started) / 2)
        # At this rate the body is complete just before the deadline; a slower one would be too late.
        rate = max(LEAST_RATE, self.length / (deadline - started - grace))
        part, seen = self._first, 0
        try:
            with Incoming(target) as file:
                async with place.waiting(started + grace):
                    while part and (seen := seen + len(part)) <= self.length:
                        file.write(part)
                        place.extend(min(deadline, started + grace + seen / rate))
                        part = await anext(self._rest, b"")
                file.end()
        except TimeoutError:
            raise HTTPException(
                408, "the upload is too slow: it would take longer than this server allows for a request"
            ) from None
        except ClientDisconnect:
            raise HTTPException(400, "the upload is not complete") from None
        if seen != self.length:
            raise HTTPException(400, f"the body has {seen} bytes, wanted {self.length}")


async def announced(request: Request, hosted: HostedModel) -> Upload:
    """Wait for the first bytes; reject anything but a request for this model, of the exact length."""
    length = _length(request, hosted.largest)
    first, rest = b"", request.stream()
    try:
        async with asyncio.timeout(FIRST_SECONDS):
            while len(first) < HEADER_BYTES and (part := await anext(rest, b"")):
                first += part
    except TimeoutError:
        raise HTTPException(408, f"the body did not begin within {FIRST_SECONDS:g} seconds") from None
    except ClientDisconnect:
        raise HTTPException(400, "the upload is not complete") from None
    plan = _claimed(first, hosted)
    wanted = message.size(plan, Kind.request)
    if length > wanted:
        raise HTTPException(413, f"the body is longer than the {wanted} bytes this plan prescribes")
    if length < wanted:
        raise HTTPException(400, f"the body has {length} bytes, wanted {wanted}")
    return Upload(plan, length, first, rest)


def _length(request: Request, largest: int) -> int:
    """Return the length that the headers promise; reject a compressed, mistyped or too long body."""
    headers = request.headers
    if headers.get("content-encoding", "identity") != "identity":
        raise HTTPException(415, "compressed bodies are not read; ciphertexts do not compress")
    if headers.get("content-type", "").partition(";")[0].strip() != OCTETS:
        raise HTTPException(415, f"the body's content type must be {OCTETS}")
    length = headers.get("content-length", "")
    if "transfer-encoding" in headers or not (length.isascii() and length.isdecimal()):
        raise HTTPException(411, "the body needs a Content-Length: every message's length is known beforehand")
    if int(length[:20]) > largest:
        raise HTTPException(413, f"the body is longer than {largest} bytes, the most this model takes", UNKNOWN_PLAN)
    return int(length[:20])


def _claimed(first: bytes, hosted: HostedModel) -> Plan:
    try:
        head = message.peek(first)
    except InputError as error:
        raise HTTPException(400, str(error)) from None
    plan = hosted.by_hash(head.plan)
    if plan is None:
        why = "the request was made for another plan or model; fetch the plan and encrypt again"
        raise HTTPException(400, why, UNKNOWN_PLAN)
    if head.kind is not Kind.request:
        raise HTTPException(400, f"the message is a {head.kind.name}, wanted a request")
    return plan
