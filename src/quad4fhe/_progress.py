"""The progress callback: called with (what, done, total); total is 0 if it is not known."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]


def silent(what: str, done: int, total: int) -> None:
    """Ignore the progress."""
