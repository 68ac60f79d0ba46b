"""Journals, and the digests that messages carry.

A journal is the client's index of requests (in `batches`) or the manifest of a scoring run (in `run`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from quad4fhe.errors import InputError
from quad4fhe.he.message import DIGEST_BYTES, check_digest, digest
from quad4fhe.io.files import open_own, open_regular


def claimed_digest(path: Path) -> str:
    """Return the SHA-256 at the end of a message, unchecked; it identifies the message."""
    with open_regular(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - DIGEST_BYTES))
        return file.read(DIGEST_BYTES).hex()


def intact_digest(path: Path) -> str | None:
    """Return the SHA-256 at the end of a message if it matches; None if the file is missing or damaged."""
    try:
        with open_regular(path) as file:
            data = file.read()
        check_digest(data)
        return digest(data).hex()
    except (OSError, InputError):
        return None


class Journal:
    """An append-only file of JSON lines; the first line, the head, tells what it belongs to.

    A writer that is killed leaves at most one unfinished line, which the next writer cuts off.
    """

    def __init__(self, path: Path, head: dict[str, Any], *, private: bool = False) -> None:
        self.path = path
        self.lines: list[dict[str, Any]] = []
        try:
            self._file = open_own(path, private=private)
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
        """Return the head of an existing journal, or None."""
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
            raise InputError(f"{self.path} belongs to another {differ}; choose another folder")

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
