"""Which connections are open, and which one is closed for a new one.

A connection without a request in the queue costs its sender nothing, so the server keeps no more of them than it can
afford, and none of them keeps a newcomer out: at a limit the oldest one that waits for nothing is closed. So /health
answers however many idle sockets, half-sent headers or unfinished TLS handshakes there are. Sockets are counted when
they are accepted, before TLS and HTTP allocate anything.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
import ssl
from collections.abc import Callable, Iterable

from quad4fhe.serve.protocol import LimitedProtocol

log = logging.getLogger("quad4fhe.serve")

HANDSHAKE_SECONDS = 10.0
_SPARE_FILES = 256  # descriptors for everything that is not a connection: spooled bodies, workers, libraries
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Connection:
    """One accepted socket; `protocol` is there once TLS, if any, is set up, and `opening` until then."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.protocol: LimitedProtocol | None = None
        self.opening: asyncio.Task[None] | None = None

    def end(self) -> None:
        """Close it, whatever it is doing."""
        if self.protocol is not None and self.protocol.transport is not None:
            self.protocol.abort()
        elif self.opening is not None:
            self.opening.cancel()


class Connections:
    """The open connections, at most `total`, and at most `per_address` of one address (IPv6: of one /64 network)."""

    def __init__(self, total: int, per_address: int) -> None:
        self._total, self._per_address = total, per_address
        self._by_address: dict[str, dict[Connection, None]] = {}
        self.closed = 0  # for a newcomer

    def __len__(self) -> int:
        return sum(map(len, self._by_address.values()))

    def admit(self, peer: str) -> Connection | None:
        """A new connection, after another one was closed for it if need be; None if all the others are at work."""
        address = network(peer)
        own = self._by_address.get(address, {})
        if len(own) >= self._per_address and not self._close_one([own]):
            return None
        if len(self) >= self._total and not self.make_room():
            return None
        entry = Connection(address)
        self._by_address.setdefault(address, {})[entry] = None
        return entry

    def make_room(self) -> bool:
        """Close a connection of the address that has most of them."""
        return self._close_one(sorted(self._by_address.values(), key=len, reverse=True))

    def remove(self, entry: Connection) -> None:
        """Forget a connection that has ended."""
        group = self._by_address.get(entry.address, {})
        group.pop(entry, None)
        if not group:
            self._by_address.pop(entry.address, None)

    def _close_one(self, groups: Iterable[dict[Connection, None]]) -> bool:
        for group in groups:
            chosen = _oldest(group, _silent) or _oldest(group, _unplaced)
            if chosen is not None:
                self.closed += 1
                self.remove(chosen)
                chosen.end()
                return True
        return False


def _silent(entry: Connection) -> bool:
    """Whether it has not sent a whole request yet."""
    return entry.protocol is None or entry.protocol.requests == 0


def _unplaced(entry: Connection) -> bool:
    return entry.protocol is None or not entry.protocol.placed


def _oldest(group: Iterable[Connection], fits: Callable[[Connection], bool]) -> Connection | None:
    return next(filter(fits, group), None)


def network(peer: str) -> str:
    """What counts as one address: an IPv4 address, or an IPv6 /64, which is what one customer is given."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return peer
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), 64), strict=False))


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
        """Accept nothing more."""
        self._accepting.cancel()
        for task in self._opening:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until nothing is being opened."""
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
                await asyncio.sleep(0.05)  # anything else is the end of a connection that was not accepted yet
                continue
            entry = self._connections.admit(str(peer[0]))
            if entry is None:
                accepted.close()
            else:
                self._start(accepted, entry)
            await asyncio.sleep(0)  # `sock_accept` does not let others run as long as somebody is waiting

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
    """How many connections the process may have open files for; raises its soft limit if that helps."""
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
