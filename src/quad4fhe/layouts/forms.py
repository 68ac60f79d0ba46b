"""The arrays in requests and replies: unsigned integers whose shapes a plan fixes.

A `Form` describes a message. Byte counts, the framing and the check of received arrays all come from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe.errors import InputError

Words = NDArray[Any]  # unsigned integers


class Kind(IntEnum):
    """What a message holds. There is no kind for a secret key, so none can be sent."""

    request = 1
    reply = 2


@dataclass(frozen=True)
class Part:
    """One array of a message, of words of `width` bytes.

    With `primes` they are residues (..., primes, N), each below its prime; without, they have any value, such as seeds.
    """

    shape: tuple[int, ...]
    primes: tuple[int, ...]
    width: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of one word."""
        return np.dtype(f"<u{self.width}")

    @property
    def size(self) -> int:
        """How many words it has."""
        return math.prod(self.shape)

    @property
    def payload(self) -> int:
        """Bytes in a message."""
        return self.size * self.width

    def encode(self, array: Words) -> bytes:
        """The bytes in a message: little-endian, C order."""
        if array.shape != self.shape:
            raise InputError(f"an array of shape {array.shape}, wanted {self.shape}: was it made by this plan?")
        return np.ascontiguousarray(array, dtype=self.dtype).tobytes()

    def decode(self, data: memoryview) -> Words:
        """The array from its bytes, without a copy."""
        return np.frombuffer(data, dtype=self.dtype).reshape(self.shape)

    def check(self, name: str, array: Words) -> None:
        """Reject residues that are not below their prime."""
        for place, q in enumerate(self.primes):
            if int(array[..., place, :].max()) >= q:
                raise InputError(
                    f"{name} has a residue that is not below its prime {q}: it is damaged or of another plan"
                )


@dataclass(frozen=True)
class Form:
    """The parts of a message, in order."""

    parts: tuple[Part, ...]

    @classmethod
    def of_bytes(cls, count: int) -> Form:
        """A message of bytes."""
        return cls((Part((count,), (), 1),))

    @property
    def payload(self) -> int:
        """Bytes of all parts."""
        return sum(part.payload for part in self.parts)

    @property
    def words(self) -> int:
        """Words of all parts."""
        return sum(part.size for part in self.parts)

    def encode(self, arrays: Sequence[Words]) -> bytes:
        """The bytes of all arrays."""
        return b"".join(part.encode(array) for part, array in zip(self.parts, arrays, strict=True))

    def decode(self, name: str, data: memoryview) -> tuple[Words, ...]:
        """The checked arrays in a payload of the right length."""
        arrays, start = [], 0
        for part in self.parts:
            array = part.decode(data[start : start + part.payload])
            part.check(name, array)
            arrays.append(array)
            start += part.payload
        return tuple(arrays)
