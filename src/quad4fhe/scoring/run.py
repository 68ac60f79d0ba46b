"""A scoring run: every request file of a folder gets exactly one reply file in another.

Decides what is still to be done (by a manifest, and by the hashes of what it names), what is sent to workers, and what
is put aside: a damaged request is quarantined, which means named with its reason and not tried again until its bytes
change; what failed for other reasons is tried again by the next run. The folder of requests is only read. Where and
how workers run is left to `engines`, what they do to `worker`.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from quad4fhe._files import shown
from quad4fhe._progress import Progress, silent
from quad4fhe.circuit.plan import Fitted, Plan, require_model
from quad4fhe.engines import Done, Engine
from quad4fhe.engines import engine as named_engine
from quad4fhe.errors import InputError
from quad4fhe.he import container
from quad4fhe.he.container import Kind
from quad4fhe.scoring import worker
from quad4fhe.scoring.batches import KEYS, REPLY, REQUEST, plan_of
from quad4fhe.scoring.files import (
    DIGEST,
    Journal,
    appearing,
    claimed_digest,
    intact_digest,
    only_writer,
    open_regular,
    own_folder,
    remove_parts,
)
from quad4fhe.scoring.files import sha256 as file_sha256

Payload = Literal["auto", "files", "bytes"]
MANIFEST = "manifest.jsonl"
QUARANTINE = "quarantine"
_VERSION = 1
_KEY_BYTES = 2**31  # of all clients' evaluation keys, where they have to be sent to every worker


@dataclass(frozen=True)
class Problem:
    """A request without a reply, and why."""

    file: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Score:
    """What a run did. `quarantined` are damaged requests, also from runs before; `failed` may succeed another time."""

    engine: str
    workers: int
    payload: str
    layout: str
    per_request: int
    requests: int
    answered: int
    answered_before: int
    quarantined: tuple[Problem, ...]
    failed: tuple[Problem, ...]
    workers_lost: int
    seconds: float
    scoring_seconds: float
    bytes_in: int
    bytes_out: int

    @property
    def complete(self) -> bool:
        """Whether every request has its reply."""
        return not (self.quarantined or self.failed)

    @property
    def per_second(self) -> float:
        """Requests answered a second, once the workers were ready."""
        return self.answered / self.scoring_seconds if self.scoring_seconds > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain literals, ready for JSON."""
        document = dict(vars(self))
        for name in ("quarantined", "failed"):
            document[name] = [vars(problem) for problem in getattr(self, name)]
        return document | {"complete": self.complete, "requests_per_second": self.per_second}


def score(
    fit: Fitted,
    requests: str | Path,
    replies: str | Path,
    *,
    engine: str | Engine = "local",
    workers: int | None = None,
    plan: Plan | None = None,
    payload: Payload = "auto",
    progress: Progress = silent,
) -> Score:
    """Answer every request in the folder `requests` with one reply file in `replies`; goes on where a run before ended.

    Parameters
    ----------
    fit
        The fit whose model answers.
    requests
        The folder of .request files; it is only read.
    replies
        The folder for .reply files; it is made where there is none.
    engine
        Where workers run: "local", "ray" or an Engine.
    workers
        How many; one for each core (Ray: each CPU) by default.
    plan
        The requests' plan; by default the one in their folder.
    payload
        "files": workers read and write the folders themselves. "bytes": everything goes through this process. "auto"
        is "files" where the engine says that all its workers are on this machine.
    progress
        Progress callback (what, done, total).
    """
    requests, replies = Path(requests), Path(replies)
    started = time.monotonic()
    names = _requests(requests)
    plan = plan_of(requests) if plan is None else plan
    require_model(plan, fit.model)
    chosen = named_engine(engine, workers)
    how = payload if payload != "auto" else "files" if getattr(chosen, "here", False) else "bytes"
    head = {"quad4fhe": "replies", "version": _VERSION, "model": plan.model_id, "plan": plan.sha256.hex()}
    with _folder(replies), Journal(replies / MANIFEST, head) as manifest:
        run = _Run(plan, requests.absolute(), replies.absolute(), manifest, how == "bytes")
        pending = run.pending(names, progress)
        count, lost, scoring_seconds = chosen.workers, 0, 0.0
        if pending:
            keys = _keys(plan, run.requests, how == "bytes")
            progress("start the workers", 0, 0)
            with chosen.open(partial(worker.make, fit.model, plan.to_dict(), keys)) as team:
                count, ready = team.workers, time.monotonic()
                for done in team.stream(run.tasks(pending), ahead=1):
                    run.settle(done)
                    progress("score", run.settled, len(pending))
                lost, scoring_seconds = team.lost, time.monotonic() - ready
    return Score(
        engine=chosen.name,
        workers=count,
        payload=how,
        layout=plan.layout,
        per_request=plan.per_request,
        requests=len(names),
        answered=run.answered,
        answered_before=len(names) - len(pending) - run.known,
        quarantined=tuple(sorted(run.quarantined, key=lambda problem: problem.file)),
        failed=tuple(sorted(run.failed, key=lambda problem: problem.file)),
        workers_lost=lost,
        seconds=time.monotonic() - started,
        scoring_seconds=scoring_seconds,
        bytes_in=run.bytes_in,
        bytes_out=run.bytes_out,
    )


