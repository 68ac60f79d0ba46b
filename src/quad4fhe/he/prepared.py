"""Parts of requests that do not depend on the samples, made ahead and kept in a folder; each is used once.

Such a part is an encryption of zero. A request is its sum with the message, so two requests from the same part show the
difference of their messages, and whoever has the part reads the request. To take one, its file is renamed, which only
one process can do, read, and removed, and the folder is written to disk before the part is used. After a crash at any
point it is lost, and never used again. Do not copy or restore such a folder: copies would be used twice.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from quad4fhe.errors import InputError
from quad4fhe.io.files import sync_folder, writing

if TYPE_CHECKING:
    from quad4fhe.he.keys import StoredKey

MAGIC = b"Q4PREP\r\n"
_DIGEST = 32
_READY, _TAKEN = ".ready", ".taken"


class Prepared(Protocol):
    """A source of prepared parts."""

    def take(self) -> bytes | None:
        """A part that nobody else gets, now or later; None if there is none."""


class PreparedFolder:
    """Prepared parts of one key and plan, one file each, in a folder that only its owner may read."""

    def __init__(self, folder: Path, key: StoredKey) -> None:
        self._folder, self._head = folder, MAGIC + key.key_id + key.plan.sha256
        # Whoever planted a part of its own would read the request that is made with it.
        self._seal = hashlib.sha256(b"quad4fhe-prepared-1" + key.secret).digest()

    def __len__(self) -> int:
        return sum(1 for _ in self._files())

    def put(self, part: bytes) -> None:
        """Add a fresh part."""
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            mode = self._folder.stat().st_mode
        except OSError as error:
            raise InputError(f"can't make the folder {self._folder}: {error.strerror or error}") from None
        if os.name == "posix" and mode & 0o077:
            raise InputError(f"others may read {self._folder}: chmod 700 {self._folder}, or remove it")
        body = self._head + part
        with writing(self._folder / (secrets.token_hex(16) + _READY), private=True, overwrite=False) as file:
            file.write(body + self._digest(body))

    def _digest(self, body: bytes) -> bytes:
        return hmac.new(self._seal, body, "sha256").digest()

    def take(self) -> bytes | None:
        """A part that nobody else gets; None if there is none. What does not belong to key and plan is left alone."""
        for path in self._files():
            taken = path.with_suffix(_TAKEN)
            try:
                with path.open("rb") as file:
                    if file.read(len(self._head)) != self._head:
                        continue
                path.rename(taken)  # of several processes one succeeds, the others find no file
                data = taken.read_bytes()
                taken.unlink()
                sync_folder(self._folder)  # before it is used: a crash from here on must not bring it back
            except FileNotFoundError:
                continue
            except OSError as error:
                raise InputError(f"can't use the prepared parts in {self._folder}: {error.strerror or error}") from None
            body, digest = data[:-_DIGEST], data[-_DIGEST:]
            if hmac.compare_digest(self._digest(body), digest) and body.startswith(self._head):
                return body[len(self._head) :]
        return None

    def tidy(self) -> None:
        """Remove parts that were taken by a process that crashed."""
        if self._folder.is_dir():
            for path in self._folder.glob(f"*{_TAKEN}"):
                path.unlink(missing_ok=True)

    def _files(self) -> Iterator[Path]:
        if self._folder.is_dir():
            yield from sorted(self._folder.glob(f"*{_READY}"))
