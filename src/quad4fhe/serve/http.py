"""The client's HTTP connection: sends a message with retries, a deadline and a limit on the size of the reply.

Every route is idempotent, or says that it got the same bytes before, so the client may send them again. It does so
only for reasons that HTTP shows (no connection, a status code), never because of a decrypted reply. Environment
variables are ignored: a proxy or a .netrc file could expose the token, and SSLKEYLOGFILE would store the keys of the
connection.

The deadline covers a whole message: headers and body, sent and received. httpx has timeouts only for single reads and
writes, so a server that sends a byte now and then could hold a client forever. Threads share connections, so each
thread has its own deadline.
"""

from __future__ import annotations

import ipaddress
import math
import random
import re
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO, Any

import msgspec

from quad4fhe.errors import InputError, MissingExtraError, Quad4FHEError

try:
    import certifi  # of httpx
    import httpcore  # of httpx
    import httpx
except ImportError:
    raise MissingExtraError("httpx", "serve", "the client of a server") from None

_BLOCK = 2**18
_SLICE = 2**14  # bytes written under one timeout: one TLS record, which a socket accepts as a whole or not at all
_LONGEST_PAUSE = 30.0
_FIRST = 15.0  # seconds to reach a server that has never answered: more likely a wrong address than a restart
_NOT_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "record layer failure")
_LOCAL = r"(localhost|127\.0\.0\.1)\b"
_AGAIN = (408, 429, 503)  # the same request may succeed later


class ServiceError(Quad4FHEError):
    """The server can't be reached, or rejects the request; there are no decisions."""


class UnknownPlanError(ServiceError):
    """The server has no plan like the one a request was made for; `command` would help."""

    def __init__(self, message: str, command: str = "") -> None:
        super().__init__(message + command)
        self.command = command


class _LaterError(ServiceError):
    def __init__(self, message: str, after: float) -> None:
        super().__init__(message)
        self.after = after


