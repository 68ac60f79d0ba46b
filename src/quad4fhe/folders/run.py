"""A scoring run: every request file in one folder gets exactly one reply file in another.

A manifest with hashes records what is done. A damaged request is quarantined: it is listed with the reason, and not
tried again until its bytes change. Requests that failed for another reason are tried again in the next run.
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

from quad4fhe._progress import Progress, silent
from quad4fhe.errors import InputError
from quad4fhe.folders import worker
from quad4fhe.folders.batches import REPLY, REQUEST, plan_of
from quad4fhe.folders.journal import Journal, claimed_digest, intact_digest
from quad4fhe.he import message
from quad4fhe.he.message import DIGEST_BYTES
from quad4fhe.io.files import file_sha256, locked, open_regular, own_folder, remove_parts, shown, writing
from quad4fhe.layouts.forms import Kind
from quad4fhe.planning.plan import Fitted, Plan
from quad4fhe.workers.pool import Done, Workers
from quad4fhe.workers.registry import choose

Payload = Literal["auto", "files", "bytes"]
MANIFEST = "manifest.jsonl"
QUARANTINE = "quarantine"
_VERSION = 1


@dataclass(frozen=True)
class Problem:
    """A request without a reply, and the reason."""

    file: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Score:
    """The result of a run. `quarantined` requests are damaged, some in earlier runs; `failed` ones may work later."""

    pool: str
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
        """Requests answered per second, once the workers were ready."""
        return self.answered / self.scoring_seconds if self.scoring_seconds > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        document = dict(vars(self))
        for name in ("quarantined", "failed"):
            document[name] = [vars(problem) for problem in getattr(self, name)]
        return document | {"complete": self.complete, "requests_per_second": self.per_second}


def score(
    fit: Fitted,
    requests: str | Path,
    replies: str | Path,
    *,
    pool: str | Workers = "local",
    workers: int | None = None,
    plan: Plan | None = None,
    payload: Payload = "auto",
    progress: Progress = silent,
) -> Score:
    """Answer every request in the folder `requests` with one reply file in `replies`; continues an interrupted run.

    Parameters
    ----------
    fit
        The fit whose model answers.
    requests
        The folder of .request files, which is only read.
    replies
        The folder for .reply files; it is made if it does not exist.
    pool
        Where workers run: "local", "ray" or a Workers object.
    workers
        How many; by default one for each core (Ray: each CPU).
    plan
        The plan of the requests; by default the one in their folder.
    payload
        "files": workers read and write the folders themselves. "bytes": everything goes through this process. "auto"
        means "files" if all workers are on this machine.
    progress
        Progress callback (what, done, total).
    """
    requests, replies = Path(requests), Path(replies)
    started = time.monotonic()
    names = _requests(requests)
    plan = plan_of(requests) if plan is None else plan
    _require_fit(fit, plan, requests)
    chosen = choose(pool, workers)
    how = payload if payload != "auto" else "files" if chosen.on_this_machine else "bytes"
    head = {"quad4fhe": "replies", "version": _VERSION, "model": plan.model_id, "plan": plan.sha256.hex()}
    with _folder(replies), Journal(replies / MANIFEST, head) as manifest:
        run = _Run(plan, requests.absolute(), replies.absolute(), manifest, how == "bytes")
        pending = run.pending(names, progress)
        count, lost, scoring_seconds = chosen.workers, 0, 0.0
        if pending:
            progress("start the workers", 0, 0)
            with chosen.open(partial(worker.Scorer, fit.model, plan.to_dict())) as opened:
                count, ready = opened.workers, time.monotonic()
                for done in opened.stream(run.tasks(pending), ahead=1):
                    run.settle(done)
                    progress("score", run.settled, len(pending))
                lost, scoring_seconds = opened.lost, time.monotonic() - ready
    return Score(
        pool=chosen.name,
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


def _require_fit(fit: Fitted, plan: Plan, requests: Path) -> None:
    """Raise InputError unless the requests are for the model of this fit."""
    if fit.model_id != plan.model_id:
        raise InputError(
            f"the requests in {requests} are for model {plan.model_id[:12]}, but the fit holds {fit.model_id[:12]}: "
            "give the fit of that model, or plan for this one and encrypt again"
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
        """Return the requests without a good reply; an entry of the manifest counts only if the hashes agree."""
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
        """Yield tasks for all files that begin like a request of this plan."""
        size = message.size(self.plan, Kind.request)
        for name in names:
            path = self.requests / name
            if name != shown(name):
                self._fail(name, "its name has unprintable characters; rename it")
                continue
            try:
                with open_regular(path) as file:
                    first = file.read(message.HEADER_BYTES)
                    head = message.peek(first)
                    if head.kind is not Kind.request:
                        raise InputError(f"the message is a {head.kind.name}, wanted a request; move it elsewhere")
                    if head.plan != self.plan.sha256:
                        raise InputError(f"it was {message.mismatch(head.plan, self.plan)}")
                    # Read one byte more than there should be, so that the worker rejects a file that is too long.
                    data = first + file.read(size + 1 - len(first)) if self.send else None
                digest = claimed_digest(path) if data is None else data[-DIGEST_BYTES:].hex()
            except InputError as error:
                self._quarantine(name, str(error))
            except OSError as error:
                self._fail(name, f"can't be read: {error.strerror or error}")
            else:
                reply = None if data is not None else str(self._reply(name))
                yield worker.Task(name, str(path) if data is None else data, digest, reply)

    def settle(self, done: Done) -> None:
        """Record the result of a task."""
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

    def _keep(self, task: worker.Task, result: worker.TaskResult) -> None:
        if result.data is not None:
            if hashlib.sha256(result.data[:-DIGEST_BYTES]).hexdigest() != result.sha256:
                self._fail(task.name, "its reply was damaged on the way from the worker; run again")
                return
            try:
                worker.write_reply(self._reply(task.name), result.data)
            except worker.ReplyFolderError as error:
                raise InputError(f"{error}; make room, then run again: {self.answered} are done") from None
        elif _hash(self.requests / task.name, claimed_digest) != task.sha256:
            self._fail(task.name, "the file was replaced while it was read; run again")
            return
        line = {"request": task.name, "request_sha256": task.sha256}
        self.manifest.add(line | {"sha256": result.sha256, "bytes": result.size})
        self.answered += 1
        self.settled += 1
        self.bytes_in += message.size(self.plan, Kind.request)
        self.bytes_out += result.size

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
        with writing(folder / f"{name}.txt", durable=False) as file:
            file.write(f"{name}\n{reason}\nSHA-256 {digest}\n".encode())
        self.manifest.add({"request": name, "reason": reason, "sha256": digest})
        self._reply(name).unlink(missing_ok=True)  # in case the request was good before
        self.quarantined.append(Problem(name, reason))
        self.settled += 1

    def _fail(self, name: str, reason: str) -> None:
        self.failed.append(Problem(shown(name), reason))
        self.settled += 1

    def _reply(self, name: str) -> Path:
        return self.replies / Path(name).with_suffix(REPLY).name


def _requests(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise InputError(
            f"{folder} is not a folder; wanted one with request files, from: quad4fhe query FOLDER DATA --plan"
        )
    # This includes folders and pipes; they become failed requests.
    names = sorted(path.name for path in folder.glob(f"*{REQUEST}") if path.name[0] != ".")
    if not names:
        raise InputError(f"{folder} has no files named *{REQUEST}; make some with: quad4fhe query FOLDER DATA --plan")
    return names


@contextmanager
def _folder(replies: Path) -> Iterator[None]:
    try:
        replies.mkdir(exist_ok=True)
        if os.path.lexists(replies / QUARANTINE):
            own_folder(replies / QUARANTINE)
    except OSError as error:
        raise InputError(
            f"can't use {error.filename or replies} for replies: {error.strerror or error}; name another folder"
        ) from None
    with locked(replies):
        remove_parts(replies)  # of a run that was killed
        try:
            yield
        finally:
            remove_parts(replies)  # of workers that died in this run; the others have ended


def _hash(path: Path, function: Callable[[Path], str]) -> str | None:
    """Return a hash of a file; None if the file is gone."""
    try:
        return function(path)
    except OSError:
        return None
