"""Secret keys on the client's disk: made, kept, protected, rotated.

Decides the file's layout and permissions, and what is refused (overwriting, files that others can read, a key of
another plan). A key belongs to one plan and carries it, so that no server can replace the plan. The key itself is
SEAL's, the passphrase is scrypt and AES-GCM of `cryptography`. Nothing here sends anything, and `container` has no kind
for a secret key.

    magic 8 | version u16 | length of the head u32 | head: JSON, then
    without a passphrase: SEAL's bytes | SHA-256 of all before it (against damage, not against people)
    with one: salt 16 | nonce 12 | AES-256-GCM of SEAL's bytes, which authenticates all before it too
"""

from __future__ import annotations

import hashlib
import os
import secrets
import struct
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from quad4fhe.circuit.chain import Chain
from quad4fhe.circuit.plan import Plan
from quad4fhe.errors import InputError, MissingExtraError
from quad4fhe.he.seal import Context, SecretKey
from quad4fhe.he.secrecy import forbid_core_dumps

VERSION = 2
MAGIC = b"Q4KEY\r\n\x1a"
_FIRST = struct.Struct("<8sHI")
_SALT, _NONCE, _TAG, _DIGEST = 16, 12, 16, 32
_LARGEST = 2**26  # bytes; the largest chain of the security table takes 6 MB, a plan of many features a few more
# RFC 7914 calls these N, r, p. 128 MiB and under a second; they are fixed by the version, so a file can't lower them.
_SCRYPT = {"n": 2**17, "r": 8, "p": 1}


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a key file says in the clear."""

    plan: Plan
    salt: str
    created: str
    passphrase: bool


@dataclass(frozen=True, eq=False)
class StoredKey:
    """A secret key that can be kept: SEAL's bytes, the plan it was made for, and public facts that name it."""

    plan: Plan
    salt: bytes
    created: str
    secret: bytes = field(repr=False)

    @property
    def chain(self) -> Chain:
        """The chain of its plan."""
        return self.plan.chain

    @property
    def key_id(self) -> bytes:
        """Its name: a hash of the plan's hash and a random public salt. It says nothing about the key."""
        return hashlib.sha256(b"quad4fhe-key-2" + self.plan.sha256 + self.salt).digest()[:16]

    def require_plan(self, plan: Plan) -> None:
        """Raise InputError unless the key was made for this very plan."""
        if plan.sha256 != self.plan.sha256:
            raise InputError(
                f"this key is for plan {self.plan.sha256.hex()[:12]}, not for plan {plan.sha256.hex()[:12]}: "
                "use that one, or make a key for the new one (keygen)"
            )

    def open(self, plan: Plan) -> SecretKey:
        """The key, ready for use; raises InputError if it was made for another plan."""
        self.require_plan(plan)
        try:
            return SecretKey(Context(plan.chain), self.secret)
        except (ValueError, RuntimeError):
            raise InputError("the key file holds no valid secret key of its chain; make a new one (keygen)") from None

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret key is not pickled, copied to another process or sent")


def generate(plan: Plan) -> StoredKey:
    """A fresh secret key for a plan."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return StoredKey(plan, secrets.token_bytes(32), now, SecretKey(Context(plan.chain)).to_bytes())


def save(key: StoredKey, path: str | Path, passphrase: str | None = None) -> None:
    """Write a key file, readable by its owner alone, whole or not at all; raises InputError if the name is taken."""
    target = Path(path)
    data = _encode(key, passphrase)
    with _Beside(target) as file:
        file.write(data)
        file.name_it(target)


def load(path: str | Path, passphrase: str | None = None) -> StoredKey:
    """Read a key file; raises InputError where it is damaged, open to others, or locked with another passphrase."""
    forbid_core_dumps()
    target = Path(path)
    head, first, body = _read(target)
    if head.passphrase:
        if passphrase is None:
            raise InputError(f"{target} is protected by a passphrase; give it")
        secret = _unlock(target, first, body, passphrase)
    else:
        secret = body
    return StoredKey(head.plan, bytes.fromhex(head.salt), head.created, secret)


def rotate(path: str | Path, passphrase: str | None = None) -> tuple[StoredKey, Path]:
    """Put a fresh key of the same plan in the place of an old one; returns it and where the old one is kept.

    The passphrase must be the old file's, and protects the new one too. Replies to open requests need the old key.
    """
    target = Path(path).resolve()  # a link stays a link
    old = load(target, passphrase)
    head, _, _ = _read(target)
    fresh = generate(old.plan)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    kept = target.with_name(f"{target.stem}.{stamp}-{old.key_id.hex()[:8]}{target.suffix}")
    data = _encode(fresh, passphrase if head.passphrase else None)
    with _Beside(target) as file:
        file.write(data)
        _link(target, kept)  # first a second name for the old key: at no time is it without one
        file.replace(target)
    return fresh, kept


class _Beside:
    """A file beside the target, mode 0600 from its first moment, which gets its name only when it is on the disk."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._name = ""
        self._descriptor = -1

    def __enter__(self) -> _Beside:
        if os.path.lexists(self._target) and self._target.is_dir():
            raise InputError(f"{self._target} is a folder; choose a file name")
        try:
            self._descriptor, self._name = tempfile.mkstemp(dir=self._target.parent, prefix=f".{self._target.name}.")
        except OSError as error:
            raise _failed(self._target, error) from None
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        Path(self._name).unlink(missing_ok=True)

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            os.fsync(self._descriptor)
        except OSError as error:
            raise _failed(self._target, error) from None

    def name_it(self, target: Path) -> None:
        _link(Path(self._name), target)

    def replace(self, target: Path) -> None:
        try:
            os.replace(self._name, target)
        except OSError as error:
            raise _failed(target, error) from None
        _settle(target.parent)


