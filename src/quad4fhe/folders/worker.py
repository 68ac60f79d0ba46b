"""A worker of a scoring run: the only process that computes on clients' ciphertexts.

An InputError means that the request is damaged; every other error may have another cause.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from quad4fhe.errors import InputError, Quad4FHEError
from quad4fhe.he import message
from quad4fhe.he.session import Server
from quad4fhe.io.files import open_regular, writing
from quad4fhe.layouts.forms import Kind
from quad4fhe.planning.plan import Plan
from quad4fhe.polynomial import PolynomialModel

Source = str | bytes  # a file's path, or its content


class ReplyFolderError(Quad4FHEError):
    """A reply can't be written, and later ones would fail too."""


@dataclass(frozen=True)
class Task:
    """One request: its file or bytes, its digest, and the file of the reply; None to return the reply."""

    name: str
    request: Source
    sha256: str
    reply: str | None


@dataclass(frozen=True)
class TaskResult:
    """The digest and size of a reply, and its bytes if the worker has not written them."""

    sha256: str
    size: int
    data: bytes | None


class Scorer:
    """The state of one worker, which folds and quantises the model once; call it with tasks."""

    def __init__(self, model: PolynomialModel, plan: dict[str, Any]) -> None:
        self._plan = Plan.from_dict(plan)
        self._server = Server(SimpleNamespace(model=model, model_id=self._plan.model_id), self._plan)
        self._server.warm_up()

    def __call__(self, task: Task) -> TaskResult:
        """Answer one request."""
        reply = self._server.answer(self._read(task.request))
        digest, size = message.digest(reply).hex(), len(reply)
        if task.reply is None:
            return TaskResult(digest, size, reply)
        write_reply(Path(task.reply), reply)
        return TaskResult(digest, size, None)

    def _read(self, source: Source) -> bytes:
        """The request, with one byte more where its file is too long, so that it is rejected."""
        if isinstance(source, bytes):
            return source
        with open_regular(Path(source)) as file:
            return file.read(message.size(self._plan, Kind.request) + 1)


def write_reply(path: Path, reply: bytes) -> None:
    """Write a reply; raises ReplyFolderError if that fails."""
    try:
        with writing(path, durable=False) as file:
            file.write(reply)
    except InputError as error:
        raise ReplyFolderError(str(error)) from None
    except OSError as error:
        raise ReplyFolderError(f"can't write {path}: {error.strerror or error}") from None
