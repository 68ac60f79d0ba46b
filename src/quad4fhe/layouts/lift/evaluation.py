"""One question in layout lift: the client encrypts monomials, the server applies its linear map, the client reads.

A request is a seed and the used coefficients of the first halves; the second halves follow from the seed. A reply is
the coefficients that are read and the second halves, switched to a power of two.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array, IntArray
from quad4fhe.layouts.bits import pack, packed_bytes, unpack
from quad4fhe.layouts.lift import arithmetic, decisions
from quad4fhe.layouts.lift.arithmetic import Arithmetic, add, products_at, residues, switched
from quad4fhe.layouts.lift.monomials import Lift, Placement
from quad4fhe.layouts.lift.noise import Scales
from quad4fhe.layouts.lift.zeros import ZeroPool
from quad4fhe.layouts.masks import as_bytes, expand, from_bytes, seeded_bytes
from quad4fhe.planning.chains import Chain

Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Setting:
    """What client and server of one plan share."""

    chain: Chain
    place: Placement
    scales: Scales

    @property
    def request_bytes(self) -> int:
        """The length of a request."""
        return seeded_bytes(self.chain.primes, self.place.used)

    @property
    def reply_bytes(self) -> int:
        """The length of a reply."""
        return packed_bytes(self.place.reads + self.place.replies * self.chain.ring, self.scales.bits)

    @property
    def key_bytes(self) -> int:
        """The length of a public key."""
        return seeded_bytes(self.chain.every, self.chain.ring)


def dithered(values: Array, rng: np.random.Generator) -> IntArray:
    """Values rounded at random to one of the two nearest integers, with their own mean.

    The dither hides nothing; its generator is seeded by the operating system, so that nobody can plan against it.
    """
    return np.floor(values + rng.random(values.shape)).astype(np.int64)


@cache
def dither_rng(process: int) -> np.random.Generator:
    """A generator of this process that nobody can predict beforehand."""
    return np.random.Generator(np.random.SFC64(secrets.randbits(256)))


def prepare(setting: Setting, seeded_zeros: Callable[[int], tuple[bytes, Words]], own: Arithmetic) -> Bytes:
    """A request without a message: fresh encryptions of zero, whose masks come from a seed."""
    chain, place = setting.chain, setting.place
    seed, zeros = seeded_zeros(place.inputs)
    return as_bytes(seed, place.cut(own.from_ntt(zeros).transpose(1, 0, 2)), chain.primes)


def encrypt(
    setting: Setting,
    lift: Lift,
    seeded_zeros: Callable[[int], tuple[bytes, Words]],
    own: Arithmetic,
    Z: Array,
) -> Bytes:
    """Encrypt shifted samples Z (n, d): monomials added to fresh encryptions of zero, whose masks come from a seed."""
    chain, place = setting.chain, setting.place
    message = _message(setting, lift, Z)
    seed, zeros = seeded_zeros(place.inputs)
    first = own.from_ntt(zeros).transpose(1, 0, 2)
    return as_bytes(seed, add(place.cut(first), message, chain.primes), chain.primes)


def encrypt_prepared(setting: Setting, lift: Lift, part: bytes, Z: Array) -> Bytes:
    """The same with encryptions of zero that `prepare` made; each of those is for one request."""
    primes = setting.chain.primes
    message = _message(setting, lift, Z)
    seed, first = from_bytes("the prepared part", np.frombuffer(part, dtype=np.uint8), primes, setting.place.used)
    return as_bytes(seed, add(first, message, primes), primes)


def _message(setting: Setting, lift: Lift, Z: Array) -> Words:
    """The monomials of samples Z (n, d) as used coefficients, (primes, used)."""
    chain, place, scales = setting.chain, setting.place, setting.scales
    monomials = np.zeros((place.samples, place.size))
    monomials[:, 0] = 1.0  # an empty place holds the sample z = 0
    monomials[: len(Z)] = lift.monomials(Z)
    whole = residues(dithered(np.ldexp(monomials, scales.grain), dither_rng(os.getpid())), chain.primes)
    message = np.stack([place.cut(place.spread(whole[:, p])) for p in range(len(chain.primes))])
    if scales.lift > scales.grain:
        factor = 1 << (scales.lift - scales.grain)
        for row, q in zip(message, chain.primes, strict=True):
            row[:] = [int(x) * factor % q for x in row.tolist()]
    return message


class LiftServer:
    """The linear map of one model, ready for requests; weights (rows, D) are rounded at random once, here."""

    def __init__(self, setting: Setting, weights: Array, own: Arithmetic, offset: float = 0.0) -> None:
        self.setting, self.arithmetic = setting, own
        self._offset = round(offset * setting.scales.out)  # of a decision or blanks; else it is part of the weights
        rng, place = dither_rng(os.getpid()), setting.place
        while True:
            rounded = dithered(weights * setting.scales.weights, rng)
            self._linear = own.linear(place.weights(rounded), place)
            # All but about N / q roundings do, and the bound of switching needs it. A row of zeros has no rounding.
            if self._linear.spans or not weights.any(axis=1).all():
                break

    def evaluate(self, request: Bytes, pool: ZeroPool | None) -> Bytes:
        """The reply to a request; private if a pool of encryptions of zero is given."""
        chain, place = self.setting.chain, self.setting.place
        seed, used = from_bytes("the request", request, chain.primes, place.used)
        masks = expand(seed, "request", place.inputs, chain.primes, chain.ring)
        first = self._linear.answers(used)
        for p, q in enumerate(chain.primes if place.blanks else ()):
            first[place.samples :, :, p] = (first[place.samples :, :, p] + np.uint64(self._offset % q)) % np.uint64(q)
        if (pool is None) != (self.setting.scales.flood is None):
            raise AssertionError("a plan of private replies needs the client's public key, a plain one has none")
        bits, flood = self.setting.scales.bits, self.setting.scales.flood
        zeros = None if pool is None else pool.take()
        if zeros is not None:
            first = self._flooded(first, zeros.answers)
        if zeros is not None and flood is not None and self.setting.scales.factor is not None:
            second = add(self._linear.masks(masks), zeros.masks, chain.primes)
            first, second = decisions.blinded(first, second, zeros, self._offset, flood, chain)
            halves = switched(second, chain, bits)
        else:
            halves = self._linear.replies(masks, None if zeros is None else zeros.masks, bits)
        reads = first.reshape(-1, len(chain.primes)).T
        together = np.concatenate([switched(reads, chain, bits), halves.reshape(-1)])
        return np.frombuffer(pack(together, bits), dtype=np.uint8)

    def _flooded(self, first: Words, zeros: Words) -> Words:
        """Answers (places, rows, primes) plus those of encryptions of zero, plus fresh f in [-2^flood, 2^flood)."""
        flood, primes = self.setting.scales.flood, self.setting.chain.primes
        assert flood is not None
        count = first.shape[0] * first.shape[1]
        width = -(-(flood + 1) // 8)
        raw, mask, half = secrets.token_bytes(width * count), (1 << (flood + 1)) - 1, 1 << flood
        noise = [(int.from_bytes(raw[i * width : (i + 1) * width], "little") & mask) - half for i in range(count)]
        out = np.empty_like(first)
        for p, q in enumerate(primes):
            total = zip(first[..., p].ravel().tolist(), zeros[..., p].ravel().tolist(), noise, strict=True)
            out[..., p] = np.array([(x + y + f) % q for x, y, f in total], dtype=np.uint64).reshape(first.shape[:2])
        return out


def decrypt(setting: Setting, secret: NDArray[np.int8], reply: Bytes) -> Array:
    """The answers (places, rows) of a reply, by the secret's coefficients (N,) in -1, 0, 1."""
    place, chain, scales = setting.place, setting.chain, setting.scales
    count = place.reads + place.replies * chain.ring
    words = unpack(reply.tobytes(), scales.bits, count)
    first, second = words[: place.reads], words[place.reads :].reshape(place.replies, chain.ring)
    parts = products_at(second, secret, place.positions.reshape(-1)).reshape(place.replies, place.places, place.group)
    found = parts.transpose(1, 0, 2).reshape(place.places, -1)[:, : place.rows] + first.reshape(place.places, -1)
    up = np.uint64(64 - scales.bits)  # the highest bit becomes the sign
    signed = (found << up).view(np.int64).astype(np.float64)
    out: Array = signed * (math.ldexp(float(chain.modulus), -64) / scales.out)
    return out


def compiled_or(chain: Chain, other: Callable[[], Arithmetic], *, compiled: bool = True) -> Arithmetic:
    """The compiled arithmetic where it is installed and wanted, else the other."""
    found = arithmetic.compiled(chain) if compiled else None
    return other() if found is None else found
