"""Places in the queue, shared out fairly among those who send requests.

A sender that is alone may take every place. When all are taken, a sender that has fewer takes one from a sender that
has more: from the request that came last, as long as no worker computes on it. The other gets 429 and sends it again.
Workers, too, take the senders in turn.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from quad4fhe.errors import Quad4FHEError

Item = TypeVar("Item")


class EvictedError(Quad4FHEError):
    """The place was given to somebody else."""


class Place:
    """One request's place; `owner` is who sent it."""

    def __init__(self, owner: Hashable) -> None:
        self.owner = owner
        self.evicted = False
        self._scope: asyncio.Timeout | None = None

    @property
    def waits(self) -> bool:
        """Whether it can be given to somebody else now."""
        return self._scope is not None and not self._scope.expired()

    @asynccontextmanager
    async def waiting(self, until: float) -> AsyncIterator[None]:
        """In here the place may be given away, which raises EvictedError; after `until` it is a TimeoutError."""
        try:
            async with asyncio.timeout_at(until) as self._scope:
                yield
        except TimeoutError:
            if not self.evicted:
                raise
        finally:
            self._scope = None
        if self.evicted:
            raise EvictedError("others wait who have fewer places; send the request again later")

    def extend(self, until: float) -> None:
        """Inside `waiting`: wait until then instead."""
        if self.waits and not self.evicted:
            assert self._scope is not None
            self._scope.reschedule(until)

    def evict(self) -> None:
        """Give the place away; only where it `waits`."""
        assert self._scope is not None
        self.evicted = True
        self._scope.reschedule(0.0)


class Places:
    """At most `total` places."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._taken: dict[Place, None] = {}

    @property
    def busy(self) -> int:
        """How many are taken."""
        return len(self._taken)

    def take(self, owner: Hashable) -> Place | None:
        """A place, or None if there is none for this owner."""
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
        # Only from an owner that still has as many afterwards, or two owners would take places from each other forever.
        richer = [other for other, count in held.most_common() if count > own + 1]
        for other in richer:
            for place in reversed(self._taken):
                if place.owner == other and place.waits:
                    place.evict()
                    self.release(place)
                    return True
        return False


class FairQueue(Generic[Item]):
    """Like `asyncio.Queue`, but those who wait are served in turn, one owner after the other."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[Item]]] = OrderedDict()

    def put_nowait(self, item: Item) -> None:
        """Give it to the next in turn, or keep it."""
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
                self.put_nowait(future.result())  # it came at the moment its owner gave up
            raise
