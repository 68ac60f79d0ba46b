"""One message to a server and its answer over HTTP.

Decides what is asked again and how long: only what gives the same answer twice, which every route of the service does,
and as the same bytes. Only HTTP's own facts (no connection, a status) count, never what a reply decrypts to.
An answer longer than it may be is not read to its end. The environment is not looked at: a proxy or a .netrc that
somebody set would see the token, and SSLKEYLOGFILE would write down what decrypts the connection. What the bytes mean
is left to `client`.
"""

from __future__ import annotations

import ipaddress
import random
import ssl
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import IO, Any

import msgspec

from quad4fhe.errors import InputError, MissingExtraError, Quad4FHEError

try:
    import certifi  # of httpx
    import httpx

    from quad4fhe.serve.timed import ending, timed_transport
except ImportError:
    raise MissingExtraError("httpx", "serve", "the client of a server") from None

_BLOCK = 2**18
_LONGEST_PAUSE = 30.0
_AGAIN = (408, 429, 503)  # refused before or without an answer: the same request may succeed later


class ServiceError(Quad4FHEError):
    """The server can't be reached, or refuses; nothing is known about the samples' decisions."""


class KeylessError(ServiceError):
    """The server does not have this client's evaluation keys."""


class TakenError(ServiceError):
    """The server has keys of this name already."""


class _LaterError(ServiceError):
    def __init__(self, message: str, after: float) -> None:
        super().__init__(message)
        self.after = after


class Wire:
    """A connection to a server; `patience` is how many seconds one message may take, attempts and pauses included."""

    def __init__(self, url: str, token: str | None, verify: Any, patience: float) -> None:
        headers = {"Accept-Encoding": "identity"} | ({} if token is None else {"Authorization": f"Bearer {token}"})
        self._patience = patience
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

    def _connect(self) -> httpx.Client:
        return self._client(transport=timed_transport(self._trust))

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def hang_up(self) -> None:
        """Close the connection now; the next message opens another."""
        self._http.close()
        self._http = self._connect()

    def ask(self, method: str, path: str, body: IO[bytes] | None, size: int, longest: int) -> bytes:
        """One message, with pauses and further attempts as long as patience lasts."""
        deadline = time.monotonic() + self._patience
        pause = 0.2
        while True:
            if body is not None:
                body.seek(0)
            try:
                with ending(deadline):
                    return self._once(method, path, body, size, longest)
            except _LaterError as error:
                # Jitter, so that clients that were refused together do not come back together.
                wait = max(error.after, pause * random.uniform(0.5, 1.0))
                if time.monotonic() + wait > deadline:
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
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise ServiceError(f"the server's certificate is not trusted: {error}; see --ca") from None
            raise _LaterError(f"the server can't be reached: {error or type(error).__name__}", 0.0) from None
        if good:
            return data
        said = _message(data)
        status = response.status_code
        if status in _AGAIN:
            after = response.headers.get("retry-after", "0")
            seconds = min(float(after), _LONGEST_PAUSE) if after.isdecimal() else 0.0
            raise _LaterError(f"the server is busy ({status}: {said})", seconds)
        if status == 404 and "quad4fhe-keys" in response.headers:
            raise KeylessError(said)
        if status == 409:
            raise TakenError(said)
        raise ServiceError(f"the server refused {method} {path.partition('?')[0]} ({status}): {said}")


def client_context(authorities: str | None = None) -> ssl.SSLContext:
    """TLS 1.2 or newer that trusts the authorities in a PEM file; by default those of certifi.

    The same as `ssl.create_default_context`, which can't be used: it opens the file that SSLKEYLOGFILE names.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks certificates and host names
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if sys.version_info >= (3, 13):
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_STRICT
    context.load_verify_locations(cafile=authorities or certifi.where())
    return context


def _check_address(url: str, parsed: httpx.URL, token: str | None) -> None:
    if parsed.scheme not in ("http", "https"):
        raise InputError(f"{url!r} is not the address of a server; wanted https://host:port")
    try:
        local = ipaddress.ip_address(parsed.host).is_loopback
    except ValueError:
        local = parsed.host == "localhost"
    if token is not None and parsed.scheme == "http" and not local:
        raise InputError(f"a token would travel to {parsed.host} in the clear; use https://")


def _message(data: bytes) -> str:
    """What the server said, made safe for a terminal."""
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
