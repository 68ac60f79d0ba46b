"""The client's side of scoring by files: samples become request files, reply files become logits.

Decides what lies where. The folder travels and holds nothing secret: the plan, requests, and evaluation keys where the
layout needs them. The index beside it stays: it says which rows are in which file, and so how many, which no server
needs to know. Cryptography is left to `he`.
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

from quad4fhe._arrays import Array, samples, samples_sha256
from quad4fhe._files import parsing, shown
from quad4fhe._progress import Progress, silent
from quad4fhe.circuit.domain import check_inside
from quad4fhe.circuit.plan import Plan
from quad4fhe.errors import InputError
from quad4fhe.he import container
from quad4fhe.he.keys import StoredKey
from quad4fhe.he.session import Client, ReplyError
from quad4fhe.scoring.files import Journal, appearing, only_writer, open_regular, remove_parts

PLAN = "plan.json"
REQUEST, REPLY, KEYS = ".request", ".reply", ".keys"
_VERSION = 1
_PLAN_BYTES = 2**26  # far more than any


@dataclass(frozen=True)
class Written:
    """What is in a folder of requests: how many files in all and from before, and the bytes written now."""

    requests: int
    before: int
    request_bytes: int
    key_bytes: int
    clipped: int
    index: Path


@dataclass(frozen=True, eq=False)
class Batch:
    """The rows of one request and their logits (rows, K = outputs); None, and why, where there is no usable reply."""

    file: str
    rows: slice
    outputs: int
    logits: Array | None
    reason: str = ""


def index_path(folder: Path) -> Path:
    """Where the client keeps which rows are in which file: beside the folder, which travels without it."""
    return folder.with_name(f"{folder.name}.index")


def plan_of(folder: Path) -> Plan:
    """The plan in a folder of requests."""
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
    plan: Plan, key: StoredKey, X: ArrayLike, folder: Path, *, clip: bool = False, progress: Progress = silent
) -> Written:
    """Encrypt X (n, d) into one file a request; what an earlier call wrote for the same X, key and plan is kept.

    Every sample is checked before the first file is written.
    """
    folder = _resolved(folder)
    checked = samples("X", X, plan.shape.features)
    client = Client(plan, key)
    head = _head(plan, key, checked)
    starts = range(0, len(checked), plan.per_request)
    for start in starts if not clip else ():
        check_inside(checked[start : start + plan.per_request], plan.domain, first_row=start)
    key_bytes = size = clipped = 0
    _make_folder(folder)
    if not index_path(folder).exists():
        _require_own(folder, client.key_id, set())
    with only_writer(folder), Journal(index_path(folder), head) as index:
        remove_parts(folder)
        before = {line["file"] for line in index.lines}
        _require_own(folder, client.key_id, before)
        _write_plan(folder, plan)
        keys_file = folder / f"{client.key_id.hex()}{KEYS}"
        if plan.layout == "packed" and (keys_file.is_symlink() or not keys_file.exists()):
            keys = client.evaluation_keys()
            assert keys is not None
            with appearing(keys_file) as file:
                key_bytes = sum(file.write(part) for part in container.write_keys(plan, client.key_id, keys))
        for number, start in enumerate(starts):
            name = f"{number:08d}{REQUEST}"
            if name not in before:
                rows = np.asarray(checked[start : start + plan.per_request], dtype=np.float64)
                inside = np.clip(rows, *plan.domain.box) if clip else rows
                moved = int(np.count_nonzero(np.any(inside != rows, axis=1)))
                (request,) = client.stream(inside)
                with appearing(folder / name) as file:
                    size += sum(file.write(part) for part in container.write_request(plan, request))
                line = {"file": name, "nonce": request.header.nonce.hex(), "samples": len(rows), "clipped": moved}
                index.add(line)
            progress("encrypt", number + 1, len(starts))
        clipped = sum(line["clipped"] for line in index.lines)
        return Written(len(starts), len(before), size, key_bytes, clipped, index.path)


def read_replies(
    key: StoredKey, X: ArrayLike, folder: Path, replies: Path, *, progress: Progress = silent
) -> Iterator[Batch]:
    """Decrypt the replies to the requests that were made of X into `folder`, one batch at a time in the order of rows.

    The requests themselves are not needed any more; their index is. The plan is the one they were made with.
    """
    folder = _resolved(folder)
    if not replies.is_dir():
        raise InputError(f"{replies} is no folder; wanted the one that `quad4fhe score` wrote")
    where = index_path(folder)
    head = Journal.head(where)
    if head is None:
        raise InputError(f"{where} is missing: replies are read with the index that was written with the requests")
    plan = Plan.from_dict(head["plan"])
    checked = samples("X", X, plan.shape.features)
    if head["data"] != samples_sha256("X", checked):
        raise InputError(f"{folder} was made from other samples than these; give the same data again")
    if head["key"] != key.key_id.hex():
        raise InputError(
            f"{folder} was encrypted with key {head['key']}, this is {key.key_id.hex()}; give the same key"
        )
    client = Client(plan, key)
    with Journal(where, head) as index:
        lines = {line["file"]: line for line in index.lines}
    total = -(-len(checked) // plan.per_request)
    for number in range(total):
        name = f"{number:08d}{REQUEST}"
        start = number * plan.per_request
        rows = slice(start, min(start + plan.per_request, len(checked)))
        if name in lines:
            yield _read_one(client, lines[name], rows, replies)
        else:
            why = "this request was never written; run the same query again without --replies"
            yield Batch(name, rows, plan.shape.outputs, None, why)
        progress("decrypt", number + 1, total)


def _read_one(client: Client, line: dict[str, Any], rows: slice, replies: Path) -> Batch:
    name, outputs = str(line["file"]), client.plan.shape.outputs
    file = replies / Path(name).with_suffix(REPLY).name
    client.reopen(bytes.fromhex(line["nonce"]), rows.stop - rows.start)
    try:
        with open_regular(file) as stream:
            reply = container.read_reply(client.plan, stream)
        if reply.header.nonce.hex() != line["nonce"]:
            raise ReplyError("it answers another request")
        return Batch(name, rows, outputs, client.decrypt(reply))
    except FileNotFoundError:
        return Batch(name, rows, outputs, None, f"{file.name} is missing")
    except (InputError, ReplyError) as error:
        return Batch(name, rows, outputs, None, f"{file.name}: {error}")
    except OSError as error:
        return Batch(name, rows, outputs, None, f"{file.name}: {error.strerror or error}")


def _head(plan: Plan, key: StoredKey, X: NDArray[Any]) -> dict[str, Any]:
    fields = {"quad4fhe": "requests", "version": _VERSION, "data": samples_sha256("X", X), "key": key.key_id.hex()}
    fields["plan"] = plan.to_dict()
    as_read: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(fields))
    return as_read


def _resolved(folder: Path) -> Path:
    """With a name of its own, so that the index can be called after it."""
    return folder if folder.name else folder.resolve()


def _make_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; wanted a folder for the requests")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"can't make the folder {folder}: {error.strerror or error}") from None


def _require_own(folder: Path, key_id: bytes, before: set[str]) -> None:
    """Refuse to write over requests of others; a kill leaves at most one of our own that the index does not name."""
    unknown = [path for path in folder.glob(f"*{REQUEST}") if path.name not in before]
    for path in unknown:
        with parsing(f"the file {shown(path.name)}", "choose an empty folder"), open_regular(path) as file:
            own = container.peek(file.read(container.HEADER_BYTES)).key == key_id
        if not own or len(unknown) > 1:
            raise InputError(f"{folder} holds requests that are not in {index_path(folder)}; choose an empty folder")


def _write_plan(folder: Path, plan: Plan) -> None:
    place = folder / PLAN
    if os.path.lexists(place):
        if plan_of(folder).sha256 != plan.sha256:
            raise InputError(f"{place} is another plan; choose another folder for these requests")
        return
    with appearing(place) as file:
        file.write(msgspec.json.encode(plan.to_dict()))
