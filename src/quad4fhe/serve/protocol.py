"""HTTP/1.1 on one connection, with limits on what a stranger can make the server hold and wait for.

uvicorn's protocol accepts header lines without end, waits for them forever, and queues every pipelined request it
reads. This one counts the bytes that are not body, and sets deadlines for headers, for idle connections and for
clients that do not read their answer. How many connections there may be is up to `connections`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

HEAD_BYTES = 2**15  # of the request line, the header lines, and whatever frames a chunked body
HEAD_LINES = 100
HEAD_SECONDS = 10.0  # from the first byte, or from the start of the connection, to the end of the headers
IDLE_SECONDS = 10  # between an answer and the next request
STALL_SECONDS = 30.0  # for a client that does not read its answer
PIPELINED = 8  # requests that wait for the answer to the one before, on the same connection

_LINGER_SECONDS = 0.5  # between a refusal and the end of the connection: closed earlier, its sender may not see it
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
        """Start the clock: a connection that says nothing is ended."""
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop every clock."""
        self._disarm()
        self.resume_writing()
        self._give_up()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._lost()

    def data_received(self, data: bytes) -> None:
        """Parse, and end the connection if too much of it is not body."""
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
        """A new request: count from the start."""
        self._lines = self._line_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count header lines; trailers of a chunked body come here, too."""
        self._lines += 1
        self._line_bytes += len(name) + len(value)
        if self._lines > HEAD_LINES or self._line_bytes > HEAD_BYTES:
            self._refusal = (431, f"there are more than {HEAD_LINES} header lines, or {HEAD_BYTES} bytes of them")
            raise HeadError
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The headers came in time."""
        self._disarm()
        if len(self.pipeline) >= PIPELINED:
            raise HeadError
        self._in_body = True
        self.requests += 1
        super().on_headers_complete()
        self._cycles = [*self._unanswered(), self.cycle]

    def on_body(self, body: bytes) -> None:
        """Bytes of the body are counted by who reads them."""
        self._not_body = max(0, self._not_body - len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The end of a request."""
        self._not_body = 0
        self._in_body = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """uvicorn calls this for whatever its parser refuses."""
        self._refuse(*self._refusal)

    def pause_writing(self) -> None:
        """The client reads slower than the answer is written: give it some time."""
        super().pause_writing()
        if self._stall is None:
            self._stall = self.loop.call_later(STALL_SECONDS, self.abort)

    def resume_writing(self) -> None:
        """The client reads on."""
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        if self.flow is not None:
            super().resume_writing()

    def _unanswered(self) -> list[RequestResponseCycle]:
        return [cycle for cycle in self._cycles if not cycle.response_complete]

    def _give_up(self) -> None:
        """Tell every request that nobody waits for its answer; uvicorn tells the last of several only."""
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
            self._arm()  # an earlier request is still answered, which has a deadline of its own
        elif self._not_body:
            self._refuse(408, f"the headers were not complete after {HEAD_SECONDS:g} seconds")
        else:
            self.transport.close()

    def _refuse(self, status: int, text: str) -> None:
        """Answer and close; where another answer has begun on this connection, only close."""
        if self._refused:
            return
        self._refused = True
        self._disarm()
        unanswered = self._unanswered()
        self._give_up()  # so that the application does not answer as well
        if len(unanswered) > 1 or any(cycle.response_started for cycle in unanswered) or self.transport.is_closing():
            self.abort()
            return
        body = msgspec.json.encode({"error": text})
        head = [STATUS_LINE[status], b"content-type: application/json\r\n", b"connection: close\r\n"]
        self.transport.write(b"".join([*head, b"content-length: %d\r\n\r\n" % len(body), body]))
        self.flow.resume_reading()
        self._timer = self.loop.call_later(_LINGER_SECONDS, self.transport.close)