def _link(source: Path, target: Path) -> None:
    """A second name, which fails where the name is taken: unlike a check and a rename, nothing can come between."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise InputError(f"{target} exists, and a key is never overwritten; choose another name or rotate it") from None
    except OSError as error:
        raise _failed(target, error) from None
    _settle(target.parent)


def _settle(folder: Path) -> None:
    """Let a new name reach the disk; where a folder can't be synced (Windows) the system does it in its own time."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _failed(path: Path, error: OSError) -> InputError:
    return InputError(f"can't write the key {path}: {error.strerror or error}; nothing was written there")


def _encode(key: StoredKey, passphrase: str | None) -> bytes:
    if passphrase == "":
        raise InputError("the passphrase is empty; give one, or none at all")
    head = msgspec.json.encode(Head(key.plan, key.salt.hex(), key.created, passphrase is not None))
    first = _FIRST.pack(MAGIC, VERSION, len(head)) + head
    if passphrase is None:
        plain = first + key.secret
        return plain + hashlib.sha256(plain).digest()
    salt, nonce = secrets.token_bytes(_SALT), secrets.token_bytes(_NONCE)
    locked: bytes = _cipher(passphrase, salt).encrypt(nonce, key.secret, first + salt)
    return first + salt + nonce + locked


def _unlock(path: Path, first: bytes, body: bytes, passphrase: str) -> bytes:
    salt, nonce, locked = body[:_SALT], body[_SALT : _SALT + _NONCE], body[_SALT + _NONCE :]
    cipher = _cipher(passphrase, salt)
    from cryptography.exceptions import InvalidTag

    try:
        secret: bytes = cipher.decrypt(nonce, locked, first + salt)
    except InvalidTag:
        raise InputError(f"{path}: wrong passphrase, or the file is damaged") from None
    return secret


def _cipher(passphrase: str, salt: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
    except ImportError:
        raise MissingExtraError("cryptography", "serve", "a key with a passphrase") from None
    return AESGCM(Scrypt(salt=salt, length=32, **_SCRYPT).derive(passphrase.encode()))


def _read(path: Path) -> tuple[Head, bytes, bytes]:
    """The head of a key file, the bytes up to its end, and the body."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise InputError(f"can't read the key {path}: {error.strerror or error}") from None
    if os.name == "posix" and mode & 0o077:
        raise InputError(
            f"others may read {path} (mode {mode & 0o777:04o}), so it may be no secret any more: chmod 600 "
            f"{path}, then quad4fhe keygen {path} --rotate"
        )
    wrong = InputError(f"{path} is not a key file of this library, or is damaged; make one with: quad4fhe keygen")
    if not _FIRST.size <= len(data) <= _LARGEST:
        raise wrong
    magic, version, length = _FIRST.unpack(data[: _FIRST.size])
    if magic != MAGIC:
        raise wrong
    if version != VERSION:
        raise InputError(f"{path} has key format {version}, this version reads format {VERSION}; make a new key")
    first, body = data[: _FIRST.size + length], data[_FIRST.size + length :]
    try:
        head = msgspec.json.decode(first[_FIRST.size :], type=Head)
        salted = len(bytes.fromhex(head.salt)) == 32
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise wrong from None
    extra = _SALT + _NONCE + _TAG if head.passphrase else _DIGEST
    if not salted or len(body) != SecretKey.size(head.plan.chain) + extra:
        raise wrong
    if head.passphrase:
        return head, first, body
    if hashlib.sha256(first + body[:-_DIGEST]).digest() != body[-_DIGEST:]:
        raise wrong
    return head, first, body[:-_DIGEST]
