"""What a plan will cost: bytes, keys, seconds.

Decides the cost model: counts of elementary steps times the time of each on a machine. The reference machine's times
decide between plans, so that a plan does not depend on where it was made; `he.calibrate` measures the machine at hand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from quad4fhe.circuit.chain import Chain
from quad4fhe.circuit.packing import Packing


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


def batch_forecast(
    shape: Shape, chain: Chain, samples: int, products: tuple[float, float, float], machine: Machine
) -> Forecast:
    """The bill of layout batch; `products` are matrix products per prime for W, V and the skip (0 without)."""
    d, m, K = shape.features, shape.units, shape.outputs
    primes, ring = len(chain.primes), chain.ring
    count = groups(samples, chain.slots)
    per_prime = 2 * m * d * products[0] + 3 * K * m * products[1] + 2 * K * d * products[2]
    elements = 5 * m + 2 * d + 3 * K + 2 * m * (products[0] - 1) + 3 * K * (products[1] - 1)
    server = ring * primes * (per_prime * machine.multiply + elements * machine.element)
    client = ring * primes * (d * machine.encrypt + 1.5 * K * machine.decrypt)
    return Forecast(
        machine=machine.name,
        upload_bytes=count * d * 2 * primes * ring * 4,
        download_bytes=count * K * 3 * primes * ring * 4,
        key_bytes=0,
        client_seconds=count * client * 1e-9,
        server_seconds=count * server * 1e-9,
    )


def packed_forecast(chain: Chain, samples: int, packing: Packing, machine: Machine) -> Forecast:
    """The bill of layout packed: rotations before and after the one rescale, and plaintext products."""
    primes, ring = len(chain.primes), chain.ring
    count = groups(samples, packing.samples)
    low = primes - 1
    before, after = packing.rotations()
    switch = before * primes * (primes + 1) + (after + 1) * low * (low + 1)
    plains = packing.diagonals * packing.chunks + 2 * packing.columns
    server = ring * (switch * machine.rotate + plains * primes * machine.plain)
    client = ring * (packing.chunks * primes * machine.encrypt + low * machine.decrypt)
    keys = len(packing.steps()) + 1
    return Forecast(
        machine=machine.name,
        upload_bytes=count * packing.chunks * 2 * primes * ring * 8,
        download_bytes=count * 2 * low * ring * 8,
        key_bytes=keys * primes * 2 * (primes + 1) * ring * 8,
        client_seconds=count * client * 1e-9,
        server_seconds=count * server * 1e-9,
    )


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
