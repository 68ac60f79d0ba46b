"""What a server keeps of the replies it prepared: a few bytes each, in memory only, for one answer each.

An entry belongs to its sender, key, plan and seed. It is removed before it is used, so of several requests with the
same seed one is answered. Nothing is written: after a restart no entry is left. If there are too many, the oldest are
evicted. In all these cases the client asks again with a fresh request.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from quad4fhe.errors import InputError
from quad4fhe.he.container import Identity

PER_OWNER = 1024  # entries
TOTAL_BYTES = 2**26
REMEMBERED = 2**14  # names of entries that are gone, of all owners; their seeds are refused
_OVERHEAD = 512  # bytes of an entry besides what is kept: its name, and the objects around both

SPENT = (
    "no prepared reply for this request: it was used or evicted, or the server was restarted; "
    "encrypt the samples again and send a whole request"
)
TAKEN = "this seed was sent before, and a seed is used once; prepare another part"


class SpentError(InputError):
    """The server has no prepared reply for a request; the samples must be encrypted again, with a fresh part."""


class TakenError(InputError):
    """A seed was sent before; its part must not be used."""


class PreparedReplies:
    """The entries of all senders, at most `per_owner` entries each and `total` bytes together.

    At the first limit a sender's oldest entry is evicted, at the second the oldest of the sender that has most bytes.
    """

    def __init__(self, per_owner: int = PER_OWNER, total: int = TOTAL_BYTES) -> None:
        self._per_owner, self._total = per_owner, total
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._kept: dict[Hashable, dict[bytes, bytes]] = {}
        self._sizes: Counter[Hashable] = Counter()  # bytes by sender
        self._making: set[tuple[Hashable, bytes]] = set()
        self._gone: dict[tuple[Hashable, bytes], None] = {}
        self._process = os.getpid()
        self.bytes = 0

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def __reduce__(self) -> NoReturn:
        raise TypeError("prepared replies are used once, so they can't be copied, pickled or sent")

    @contextmanager
    def making(self, owner: Hashable, identity: Identity) -> Iterator[Callable[[bytes], None]]:
        """Reserve a name while its reply is prepared; yields the function that keeps the entry.

        Raises TakenError if the name has an entry, is reserved, or had an entry not long ago.
        """
        place = (owner, _name(identity))
        with self._lock:
            self._leave_to_parent()
            if place in self._making or place in self._gone or place[1] in self._kept.get(owner, {}):
                raise TakenError(TAKEN)
            self._making.add(place)
        try:
            yield lambda kept: self._put(*place, kept)
        finally:
            with self._lock:
                self._making.discard(place)

    def has(self, owner: Hashable, identity: Identity) -> bool:
        """Whether there is an entry."""
        with self._lock:
            self._leave_to_parent()
            return _name(identity) in self._kept.get(owner, {})

    def take(self, owner: Hashable, identity: Identity) -> bytes:
        """Remove an entry and return what was kept; raises SpentError if there is none. Nobody else gets it."""
        with self._lock:
            self._leave_to_parent()
            kept = self._pop(owner, _name(identity))
        if kept is None:
            raise SpentError(SPENT)
        return kept

    def _put(self, owner: Hashable, name: bytes, kept: bytes) -> None:
        with self._lock:
            self._leave_to_parent()
            self._kept.setdefault(owner, {})[name] = kept
            self._add(owner, _OVERHEAD + len(kept))
            if len(self._kept[owner]) > self._per_owner:
                self._evict(owner)
            while self.bytes > self._total and self._kept:
                self._evict(max(self._sizes, key=self._sizes.__getitem__))

    def _evict(self, owner: Hashable) -> None:
        self._pop(owner, next(iter(self._kept[owner])))  # a dictionary keeps the order of insertion

    def _pop(self, owner: Hashable, name: bytes) -> bytes | None:
        own = self._kept.get(owner, {})
        kept = own.pop(name, None)
        if kept is not None:
            self._add(owner, -_OVERHEAD - len(kept))
            self._gone[owner, name] = None
            if len(self._gone) > REMEMBERED:
                del self._gone[next(iter(self._gone))]
            if not own:
                del self._kept[owner], self._sizes[owner]
        return kept

    def _add(self, owner: Hashable, size: int) -> None:
        self._sizes[owner] += size
        self.bytes += size

    def _leave_to_parent(self) -> None:
        """After a fork, the parent has the same entries."""
        if self._process != os.getpid():
            self._forget()


def _name(identity: Identity) -> bytes:
    return identity.plan + identity.key + identity.nonce
