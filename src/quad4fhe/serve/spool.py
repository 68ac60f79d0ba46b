"""Files that the server and its workers exchange, in a folder that only its owner can enter.

Files of requests are reused, because writing to existing pages takes a third of the time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


class Spool:
    """A private folder, removed with everything in it when the server stops."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="quad4fhe-", dir=folder))
        self._number = 0
        self._free: list[Path] = []

    def new(self) -> Path:
        """Return a name that is not taken."""
        self._number += 1
        return self.folder / f"{self._number}.part"

    @contextmanager
    def slot(self) -> Iterator[Path]:
        """Lend a file to one request; later requests reuse it."""
        path = self._free.pop() if self._free else self.new()
        try:
            yield path
        finally:
            self._free.append(path)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Incoming:
    """Overwrites a file with a body; if the disk is full, frees the space of the file."""

    def __init__(self, path: Path) -> None:
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)

    def __enter__(self) -> Incoming:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, part: bytes) -> None:
        """Append; raises OSError if there is no room."""
        try:
            while part:
                part = part[self._file.write(part) :]
        except OSError:
            self._file.truncate(0)
            raise

    def end(self) -> None:
        """Cut off what is left of an earlier, longer body."""
        self._file.truncate()


def taken(path: Path) -> BinaryIO:
    """Open a file and remove its name, so the system deletes it as soon as it is closed."""
    file = path.open("rb")
    path.unlink()
    return file
