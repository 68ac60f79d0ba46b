"""Protect secrets with the means of the operating system: no core dumps, and private files for passphrases.

As for a key file, only the owner of a passphrase file may read, write or replace it.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

from quad4fhe.errors import InputError

_LONGEST = 2**12  # bytes of a passphrase file's first line
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


def private_line(path: Path, what: str) -> str:
    """Read the first line of a file that only its owner can read, write or replace; else raise InputError."""
    checked = os.name == "posix" and not _own_descriptor(path)
    try:
        if checked and path.is_symlink():
            raise InputError(f"{path} is a link; name the file that holds the {what}")
        descriptor = os.open(path, os.O_RDONLY | (getattr(os, "O_NOFOLLOW", 0) if checked else 0))
        with os.fdopen(descriptor, "rb") as file:
            if checked:
                _require_private(path, os.fstat(file.fileno()), what)
            data = file.readline(_LONGEST + 1)
    except OSError as error:
        raise InputError(f"{path}: can't read the {what} ({error.strerror or error}); check the path") from None
    try:
        line = data.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise InputError(f"{path}: the {what} is not text; write it as one line of UTF-8") from None
    if not line or len(data) > _LONGEST:
        raise InputError(f"{path}: its first line is empty or longer than {_LONGEST} bytes; write the {what} there")
    return line


def _own_descriptor(path: Path) -> bool:
    """Whether the path is a descriptor of this process (/dev/fd/3, or <(...) in a shell) and not a named file."""
    return os.path.realpath(path.parent) in (f"/proc/{os.getpid()}/fd", "/dev/fd")


def _require_private(path: Path, found: os.stat_result, what: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path} is not a regular file; write the {what} to one")
    if found.st_mode & 0o077 or found.st_uid not in (os.geteuid(), 0):
        raise InputError(
            f"others may read or change {path} (mode {found.st_mode & 0o777:04o}), so its {what} may not be secret: "
            f"choose another {what}, in a file of yours with chmod 600"
        )
    for folder in Path(os.path.realpath(path.parent) + "/x").parents:
        mode = folder.stat().st_mode
        if mode & 0o022 and not mode & stat.S_ISVTX:
            raise InputError(
                f"others may replace files in {folder} (mode {mode & 0o7777:04o}), {path} among them: keep the {what} "
                "in a folder that only you can write"
            )
