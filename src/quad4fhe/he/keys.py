"""Secret keys on the client's disk: make, store, protect and rotate them.

A key file holds the plan of its key, so no server can replace the plan. It is never overwritten, and a file that others
can read is rejected. SEAL makes the key; with a passphrase, `cryptography` encrypts it with scrypt and AES-GCM.

    magic 8 | version u16 | length of the head u32 | head: JSON, then
    without a passphrase: SEAL's bytes | SHA-256 of everything before it (detects damage, not tampering)
    with a passphrase: salt 16 | nonce 12 | AES-256-GCM of SEAL's bytes, which also authenticates everything before it
"""

from __future__ import annotations

import hashlib
import os
import secrets
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import BinaryIO, NoReturn

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from quad4fhe.errors import InputError
from quad4fhe.he.seal import Context, SecretKey
from quad4fhe.he.secrecy import forbid_core_dumps
from quad4fhe.io.files import writing
from quad4fhe.planning.plan import Plan

VERSION = 3
MAGIC = b"Q4KEY\r\n\x1a"
_FIRST = struct.Struct("<8sHI")
_SALT, _NONCE, _TAG, _DIGEST = 16, 12, 16, 32
_LARGEST = 2**26  # bytes; the largest chain of the security table takes 6 MB, a plan with many features a few more
_MOST = 256  # key files that a search for a fitting one reads
# N, r and p of RFC 7914: 128 MiB and less than a second. The version fixes them, so a file can't lower them.
_SCRYPT = {"n": 2**17, "r": 8, "p": 1}


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The unencrypted part of a key file."""

    plan: Plan
    salt: str
    created: str
    passphrase: bool


@dataclass(frozen=True, eq=False)
class StoredKey:
    """A secret key that can be stored: SEAL's bytes, its plan, and the public salt and time of creation.

    `file` is the file that it was read from.
    """

    plan: Plan
    salt: bytes
    created: str
    secret: bytes = field(repr=False)
    file: Path | None = None

    @property
    def key_id(self) -> bytes:
        """The key's id: a hash of the plan's hash and a random public salt. It reveals nothing about the key."""
        return hashlib.sha256(b"quad4fhe-key-2" + self.plan.sha256 + self.salt).digest()[:16]

    def require_plan(self, plan: Plan, plan_file: Path | None = None) -> None:
        """Raise InputError unless the key was made for this plan; the message names a key that fits.

        `plan_file` is the file of the plan, for the command in the message.
        """
        if plan.sha256 == self.plan.sha256:
            return
        other = key_beside(self.file, lambda one: one.plan.sha256 == plan.sha256)
        if other is not None:
            fix = f"use the key in {quote(str(other))}"
        elif plan_file is not None:
            name = free_name(plan_file.stem)
            fix = f"make a key for it: quad4fhe keygen {name} --plan {quote(str(plan_file))}"
        else:
            fix = "make a key for it: quad4fhe.he.keys.generate(plan)"
        raise InputError(f"this key is for {plan_words(self.plan)}, not for {plan_words(plan)}: {fix}")

    def open(self, plan: Plan) -> SecretKey:
        """Return the key, ready for use; raises InputError if it was made for another plan."""
        self.require_plan(plan)
        try:
            return SecretKey(Context(plan.chain), self.secret)
        except (ValueError, RuntimeError):
            raise InputError("the key file has no valid secret key; make a new one with: quad4fhe keygen") from None

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret key can't be pickled, copied to another process or sent")


def generate(plan: Plan) -> StoredKey:
    """Make a fresh secret key for a plan."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return StoredKey(plan, secrets.token_bytes(32), now, SecretKey(Context(plan.chain)).to_bytes())


def save(key: StoredKey, path: str | Path, passphrase: str | None = None) -> None:
    """Write a key file atomically, readable only by its owner; raises InputError if the file exists."""
    data = _encode(key, passphrase)
    with _writing(Path(path), overwrite=False) as file:
        file.write(data)


