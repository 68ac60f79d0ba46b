"""HTTP/1.1 connections with limits on the memory and time that a client can take.

uvicorn's protocol accepts endless header lines, waits for them forever, and queues every pipelined request it reads.
This one counts the bytes that are not body, and sets deadlines for headers, for idle connections and for clients that
do not read their reply. The listener counts sockets when they are accepted, before TLS and HTTP allocate anything.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from quad4fhe.serve.admission import Connection, Connections

log = logging.getLogger("quad4fhe.serve")

HEAD_BYTES = 2**15  # of the request line, the header lines, and whatever frames a chunked body
HEAD_LINES = 100
HEAD_SECONDS = 10.0  # from the first byte, or from the start of the connection, to the end of the headers
IDLE_SECONDS = 10  # between a reply and the next request
STALL_SECONDS = 30.0  # for a client that does not read its reply
PIPELINED = 8  # requests that wait for the reply to the one before, on the same connection

HANDSHAKE_SECONDS = 10.0
_SPARE_FILES = 256  # descriptors for everything that is not a connection: spooled bodies, workers, libraries
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_LINGER_SECONDS = 0.5  # from an error reply to the end of the connection; sooner, the client may not see the reply
_LINGER_BYTES = 2**20


class HeadError(Exception):
    """Raised in a parser callback to end the connection."""


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with the limits above; calls `lost` when the connection has ended."""

    def __init__(self, *args: Any, lost: Callable[[], None] = lambda: None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.requests = 0  # whose headers were complete
        self._lost = lost
        self._lines = self._line_bytes = 0
        self._not_body = 0  # bytes of the message that is being read
        self._in_body = False
        self._refusal = (400, "this is not an HTTP/1.1 request")
        self._refused = False
        self._discarded = 0
        self._cycles: list[RequestResponseCycle] = []
        self._timer: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None

    @property
    def placed(self) -> bool:
        """Whether a request on this connection has a place in the queue, or its reply is being sent."""
        return any("placed" in cycle.scope["state"] for cycle in self._unanswered())

    def abort(self) -> None:
        """End the connection now."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer: a connection that sends nothing is closed."""
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop every timer."""
        self._disarm()
        self.resume_writing()
        self._give_up()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._lost()

    def data_received(self, data: bytes) -> None:
        """Parse, and close the connection if too many bytes are not body."""
        if self._refused:
            self._discarded += len(data)
            if self._discarded > _LINGER_BYTES:
                self.abort()
            return
        self._not_body += len(data)
        super().data_received(data)
        if self._not_body > HEAD_BYTES:
            self._refuse(431, f"the headers are longer than {HEAD_BYTES} bytes")
        elif self._not_body and not self._in_body and self._timer is None and not self._refused:
            self._arm()

    def on_message_begin(self) -> None:
        """Start the counts for a new request."""
        self._lines = self._line_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count header lines, including trailers of a chunked body."""
        self._lines += 1
        self._line_bytes += len(name) + len(value)
        if self._lines > HEAD_LINES or self._line_bytes > HEAD_BYTES:
            self._refusal = (431, f"there are more than {HEAD_LINES} header lines, or {HEAD_BYTES} bytes of them")
            raise HeadError
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop the timer: the headers came in time."""
        self._disarm()
        if len(self.pipeline) >= PIPELINED:
            raise HeadError
        self._in_body = True
        self.requests += 1
        if not self.url.startswith(b"/") and b"://" in self.url:  # an absolute target names a host of its own
            self.scope["state"]["authority"] = self.url.split(b"/")[2].decode("latin-1").lower()
        super().on_headers_complete()
        self._cycles = [*self._unanswered(), self.cycle]

    def on_body(self, body: bytes) -> None:
        """Subtract the bytes of the body, which `receive` limits."""
        self._not_body = max(0, self._not_body - len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Reset the count after a request."""
        self._not_body = 0
        self._in_body = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Reply to a request that uvicorn's parser rejects."""
        self._refuse(*self._refusal)

    def pause_writing(self) -> None:
        """Start a timer, because the client reads more slowly than the server writes."""
        super().pause_writing()
        if self._stall is None:
            self._stall = self.loop.call_later(STALL_SECONDS, self.abort)

    def resume_writing(self) -> None:
        """Stop that timer."""
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        if self.flow is not None:
            super().resume_writing()

    def _unanswered(self) -> list[RequestResponseCycle]:
        return [cycle for cycle in self._cycles if not cycle.response_complete]

    def _give_up(self) -> None:
        """Tell every request that its client is gone; uvicorn tells only the last of several."""
        self.pipeline.clear()
        for cycle in self._unanswered():
            cycle.disconnected = True
            cycle.message_event.set()

    def _arm(self) -> None:
        self._timer = self.loop.call_later(HEAD_SECONDS, self._late)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if self._unanswered():
            self._arm()  # an earlier request is still in progress, and has a deadline of its own
        elif self._not_body:
            self._refuse(408, f"the headers were not complete after {HEAD_SECONDS:g} seconds")
        else:
            self.transport.close()

    def _refuse(self, status: int, text: str) -> None:
        """Reply and close; if another reply has begun on this connection, only close."""
        if self._refused:
            return
        self._refused = True
        self._disarm()
        unanswered = self._unanswered()
        self._give_up()  # otherwise the application would reply as well
        if len(unanswered) > 1 or any(cycle.response_started for cycle in unanswered) or self.transport.is_closing():
            self.abort()
            return
        body = msgspec.json.encode({"error": text})
        head = [STATUS_LINE[status], b"content-type: application/json\r\n", b"connection: close\r\n"]
        self.transport.write(b"".join([*head, b"content-length: %d\r\n\r\n" % len(body), body]))
        self.flow.resume_reading()
        self._timer = self.loop.call_later(_LINGER_SECONDS, self.transport.close)


class Listener:
    """Accepts connections on a socket; uvicorn stops it like an `asyncio.Server`."""

    def __init__(
        self,
        listener: socket.socket,
        connections: Connections,
        protocol: Callable[[Callable[[], None]], LimitedProtocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._socket, self._connections, self._protocol, self._tls = listener, connections, protocol, tls
        self._opening: set[asyncio.Task[None]] = set()
        listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())

    def close(self) -> None:
        """Accept no more connections."""
        self._accepting.cancel()
        for task in self._opening:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until no connection is being opened."""
        await asyncio.wait([self._accepting, *self._opening])

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(self._socket)
            except OSError as error:
                if error.errno in _FULL:
                    log.error("can't accept a connection: %s", error.strerror)
                    self._connections.make_room()
                await asyncio.sleep(0.05)  # other errors mean that the client left before it was accepted
                continue
            entry = self._connections.admit(str(peer[0]))
            if entry is None:
                accepted.close()
            else:
                self._start(accepted, entry)
            await asyncio.sleep(0)  # while clients are waiting, `sock_accept` lets no other task run

    def _start(self, accepted: socket.socket, entry: Connection) -> None:
        begun = False

        async def connect() -> None:
            nonlocal begun
            begun = True
            await self._open(accepted, entry)

        def opened(task: asyncio.Task[None]) -> None:
            self._opening.discard(task)
            entry.opening = None
            if not begun:
                accepted.close()
            if task.cancelled() or task.exception() is not None:
                self._connections.remove(entry)

        entry.opening = task = asyncio.create_task(connect())
        self._opening.add(task)
        task.add_done_callback(opened)

    async def _open(self, accepted: socket.socket, entry: Connection) -> None:
        def make() -> LimitedProtocol:
            entry.protocol = self._protocol(lambda: self._connections.remove(entry))
            return entry.protocol

        seconds = None if self._tls is None else HANDSHAKE_SECONDS
        await asyncio.get_running_loop().connect_accepted_socket(
            make, accepted, ssl=self._tls, ssl_handshake_timeout=seconds, ssl_shutdown_timeout=seconds
        )


def room_for(connections: int) -> int:
    """Return how many connections the limit on open files allows; raises the soft limit if that helps."""
    try:
        import resource
    except ImportError:  # not on every platform
        return connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < wanted:
            connections = max(1, soft - _SPARE_FILES)
            log.warning("at most %d connections: this process may open no more files (ulimit -n)", connections)
    return connections
