"""Starts and stops the HTTP server: address, TLS, workers.

A server that other machines can reach needs tokens, unless its operator explicitly opens it. On SIGTERM or Ctrl-C it
accepts no new requests and finishes those it has accepted.
"""

from __future__ import annotations

import ipaddress
import math
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quad4fhe.errors import InputError, MissingExtraError
from quad4fhe.io.files import one_line
from quad4fhe.workers.pool import Workers
from quad4fhe.workers.registry import DEFAULT, choose

try:
    import uvicorn
    from uvicorn.protocols.http import httptools_impl

    from quad4fhe.serve.app import Limits, Service
    from quad4fhe.serve.page import read_onnxruntime
    from quad4fhe.serve.protocol import IDLE_SECONDS, LimitedProtocol, Listener, room_for
except ImportError as error:
    raise MissingExtraError(error.name or "uvicorn", "serve", "the server") from None

from quad4fhe.serve.admission import Connections
from quad4fhe.serve.models import HostedModel

__all__ = ["Address", "HostedModel", "Limits", "read_tokens", "serve"]

# uvicorn stops reading while a request has this many unread bytes. With its default of 2^16, it would stop after every
# read of a body of megabytes, which would take a third longer.
httptools_impl.HIGH_WATER_LIMIT = 2**20  # type: ignore[attr-defined]  # uvicorn has no option for it


@dataclass(frozen=True, kw_only=True)
class Address:
    """The address to listen on; port 0 takes a free one. TLS needs a certificate chain and its key as PEM files."""

    host: str = "127.0.0.1"
    port: int = 8443
    certificate: Path | None = None
    certificate_key: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.certificate_key is None):
            raise InputError("TLS needs a certificate and its key: give both, or neither")
        for file in (self.certificate, self.certificate_key):
            if file is not None and not file.is_file():
                raise InputError(f"{file}: no such file; TLS needs a certificate and its key as PEM")

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def read_tokens(file: Path) -> tuple[str, ...]:
    """Read tokens, one per line; empty lines and lines that start with # are skipped."""
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InputError(f"can't read the tokens in {file}: {why}; make one: openssl rand -hex 16 > {file}") from None
    tokens = tuple(line for line in lines if line and not line.startswith("#"))
    if not tokens or min(map(len, tokens)) < 16:
        raise InputError(f"{file} needs one token a line, each of 16 or more characters; try: openssl rand -hex 32")
    if not all(token.isascii() and token.isprintable() for token in tokens):
        raise InputError(f"{file} has tokens that are not printable ASCII; try: openssl rand -hex 32")
    return tokens


def serve(
    models: list[HostedModel],
    *,
    address: Address,
    limits: Limits,
    tokens: tuple[str, ...] = (),
    open_to_all: bool = False,
    folder: Path | None = None,
    pool: str | Workers = DEFAULT,
    page: bool = False,
    page_from_disk: bool = False,
    onnxruntime: Path | None = None,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until stopped.

    Parameters
    ----------
    models
        The models to serve.
    address
        Where to listen.
    limits
        Limits on requests, memory and connections.
    tokens
        The bearer tokens to accept; needed if other machines can reach the server.
    open_to_all
        Serve other machines without tokens. Without tokens and this, the server answers requests for its own machine
        alone: to 127.0.0.1 or localhost, and from no page but its own.
    folder
        The folder for payloads, which all workers must see; by default the system's folder for temporary files.
    pool
        Where workers run: "local", "ray" or a Workers object.
    page
        Offer a page at /page/ that encrypts in the browser.
    page_from_disk
        Answer copies of that page that were opened from disk.
    onnxruntime
        The WebAssembly module of onnxruntime-web, with which the page runs feature parts.
    ready
        Called with the server's URL once it takes requests.
    """
    if folder is not None:
        folder = folder.resolve()  # workers may start in another folder
    if not (address.local or tokens or open_to_all):
        raise InputError(
            f"other machines can reach {address.host}: give tokens (openssl rand -hex 16 > tokens, then --token-file "
            "tokens), or open the server to everyone with --open"
        )
    workers = choose(pool, limits.workers)
    with _listen(address) as listener:
        host = f"[{address.host}]" if ":" in address.host else address.host
        url = f"{'http' if address.certificate is None else 'https'}://{host}:{listener.getsockname()[1]}"

        def stop() -> None:
            server.should_exit = True

        service = Service(
            models,
            limits,
            workers,
            tokens,
            folder,
            lambda: ready(url),
            stop,
            page=page,
            page_from_disk=page_from_disk,
            onnxruntime=None if onnxruntime is None else read_onnxruntime(onnxruntime),
            own_names=address.local and not (tokens or open_to_all),
        )
        config = uvicorn.Config(
            service.app(),
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="on",
            http=LimitedProtocol,
            ws="none",
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=math.ceil(limits.deadline) + 5,
        )
        connections = Connections(room_for(limits.connections), limits.per_address)
        server = _Server(config, connections, tls_context(address))
        server.run(sockets=[listener])
    if service.failure is not None:
        raise service.failure
    if not server.started:
        raise InputError("the server did not start; its log says why")


class _Server(uvicorn.Server):
    """uvicorn's server with our own listener."""

    def __init__(self, config: uvicorn.Config, connections: Connections, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._connections, self._tls = connections, tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then listen."""
        await super().startup(sockets=[])
        listeners: list[Any] = self.servers  # uvicorn closes them when it stops
        for each in sockets or []:
            listeners.append(Listener(each, self._connections, self._protocol, self._tls))

    def _protocol(self, lost: Callable[[], None]) -> LimitedProtocol:
        return LimitedProtocol(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state, lost=lost
        )


def tls_context(address: Address) -> ssl.SSLContext | None:
    """Return a context for TLS 1.2 or newer, with forward secrecy and authenticated encryption; None without TLS.

    It does not depend on the defaults of OpenSSL, Python or uvicorn.
    """
    if address.certificate is None or address.certificate_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")  # of TLS 1.2; all ciphers of TLS 1.3 are of this kind
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    try:
        context.load_cert_chain(address.certificate, address.certificate_key)
    except OSError as error:  # ssl.SSLError is one
        raise InputError(
            f"{address.certificate}: TLS can't use it with its key ({one_line(error)}); give both as PEM"
        ) from error
    return context


def _listen(address: Address) -> socket.socket:
    try:
        family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((address.host, address.port), family=family, backlog=512)
    except OSError as error:
        where = f"{address.host}:{address.port}"
        why = (error.strerror or str(error)).partition(" (while")[0]
        fix = "choose another, or any free one with --port 0" if address.port else "choose another with --host"
        raise InputError(f"can't listen on {where}: {why}; {fix}") from None
