"""The client's side of scoring folders: samples become request files, and reply files become logits.

The folder of requests goes to the server and holds nothing secret: the plan, and requests. The index beside the folder
stays with the client: for each file it has the rows, and the secret bytes that read its reply.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from quad4fhe._arrays import Array, row_chunks, samples, samples_sha256
from quad4fhe._progress import Progress, silent
from quad4fhe.errors import InputError
from quad4fhe.folders.journal import Journal
from quad4fhe.he import message
from quad4fhe.he.session import Client, ReplyError
from quad4fhe.io.files import locked, open_regular, remove_parts, writing
from quad4fhe.layouts.forms import Kind
from quad4fhe.planning.box import outside_of
from quad4fhe.planning.plan import Plan

PLAN = "plan.json"
REQUEST, REPLY = ".request", ".reply"
_VERSION = 2
_PLAN_BYTES = 2**26  # far more than any plan has


@dataclass(frozen=True)
class Written:
    """A folder of requests: the number of files, how many of them an earlier call wrote, and the new bytes."""

    requests: int
    before: int
    request_bytes: int
    clipped: int
    index: Path


@dataclass(frozen=True, eq=False)
class Batch:
    """The rows of one request and their logits (rows, K); None and a reason if there is no usable reply."""

    file: str
    rows: slice
    outputs: int
    logits: Array | None
    reason: str = ""


def index_path(folder: Path) -> Path:
    """Return the path of the client's index, which is beside the folder and is not sent with it."""
    return folder.with_name(f"{folder.name}.index")


def plan_of(folder: Path) -> Plan:
    """Read the plan in a folder of requests."""
    try:
        with open_regular(folder / PLAN) as file:
            data = file.read(_PLAN_BYTES)
    except FileNotFoundError:
        raise InputError(f"{folder / PLAN}: no such file; check the path, or give the plan itself") from None
    except OSError as error:
        raise InputError(f"{folder / PLAN}: {error.strerror or error}; give the plan itself") from None
    try:
        return Plan.from_json(data)
    except InputError as error:
        raise InputError(f"{folder / PLAN}: {error}") from None


def write_requests(
    plan: Plan, X: ArrayLike, folder: Path, *, clip: bool = False, progress: Progress = silent
) -> Written:
    """Encrypt X (n, d) into one file per request, keeping what an earlier call wrote for the same X and plan.

    Every sample is checked before the first file is written.

    Parameters
    ----------
    plan
        The plan to encrypt with.
    X
        Samples (n, d).
    folder
        The folder for the requests; it is made if it does not exist.
    clip
        Move samples outside the plan's box to its edge, and count them.
    progress
        Progress callback (what, done, total).
    """
    folder = _resolved(folder)
    checked = samples("X", X, plan.shape.features)
    head = _head(plan, checked)
    starts = range(0, len(checked), plan.per_request)
    clip = clip or plan.clip
    if not clip:
        outside = outside_of(plan)
        for _, chunk in row_chunks("X", checked, 8 * plan.shape.features):
            outside.add(chunk)
        outside.check()
    size = clipped = 0
    _make_folder(folder)
    if not index_path(folder).exists():
        _require_own(folder, set())
    with locked(folder), Journal(index_path(folder), head, private=True) as index:
        remove_parts(folder)
        before = {line["file"] for line in index.lines if (folder / line["file"]).exists()}
        _require_own(folder, before)
        _write_plan(folder, plan)
        for number, start in enumerate(starts):
            name = f"{number:08d}{REQUEST}"
            if name not in before:
                rows = np.asarray(checked[start : start + plan.per_request], dtype=np.float64)
                inside = np.clip(rows, *plan.domain.box) if clip else rows
                moved = int(np.count_nonzero(np.any(inside != rows, axis=1)))
                client = Client(plan)
                (request,) = client.requests(inside)
                # First what reads the reply: a request that is in the folder without it would never be read.
                line = {"file": name, "secret": client.secret_bytes().hex(), "samples": len(rows), "clipped": moved}
                index.add(line)
                with writing(folder / name, durable=False) as file:
                    size += file.write(request)
            progress("encrypt", number + 1, len(starts))
        clipped = sum(line["clipped"] for line in index.lines)
        return Written(len(starts), len(before), size, clipped, index.path)


