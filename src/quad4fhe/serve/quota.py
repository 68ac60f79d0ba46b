"""Limits how many numbers a token is told of a model each day, to slow down clients that copy it.

Every number told is an equation about the model, so numbers are counted, not requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

_DAY = 86_400


class Quota:
    """Numbers by owner and day (UTC), at most `limit` each; None for no limit. Counts start again with the server."""

    def __init__(self, limit: int | None, clock: Callable[[], float] = time.time) -> None:
        self._limit, self._clock = limit, clock
        self.day = 0  # the number of the day that is counted now
        self._used: dict[Hashable, int] = {}

    def take(self, owner: Hashable, count: int) -> int | None:
        """Count numbers before they are computed; returns None, or the seconds to wait if the limit is reached."""
        if self._limit is None:
            return None
        now = int(self._clock())
        if now // _DAY != self.day:
            self.day = now // _DAY
            self._used.clear()
        used = self._used.get(owner, 0) + count
        if used > self._limit:
            return _DAY - now % _DAY
        self._used[owner] = used
        return None

    def give_back(self, owner: Hashable, count: int, day: int) -> None:
        """Do not count numbers of this day that were not told after all."""
        if day == self.day and owner in self._used:
            self._used[owner] = max(0, self._used[owner] - count)
