"""The messages of one call to a server: requests in flight, and replies that are stored unread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import IO

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe._progress import Progress
from quad4fhe.errors import InputError
from quad4fhe.he.message import digest
from quad4fhe.he.session import Client

IN_MEMORY = 2**26  # bytes of all replies that are not written to a temporary file


class Exchange:
    """The messages of one call: `run` sends all requests and keeps the replies, `read` checks and decrypts them.

    No reply is read before everything is sent, so no reply can change the content or the time of a message. `ask` sends
    a request and returns the reply, and the file `kept` stores the replies.
    """

    def __init__(self, client: Client, ask: Callable[[bytes], bytes], kept: IO[bytes]) -> None:
        self._client, self._ask, self._kept = client, ask, kept
        self._requests: list[bytes] = []  # the SHA-256 of each
        self._lengths: list[int] = []  # of the replies
        self.upload_bytes = 0

    @property
    def download_bytes(self) -> int:
        """The bytes of all replies."""
        return sum(self._lengths)

    def run(self, blocks: Iterable[Array], concurrency: int, progress: Callable[[int], None]) -> None:
        """Send one request per block and store every reply unread; only HTTP errors stop it early."""
        waiting: deque[Future[bytes]] = deque()
        for block in blocks:
            (request,) = self._client.requests(block)
            self.upload_bytes += len(request)
            self._requests.append(digest(request))
            waiting.append(_in_background(partial(self._ask, request)))
            if len(waiting) >= concurrency:
                self._store(waiting.popleft().result(), progress)
        while waiting:
            self._store(waiting.popleft().result(), progress)

    def read(self, progress: Progress) -> Array:
        """Return the logits of all replies, in the order of the blocks; raises ReplyError if one can't be used."""
        rows = [np.empty((0, self._client.plan.shape.outputs))]
        self._kept.seek(0)
        for request, length in zip(self._requests, self._lengths, strict=True):
            rows.append(self._client.read(self._kept.read(length), request))
            progress("decrypt", len(rows) - 1, len(self._lengths))
        return np.concatenate(rows)

    def _store(self, reply: bytes, progress: Callable[[int], None]) -> None:
        try:
            self._kept.write(reply)
        except OSError as error:
            raise InputError(f"no room for the encrypted replies: {error.strerror or error}; free some") from None
        self._lengths.append(len(reply))
        progress(len(self._lengths))


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
