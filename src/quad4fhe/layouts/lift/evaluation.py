"""One question in layout lift: the client encrypts monomials, the server applies its linear map, the client reads.

A request is a seed and the used coefficients of the first halves; the second halves follow from the seed. A reply is
the coefficients that are read and the second halves, switched to a power of two. The second halves depend on the seed
alone, so both sides can finish with them before the samples are known; docs/lift.md has the protocol.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array, IntArray
from quad4fhe.layouts.bits import pack, packed_bytes, unpack
from quad4fhe.layouts.lift import arithmetic, decisions
from quad4fhe.layouts.lift.arithmetic import Arithmetic, add, add_whole, products_at, residues, switched
from quad4fhe.layouts.lift.monomials import Lift, Placement
from quad4fhe.layouts.lift.noise import Scales
from quad4fhe.layouts.lift.zeros import ZeroPool
from quad4fhe.layouts.masks import SEED_BYTES, as_bytes, expand, from_bytes, seeded_bytes
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
    def halves_bytes(self) -> int:
        """The length of a reply's second halves."""
        return packed_bytes(self.place.replies * self.chain.ring, self.scales.bits)

    @property
    def answers_bytes(self) -> int:
        """The length of a reply without its second halves."""
        return packed_bytes(self.place.reads, self.scales.bits)

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
    return seeded_rng(secrets.token_bytes(32))


def seeded_rng(seed: bytes) -> np.random.Generator:
    """The same generator in every process that knows the seed."""
    return np.random.Generator(np.random.SFC64(int.from_bytes(seed, "little")))


def prepare(setting: Setting, seeded_zeros: Callable[[int], tuple[bytes, Words]], own: Arithmetic) -> bytes:
    """A request without a message: fresh encryptions of zero, whose masks come from a seed.

    It stays with the client, so its residues are not packed.
    """
    seed, zeros = seeded_zeros(setting.place.inputs)
    return seed + setting.place.cut(own.from_ntt(zeros).transpose(1, 0, 2)).astype("<u8").tobytes()


def encrypt(
    setting: Setting,
    lift: Lift,
    seeded_zeros: Callable[[int], tuple[bytes, Words]],
    own: Arithmetic,
    Z: Array,
) -> Bytes:
    """Encrypt shifted samples Z (n, d): monomials added to fresh encryptions of zero, whose masks come from a seed."""
    place = setting.place
    whole = _message(setting, lift, Z)
    seed, zeros = seeded_zeros(place.inputs)
    return _added(setting, seed, place.cut(own.from_ntt(zeros).transpose(1, 0, 2)), whole)


def encrypt_prepared(setting: Setting, lift: Lift, part: bytes, Z: Array) -> Bytes:
    """The same with encryptions of zero that `prepare` made; each of those is for one request."""
    words = np.frombuffer(part, dtype="<u8", offset=SEED_BYTES).astype(np.uint64, copy=False)
    first = words.reshape(len(setting.chain.primes), setting.place.used)
    return _added(setting, part[:SEED_BYTES], first, _message(setting, lift, Z))


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


def _added(setting: Setting, seed: bytes, first: Words, whole: IntArray) -> Bytes:
    """A request: a message at the scale 2^grain added to encryptions of zero at the scale 2^lift."""
    primes, scales = setting.chain.primes, setting.scales
    if scales.lift == scales.grain:
        return as_bytes(seed, add_whole(first, whole, primes), primes)
    message, factor = residues(whole, primes), 1 << (scales.lift - scales.grain)
    for row, q in zip(message, primes, strict=True):
        row[:] = [int(x) * factor % q for x in row.tolist()]
    return as_bytes(seed, add(first, message, primes), primes)


_KEPT = struct.Struct("<16sI")  # digest of the rounded weights and the seed, factor of a decision (0 for none)


