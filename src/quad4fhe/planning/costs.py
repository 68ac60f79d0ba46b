"""The cost of a plan: bytes, seconds and operations.

Each layout counts its elementary steps, and each machine has a time for every step. Plans are compared by the times of
the reference machine, so a plan is the same wherever it is made. `he.calibrate` measures another machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Machine:
    """Times of elementary steps, in nanoseconds of CPU.

    `multiply` per multiply-add of a matrix product, `element` per residue of the hidden layer or of the input,
    `encrypt` and `decrypt` per (N x primes) of a ciphertext, `rotate` and `plain` per (N x primes^2) and (N x primes).
    """

    name: str
    multiply: float
    element: float
    encrypt: float
    decrypt: float
    rotate: float
    plain: float


# Measured on one core of an AMD EPYC (Zen 3, 2.45 GHz), numba kernels.
REFERENCE = Machine("the reference", multiply=0.055, element=1.0, encrypt=100.0, decrypt=65.0, rotate=25.0, plain=8.0)


@dataclass(frozen=True)
class Forecast:
    """Bytes and CPU seconds for all samples of a plan, on a named machine."""

    machine: str
    upload_bytes: int
    download_bytes: int
    key_bytes: int
    client_seconds: float
    server_seconds: float

    @property
    def seconds(self) -> float:
        """Client and server together."""
        return self.client_seconds + self.server_seconds


@dataclass(frozen=True)
class Shape:
    """The network's sizes: features d, units m, outputs K."""

    features: int
    units: int
    outputs: int


def groups(samples: int, per_group: int) -> int:
    """How many requests carry the samples."""
    return max(1, -(-samples // per_group))


@dataclass
class Counts:
    """Operations on ciphertexts for one request: encryptions, products, rotations, relinearisations, rescales.

    `ct_pt` counts products with a plaintext (in layout batch with one integer), `depth` multiplications in a row.
    """

    encryptions: int = 0
    ct_ct: int = 0
    ct_pt: int = 0
    rotations: int = 0
    relinearisations: int = 0
    rescales: int = 0
    depth: int = 0

    def to_dict(self) -> dict[str, int]:
        """Plain literals."""
        return {field.name: int(getattr(self, field.name)) for field in fields(self)}


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
