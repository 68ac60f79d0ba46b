"""One finding of the doctor, and how a check that may break becomes one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from quad4fhe._files import one_line

Status = Literal["ok", "slow", "missing", "failed"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at, what was found, and the one command or step that mends it (empty where none is needed).

    `ok` works, `slow` works but will cost time, `missing` is an optional part that is not installed, `failed` is
    something every user needs.
    """

    part: str
    name: str
    status: Status
    says: str
    fix: str = ""


def checked(part: str, name: str, check: Callable[[], str], fix: str) -> Finding:
    """Run a check that says what it found, or raises whatever is wrong."""
    try:
        says = check()
    except Exception as error:  # a check may raise anything, and what it is is its finding
        return Finding(
            part=part, name=name, status="failed", says=f"{type(error).__name__}: {one_line(error)}", fix=fix
        )
    return Finding(part=part, name=name, status="ok", says=says)
