"""The cost of a plan: bytes and seconds.

Each layout counts its elementary steps. Every step has a time on a reference machine, by which plans are compared, so
a plan is the same wherever it is made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """Times of elementary steps, in nanoseconds of CPU.

    `multiply` per multiply-add of a matrix product, `element` per residue of the hidden layer or of the input,
    `encrypt` and `decrypt` per (N x primes) of a ciphertext.
    """

    multiply: float
    element: float
    encrypt: float
    decrypt: float


# Measured on one core of an AMD EPYC (Zen 3, 2.45 GHz), of whole requests: benchmarks/forecast.py.
REFERENCE = Machine(multiply=0.042, element=0.72, encrypt=62.0, decrypt=36.0)


BYTE_SECONDS = 1e-7  # what a byte on the way is worth: 0.1 ms a kB, the time it takes at 80 megabits a second


@dataclass(frozen=True)
class Forecast:
    """Bytes and CPU seconds for all samples of a plan, on one core of the reference machine."""

    upload_bytes: int
    download_bytes: int
    client_seconds: float
    server_seconds: float

    @property
    def seconds(self) -> float:
        """Client and server together."""
        return self.client_seconds + self.server_seconds

    @property
    def price(self) -> float:
        """What plans are compared by: the seconds of both sides, and those that the bytes are worth."""
        return self.seconds + BYTE_SECONDS * (self.upload_bytes + self.download_bytes)


@dataclass(frozen=True)
class Shape:
    """The network's sizes: features d, units m, outputs K."""

    features: int
    units: int
    outputs: int


def groups(samples: int, per_group: int) -> int:
    """How many requests carry the samples."""
    return max(1, -(-samples // per_group))


def readable_count(number: int, thing: str) -> str:
    """A number of things, such as "1 sample" or "2 samples"."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def readable_bytes(count: int) -> str:
    """1234567 as '1.2 MB'."""
    units = ("B", "kB", "MB", "GB")
    power = min(len(units) - 1, int(math.log10(max(1, count)) // 3))
    return f"{count / 1000**power:.3g} {units[power]}"


def readable_seconds(seconds: float) -> str:
    """0.00123 as '1.23 ms'."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
