"""Protect secrets with the means of the operating system: no core dumps."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from functools import cache

_SET_DUMPABLE = 4  # prctl(2)


@cache
def forbid_core_dumps() -> None:
    """Disable core dumps of this process; call it before a secret key is in memory.

    They stay disabled, because freed memory may still hold copies of the key. On Linux the resource limit alone is not
    enough: the kernel ignores it if core dumps are piped to a program. There prctl disables them, too, and with them
    debuggers of the same user.
    """
    if os.name != "posix":
        return  # other systems have no core dumps; their administrators configure crash reports
    import resource

    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)