@dataclass(eq=False)
class _Run:
    plan: Plan
    requests: Path
    replies: Path
    manifest: Journal
    send: bool
    answered: int = 0
    settled: int = 0
    known: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    quarantined: list[Problem] = field(default_factory=list)
    failed: list[Problem] = field(default_factory=list)

    def pending(self, names: list[str], progress: Progress) -> list[str]:
        """The requests without a good reply; the manifest is believed only where hashes agree with it."""
        last = {line["request"]: line for line in self.manifest.lines}
        out = []
        for number, name in enumerate(names, start=1):
            line = last.get(name)
            if line is None:
                out.append(name)
            elif "reason" in line:
                if _hash(self.requests / name, file_sha256) == line["sha256"]:
                    self.known += 1
                    self.quarantined.append(Problem(name, line["reason"]))
                else:
                    (self.replies / QUARANTINE / f"{name}.txt").unlink(missing_ok=True)
                    out.append(name)
            elif (
                _hash(self.requests / name, claimed_digest) != line["request_sha256"]
                or intact_digest(self._reply(name)) != line["sha256"]
            ):
                out.append(name)
            if last:
                progress("check what is there", number, len(names))
        return out

    def tasks(self, names: list[str]) -> Iterator[worker.Task]:
        """What is sent to workers; only what claims to be a request of this plan."""
        size = container.size(self.plan, Kind.request)
        for name in names:
            path = self.requests / name
            if name != shown(name):
                self._fail(name, "its name has characters that can't be printed; rename it")
                continue
            try:
                with open_regular(path) as file:
                    first = file.read(container.HEADER_BYTES)
                    claim = container.peek(first)
                    if claim.kind is not Kind.request:
                        raise InputError(f"the container holds {claim.kind.name}, wanted request")
                    if claim.plan != self.plan.sha256 or claim.model != self.plan.model_id:
                        raise InputError("the container was made for another plan or model; encrypt again")
                    # One byte more than there should be, so that the worker sees where there is more.
                    data = first + file.read(size + 1 - len(first)) if self.send else None
                digest = claimed_digest(path) if data is None else data[-DIGEST:].hex()
            except InputError as error:
                self._quarantine(name, str(error))
            except OSError as error:
                self._fail(name, f"can't be read: {error.strerror or error}")
            else:
                reply = None if data is not None else str(self._reply(name))
                yield worker.Task(name, str(path) if data is None else data, digest, claim.key, reply)

    def settle(self, done: Done) -> None:
        """Write down what became of a task."""
        task: worker.Task = done.task
        error = done.error
        if isinstance(error, worker.ReplyFolderError):
            raise InputError(f"{error}; make room or check its permissions, then run again: {self.answered} are done")
        if isinstance(error, InputError):
            self._quarantine(task.name, str(error))
        elif isinstance(error, OSError):
            self._fail(task.name, f"can't be read: {error.strerror or error}")
        elif error is not None:
            self._fail(task.name, str(error))
        else:
            self._keep(task, done.result)

    def _keep(self, task: worker.Task, answer: worker.Answer) -> None:
        if answer.data is not None:
            if hashlib.sha256(answer.data[:-DIGEST]).hexdigest() != answer.sha256:
                self._fail(task.name, "its reply was damaged between the worker and here")
                return
            try:
                worker.write_reply(self._reply(task.name), [answer.data])
            except worker.ReplyFolderError as error:
                raise InputError(f"{error}; make room, then run again: {self.answered} are done") from None
        elif _hash(self.requests / task.name, claimed_digest) != task.sha256:
            self._fail(task.name, "the file was replaced while it was read; run again")
            return
        line = {"request": task.name, "request_sha256": task.sha256}
        self.manifest.add(line | {"sha256": answer.sha256, "bytes": answer.size})
        self.answered += 1
        self.settled += 1
        self.bytes_in += container.size(self.plan, Kind.request)
        self.bytes_out += answer.size

    def _quarantine(self, name: str, reason: str) -> None:
        try:
            digest = file_sha256(self.requests / name)
        except OSError as error:
            self._fail(name, f"can't be read: {error.strerror or error}")
            return
        folder = self.replies / QUARANTINE
        try:
            own_folder(folder)
        except OSError as error:
            raise InputError(f"can't use {folder}: {error.strerror or error}; remove it, then run again") from None
        with appearing(folder / f"{name}.txt") as file:
            file.write(f"{name}\n{reason}\nSHA-256 {digest}\n".encode())
        self.manifest.add({"request": name, "reason": reason, "sha256": digest})
        self._reply(name).unlink(missing_ok=True)  # of a request that was good before
        self.quarantined.append(Problem(name, reason))
        self.settled += 1

    def _fail(self, name: str, reason: str) -> None:
        self.failed.append(Problem(shown(name), reason))
        self.settled += 1

    def _reply(self, name: str) -> Path:
        return self.replies / Path(name).with_suffix(REPLY).name


