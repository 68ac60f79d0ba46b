"""Files on disk: error messages, NumPy archives, atomic writes, safe opening, locks and digests.

Every module that touches a file uses these functions. A file is written whole or not at all, and a problem with a file
becomes a one-line `InputError`. Folders of requests and replies hold files of other people: functions for them follow
no symbolic links and open only regular files.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, BinaryIO

from quad4fhe.errors import InputError

if TYPE_CHECKING:
    import numpy as np

_REASON_LENGTH = 160
_PART = ".part"
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_LINK = "it is a symbolic link, which is not followed"


# --- messages ---------------------------------------------------------------------------------------------------


def one_line(error: BaseException) -> str:
    """The message of another package's exception as one short printable line."""
    text = " ".join(str(error).split()) or type(error).__name__
    if "pickle" in text:  # NumPy advises allow_pickle=True, which nobody should use on an unknown file
        text = "it is not in NumPy's format, or holds Python objects"
    text = "".join(c for c in text if c.isprintable())
    return text if len(text) <= _REASON_LENGTH else text[: _REASON_LENGTH - 3] + "..."


def shown(text: str) -> str:
    """Untrusted text, such as a file name, with unprintable characters escaped.

    This keeps control sequences and text that cannot be encoded out of a terminal.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# --- reading ----------------------------------------------------------------------------------------------------


@contextmanager
def opened(path: str | Path) -> Iterator[Path]:
    """Check that `path` is a readable, non-empty file, and prefix every InputError of the block with its name."""
    file = Path(path)
    try:
        if file.is_dir():
            raise InputError("this is a folder, wanted a file; name a file inside it")
        try:
            with file.open("rb") as handle:
                first = handle.read(1)
        except FileNotFoundError:
            raise InputError("no such file; check the path") from None
        except OSError as error:
            raise InputError(
                f"cannot be opened ({error.strerror or one_line(error)}); check its permissions"
            ) from error
        if not first:
            raise InputError("the file is empty; write it again")
        yield file
    except InputError as error:
        raise InputError(f"{file}: {error}") from error.__cause__


@contextmanager
def parsing(what: str, fix: str) -> Iterator[None]:
    """Turn any exception of a file format's reader into an InputError.

    Wrap only calls of the reader, so that no mistake of this library is blamed on the file. On damaged bytes, readers
    raise KeyError, AttributeError, TokenError and their own exceptions, so this catches every Exception.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # see the docstring
        raise InputError(f"{what} cannot be read ({one_line(error)}); {fix}") from error