def load(path: str | Path, passphrase: str | None = None) -> StoredKey:
    """Read a key file; raises InputError if it is damaged, readable by others, or has another passphrase."""
    forbid_core_dumps()
    target = Path(path)
    head, first, body = _read(target)
    if head.passphrase:
        if passphrase is None:
            raise InputError(f"{target} needs its passphrase; give it with --ask-passphrase or --passphrase-file FILE")
        secret = _unlock(target, first, body, passphrase)
    else:
        secret = body
    return StoredKey(head.plan, bytes.fromhex(head.salt), head.created, secret, target)


def public_part(path: str | Path) -> StoredKey:
    """Read the public part of a key file: what the key is for."""
    head, _, _ = _read(Path(path))
    return StoredKey(head.plan, bytes.fromhex(head.salt), head.created, b"", Path(path))


def plan_words(plan: Plan) -> str:
    """Name a plan in messages: its hash, its layout and its model."""
    return f"plan {plan.sha256.hex()[:12]} (layout {plan.layout} of model {plan.model_id[:12]})"


def key_beside(file: Path | None, fits: Callable[[StoredKey], bool]) -> Path | None:
    """Find a key file that fits in the folder of `file`, by default the current one; no passphrase is needed."""
    with suppress(OSError):
        for path in sorted((Path() if file is None else file.parent).glob("*.key"))[:_MOST]:
            with suppress(InputError):
                if fits(public_part(path)):
                    return path
    return None


def free_name(stem: str) -> str:
    """A name for a new key file, which no file has yet, quoted for a shell."""
    names = (f"{stem}{suffix}.key" for suffix in ("", *(f"-{n}" for n in range(2, _MOST))))
    return quote(next((name for name in names if not Path(name).exists()), "NEW.key"))


def rotate(path: str | Path, passphrase: str | None = None) -> tuple[StoredKey, Path]:
    """Replace a key file with a fresh key for the same plan; returns the key and the path of the old one.

    The passphrase of the old file also protects the new one. Replies to open requests need the old key.
    """
    target = Path(path).resolve()  # a link stays a link
    old = load(target, passphrase)
    head, _, _ = _read(target)
    fresh = generate(old.plan)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    kept = target.with_name(f"{target.stem}.{stamp}-{old.key_id.hex()[:8]}{target.suffix}")
    data = _encode(fresh, passphrase if head.passphrase else None)
    with _writing(target, overwrite=True) as file:
        file.write(data)
        file.flush()
        os.link(target, kept)  # the old key gets its new name before it loses the old one
    return fresh, kept


@contextmanager
def _writing(target: Path, *, overwrite: bool) -> Iterator[BinaryIO]:
    """Write a key file atomically, readable only by its owner."""
    if target.is_dir():
        raise InputError(f"{target} is a folder; choose a file name")
    try:
        with writing(target, private=True, overwrite=overwrite) as file:
            yield file
    except FileExistsError as error:
        name = error.filename2 or error.filename
        fresh = free_name(Path(name).stem)
        raise InputError(
            f"{name} exists, and a key is never overwritten; choose another name, such as {fresh}, or replace it: "
            f"quad4fhe keygen {quote(str(name))} --rotate"
        ) from None
    except OSError as error:
        raise InputError(f"can't write the key {target}: {error.strerror}; nothing was changed there") from None


def _encode(key: StoredKey, passphrase: str | None) -> bytes:
    if passphrase == "":
        raise InputError("the passphrase is empty; give one with characters, or none")
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
    try:
        secret: bytes = cipher.decrypt(nonce, locked, first + salt)
    except InvalidTag:
        raise InputError(
            f"{path}: wrong passphrase, or the file is damaged; try again, or restore it from a backup"
        ) from None
    return secret


def _cipher(passphrase: str, salt: bytes) -> AESGCM:
    return AESGCM(Scrypt(salt=salt, length=32, **_SCRYPT).derive(passphrase.encode()))


def _read(path: Path) -> tuple[Head, bytes, bytes]:
    """Read a key file: its head, the bytes up to the end of the head, and the body."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise InputError(f"can't read the key {path}: {error.strerror or error}") from None
    if os.name == "posix" and mode & 0o077:
        raise InputError(
            f"others may read {path} (mode {mode & 0o777:04o}), so it may no longer be secret: chmod 600 "
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
