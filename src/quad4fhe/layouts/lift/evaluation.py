"""One question in layout lift: the client encrypts monomials, the server applies its linear map, the client reads.

A request is a seed and the used coefficients of the first halves; the second halves follow from the seed. A reply is
the coefficients that are read and the second halves, switched to a power of two; docs/lift.md has the protocol.
"""

from __future__ import annotations

import math
import os
import secrets
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array, IntArray
from quad4fhe.layouts.bits import pack, packed_bytes, unpack
from quad4fhe.layouts.blinding import PublicKey, draw
from quad4fhe.layouts.flooding import draw_flood
from quad4fhe.layouts.key import Key
from quad4fhe.layouts.lift._compiled import Compiled
from quad4fhe.layouts.lift.arithmetic import add, add_whole, products_at, residues, switched
from quad4fhe.layouts.lift.monomials import Lift, Placement
from quad4fhe.layouts.lift.noise import Scales
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
    def private(self) -> bool:
        """Whether replies have encryptions of zero added; then a request ends with a public key."""
        return self.scales.flood is not None

    @property
    def sent(self) -> int:
        """Coefficients of a request: those that reach an answer, and the first half of a public key."""
        return self.place.used + (self.chain.ring if self.private else 0)

    @property
    def request_bytes(self) -> int:
        """The length of a request."""
        return seeded_bytes(self.chain.primes, self.sent)

    @property
    def reply_bytes(self) -> int:
        """The length of a reply."""
        return packed_bytes(self.place.reads + self.place.replies * self.chain.ring, self.scales.bits)


def dithered(values: Array, rng: np.random.Generator) -> IntArray:
    """Values rounded at random to one of the two nearest integers, with their own mean.

    The dither hides nothing; its generator is seeded by the operating system, so that nobody can plan against it.
    """
    return np.floor(values + rng.random(values.shape)).astype(np.int64)


@cache
def dither_rng(process: int) -> np.random.Generator:
    """A generator of this process that nobody can predict beforehand."""
    return np.random.Generator(np.random.SFC64(secrets.randbits(256)))


def encrypt(setting: Setting, lift: Lift, key: Key, own: Compiled, Z: Array) -> Bytes:
    """Encrypt shifted samples Z (n, d): monomials added to fresh encryptions of zero, whose masks come from a seed.

    The public key for private replies is one more such encryption, without a message.
    """
    place = setting.place
    zeros = own.from_ntt(key.zeros(place.inputs + setting.private))
    first = _added(setting, place.cut(zeros[: place.inputs].transpose(1, 0, 2)), _message(setting, lift, Z))
    if setting.private:
        first = np.concatenate([first, zeros[-1]], axis=1)
    return as_bytes(key.seed, first, setting.chain.primes)


def _message(setting: Setting, lift: Lift, Z: Array) -> IntArray:
    """The monomials of samples Z (n, d) as used coefficients, (used,), whole numbers at the scale 2^grain."""
    place = setting.place
    monomials = lift.monomials(Z)
    if len(Z) < place.samples:
        empty = np.zeros((place.samples - len(Z), place.size))
        empty[:, 0] = 1.0  # an empty place holds the sample z = 0
        monomials = np.concatenate([monomials, empty])
    whole: IntArray = dithered(np.ldexp(monomials, setting.scales.grain), dither_rng(os.getpid()))
    return np.ascontiguousarray(place.cut(place.spread(whole)))


def _added(setting: Setting, first: Words, whole: IntArray) -> Words:
    """A message at the scale 2^grain added to encryptions of zero at the scale 2^lift."""
    primes, scales = setting.chain.primes, setting.scales
    if scales.lift == scales.grain:
        return add_whole(first, whole, primes)
    message = residues(whole, primes)
    for _ in range(scales.lift - scales.grain):  # doubling takes the same time for every message
        message = add(message, message, primes)
    return add(first, message, primes)


class LiftServer:
    """The linear map of one model, ready for requests; weights (rows, D) are rounded at random once, here."""

    def __init__(self, setting: Setting, weights: Array, own: Compiled) -> None:
        self.setting = setting
        rng, place = dither_rng(os.getpid()), setting.place
        while True:
            rounded = dithered(weights * setting.scales.weights, rng)
            self._linear = own.linear(place.weights(rounded), place)
            # All but about N / q roundings do, and the bound of switching needs it. A row of zeros has no rounding.
            if self._linear.spans or not weights.any(axis=1).all():
                break

    def answer(self, request: Bytes) -> Bytes:
        """The reply to a request."""
        chain, place, scales = self.setting.chain, self.setting.place, self.setting.scales
        seed, words = from_bytes("the request", request, chain.primes, self.setting.sent)
        masks = expand(seed, place.inputs + self.setting.private, chain.primes, chain.ring)
        used = np.ascontiguousarray(words[:, : place.used])
        key, draws = None, None
        if self.setting.private:
            key = PublicKey(np.ascontiguousarray(words[:, place.used :]), masks[-1])
            draws = draw(chain.ring, place.replies)
        first, halves = self._linear.apply(masks[: place.inputs], used, key, draws, scales.bits)
        if scales.flood is not None:
            noise = draw_flood(scales.flood, place.reads, chain.primes).T.reshape(first.shape)
            first = (first + noise) % np.array(chain.primes, dtype=np.uint64)
        reads = switched(first.reshape(-1, len(chain.primes)).T, chain, scales.bits)
        return np.frombuffer(pack(np.concatenate([reads, halves.reshape(-1)]), scales.bits), dtype=np.uint8)


def decrypt(setting: Setting, secret: NDArray[np.int8], reply: Bytes) -> Array:
    """The answers (places, rows) of a reply, by the secret's coefficients (N,) in -1, 0, 1."""
    place = setting.place
    words = unpack(reply.tobytes(), setting.scales.bits, place.reads + place.replies * place.ring)
    first, halves = words[: place.reads], words[place.reads :].reshape(place.replies, place.ring)
    parts = products_at(halves, secret, place.positions.reshape(-1)).reshape(place.replies, place.places, place.group)
    second = parts.transpose(1, 0, 2).reshape(place.places, -1)[:, : place.rows].reshape(-1)
    up = np.uint64(64 - setting.scales.bits)  # the highest bit becomes the sign
    signed = ((first + second) << up).view(np.int64).astype(np.float64)
    out: Array = signed * (math.ldexp(float(setting.chain.modulus), -64) / setting.scales.out)
    return out.reshape(place.places, place.rows)
