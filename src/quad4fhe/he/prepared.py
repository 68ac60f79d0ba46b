"""Parts of requests that do not depend on the samples, made ahead; each is used once.

A part is an encryption of zero. A request is its sum with the message, so two requests from the same part show the
difference of their messages, and whoever has the part reads the request. The products of a part are exact linear
equations in the secret key, and the server knows their coefficients: enough of them give it the key. So parts are as
secret as the key, also after use.

In a folder each part is one file, encrypted and authenticated with AES-GCM under a key that follows from the secret
key. To take one, its file is renamed, which only one process can do, read, and removed, and the folder is written to
disk before the part is used. After a crash at any point it is lost, and never used again. Do not copy or restore such a
folder: copies would be used twice.

    magic 8 | key id 16 | plan hash 32 | nonce 12 | AES-256-GCM of: length of the zeros u32 | zeros | products
"""

from __future__ import annotations

import hashlib
import os
import secrets
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from quad4fhe.errors import InputError
from quad4fhe.io.files import sync_folder, writing
from quad4fhe.layouts.masks import SEED_BYTES

if TYPE_CHECKING:
    from quad4fhe.he.keys import StoredKey

MAGIC = b"Q4PRE2\r\n"
_NONCE = 12
_LENGTH = struct.Struct("<I")
_READY, _TAKEN = ".ready", ".taken"


@dataclass(frozen=True, eq=False)
class Part:
    """One prepared part: a request of `zeros`, which begins with its seed.

    With `products`, the server has prepared its reply, and these are what the client computed from it.
    """

    zeros: bytes = field(repr=False)
    products: bytes | None = field(default=None, repr=False)

    @property
    def seed(self) -> bytes:
        """The public seed."""
        return self.zeros[:SEED_BYTES]

    @property
    def name(self) -> bytes:
        """The nonce of the messages of this part."""
        return seed_name(self.seed)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a prepared part is used once, so it can't be copied, pickled or sent")


def seed_name(seed: bytes) -> bytes:
    """The name of a seed: 16 bytes."""
    return hashlib.sha256(b"quad4fhe-seed-1" + seed).digest()[:16]


class Prepared(Protocol):
    """A source of prepared parts."""

    def take(self) -> Part | None:
        """A part that nobody else gets, now or later; None if there is none."""


class PreparedStore(Prepared, Protocol):
    """A place for prepared parts, which must be kept as secret as the key."""

    def __len__(self) -> int:
        """How many there are."""

    def put(self, part: Part) -> None:
        """Add a fresh part."""

    def tidy(self) -> None:
        """Remove what a process that crashed left behind."""


class PreparedMemory:
    """Prepared parts in the memory of this process; a forked process has none."""

    def __init__(self) -> None:
        self._parts: deque[Part] = deque()
        self._process = os.getpid()

    def __len__(self) -> int:
        return len(self._parts) if self._process == os.getpid() else 0

    def __reduce__(self) -> NoReturn:
        raise TypeError("prepared parts are used once, so they can't be copied, pickled or sent")

    def put(self, part: Part) -> None:
        """Add a fresh part."""
        if self._process != os.getpid():
            self._parts, self._process = deque(), os.getpid()
        self._parts.append(part)

    def take(self) -> Part | None:
        """A part that nobody else gets; None if there is none."""
        try:
            return self._parts.popleft() if len(self) else None
        except IndexError:  # another thread took the last one
            return None

    def tidy(self) -> None:
        """Nothing is left behind in memory."""


class PreparedFolder:
    """Prepared parts of one key and plan, one file each, in a folder that only its owner may read."""

    def __init__(self, folder: Path, key: StoredKey) -> None:
        self._folder, self._head = folder, MAGIC + key.key_id + key.plan.sha256
        # Parts are as secret as the key, and whoever planted one would read the request that is made with it.
        derived = HKDF(SHA256(), 32, salt=None, info=b"quad4fhe-prepared-2").derive(key.secret)
        self._cipher = AESGCM(derived)

    def __len__(self) -> int:
        return sum(1 for _ in self._files())

    def put(self, part: Part) -> None:
        """Add a fresh part."""
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            mode = self._folder.stat().st_mode
        except OSError as error:
            raise InputError(f"can't make the folder {self._folder}: {error.strerror or error}") from None
        if os.name == "posix" and mode & 0o077:
            raise InputError(f"others may read {self._folder}: chmod 700 {self._folder}, or remove it")
        nonce = secrets.token_bytes(_NONCE)
        plain = _LENGTH.pack(len(part.zeros)) + part.zeros + (part.products or b"")
        with writing(self._folder / (secrets.token_hex(16) + _READY), private=True, overwrite=False) as file:
            file.write(self._head + nonce + self._cipher.encrypt(nonce, plain, self._head))

    def take(self) -> Part | None:
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
            part = self._opened(data)
            if part is not None:
                return part
        return None

    def _opened(self, data: bytes) -> Part | None:
        """The part in a file; None if it is damaged or was not written with this key."""
        start = len(self._head) + _NONCE
        nonce, locked = data[len(self._head) : start], data[start:]
        try:
            plain = self._cipher.decrypt(nonce, locked, self._head)
        except (InvalidTag, ValueError):
            return None
        (length,) = _LENGTH.unpack_from(plain)
        zeros, products = plain[_LENGTH.size : _LENGTH.size + length], plain[_LENGTH.size + length :]
        return Part(zeros, products or None)

    def tidy(self) -> None:
        """Remove parts that were taken by a process that crashed."""
        if self._folder.is_dir():
            for path in self._folder.glob(f"*{_TAKEN}"):
                path.unlink(missing_ok=True)

    def _files(self) -> Iterator[Path]:
        if self._folder.is_dir():
            yield from sorted(self._folder.glob(f"*{_READY}"))
