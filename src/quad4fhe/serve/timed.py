"""Connections on which a whole message ends at its deadline, headers and body, sent and received.

httpx limits each read and each write by itself, so a server that sends a byte now and then would hold a client for
ever. The deadline belongs to the thread that sends the message, because threads share connections.
"""

from __future__ import annotations

import math
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpcore
import httpx

_SLICE = 2**14  # bytes written under one timeout: a record of TLS, which a socket takes as a whole or not yet


class _Deadline(threading.local):
    at = math.inf


_deadline = _Deadline()


@contextmanager
def ending(at: float) -> Iterator[None]:
    """In here, and in this thread, what is read or written after `at` (of `time.monotonic`) is a timeout of httpx."""
    before, _deadline.at = _deadline.at, at
    try:
        yield
    finally:
        _deadline.at = before


def timed_transport(context: ssl.SSLContext) -> httpx.HTTPTransport:
    """What an `httpx.Client` sends messages with, so that `ending` counts."""
    transport = httpx.HTTPTransport(verify=context, trust_env=False)
    # No option of httpx gives its pool other connections; the pool and its connections are public in httpcore.
    transport._pool = httpcore.ConnectionPool(
        ssl_context=context, max_connections=None, keepalive_expiry=5.0, network_backend=_Backend()
    )
    return transport


class _Backend(httpcore.SyncBackend):
    def connect_tcp(self, *args: Any, **options: Any) -> httpcore.NetworkStream:
        return _Stream(super().connect_tcp(*args, **options))


class _Stream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _SLICE):
            self._stream.write(buffer[start : start + _SLICE], _left(timeout, httpcore.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left = _left(timeout, httpcore.ConnectTimeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, left))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _left(timeout: float | None, late: type[httpcore.TimeoutException]) -> float:
    left = min(math.inf if timeout is None else timeout, _deadline.at - time.monotonic())
    if left <= 0:
        raise late("the server is too slow")
    return left
