"""What a worker of a scoring run does: one request in, one reply out; only here are strangers' ciphertexts computed on.

Decides how many clients' evaluation keys it holds at once, and whose fault a failure is: an InputError is the
request's. Which requests there are, and what is written down about them, is left to `run`.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

from quad4fhe.circuit.plan import Plan
from quad4fhe.errors import InputError, Quad4FHEError
from quad4fhe.he import container
from quad4fhe.he.session import Server
from quad4fhe.he.warm import warm_up
from quad4fhe.quadratic import QuadraticModel
from quad4fhe.scoring.files import DIGEST, appearing, open_regular

KEYS_AT_ONCE = 8  # clients' evaluation keys in memory; more are read again

Source = str | bytes  # a file, or what was in it


class KeysError(Quad4FHEError):
    """A client's evaluation keys are missing or damaged; the request itself may be good."""


class ReplyFolderError(Quad4FHEError):
    """The reply can't be written; no other will be either."""


@dataclass(frozen=True)
class Task:
    """One request: the file, or its bytes; its own SHA-256; the key's name; where the reply goes, None for back."""

    name: str
    request: Source
    sha256: str
    key: bytes
    reply: str | None


@dataclass(frozen=True)
class Answer:
    """The reply's own SHA-256 and size, and its bytes unless the worker has written them."""

    sha256: str
    size: int
    data: bytes | None


def make(model: QuadraticModel, plan: dict[str, Any], keys: dict[bytes, Source]) -> Callable[[Task], Answer]:
    """Set up a worker: the model is folded and quantised once."""
    return _Scorer(model, Plan.from_dict(plan), keys).answer


class _Scorer:
    def __init__(self, model: QuadraticModel, plan: Plan, keys: dict[bytes, Source]) -> None:
        self._plan = plan
        self._server = Server(SimpleNamespace(model=model), plan)  # it asks for nothing else
        warm_up(self._server)
        self._keys = keys
        self._recent: OrderedDict[bytes, None] = OrderedDict()

    def answer(self, task: Task) -> Answer:
        if self._plan.layout == "packed":
            self._hold(task.key)
        with _opened(task.request) as stream:
            reply = self._server.evaluate(container.read_request(self._plan, stream))
        parts = list(container.write_reply(self._plan, reply))
        digest, size = parts[-1].hex(), sum(map(len, parts))
        assert len(parts[-1]) == DIGEST
        if task.reply is None:
            return Answer(digest, size, b"".join(parts))
        write_reply(Path(task.reply), parts)
        return Answer(digest, size, None)

    def _hold(self, key: bytes) -> None:
        """Have a client's keys ready; the ones used longest ago give way."""
        if not self._server.knows(key):
            source = self._keys.get(key)
            if source is None:
                raise KeysError(f"no evaluation keys of client {key.hex()} in the folder; put its .keys file there")
            while len(self._recent) >= KEYS_AT_ONCE:
                oldest, _ = self._recent.popitem(last=False)
                self._server.forget(oldest)
            try:
                with _opened(source) as stream:
                    named, keys = container.read_keys(self._plan, stream)
                if named != key:
                    raise InputError("they are named otherwise inside")
                self._server.register(key, keys)
            except (InputError, OSError) as error:
                raise KeysError(f"the evaluation keys of client {key.hex()} can't be used: {error}") from None
        self._recent[key] = None
        self._recent.move_to_end(key)


def write_reply(path: Path, parts: list[bytes]) -> None:
    """Write a reply whole or not at all."""
    try:
        with appearing(path) as file:
            file.writelines(parts)
    except InputError as error:
        raise ReplyFolderError(str(error)) from None
    except OSError as error:
        raise ReplyFolderError(f"can't write {path}: {error.strerror or error}") from None


@contextmanager
def _opened(source: Source) -> Iterator[BinaryIO]:
    if isinstance(source, bytes):
        yield io.BytesIO(source)
        return
    with open_regular(Path(source)) as file:
        yield file