class HttpClient:
    """A connection to a server; `patience` limits the seconds for one message, with all retries and pauses."""

    def __init__(self, url: str, token: str | None, verify: Any, patience: float) -> None:
        headers = {"Accept-Encoding": "identity"} | ({} if token is None else {"Authorization": f"Bearer {token}"})
        self._patience = patience
        self._answered = self._answered_well = False
        self._token = token is not None
        self._trust = client_context() if verify is True else verify
        self._client = partial(
            httpx.Client,
            base_url=url,
            headers=headers,
            timeout=patience,
            trust_env=False,
            follow_redirects=False,
        )
        try:
            self._http = self._connect()
            _check_address(url, self._http.base_url, token)
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise InputError(f"{url!r} or its token can't be used: {error}; wanted https://host:port") from None

    def __enter__(self) -> HttpClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self) -> httpx.Client:
        return self._client(transport=_timed_transport(self._trust))

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def reconnect(self) -> None:
        """Close the connection now; the next message opens another."""
        self._http.close()
        self._http = self._connect()

    def ask(self, method: str, path: str, body: IO[bytes] | None, size: int, longest: int) -> bytes:
        """Send one message, retry until `patience` runs out, and return the body of the reply."""
        started = time.monotonic()
        deadline = started + self._patience
        pause = 0.2
        while True:
            if body is not None:
                body.seek(0)
            try:
                with _ending(deadline):
                    return self._once(method, path, body, size, longest)
            except _LaterError as error:
                # Jitter keeps clients that were rejected together from returning together.
                wait = max(error.after, pause * random.uniform(0.5, 1.0))
                late = time.monotonic() + wait > deadline
                if not self._answered and (late or time.monotonic() + wait > started + _FIRST):
                    waited = f"gave up after {min(self._patience, _FIRST):g} seconds"
                    port = self._http.base_url.port
                    fix = f"quad4fhe serve FIT{'' if port is None else f' --port {port}'}"
                    why = f"{error}; {waited}: is the server running ({fix}), and its address right?"
                    raise ServiceError(why) from None
                if late:
                    raise ServiceError(f"{error}; gave up after {self._patience:g} seconds") from None
                time.sleep(wait)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _once(self, method: str, path: str, body: IO[bytes] | None, size: int, longest: int) -> bytes:
        headers = {} if body is None else {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        content = None if body is None else _blocks(body)
        try:
            with self._http.stream(method, path, content=content, headers=headers) as response:
                good = response.status_code in (200, 204)
                data = _bounded(response, longest if good else 2**16)
        except httpx.TransportError as error:
            self._check_scheme(error)
            raise _LaterError(f"the server can't be reached: {error or type(error).__name__}", 0.0) from None
        self._answered = True
        if good:
            self._answered_well = True
            return data
        said = _message(data)
        status = response.status_code
        if status in _AGAIN:
            after = response.headers.get("retry-after", "0")
            seconds = min(float(after), _LONGEST_PAUSE) if after.isdecimal() else 0.0
            raise _LaterError(f"the server is busy ({status}: {said})", seconds)
        if status == 401:
            problem = "does not accept this token; check" if self._token else "wants a token; add"
            raise ServiceError(f"the server {problem} --token-file FILE")
        refused = f"the server refused {method} {path.partition('?')[0]} ({status}): {said}"
        if response.headers.get("quad4fhe-plan") == "unknown":
            raise UnknownPlanError(refused)
        base = self._http.base_url
        if status == 404 and base.path.strip("/") and not self._answered_well:
            root = str(base.copy_with(path="/")).rstrip("/")
            raise ServiceError(f"nothing of a quad4fhe server is at {base} (404); try {root}")
        raise ServiceError(refused)

    def _check_scheme(self, error: httpx.TransportError) -> None:
        """Raise the error that helps if the address names the wrong protocol, or the certificate is not trusted."""
        text = str(error)
        url = self._http.base_url
        if "CERTIFICATE_VERIFY_FAILED" in text:
            raise ServiceError(f"the server's certificate is not trusted: {error}; see --ca") from None
        if url.scheme == "https" and any(sign in text for sign in _NOT_TLS):
            raise ServiceError(f"the server does not speak TLS; try {url.copy_with(scheme='http')}") from None
        if url.scheme == "http" and isinstance(error, httpx.ProtocolError | httpx.ReadError) and _speaks_tls(url):
            raise ServiceError(f"the server speaks TLS; try {url.copy_with(scheme='https')}") from None


def _speaks_tls(url: httpx.URL) -> bool:
    """Whether the server completes a TLS handshake. Its certificate does not matter here: nothing is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((url.host, url.port or 80), timeout=5.0) as plain,
            context.wrap_socket(plain, server_hostname=url.host),
        ):
            return True
    except OSError:
        return False


def client_context(authorities: str | None = None) -> ssl.SSLContext:
    """Return a context for TLS 1.2 or newer that trusts the authorities in a PEM file, by default those of certifi.

    It equals the result of `ssl.create_default_context`, which can't be used because it honours SSLKEYLOGFILE.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks certificates and host names
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if sys.version_info >= (3, 13):
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_STRICT
    context.load_verify_locations(cafile=authorities or certifi.where())
    return context


def _check_address(url: str, parsed: httpx.URL, token: str | None) -> None:
    if parsed.scheme not in ("http", "https"):
        likely = f"{'http' if re.match(_LOCAL, url) else 'https'}://{url}"
        fix = likely if re.match(r"[\w.-]+:\d+$", url) else "https://host:port"
        raise InputError(f"{url!r} is not the address of a server; wanted {fix}")
    try:
        local = ipaddress.ip_address(parsed.host).is_loopback
    except ValueError:
        local = parsed.host == "localhost"
    if token is not None and parsed.scheme == "http" and not local:
        raise InputError(f"a token would travel to {parsed.host} in the clear; use https://")


def _message(data: bytes) -> str:
    """Return the server's error message, made safe for a terminal."""
    try:
        text = str(msgspec.json.decode(data)["error"])
    except (msgspec.DecodeError, KeyError, TypeError, RecursionError):
        text = "no reason given"
    return "".join(c for c in " ".join(text.split()) if c.isprintable())[:300]


def _bounded(response: httpx.Response, longest: int) -> bytes:
    too_long = ServiceError(f"the server sent more than the {longest} bytes it may; not trusted")
    claimed = response.headers.get("content-length", "0")
    if not claimed.isdecimal() or len(claimed) > 18 or int(claimed) > longest:
        raise too_long
    out = bytearray()
    for part in response.iter_raw(_BLOCK):
        out += part
        if len(out) > longest:
            raise too_long
    return bytes(out)


def _blocks(body: IO[bytes]) -> Iterator[bytes]:
    while block := body.read(_BLOCK):
        yield block


class _Deadline(threading.local):
    at = math.inf


_deadline = _Deadline()


@contextmanager
def _ending(at: float) -> Iterator[None]:
    """Make httpx raise a timeout for any read or write after `at` (by `time.monotonic`), in this block and thread."""
    before, _deadline.at = _deadline.at, at
    try:
        yield
    finally:
        _deadline.at = before


def _timed_transport(context: ssl.SSLContext) -> httpx.HTTPTransport:
    """Return a transport for `httpx.Client` that obeys `_ending`."""
    transport = httpx.HTTPTransport(verify=context, trust_env=False)
    # httpx has no option for this; the pool and its connections are public in httpcore.
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
