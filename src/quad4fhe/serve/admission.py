"""Admits requests and connections, with a fair share for each sender.

A single sender may take every place in the queue. When all places are taken, a sender with fewer places takes one from
a sender with more: that sender's latest request that no worker computes on gets 429 and can be sent again. Workers
serve the senders in turn.

A connection without a request in the queue costs its sender nothing, so the number of connections is limited too. At
the limit, a new connection replaces the oldest idle one. So /health answers even if there are many idle sockets,
half-sent headers or unfinished TLS handshakes.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

from quad4fhe.errors import Quad4FHEError

if TYPE_CHECKING:
    from quad4fhe.serve.protocol import LimitedProtocol

Item = TypeVar("Item")


class EvictedError(Quad4FHEError):
    """The place was given to another sender."""


class Place:
    """One request's place in the queue; `owner` is its sender."""

    def __init__(self, owner: Hashable) -> None:
        self.owner = owner
        self.evicted = False
        self._scope: asyncio.Timeout | None = None

    @property
    def waits(self) -> bool:
        """Whether it can be given to another sender now."""
        return self._scope is not None and not self._scope.expired()

    @asynccontextmanager
    async def waiting(self, until: float) -> AsyncIterator[None]:
        """Inside this block the place may be given away, which raises EvictedError; TimeoutError at `until`."""
        try:
            async with asyncio.timeout_at(until) as self._scope:
                yield
        except TimeoutError:
            if not self.evicted:
                raise
        finally:
            self._scope = None
        if self.evicted:
            raise EvictedError("other clients with fewer places are waiting; send the request again later")

    def extend(self, until: float) -> None:
        """Inside `waiting`: move the timeout to `until`."""
        if self.waits and not self.evicted:
            assert self._scope is not None
            self._scope.reschedule(until)

    def evict(self) -> None:
        """Give the place away; only if it `waits`."""
        assert self._scope is not None
        self.evicted = True
        self._scope.reschedule(0.0)


class Places:
    """The places in the queue, at most `total`."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._taken: dict[Place, None] = {}

    @property
    def busy(self) -> int:
        """How many places are taken."""
        return len(self._taken)

    def take(self, owner: Hashable) -> Place | None:
        """Take a place; returns None if this owner can't have one."""
        if self.busy >= self._total and not self._make_room(owner):
            return None
        place = Place(owner)
        self._taken[place] = None
        return place

    def release(self, place: Place) -> None:
        """Give a place back."""
        self._taken.pop(place, None)

    def _make_room(self, owner: Hashable) -> bool:
        held = Counter(place.owner for place in self._taken)
        own = held[owner]
        # Evict only from an owner that then still has as many as this one; otherwise two owners would evict each
        # other forever.
        richer = [other for other, count in held.most_common() if count > own + 1]
        for other in richer:
            for place in reversed(self._taken):
                if place.owner == other and place.waits:
                    place.evict()
                    self.release(place)
                    return True
        return False


class FairQueue(Generic[Item]):
    """Like `asyncio.Queue`, but owners that wait are served in turn."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[Item]]] = OrderedDict()

    def put_nowait(self, item: Item) -> None:
        """Give an item to the next owner in turn, or keep it."""
        while self._waiting:
            owner, line = next(iter(self._waiting.items()))
            future = line.popleft()
            self._waiting.move_to_end(owner)
            if not line:
                del self._waiting[owner]
            if not future.done():
                future.set_result(item)
                return
        self._items.append(item)

    async def get(self, owner: Hashable) -> Item:
        """Wait for an item."""
        if self._items:
            return self._items.popleft()
        future: asyncio.Future[Item] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(future)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.put_nowait(future.result())  # it arrived just as its owner gave up
            raise


class Connection:
    """One accepted socket: `opening` until TLS, if any, is set up, then it has a `protocol`."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.protocol: LimitedProtocol | None = None
        self.opening: asyncio.Task[None] | None = None

    def end(self) -> None:
        """Close the connection, even in the middle of a request."""
        if self.protocol is not None and self.protocol.transport is not None:
            self.protocol.abort()
        elif self.opening is not None:
            self.opening.cancel()


class Connections:
    """The open connections: at most `total`, and at most `per_address` for one address (IPv6: one /64 network)."""

    def __init__(self, total: int, per_address: int) -> None:
        self._total, self._per_address = total, per_address
        self._by_address: dict[str, dict[Connection, None]] = {}
        self.closed = 0  # to make room for others

    def __len__(self) -> int:
        return sum(map(len, self._by_address.values()))

    def admit(self, peer: str) -> Connection | None:
        """Admit a connection, closing an idle one if needed; None if all others have a request in the queue."""
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
        """Close a connection of the address that has most."""
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
    """Return the unit that limits apply to: an IPv4 address, or an IPv6 /64 network, usually one customer's."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return peer
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), 64), strict=False))
