"""How long work tells how far it is: a callable (what, done, total), total 0 where it is not known."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]


def silent(what: str, done: int, total: int) -> None:
    """Report to nobody."""
