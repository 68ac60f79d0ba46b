"""A worker of a scoring run: the only process that computes on clients' ciphertexts.

An InputError means that the request is damaged; every other error may have another cause.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

from quad4fhe.errors import InputError, Quad4FHEError
from quad4fhe.he import backends, container
from quad4fhe.he.session import Server, key_cache
from quad4fhe.io.files import open_regular, writing
from quad4fhe.layouts import layout_of
from quad4fhe.planning.plan import Plan
from quad4fhe.polynomial import PolynomialModel

KEYS_AT_ONCE = 8  # clients' evaluation keys in memory; further ones are read again

Source = str | bytes  # a file's path, or its content


class KeysError(Quad4FHEError):
    """A client's evaluation keys are missing or damaged; the request itself may be good."""


class ReplyFolderError(Quad4FHEError):
    """A reply can't be written, and later ones would fail too."""


@dataclass(frozen=True)
class Task:
    """One request: its file or bytes, its digest, its key id, and the file of the reply; None to return the reply."""

    name: str
    request: Source
    sha256: str
    key: bytes
    reply: str | None


@dataclass(frozen=True)
class TaskResult:
    """The digest and size of a reply, and its bytes if the worker has not written them."""

    sha256: str
    size: int
    data: bytes | None


class Scorer:
    """The state of one worker, which folds and quantises the model once; call it with tasks."""

    def __init__(
        self, model: PolynomialModel, plan: dict[str, Any], keys: dict[bytes, Source], backend: str = backends.DEFAULT
    ) -> None:
        self._plan, self._keys = Plan.from_dict(plan), keys
        cache = key_cache([self._plan], KEYS_AT_ONCE)
        self._server = Server(
            SimpleNamespace(model=model, model_id=self._plan.model_id), self._plan, keys=cache, backend=backend
        )
        self._server.warm_up()

    def __call__(self, task: Task) -> TaskResult:
        """Answer one request."""
        if layout_of(self._plan).has_keys(self._plan):
            self._load_keys(task.key)
        with _opened(task.request) as stream:
            reply = self._server.evaluate(container.read_request(self._plan, stream))
        parts = list(container.write_reply(self._plan, reply))
        digest, size = parts[-1].hex(), sum(map(len, parts))
        if task.reply is None:
            return TaskResult(digest, size, b"".join(parts))
        write_reply(Path(task.reply), parts)
        return TaskResult(digest, size, None)

    def _load_keys(self, key: bytes) -> None:
        source = self._keys.get(key)
        if source is None:
            raise KeysError(f"the folder has no evaluation keys of client {key.hex()}; put its .keys file there")
        try:
            self._server.load_keys(key, partial(_opened, source))
        except (InputError, OSError) as error:
            raise KeysError(f"the evaluation keys of client {key.hex()} can't be used: {error}") from None


def write_reply(path: Path, parts: list[bytes]) -> None:
    """Write a reply; raises ReplyFolderError if that fails."""
    try:
        with writing(path, durable=False) as file:
            file.writelines(parts)
    except InputError as error:
        raise ReplyFolderError(str(error)) from None
    except OSError as error:
        raise ReplyFolderError(f"can't write {path}: {error.strerror or error}") from None


def _opened(source: Source) -> BinaryIO:
    return io.BytesIO(source) if isinstance(source, bytes) else open_regular(Path(source))
