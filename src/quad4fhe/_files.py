"""The one place where a file that cannot be read or written becomes one line for the user.

Decides how the path and the reason are worded, and that a file is written whole or not at all. Which formats exist,
and what their contents mean, is left to `importers` (models) and `data` (samples).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quad4fhe.errors import InputError

if TYPE_CHECKING:
    import numpy as np

_REASON_LENGTH = 160


def one_line(error: BaseException) -> str:
    """What another package said, as one short printable line."""
    text = " ".join(str(error).split()) or type(error).__name__
    if "pickle" in text:  # NumPy's advice for bytes it does not know; nobody should follow it with a stranger's file
        text = "it is not in NumPy's format, or holds Python objects"
    text = "".join(c for c in text if c.isprintable())
    return text if len(text) <= _REASON_LENGTH else text[: _REASON_LENGTH - 3] + "..."


def shown(text: str) -> str:
    """Text that a stranger chose, such as a file's name, as it may be printed.

    What could move a cursor, hide text or can't be encoded is written as an escape.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@contextmanager
def opened(path: str | Path) -> Iterator[Path]:
    """Check that `path` is a readable file that is not empty, and put its name in front of what goes wrong with it."""
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
    """Turn any complaint of a file format's own reader into an InputError.

    Wrap calls into the reader and little else, or a mistake of ours is blamed on the file. Every exception counts:
    on damaged bytes the readers also raise KeyError, AttributeError, TokenError and classes of their own.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # on damaged bytes readers raise anything, see above
        raise InputError(f"{what} cannot be read ({one_line(error)}); {fix}") from error


@contextmanager
def open_npz(file: Path, fix: str) -> Iterator[np.lib.npyio.NpzFile]:
    """Open an .npz archive without reading its arrays; arrays that need pickle are refused when they are read."""
    import numpy as np  # here, because commands that read no samples need none of it

    # A handle of our own: given a path, np.load leaves a damaged archive open.
    with file.open("rb") as handle:
        with parsing("the .npz archive", fix):
            archive = np.load(handle, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise InputError(f"holds a single array, wanted an .npz archive; {fix}")
        with archive:
            yield archive


def read_npz(archive: np.lib.npyio.NpzFile, key: str) -> np.ndarray[Any, Any]:
    """Read one array of an open archive."""
    with parsing(f"the array {key!r} of the .npz archive", "object arrays and damaged archives are refused"):
        array: np.ndarray[Any, Any] = archive[key]
    return array


def check_place(path: str | Path) -> Path:
    """Refuse, before any work is done, a place where no file can be written."""
    file = Path(path)
    if file.is_dir():
        raise InputError(f"can't write {file}: it is a folder; name a file inside it")
    if not file.parent.is_dir():
        raise InputError(f"can't write {file}: {file.parent} does not exist; make that folder, or name another")
    if not os.access(file.parent, os.W_OK):
        raise InputError(f"can't write {file}: {file.parent} is not writable; name another folder")
    return file


def write_atomically(path: str | Path, data: bytes) -> None:
    """Write beside the target and rename, so that a crash, a full disk or Ctrl-C leaves the old file as it was."""
    try:
        _write(Path(path), data)
    except OSError as error:
        raise InputError(f"can't write {path}: {error.strerror or error}; nothing was changed there") from None


def _write(path: Path, data: bytes) -> None:
    if path.exists() and not path.is_file() and not path.is_dir():  # /dev/stdout, /dev/null, a named pipe
        path.write_bytes(data)
        return
    path = path.resolve()  # a link stays a link
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    """The permissions a new file must not have; the system tells only while it is changed."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
