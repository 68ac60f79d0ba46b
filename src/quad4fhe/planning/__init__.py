"""Planning: chooses every encryption parameter of a model, without cryptography and without importing any layout.

`quad4fhe.layouts` registers here how to find a layout by its name, and `quad4fhe/__init__.py` imports it. So a plan can
ask its layout for its checks and its description, and no plan is made or read without them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quad4fhe.planning.plan import PlanLayout

_find: list[Callable[[str], PlanLayout]] = []


def use_layouts(find: Callable[[str], PlanLayout]) -> None:
    """Let plans find their layout with this function; it raises InputError for an unknown name."""
    _find[:] = [find]


def layout_named(name: str) -> PlanLayout:
    """The layout of this name."""
    if not _find:
        raise AssertionError("no layouts are registered: import quad4fhe.layouts")
    return _find[0](name)