def index_plan(folder: Path) -> Plan:
    """The plan in the index beside a folder of requests."""
    return Plan.from_dict(_index_head(folder)["plan"])


def _index_head(folder: Path) -> dict[str, Any]:
    where = index_path(_resolved(folder))
    head = Journal.head(where)
    if head is None:
        raise InputError(f"{where} is missing; put the index that was written with the requests beside their folder")
    if head.get("version") != _VERSION:
        raise InputError(f"{where} was written by another release; read the replies with that one, or encrypt again")
    return head


def read_replies(X: ArrayLike, folder: Path, replies: Path, *, progress: Progress = silent) -> Iterator[Batch]:
    """Decrypt the replies to the requests for X, one batch at a time, in the order of rows.

    This needs the index beside `folder`, which has the plan, but not the requests themselves.
    """
    folder = _resolved(folder)
    if not replies.is_dir():
        raise InputError(f"{replies} is not a folder; wanted the one that `quad4fhe score` wrote")
    head = _index_head(folder)
    plan = Plan.from_dict(head["plan"])
    checked = samples("X", X, plan.shape.features)
    if head["data"] != samples_sha256("X", checked):
        raise InputError(f"{folder} was made from other samples; give the same data again")
    with Journal(index_path(folder), head) as index:
        lines = {line["file"]: line for line in index.lines}
    total = -(-len(checked) // plan.per_request)
    for number in range(total):
        name = f"{number:08d}{REQUEST}"
        start = number * plan.per_request
        rows = slice(start, min(start + plan.per_request, len(checked)))
        if name in lines:
            yield _read_one(plan, lines[name], rows, replies)
        else:
            why = "this request was never written; run the same query again without --replies"
            yield Batch(name, rows, plan.shape.outputs, None, why)
        progress("decrypt", number + 1, total)


def _read_one(plan: Plan, line: dict[str, Any], rows: slice, replies: Path) -> Batch:
    name, outputs = str(line["file"]), plan.shape.outputs
    file = replies / Path(name).with_suffix(REPLY).name
    client = Client.from_secret_bytes(plan, bytes.fromhex(line["secret"]))
    try:
        with open_regular(file) as stream:
            reply = stream.read(message.size(plan, Kind.reply) + 1)
        return Batch(name, rows, outputs, client.read(reply))
    except FileNotFoundError:
        return Batch(name, rows, outputs, None, f"{file.name} is missing")
    except (InputError, ReplyError) as error:
        return Batch(name, rows, outputs, None, f"{file.name}: {error}")
    except OSError as error:
        return Batch(name, rows, outputs, None, f"{file.name}: {error.strerror or error}")


def _head(plan: Plan, X: NDArray[Any]) -> dict[str, Any]:
    fields = {"quad4fhe": "requests", "version": _VERSION, "data": samples_sha256("X", X), "plan": plan.to_dict()}
    as_read: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(fields))
    return as_read


def _resolved(folder: Path) -> Path:
    """Return a path that ends in a name, because the index is named after it."""
    return folder if folder.name else folder.resolve()


def _make_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; wanted a folder for the requests")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"can't make the folder {folder}: {error.strerror or error}") from None


def _require_own(folder: Path, before: set[str]) -> None:
    """Reject a folder with other requests: the index names every one of our own before it is written."""
    if any(path.name not in before for path in folder.glob(f"*{REQUEST}")):
        raise InputError(f"{folder} holds requests that are not in {index_path(folder)}; choose an empty folder")


def _write_plan(folder: Path, plan: Plan) -> None:
    place = folder / PLAN
    if os.path.lexists(place):
        if plan_of(folder).sha256 != plan.sha256:
            raise InputError(f"{place} holds another plan; choose another folder for these requests")
        return
    with writing(place, durable=False) as file:
        file.write(msgspec.json.encode(plan.to_dict()))
