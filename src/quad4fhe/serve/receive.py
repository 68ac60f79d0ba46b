"""Bodies of requests: into a file, and out as soon as they are not what they should be.

Decides which headers and which first bytes are let in, and for how long. Reads a container's first bytes only, to find
its plan, and counts the rest; how much may wait at once is left to `app`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request

from quad4fhe.circuit.plan import Plan
from quad4fhe.errors import InputError
from quad4fhe.he import container
from quad4fhe.he.container import HEADER_BYTES, Kind
from quad4fhe.serve.hosted import Hosted
from quad4fhe.serve.spool import Incoming

OCTETS = "application/octet-stream"


def check_head(request: Request, largest: int) -> None:
    """Refuse by its headers alone a body that is compressed, of another type, or longer than `largest` bytes."""
    headers = request.headers
    if headers.get("content-encoding", "identity") != "identity":
        raise HTTPException(415, "compressed bodies are not read; ciphertexts do not compress")
    if headers.get("content-type", "").partition(";")[0].strip() != OCTETS:
        raise HTTPException(415, f"the body's content type must be {OCTETS}")
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > largest:
        raise HTTPException(413, f"the body is longer than {largest} bytes, the most this model takes")


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


async def receive(
    request: Request, hosted: Hosted, kind: Kind, target: Path, deadline: float
) -> tuple[Plan, container.Claim]:
    """Spool a body, and refuse it as soon as it is not what its first bytes claim or too long."""
    limit = hosted.largest(kind)
    found: tuple[Plan, container.Claim] | None = None
    head, seen = b"", 0
    try:
        async with asyncio.timeout_at(deadline):
            with Incoming(target) as file:
                async for part in request.stream():
                    seen += len(part)
                    if found is None:
                        head += part[:HEADER_BYTES]
                        if len(head) >= HEADER_BYTES:
                            found = _claimed(head, hosted, kind)
                            limit = container.size(found[0], kind)
                    if seen > limit:
                        raise HTTPException(413, f"the body is longer than the {limit} bytes this plan prescribes")
                    file.write(part)
                file.end()
    except TimeoutError:
        raise HTTPException(408, "the upload took longer than this server gives a request") from None
    if found is None or seen != limit:
        raise HTTPException(400, f"the body has {seen} bytes, wanted {limit}")
    return found