class LiftServer:
    """The linear map of one model, ready for requests; weights (rows, D) are rounded at random once, here."""

    def __init__(
        self,
        setting: Setting,
        weights: Array,
        own: Arithmetic,
        offset: float = 0.0,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.setting, self.arithmetic = setting, own
        self._offset = round(offset * setting.scales.out)  # of a decision or blanks; else it is part of the weights
        rng, place = rng or dither_rng(os.getpid()), setting.place
        while True:
            rounded = dithered(weights * setting.scales.weights, rng)
            self._linear = own.linear(place.weights(rounded), place)
            # All but about N / q roundings do, and the bound of switching needs it. A row of zeros has no rounding.
            if self._linear.spans or not weights.any(axis=1).all():
                break
        self._digest = hashlib.sha256(np.ascontiguousarray(rounded, dtype="<i8").tobytes()).digest()

    def _bound_to(self, seed: bytes) -> bytes:
        return hashlib.sha256(self._digest + seed).digest()[:16]

    def evaluate(self, request: Bytes, pool: ZeroPool | None) -> Bytes:
        """The reply to a request; private if a pool of encryptions of zero is given."""
        seed, used = from_bytes("the request", request, self.setting.chain.primes, self.setting.place.used)
        halves, zeros, factor = self._halves(seed, pool)
        return self._packed(np.concatenate([self._reads(used, zeros, factor), halves]))

    def prepare(self, seed: bytes, pool: ZeroPool | None) -> tuple[Bytes, bytes]:
        """The second halves of the reply to a request with this seed, and what `answer` needs; that is used once."""
        halves, zeros, factor = self._halves(seed, pool)
        words = b"" if zeros is None else zeros.astype("<u8").tobytes()
        return self._packed(halves), _KEPT.pack(self._bound_to(seed), factor or 0) + words

    def answer(self, request: Bytes, kept: bytes) -> Bytes | None:
        """The rest of the reply to a request whose seed `prepare` was given; None for another seed or rounding.

        With other weights, the answers would not belong to the second halves, and tell the client the difference.
        """
        setting, place = self.setting, self.setting.place
        digest, factor = _KEPT.unpack_from(kept)
        seed, used = from_bytes("the request", request, setting.chain.primes, place.used)
        if digest != self._bound_to(seed):
            return None
        words = np.frombuffer(kept, dtype="<u8", offset=_KEPT.size).astype(np.uint64)
        shape = (place.places, place.rows, len(setting.chain.primes))
        zeros = None if setting.scales.flood is None else words.reshape(shape)
        return self._packed(self._reads(used, zeros, factor or None))

    def _halves(self, seed: bytes, pool: ZeroPool | None) -> tuple[Words, Words | None, int | None]:
        """Second halves, switched; the answers of the encryptions of zero in them; and the factor of a decision."""
        chain, place, scales = self.setting.chain, self.setting.place, self.setting.scales
        if (pool is None) != (scales.flood is None):
            raise AssertionError("a plan of private replies needs the client's public key, a plain one has none")
        masks = expand(seed, "request", place.inputs, chain.primes, chain.ring)
        if pool is None:
            return self._linear.replies(masks, None, scales.bits).reshape(-1), None, None
        zeros = pool.take()
        if scales.factor is None:
            return self._linear.replies(masks, zeros.masks, scales.bits).reshape(-1), zeros.answers, None
        factor = decisions.draw_factor()
        second = add(self._linear.masks(masks), zeros.masks, chain.primes)
        second = decisions.blinded_masks(second, zeros.masks, factor, chain)
        return switched(second, chain, scales.bits).reshape(-1), zeros.answers, factor

    def _reads(self, used: Words, zeros: Words | None, factor: int | None) -> Words:
        """The coefficients of the first halves that are read, switched; flooded afresh if there are zeros."""
        chain, place, scales = self.setting.chain, self.setting.place, self.setting.scales
        first = self._linear.answers(used)
        for p, q in enumerate(chain.primes if place.blanks else ()):
            first[place.samples :, :, p] = (first[place.samples :, :, p] + np.uint64(self._offset % q)) % np.uint64(q)
        if zeros is not None:
            first = self._flooded(first, zeros)
            if factor is not None and scales.flood is not None:
                first = decisions.blinded_answers(first, zeros, factor, self._offset, scales.flood, chain)
        return switched(first.reshape(-1, len(chain.primes)).T, chain, scales.bits)

    def _packed(self, words: Words) -> Bytes:
        return np.frombuffer(pack(words, self.setting.scales.bits), dtype=np.uint8)

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
    place = setting.place
    words = unpack(reply.tobytes(), setting.scales.bits, place.reads + place.replies * place.ring)
    return _decoded(setting, words[: place.reads], _products(setting, secret, words[place.reads :]))


def products(setting: Setting, secret: NDArray[np.int8], halves: Bytes) -> bytes:
    """What `read` needs of a reply's second halves, packed."""
    words = unpack(halves.tobytes(), setting.scales.bits, setting.place.replies * setting.place.ring)
    mask = np.uint64((1 << setting.scales.bits) - 1)
    return pack(_products(setting, secret, words) & mask, setting.scales.bits)


def read(setting: Setting, answers: Bytes, known: bytes) -> Array:
    """The answers (places, rows) of a reply without its second halves, whose `products` are known."""
    first, second = (unpack(each, setting.scales.bits, setting.place.reads) for each in (answers.tobytes(), known))
    return _decoded(setting, first, second)


def _products(setting: Setting, secret: NDArray[np.int8], halves: Words) -> Words:
    """The coefficients of (second half times secret) that are read, (places * rows,), modulo 2^64."""
    place = setting.place
    second = halves.reshape(place.replies, place.ring)
    parts = products_at(second, secret, place.positions.reshape(-1)).reshape(place.replies, place.places, place.group)
    return parts.transpose(1, 0, 2).reshape(place.places, -1)[:, : place.rows].reshape(-1)


def _decoded(setting: Setting, first: Words, second: Words) -> Array:
    up = np.uint64(64 - setting.scales.bits)  # the highest bit becomes the sign
    signed = ((first + second) << up).view(np.int64).astype(np.float64)
    out: Array = signed * (math.ldexp(float(setting.chain.modulus), -64) / setting.scales.out)
    return out.reshape(setting.place.places, setting.place.rows)


def compiled_or(chain: Chain, other: Callable[[], Arithmetic], *, compiled: bool = True) -> Arithmetic:
    """The compiled arithmetic where it is installed and wanted, else the other."""
    found = arithmetic.compiled(chain) if compiled else None
    return other() if found is None else found
