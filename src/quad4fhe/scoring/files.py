"""Files that survive a kill at any moment: written whole or not at all, and journals of what was done.

Decides how a file appears under its name, what is left of a journal whose writer was killed, and that a folder has one
writer at a time. Folders travel, so strangers put files into them: no symbolic link in one is followed, nor anything
opened that is not a regular file. The lines are those of `batches` (the client's index) and `run` (the manifest).
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from quad4fhe.errors import InputError

_PART = ".part"
_BLOCK = 2**20
DIGEST = 32  # bytes of SHA-256 at the end of every container
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def open_regular(path: Path) -> BufferedReader:
    """Open a file of a folder that strangers write to; an OSError says so if it is a link, a device or a pipe."""
    # Without O_NONBLOCK the opening of a named pipe would wait for somebody to write to it.
    return os.fdopen(_descriptor(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb")


def open_own(path: Path) -> BinaryIO:
    """Open a file that this program appends to, and make it if need be; one with several names is not its own."""
    handle = _descriptor(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    if os.fstat(handle).st_nlink > 1:
        os.close(handle)
        raise OSError(errno.EMLINK, "it has other names, and what they stand for would change", str(path))
    return os.fdopen(handle, "ab+")


def _descriptor(path: Path, flags: int) -> int:
    try:
        if stat.S_ISLNK(os.lstat(path).st_mode):  # for a clear message, and where O_NOFOLLOW does not exist
            raise OSError(errno.ELOOP, "it is a symbolic link, which is not followed", str(path))
    except FileNotFoundError:
        pass
    handle = os.open(path, flags | _NO_LINK, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return handle


def own_folder(path: Path) -> None:
    """Make a folder, or be content with the one that is there; a link to one is refused."""
    path.mkdir(exist_ok=True)
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise OSError(errno.ELOOP, "it is a symbolic link, which is not followed", str(path))


@contextmanager
def appearing(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name, complete, when the block ends well; otherwise nothing changes.

    Several processes may write the same name at once: the last one wins, whole. The data need not have reached the disk
    (a journal with hashes finds that out), so nothing waits for it.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(6)}{_PART}")
    try:
        file = part.open("xb")
    except OSError as error:
        raise InputError(f"can't write {path}: {error.strerror or error}") from None
    try:
        with file:
            yield file
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def remove_parts(folder: Path) -> None:
    """Remove what writers that were killed left behind."""
    for part in folder.glob(f".*{_PART}"):
        part.unlink(missing_ok=True)


def sha256(path: Path) -> str:
    """The hash of a whole file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def claimed_digest(path: Path) -> str:
    """The SHA-256 that a container carries at its end, unchecked: it tells one container from another."""
    with open_regular(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - DIGEST))
        return file.read(DIGEST).hex()


def intact_digest(path: Path) -> str | None:
    """The SHA-256 of a container, if its content has it; None where the file is missing, damaged, or no file."""
    try:
        with open_regular(path) as file:
            left = file.seek(0, os.SEEK_END) - DIGEST
            file.seek(0)
            digest = hashlib.sha256()
            while left > 0 and (block := file.read(min(_BLOCK, left))):
                digest.update(block)
                left -= len(block)
            return digest.hexdigest() if left == 0 and file.read() == digest.digest() else None
    except OSError:
        return None


class Journal:
    """A file of JSON lines that is only ever appended to; the first line says what it belongs to.

    A writer that is killed leaves at most one unfinished line, which is cut off by the next.
    """

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        self.path = path
        self.lines: list[dict[str, Any]] = []
        try:
            self._file = open_own(path)
        except OSError as error:
            raise InputError(
                f"can't use {path}: {error.strerror or error}; remove it, or choose another folder"
            ) from None
        try:
            self._read(head)
        except BaseException:
            self._file.close()
            raise

    @classmethod
    def head(cls, path: Path) -> dict[str, Any] | None:
        """The first line of an existing journal; None where there is none."""
        try:
            with open_regular(path) as file:
                line = file.readline()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"can't read {path}: {error.strerror or error}") from None
        return _decoded(path, line) if line.endswith(b"\n") else None

    def add(self, line: dict[str, Any]) -> None:
        """Append a line."""
        self.lines.append(line)
        self._write(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, head: dict[str, Any]) -> None:
        self._file.seek(0)
        good, first = 0, None
        for data in self._file:
            if not data.endswith(b"\n"):
                break
            line = _decoded(self.path, data)
            good += len(data)
            if first is None:
                first = line
            else:
                self.lines.append(line)
        self._file.truncate(good)
        if first is None:
            self._write(head)
        elif first != head:
            differ = ", ".join(sorted(name for name in {*first, *head} if first.get(name) != head.get(name)))
            raise InputError(f"{self.path} belongs to something else (another {differ}); choose another folder")

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()


def _decoded(path: Path, data: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError:
        raise InputError(
            f"{path} has a line that is not JSON; was it edited? Restore it, or start again in another folder"
        ) from None


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Refuse to work in a folder where another process does; the system forgets a lock when its process ends."""
    try:
        opened = open_own(folder / ".lock")
    except OSError as error:
        raise InputError(f"can't use {folder}: its .lock: {error.strerror or error}; remove it") from None
    with opened as file:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(f"another run is writing to {folder}; wait for it, or stop it first") from None
        yield
