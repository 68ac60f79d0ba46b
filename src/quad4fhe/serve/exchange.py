"""The messages of one call to a server: requests in flight, evaluation keys, replies that are stored unread."""

from __future__ import annotations

import io
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import IO

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe._progress import Progress
from quad4fhe.errors import InputError
from quad4fhe.he import container
from quad4fhe.he.container import Kind, Request
from quad4fhe.he.prepared import Part, PreparedStore
from quad4fhe.he.session import Client, ReplyError
from quad4fhe.layouts import layout_of
from quad4fhe.serve.http import GoneError, KeylessError, MissingError, ServiceError, TakenError

IN_MEMORY = 2**26  # bytes of a request, and of all replies, that are not written to a temporary file
REPLIES = {Kind.request: Kind.reply, Kind.seed: Kind.halves, Kind.prepared: Kind.answers}


class Exchange:
    """The messages of one call: `run` sends all requests and keeps the replies, `decrypt` checks and decrypts them.

    No reply is read before everything is sent, so no reply can change the content or the time of a message. `evaluate`
    sends a request of a kind and returns the reply's bytes, `give_keys` uploads the evaluation keys and returns their
    size, and the file `kept` stores the replies. If the server has lost what it prepared for a request, the samples are
    encrypted again, afresh, and so are all that follow.
    """

    def __init__(
        self,
        client: Client,
        evaluate: Callable[[Kind, IO[bytes], int], bytes],
        give_keys: Callable[[], int],
        kept: IO[bytes],
    ) -> None:
        self._client, self._evaluate, self._give_keys, self._kept = client, evaluate, give_keys, kept
        self._answered: list[tuple[bytes, Kind, int]] = []  # nonce, kind and length of each reply
        self._begun = self._afresh = False
        self.upload_bytes = 0
        self.key_bytes = 0

    @property
    def download_bytes(self) -> int:
        """The bytes of all replies."""
        return sum(length for _, _, length in self._answered)

    def run(self, blocks: Iterable[Array], concurrency: int, progress: Callable[[int], None]) -> None:
        """Send one request per block and store every reply unread; only HTTP errors stop it early."""
        waiting: deque[_Message] = deque()
        try:
            for block in blocks:
                waiting.append(self._send(block))
                if len(waiting) >= concurrency:
                    self._finish(waiting.popleft(), progress)
            while waiting:
                self._finish(waiting.popleft(), progress)
        finally:
            for message in waiting:  # only after an error: the messages in flight can't send the rest
                message.body.close()

    def decrypt(self, progress: Progress) -> Array:
        """Return the logits of all replies, in the order of the blocks; raises ReplyError if one can't be used."""
        rows = [np.empty((0, self._client.plan.shape.outputs))]
        self._kept.seek(0)
        for nonce, kind, length in self._answered:
            try:
                reply = container.read_reply(self._client.plan, io.BytesIO(self._kept.read(length)), kind)
            except InputError as error:
                raise ReplyError(f"the server's reply can't be used: {error}") from None
            if reply.identity.nonce != nonce:
                raise ReplyError("the server's reply answers another request")
            rows.append(self._client.decrypt(reply))
            progress("decrypt", len(rows) - 1, len(self._answered))
        return np.concatenate(rows)

    def _send(self, block: Array) -> _Message:
        """Encrypt and send the samples of one request."""
        plan = self._client.plan
        (request,) = self._client.stream(block, prepared=not self._afresh)
        if not self._begun and layout_of(plan).has_keys(plan) and request.kind is Kind.request:
            self.key_bytes += self._give_keys()
            self._begun = True
        body, size = spooled(container.write_request(plan, request))
        answer = _in_background(partial(self._evaluate, request.kind, body, size))
        return _Message(block, request.identity.nonce, request.kind, body, size, answer)

    def _finish(self, message: _Message, progress: Callable[[int], None]) -> None:
        """Wait for a reply and store it."""
        try:
            data = message.answer.result()
        except KeylessError:  # the server was restarted, or evicted the keys
            self.key_bytes += self._give_keys()
            data = self._evaluate(message.kind, message.body, message.size)
        except GoneError:  # never send the same samples with the same part again
            if message.kind is not Kind.prepared:
                raise
            self.upload_bytes += message.size
            self._client.abandon(message.nonce)
            self._afresh = True
            self._finish(self._send(message.block), progress)
            return
        finally:
            message.body.close()
        try:
            self._kept.write(data)
        except OSError as error:
            raise InputError(f"no room for the encrypted replies: {error.strerror or error}; free some") from None
        self.upload_bytes += message.size
        self._answered.append((message.nonce, REPLIES[message.kind], len(data)))
        progress(len(self._answered))


