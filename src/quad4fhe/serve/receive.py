"""Bodies of requests: into a file, and refused as soon as they are not what they should be.

A body announces itself by its headers and by a container's first bytes. Only if both are right does it get a place in
the queue (`app`) and is then spooled, at no less than a minimal pace. This process reads nothing but the first bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from quad4fhe.circuit.plan import Plan
from quad4fhe.errors import InputError
from quad4fhe.he import container
from quad4fhe.he.container import HEADER_BYTES, Kind
from quad4fhe.serve.hosted import Hosted
from quad4fhe.serve.places import Place
from quad4fhe.serve.spool import Incoming

OCTETS = "application/octet-stream"
FIRST_SECONDS = 10.0  # from the headers to the container's first bytes
GRACE_SECONDS = 5.0  # before the pace of an upload counts
LEAST_RATE = 2**15  # bytes a second, after that


class Upload:
    """A body that has announced itself: its plan, what its first bytes claim, and the rest to come."""

    def __init__(
        self, plan: Plan, claim: container.Claim, length: int, first: bytes, rest: AsyncIterator[bytes]
    ) -> None:
        self.plan, self.claim, self.length = plan, claim, length
        self._first, self._rest = first, rest

    async def spool(self, target: Path, place: Place, deadline: float) -> None:
        """Write it to a file; raises EvictedError where the place is given to somebody else meanwhile."""
        started = asyncio.get_running_loop().time()
        grace = min(GRACE_SECONDS, (deadline - started) / 2)
        # At this pace it is complete just before the deadline: who is behind would not be in time.
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
                408, "the upload is too slow: it would take longer than this server gives a request"
            ) from None
        except ClientDisconnect:
            raise HTTPException(400, "the upload is not complete") from None
        if seen != self.length:
            raise HTTPException(400, f"the body has {seen} bytes, wanted {self.length}")


async def announced(request: Request, hosted: Hosted, kind: Kind) -> Upload:
    """Wait for a container's first bytes; refuses what is not a container of this kind, model and exact length."""
    length = _length(request, hosted.largest(kind))
    first, rest = b"", request.stream()
    try:
        async with asyncio.timeout(FIRST_SECONDS):
            while len(first) < HEADER_BYTES and (part := await anext(rest, b"")):
                first += part
    except TimeoutError:
        raise HTTPException(408, f"the body did not begin within {FIRST_SECONDS:g} seconds") from None
    except ClientDisconnect:
        raise HTTPException(400, "the upload is not complete") from None
    plan, claim = _claimed(first, hosted, kind)
    wanted = container.size(plan, kind)
    if length > wanted:
        raise HTTPException(413, f"the body is longer than the {wanted} bytes this plan prescribes")
    if length < wanted:
        raise HTTPException(400, f"the body has {length} bytes, wanted {wanted}")
    return Upload(plan, claim, length, first, rest)


def _length(request: Request, largest: int) -> int:
    """The length that the headers promise; refuses a body that is compressed, of another type, or too long."""
    headers = request.headers
    if headers.get("content-encoding", "identity") != "identity":
        raise HTTPException(415, "compressed bodies are not read; ciphertexts do not compress")
    if headers.get("content-type", "").partition(";")[0].strip() != OCTETS:
        raise HTTPException(415, f"the body's content type must be {OCTETS}")
    length = headers.get("content-length", "")
    if "transfer-encoding" in headers or not (length.isascii() and length.isdecimal()):
        raise HTTPException(411, "the body needs a Content-Length: every container's length is known beforehand")
    if int(length[:20]) > largest:
        raise HTTPException(413, f"the body is longer than {largest} bytes, the most this model takes")
    return int(length[:20])


def _claimed(head: bytes, hosted: Hosted, kind: Kind) -> tuple[Plan, container.Claim]:
    try:
        claim = container.peek(head)
    except InputError as error:
        raise HTTPException(400, str(error)) from None
    plan = hosted.by_hash(claim.plan)
    if plan is None or claim.model != hosted.model_id:
        raise HTTPException(400, "the container was made for another plan or model; fetch the plan and encrypt again")
    if claim.kind is not kind or (kind is Kind.keys and plan.layout != "packed"):
        raise HTTPException(400, f"the container holds {claim.kind.name}, wanted {kind.name}")
    return plan, claim
