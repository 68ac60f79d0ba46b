"""The arrays in requests, replies and evaluation keys: unsigned integers whose shapes a plan fixes.

A `Form` describes a message. Byte counts, the container's framing and the check of received arrays all come from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe.errors import InputError

Words = NDArray[Any]  # unsigned integers
_LOOK = 16  # residues


class Kind(IntEnum):
    """What a message holds. There is no kind for a secret key, so none can be sent.

    The last four are for questions that are prepared ahead: a seed and the second halves that follow from it; then a
    request whose seed the server knows, and the answers without their second halves.
    """

    request = 1
    reply = 2
    keys = 3
    seed = 4
    halves = 5
    prepared = 6
    answers = 7


@dataclass(frozen=True)
class Part:
    """One array of a message, its rows in the first axis.

    Words have `width` bytes. With `primes` they are residues (rows, ..., primes, N), each below its prime; without,
    they have any value, such as seeds. `opaque` says that the rows are ciphertexts of two polynomials
    (rows, 2, primes, N), the second of which must not be zero. Readers take `step` rows at once; 0 means all of them.
    """

    shape: tuple[int, ...]
    primes: tuple[int, ...]
    width: int
    opaque: bool = False
    step: int = 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of one word."""
        return np.dtype(f"<u{self.width}")

    @property
    def size(self) -> int:
        """How many words it has."""
        return math.prod(self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in a container."""
        return math.prod(self.shape[1:]) * self.width

    def encode(self, chunk: Words) -> bytes:
        """The bytes of some rows in a container: little-endian, C order."""
        if chunk.shape[1:] != self.shape[1:]:
            raise InputError(f"residues of shape {chunk.shape}, wanted {self.shape}: were they made by this plan?")
        return np.ascontiguousarray(chunk, dtype=self.dtype).tobytes()

    def decode(self, data: bytes | memoryview, rows: int) -> Words:
        """Rows from their bytes, without a copy."""
        return np.frombuffer(data, dtype=self.dtype).reshape(rows, *self.shape[1:])

    def check(self, name: str, chunk: Words) -> None:
        """Reject anything but rows of this part: type, shape, every residue below its prime, nothing transparent."""
        if chunk.dtype != self.dtype or chunk.ndim != len(self.shape) or chunk.shape[1:] != self.shape[1:]:
            wanted = (-1, *self.shape[1:])
            raise InputError(
                f"{name} is {chunk.dtype} {chunk.shape}, wanted {self.dtype.name} {wanted}: was it made with this plan?"
            )
        for place, q in enumerate(self.primes):
            if chunk.size and int(chunk[..., place, :].max()) >= q:
                raise InputError(
                    f"{name} has a residue that is not below its prime {q}: it is damaged or of another plan"
                )
        if self.opaque and not _opaque(chunk):
            raise InputError(
                f"{name} has a ciphertext that encrypts nothing: its second polynomial is zero; make it again"
            )


@dataclass(frozen=True)
class Form:
    """The parts of a message, in order."""

    parts: tuple[Part, ...]

    @classmethod
    def of(
        cls, shape: tuple[int, ...], primes: tuple[int, ...], *, width: int = 4, opaque: bool = False, step: int = 0
    ) -> Form:
        """A message of one array of residues."""
        return cls((Part(shape, primes, width, opaque, step),))

    @property
    def payload(self) -> int:
        """Bytes of all parts."""
        return sum(part.shape[0] * part.row_bytes for part in self.parts)

    @property
    def words(self) -> int:
        """Words of all parts."""
        return sum(part.size for part in self.parts)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the last part, which a container's header names."""
        return self.parts[-1].shape

    @property
    def width(self) -> int:
        """Bytes per word of the last part."""
        return self.parts[-1].width

    def checked(self, name: str, chunks: Iterable[Words]) -> Checked:
        """The chunks as they pass the check of their part; what was checked before is returned as it is."""
        if isinstance(chunks, Checked) and chunks.form == self:
            return chunks
        return Checked(self, self._checked(name, chunks))

    def whole(self, name: str, chunks: Iterable[Words]) -> tuple[Words, ...]:
        """The checked parts, each in one piece."""
        parts = tuple(self.checked(name, chunks))
        if len(parts) != len(self.parts):
            raise InputError(f"{name} comes in {len(parts)} arrays, wanted {len(self.parts)}")
        return parts

    def _checked(self, name: str, chunks: Iterable[Words]) -> Iterator[Words]:
        for part, chunk in self.placed(name, chunks):
            part.check(name, chunk)
            yield chunk

    def placed(self, name: str, chunks: Iterable[Words]) -> Iterator[tuple[Part, Words]]:
        """Each chunk with its part; raises InputError unless the rows add up."""
        place, seen = 0, 0
        for chunk in chunks:
            rows, wanted = chunk.shape[0] if chunk.ndim else 0, self.parts[place].shape[0]
            seen += rows
            if not rows or seen > wanted:
                raise InputError(f"{name} has {seen or 'no'} rows, wanted {wanted}: was it made with this plan?")
            yield self.parts[place], chunk
            if seen == wanted and place + 1 < len(self.parts):
                place, seen = place + 1, 0
        if (wanted := self.parts[place].shape[0]) != seen or place + 1 < len(self.parts):
            raise InputError(f"{name} has {seen or 'no'} rows, wanted {wanted}: was it made with this plan?")


class Checked:
    """Chunks of a message that are checked against its form while they are read, once."""

    def __init__(self, form: Form, chunks: Iterable[Words]) -> None:
        self.form = form
        self._chunks = chunks

    def __iter__(self) -> Iterator[Words]:
        return iter(self._chunks)

    def held(self) -> Checked:
        """The same, read into memory."""
        return Checked(self.form, tuple(self._chunks))


def _opaque(residues: Words) -> bool:
    """Whether the second polynomial of every ciphertext (..., 2, primes, N) has a residue that is not zero."""
    second = residues[..., 1, :, :]
    honest = second[..., 0, :_LOOK].any(axis=-1)  # practically always, and read without the rest
    return bool(second[~honest].any(axis=(-1, -2)).all())