@dataclass(frozen=True)
class MadeAhead:
    """How many `parts` of later requests were stored, and for how many of them the server prepared its reply.

    `reason` says why there are fewer of either than asked for; empty if there are not.
    """

    parts: int
    replies: int
    reason: str = ""


class Preparation:
    """Parts of later requests: `run` sends their seeds, `store` reads the replies and stores the parts.

    As in an exchange, no reply is read while messages are sent. A part whose seed was sent is stored only with its
    reply.
    """

    def __init__(
        self,
        client: Client,
        ask: Callable[[Kind, IO[bytes], int], bytes],
        give_keys: Callable[[], int],
        kept: IO[bytes],
    ) -> None:
        self._client, self._ask, self._give_keys, self._kept = client, ask, give_keys, kept
        self._parts: list[tuple[Part, int | None]] = []  # with the length of its reply, None if none was asked for
        self._reason = ""

    def run(self, count: int) -> None:
        """Make parts and send their seeds, until the server refuses."""
        offered = container.find_form(self._client.plan, Kind.seed) is not None
        self._reason = "" if offered or not count else "this plan has too many answers in a reply to prepare it"
        for _ in range(count):
            part, seed = self._client.make_part()
            if not offered:
                self._parts.append((part, None))
                continue
            try:
                data = self._send(seed)
                self._kept.write(data)
            except MissingError:
                offered, self._reason = False, "the server prepares no replies"
                self._parts.append((self._client.make_part()[0], None))
            except TakenError as error:
                self._reason = str(error)
            except (ServiceError, OSError) as error:  # the answers that were asked for before are not lost
                self._reason = str(error)
                return
            else:
                self._parts.append((part, len(data)))

    def _send(self, seed: Request) -> bytes:
        body, size = spooled(container.write_request(self._client.plan, seed))
        with body:
            try:
                return self._ask(seed.kind, body, size)
            except KeylessError:
                self._give_keys()
                return self._ask(seed.kind, body, size)

    def store(self, store: PreparedStore) -> MadeAhead:
        """Store the parts; one whose reply can't be used is left out."""
        parts = replies = 0
        self._kept.seek(0)
        store.tidy()
        for part, length in self._parts:
            try:
                if length is not None:
                    data = io.BytesIO(self._kept.read(length))
                    part = self._client.complete_part(part, container.read_reply(self._client.plan, data, Kind.halves))
                store.put(part)
            except (InputError, ReplyError) as error:
                self._reason = str(error)
                continue
            parts, replies = parts + 1, replies + (length is not None)
        return MadeAhead(parts, replies, self._reason)


def spooled(parts: Iterable[bytes]) -> tuple[IO[bytes], int]:
    """Write a container to a temporary file, on disk if it is large, so it can be sent again."""
    file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115 - closed once it is answered
    try:
        return file, sum(file.write(part) for part in parts)
    except BaseException as error:
        file.close()
        if not isinstance(error, OSError):
            raise
        raise InputError(f"no room for the encrypted request: {error.strerror or error}; free some") from None


@dataclass(frozen=True, eq=False)
class _Message:
    """A request in flight, and the samples in it."""

    block: Array
    nonce: bytes
    kind: Kind
    body: IO[bytes]
    size: int
    answer: Future[bytes]


def _in_background(call: Callable[[], bytes]) -> Future[bytes]:
    """Make a call in a daemon thread, so an interrupted program exits at once."""
    future: Future[bytes] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # passed on to the caller of `result`
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
