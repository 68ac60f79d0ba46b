"""Starts the HTTP server: address, TLS, logging, engine, stopping.

Decides that a server which others can reach has tokens, unless its operator says in words that it is open. On SIGTERM
or Ctrl-C it takes nothing new and finishes what it accepted.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import math
import signal
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from quad4fhe._files import one_line
from quad4fhe.engines import single_workers
from quad4fhe.errors import InputError, MissingExtraError

try:
    import uvicorn
    from uvicorn.protocols.http import httptools_impl

    from quad4fhe.serve.app import Limits, Service
    from quad4fhe.serve.protocol import IDLE_SECONDS, LimitedProtocol
except ImportError as error:
    raise MissingExtraError(error.name or "uvicorn", "serve", "the server") from None

from quad4fhe.serve.connections import Connections, Listener, room_for
from quad4fhe.serve.hired import Hired
from quad4fhe.serve.hosted import Hosted
from quad4fhe.serve.pool import Hand
from quad4fhe.serve.process import Process

__all__ = ["Address", "Hosted", "Limits", "read_tokens", "serve"]

log = logging.getLogger("quad4fhe.serve")
# uvicorn stops reading once a request has this many bytes unread, 2^16 unless told. A body of megabytes then stops
# after every read, and takes a third longer; with this much it flows.
httptools_impl.HIGH_WATER_LIMIT = 2**20  # type: ignore[attr-defined]  # no option of uvicorn sets it


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where to listen; port 0 takes a free one. TLS needs a certificate chain and its key, as PEM files."""

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
    """One token a line; empty lines and lines that start with # are passed over."""
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"can't read the tokens in {file}: {error}") from None
    tokens = tuple(line for line in lines if line and not line.startswith("#"))
    if not tokens or min(map(len, tokens)) < 16:
        raise InputError(f"{file} needs one token a line, each of 16 or more characters; try: openssl rand -hex 32")
    if not all(token.isascii() and token.isprintable() for token in tokens):
        raise InputError(f"{file} has tokens that are not printable ASCII; try: openssl rand -hex 32")
    return tokens


def serve(
    hosted: list[Hosted],
    *,
    address: Address,
    limits: Limits,
    tokens: tuple[str, ...] = (),
    open_to_all: bool = False,
    folder: Path | None = None,
    engine: str = "local",
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until told to stop.

    `folder` is where payloads wait, by default the system's place for temporary files; `ready` is called with the
    server's address once it takes requests. Workers are processes of the server's own (`local`), or actors of Ray
    (`ray`), on machines that all have to see `folder`.
    """
    if folder is not None:
        folder = folder.resolve()  # workers of an engine start elsewhere
    if not (address.local or tokens or open_to_all):
        raise InputError(f"others can reach {address.host}: give tokens, or say that the server is open to everyone")
    listener = _listen(address)
    host = f"[{address.host}]" if ":" in address.host else address.host
    url = f"{'http' if address.certificate is None else 'https'}://{host}:{listener.getsockname()[1]}"

    def stop() -> None:
        server.should_exit = True

    stack = contextlib.ExitStack()
    service = Service(hosted, limits, tokens, folder, lambda: ready(url), stop, lambda: hire(), stack.close)
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
    with listener, stack:
        server = _Server(config, connections, tls_context(address))
        hire = _hirer(engine, limits.workers, stack)
        server.run(sockets=[listener])
    if service.failure is not None:
        raise service.failure
    if not server.started:
        raise InputError("the server did not start; its log says why")


class _Server(uvicorn.Server):
    """uvicorn's server with our own way to accept connections."""

    def __init__(self, config: uvicorn.Config, connections: Connections, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._connections, self._tls = connections, tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then listen."""
        await super().startup(sockets=[])
        listeners: list[Any] = self.servers  # what uvicorn closes when it stops
        for each in sockets or []:
            listeners.append(Listener(each, self._connections, self._protocol, self._tls))

    def _protocol(self, lost: Callable[[], None]) -> LimitedProtocol:
        return LimitedProtocol(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state, lost=lost
        )


def tls_context(address: Address) -> ssl.SSLContext | None:
    """TLS 1.2 or newer, with forward secrecy and authenticated encryption alone; None for a server without TLS.

    Nothing of this is left to what OpenSSL, Python or uvicorn take for a good default.
    """
    if address.certificate is None or address.certificate_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")  # of TLS 1.2: those of TLS 1.3 are all of this kind
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    try:
        context.load_cert_chain(address.certificate, address.certificate_key)
    except OSError as error:  # of which those of ssl are a kind
        raise InputError(
            f"{address.certificate}: TLS can't use it with its key ({one_line(error)}); give both as PEM"
        ) from error
    return context


def _hirer(engine: str, workers: int, stack: contextlib.ExitStack) -> Callable[[], Hand]:
    """What makes a worker; what the engine needs is started here, before the server runs, and ends with the stack."""
    if engine == "local":
        return Process
    log.info("starting the engine %s", engine)
    # Ray takes SIGTERM for itself. It would end the server at once, so it is given back.
    before = signal.getsignal(signal.SIGTERM)
    try:
        chosen = single_workers(engine, workers)
        return partial(Hired, stack.enter_context(chosen))
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _listen(address: Address) -> socket.socket:
    try:
        family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((address.host, address.port), family=family, backlog=512)
    except OSError as error:
        where = f"{address.host}:{address.port}"
        raise InputError(f"can't listen on {where}: {error.strerror or error}; choose another") from None
