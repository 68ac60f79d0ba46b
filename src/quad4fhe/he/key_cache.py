"""The cache of evaluation keys: in memory where requests are evaluated, on disk in the HTTP server."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

V = TypeVar("V")


@dataclass(frozen=True)
class _Entry(Generic[V]):
    value: V
    size: int
    owner: Hashable


class KeyCache(Generic[V]):
    """Evaluation keys by plan hash and key id; at the limit, the least recently used are evicted.

    Several owners share the limit: the owner that holds the most loses keys first. Without owners it is an LRU cache.

    Parameters
    ----------
    limit
        The largest sum of sizes, in the unit that `put` uses: bytes, or 1 for each client.
    evicted
        Called with each evicted value.
    """

    def __init__(self, limit: float = math.inf, evicted: Callable[[V], None] = lambda value: None) -> None:
        self._limit, self._evicted = limit, evicted
        self._entries: OrderedDict[tuple[bytes, bytes], _Entry[V]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, place: tuple[bytes, bytes]) -> bool:
        return place in self._entries

    def get(self, plan: bytes, key_id: bytes) -> V | None:
        """Return the keys, and mark them as the most recently used; None if they are not here."""
        if (plan, key_id) not in self._entries:
            return None
        self._entries.move_to_end((plan, key_id))
        return self._entries[plan, key_id].value

    def of_plan(self, plan: bytes) -> list[V]:
        """The keys of all clients of a plan; does not mark them as used."""
        return [entry.value for (own, _), entry in self._entries.items() if own == plan]

    def put(self, plan: bytes, key_id: bytes, value: V, size: int, owner: Hashable = None) -> None:
        """Add keys; if keys of the same name are here, call `drop` first."""
        assert (plan, key_id) not in self._entries
        while self._entries and sum(entry.size for entry in self._entries.values()) + size > self._limit:
            self._evict(owner, size)
        self._entries[plan, key_id] = _Entry(value, size, owner)

    def drop(self, plan: bytes, key_id: bytes) -> None:
        """Remove keys, if they are here, without calling `evicted`."""
        self._entries.pop((plan, key_id), None)

    def clear(self) -> None:
        """Remove all keys."""
        self._entries.clear()

    def _evict(self, newcomer: Hashable, size: int) -> None:
        held: Counter[Hashable] = Counter()
        for entry in self._entries.values():
            held[entry.owner] += entry.size
        # Other owners lose keys only while they hold more than the newcomer will; otherwise two owners would evict
        # each other's keys forever. An owner without keys gets a place even if all others hold equally few.
        most = max(held.values())
        own = held[newcomer] > 0 and held[newcomer] + size >= most
        place = next(
            place
            for place, entry in self._entries.items()
            if (entry.owner == newcomer if own else held[entry.owner] == most)
        )
        self._evicted(self._entries.pop(place).value)
