"""Files between the server and its workers, and the clients' evaluation keys.

Decides where payloads lie while they wait (a folder that only its owner can enter), that the files of requests are used
again (pages that are there already cost a third), how many clients' keys are kept, and which are evicted: of the owner
that has most, those used longest ago. What is in the files is left to `container`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


class Spool:
    """A private folder; everything in it goes when the server stops."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="quad4fhe-", dir=folder))
        self._number = 0
        self._free: list[Path] = []

    def new(self) -> Path:
        """A name that is not taken."""
        self._number += 1
        return self.folder / f"{self._number}.part"

    @contextmanager
    def slot(self) -> Iterator[Path]:
        """A file for one request, which another one gets afterwards; as many exist as were ever needed at once."""
        path = self._free.pop() if self._free else self.new()
        try:
            yield path
        finally:
            self._free.append(path)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


class KeyStore:
    """Evaluation keys by plan and key id, at most `limit` of them, shared out among those who sent them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._files: OrderedDict[tuple[bytes, bytes], tuple[Hashable, Path]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._files)

    def find(self, plan: bytes, key_id: bytes) -> Path | None:
        """Where a client's keys lie; they are then the last of their owner's to be evicted."""
        place = (plan, key_id)
        if place not in self._files:
            return None
        self._files.move_to_end(place)
        return self._files[place][1]

    def keep(self, plan: bytes, key_id: bytes, file: Path, owner: Hashable) -> None:
        """Keep checked keys. A name that is taken stays as it is: nobody replaces the keys of another."""
        if (plan, key_id) in self._files:
            file.unlink(missing_ok=True)
            return
        while len(self._files) >= self._limit:
            self._evict(owner)
        self._files[plan, key_id] = (owner, file)

    def _evict(self, newcomer: Hashable) -> None:
        held = Counter(owner for owner, _ in self._files.values())
        # Others lose keys only while they have more than the newcomer will have, or two owners would evict each other
        # forever. Somebody without any has to be let in where all owners have one.
        most = max(held.values())
        own = held[newcomer] > 0 and held[newcomer] + 1 >= most
        place = next(
            place for place, (owner, _) in self._files.items() if (owner == newcomer if own else held[owner] == most)
        )
        self._files.pop(place)[1].unlink(missing_ok=True)


class Incoming:
    """A body on its way into a file, over whatever the file held. Where the disk is full its room is given back."""

    def __init__(self, path: Path) -> None:
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)

    def __enter__(self) -> Incoming:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, part: bytes) -> None:
        """Append; raises OSError where there is no room."""
        try:
            while part:
                part = part[self._file.write(part) :]
        except OSError:
            self._file.truncate(0)
            raise

    def end(self) -> None:
        """What is left of an earlier, longer body goes."""
        self._file.truncate()


def taken(path: Path) -> BinaryIO:
    """Open a file and take its name away, so that it is gone when it is closed, whatever happens."""
    file = path.open("rb")
    path.unlink()
    return file
