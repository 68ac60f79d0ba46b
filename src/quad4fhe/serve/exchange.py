"""All requests of one call and their replies: everything is sent and received first, then decrypted.

Decides how many requests are in flight and where messages wait. A reply is kept as it came and looked at only when
there is nothing left to send, so that no reply can change what is sent, or when.
"""

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
from quad4fhe.he.session import Client, ReplyError
from quad4fhe.serve.wire import KeylessError

IN_MEMORY = 2**26  # bytes of a request, and of all replies, that are not written to a temporary file


class Exchange:
    """The messages of one call: `run` sends and keeps, `decrypt` judges.

    `evaluate` sends a request and returns the reply's bytes, `give_keys` lets the server have the evaluation keys and
    returns how many bytes that took; `kept` is where replies wait.
    """

    def __init__(
        self,
        client: Client,
        evaluate: Callable[[IO[bytes], int], bytes],
        give_keys: Callable[[], int],
        kept: IO[bytes],
    ) -> None:
        self._client, self._evaluate, self._give_keys, self._kept = client, evaluate, give_keys, kept
        self._nonces: list[bytes] = []
        self._lengths: list[int] = []
        self.upload_bytes = 0
        self.key_bytes = 0

    @property
    def download_bytes(self) -> int:
        """Bytes of all replies."""
        return sum(self._lengths)

    def run(self, blocks: Iterable[Array], concurrency: int, progress: Callable[[int], None]) -> None:
        """Send one request a block and keep every reply as it came; only HTTP's own failures end it early."""
        plan = self._client.plan
        waiting: deque[_Message] = deque()
        try:
            for block in blocks:
                (request,) = self._client.stream(block)
                if not self._nonces and plan.layout == "packed":
                    self.key_bytes += self._give_keys()
                self._nonces.append(request.header.nonce)
                body, size = spooled(container.write_request(plan, request))
                waiting.append(_Message(body, size, _in_background(partial(self._evaluate, body, size))))
                if len(waiting) >= concurrency:
                    self._finish(waiting.popleft(), progress)
            while waiting:
                self._finish(waiting.popleft(), progress)
        finally:
            for message in waiting:  # one of the others went wrong: what is still on its way has no more to send
                message.body.close()

    def decrypt(self, progress: Progress) -> Array:
        """The logits of all replies, in the order of the blocks; raises ReplyError if one of them can't be used."""
        rows = [np.empty((0, self._client.plan.shape.outputs))]
        self._kept.seek(0)
        for nonce, length in zip(self._nonces, self._lengths, strict=True):
            try:
                reply = container.read_reply(self._client.plan, io.BytesIO(self._kept.read(length)))
            except InputError as error:
                raise ReplyError(f"the server's reply can't be used: {error}") from None
            if reply.header.nonce != nonce:
                raise ReplyError("the server's reply answers another request than it was sent for")
            rows.append(self._client.decrypt(reply))
            progress("decrypt", len(rows) - 1, len(self._nonces))
        return np.concatenate(rows)

    def _finish(self, message: _Message, progress: Callable[[int], None]) -> None:
        try:
            data = message.answer.result()
        except KeylessError:  # the server was started again, or had to make room
            self.key_bytes += self._give_keys()
            data = self._evaluate(message.body, message.size)
        finally:
            message.body.close()
        try:
            self._kept.write(data)
        except OSError as error:
            raise InputError(f"no room for the encrypted replies: {error.strerror or error}; free some") from None
        self.upload_bytes += message.size
        self._lengths.append(len(data))
        progress(len(self._lengths))


def spooled(parts: Iterable[bytes]) -> tuple[IO[bytes], int]:
    """Bytes of a container, kept so that they can be sent again; ciphertexts only, on disk where they are large."""
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
    """A request that was sent and is not answered yet."""

    body: IO[bytes]
    size: int
    answer: Future[bytes]


def _in_background(call: Callable[[], bytes]) -> Future[bytes]:
    """Carry out a call in a thread that nobody has to wait for: an interrupted program ends at once."""
    future: Future[bytes] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # whatever it is, it belongs to who waits for the answer
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