def _requests(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder; wanted one of request files, from: quad4fhe query FOLDER DATA --plan")
    # Also what is no file: it is then named as a request that failed, not passed over.
    names = sorted(path.name for path in folder.glob(f"*{REQUEST}") if path.name[0] != ".")
    if not names:
        raise InputError(f"{folder} has no files named *{REQUEST}; make some with: quad4fhe query FOLDER DATA --plan")
    return names


def _keys(plan: Plan, folder: Path, send: bool) -> dict[bytes, worker.Source]:
    """Where every client's evaluation keys are, or what they are; only what claims to be keys of this plan."""
    found: dict[bytes, worker.Source] = {}
    files: dict[bytes, str] = {}
    if plan.layout == "batch":
        return found
    size = container.size(plan, Kind.keys)
    for path in sorted(folder.glob(f"*{KEYS}")):
        try:
            with open_regular(path) as file:
                first = file.read(container.HEADER_BYTES)
                claim = container.peek(first)
                if claim.kind is not Kind.keys or claim.plan != plan.sha256:
                    continue
                source = first + file.read(size + 1 - len(first)) if send else str(path)
        except (InputError, OSError):
            continue  # the requests that want these keys will say that they are missing
        if claim.key in found:
            raise InputError(
                f"{shown(path.name)} and {files[claim.key]} both name the keys of client {claim.key.hex()}; "
                "keep the one that this client sent, then run again"
            )
        found[claim.key], files[claim.key] = source, shown(path.name)
        if send and size * len(found) > _KEY_BYTES:
            raise InputError(
                f"more than {_KEY_BYTES / 1e9:.1f} GB of evaluation keys would go to every worker; put the folder "
                "where all workers reach it and use payload files, or score fewer clients at a time"
            )
    return found


@contextmanager
def _folder(replies: Path) -> Iterator[None]:
    try:
        replies.mkdir(exist_ok=True)
        if os.path.lexists(replies / QUARANTINE):
            own_folder(replies / QUARANTINE)
    except OSError as error:
        raise InputError(
            f"can't use {error.filename or replies} for replies: {error.strerror or error}; name another"
        ) from None
    with only_writer(replies):
        remove_parts(replies)
        yield


def _hash(path: Path, function: Callable[[Path], str]) -> str | None:
    """A hash of a file; None where there is no such file any more."""
    try:
        return function(path)
    except OSError:
        return None