@contextmanager
def open_npz(file: Path, fix: str) -> Iterator[np.lib.npyio.NpzFile]:
    """Open an .npz archive without reading its arrays; reading an array that needs pickle raises InputError."""
    import numpy as np  # here, so that commands that read no samples start without NumPy

    # Pass an open file: given a path, np.load does not close a damaged archive.
    with file.open("rb") as handle:
        with parsing("the .npz archive", fix):
            archive = np.load(handle, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise InputError(f"holds a single array, wanted an .npz archive; {fix}")
        with archive:
            yield archive


def read_npz(archive: np.lib.npyio.NpzFile, key: str) -> np.ndarray[Any, Any]:
    """Read one array of an open archive."""
    with parsing(f"the array {key!r} of the .npz archive", "write it again, as an array of numbers or text"):
        array: np.ndarray[Any, Any] = archive[key]
    return array


def open_regular(path: Path) -> BufferedReader:
    """Open a file of an untrusted folder for reading; raise OSError if it is a link, a device or a pipe."""
    # O_NONBLOCK: opening a named pipe would otherwise wait for a writer.
    return os.fdopen(_descriptor(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb")


def file_sha256(path: Path) -> str:
    """The SHA-256 of a regular file, in hexadecimal."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- writing ----------------------------------------------------------------------------------------------------


def check_place(path: str | Path) -> Path:
    """Raise InputError if no file can be written at `path`; call this before long work."""
    file = Path(path)
    if file.is_dir():
        raise InputError(f"can't write {file}: it is a folder; name a file inside it")
    if not file.parent.is_dir():
        raise InputError(
            f"can't write {file}: {file.parent} does not exist; make that folder: mkdir -p {quote(str(file.parent))}"
        )
    if not os.access(file.parent, os.W_OK):
        raise InputError(f"can't write {file}: {file.parent} is not writable; name another folder")
    return file


def write_atomically(path: str | Path, data: bytes) -> None:
    """Replace the file `path` with `data`; after a crash, a full disk or Ctrl-C the old file is unchanged.

    A symbolic link is followed. Devices and named pipes, such as /dev/stdout, are written directly.
    """
    target = Path(path)
    try:
        if target.exists() and not target.is_file() and not target.is_dir():
            target.write_bytes(data)
            return
        with writing(target.resolve()) as file:
            file.write(data)
    except OSError as error:
        raise _unwritable(target, error) from None


@contextmanager
def writing(path: Path, *, durable: bool = True, private: bool = False, overwrite: bool = True) -> Iterator[BinaryIO]:
    """Write a hidden file beside `path`, and give it that name when the block ends without an exception.

    Several processes may write the same path at once: the last one wins, with a whole file. A symbolic link at `path`
    is replaced, not followed.

    Parameters
    ----------
    path
        The name of the finished file.
    durable
        Wait until the content and the name are on the disk.
    private
        Give only the owner access, from the first byte on (mode 0600).
    overwrite
        If false, raise FileExistsError when `path` exists at the end of the block.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(6)}{_PART}")
    try:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o600 if private else 0o666)
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if overwrite:
            os.replace(part, path)
        else:
            os.link(part, path)  # unlike a check and a rename, this cannot race with another process
        if durable:
            with suppress(OSError):  # Windows has no such call
                sync_folder(path.parent)
    finally:
        part.unlink(missing_ok=True)


def remove_parts(folder: Path) -> None:
    """Remove the unfinished files of writers that were killed."""
    for part in folder.glob(f".*{_PART}"):
        part.unlink(missing_ok=True)


def open_own(path: Path, *, private: bool = False) -> BinaryIO:
    """Open or create a file to append to; raise OSError if it is a link or has a second name (hard link).

    If it is created `private`, only its owner can open it.
    """
    handle = _descriptor(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600 if private else 0o666)
    if os.fstat(handle).st_nlink > 1:
        os.close(handle)
        raise OSError(errno.EMLINK, "it has a second name (hard link), whose content would change", str(path))
    return os.fdopen(handle, "ab+")


def own_folder(path: Path) -> None:
    """Create a folder if it is missing; raise OSError if `path` is a symbolic link."""
    path.mkdir(exist_ok=True)
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise OSError(errno.ELOOP, _LINK, str(path))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; raise InputError if another process holds it.

    The system releases the lock when the process ends, however it ends. On Windows nothing is locked.
    """
    try:
        opened_lock = open_own(folder / ".lock")
    except OSError as error:
        raise InputError(f"can't lock {folder} with its file .lock: {error.strerror or error}; remove it") from None
    with opened_lock as file:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(f"another run is writing to {folder}; wait for it, or stop it first") from None
        yield


def _descriptor(path: Path, flags: int, mode: int = 0o666) -> int:
    try:
        if stat.S_ISLNK(os.lstat(path).st_mode):  # for a clear message, and for systems without O_NOFOLLOW
            raise OSError(errno.ELOOP, _LINK, str(path))
    except FileNotFoundError:
        pass
    handle = os.open(path, flags | _NO_LINK, mode)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return handle


def sync_folder(folder: Path) -> None:
    """Wait until new and removed names in a folder are on the disk; raises OSError if the system can't do this."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(f"can't write {path}: {error.strerror or error}; nothing was changed there")
