"""Rings and chains of primes, and the table of secure sizes.

Every chain is checked against the security table when it is made, so no insecure chain exists.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property

from quad4fhe.errors import InputError

# Security guidelines of 2024 (Bossuat et al., ePrint 2024/463), 128 classical bits, ternary secret, errors of deviation
# 3.19: bits of the largest modulus of any sample made with the secret. docs/security_parameters.md has the source of
# the numbers and our own estimate.
SECURE_BITS = {1024: 26, 2048: 53, 4096: 106, 8192: 214, 16384: 430, 32768: 868}
# SEAL itself checks by the Homomorphic Encryption Standard of 2018 and counts every prime, used or not.
SEAL_BITS = {1024: 27, 2048: 54, 4096: 109, 8192: 218, 16384: 438, 32768: 881}
RINGS = (4096, 8192, 16384)
MOST_PRIMES = 55  # 881 bits at N = 32768, where a prime 2 N k + 1 has at least 16


@dataclass(frozen=True)
class Chain:
    """A ring of degree N, the primes of its ciphertexts, and the special prime that SEAL keeps for key switching.

    `keys` says whether evaluation keys exist. They are the only samples modulo Q P, so the special prime P counts
    against the security table only with them. Without keys P is never used; SEAL asks for one as soon as there are two
    primes, so it is the smallest. A single prime needs none (`special` is None).
    """

    ring: int
    primes: tuple[int, ...]
    special: int | None
    keys: bool

    def __post_init__(self) -> None:
        if self.ring not in SECURE_BITS:
            raise InputError(f"ring {self.ring} is not one of {', '.join(map(str, SECURE_BITS))}")
        if len(self.primes) > MOST_PRIMES:  # before multiplying them: an untrusted plan may have a million
            raise InputError(f"a chain of {len(self.primes)} primes; the security table has room for {MOST_PRIMES}")
        if len(set(self.every)) != len(self.every) or not self.primes:
            raise InputError(f"a chain needs one or more distinct primes and a special prime, got {self.every}")
        if self.special is None and (self.keys or len(self.primes) > 1):
            raise InputError("only a chain of one prime, without evaluation keys, does without a special prime")
        for q in self.every:
            if q % (2 * self.ring) != 1 or not is_prime(q):
                raise InputError(f"{q} is not a prime of the form {2 * self.ring} k + 1")
        if self.bits > SECURE_BITS[self.ring]:
            raise InputError(
                f"a modulus of {self.bits} bits is not 128-bit secure at ring {self.ring}: "
                f"at most {SECURE_BITS[self.ring]} bits; take a larger ring or fewer bits"
            )
        if self.all_bits > SEAL_BITS[self.ring]:
            raise InputError(
                f"SEAL refuses {self.all_bits} bits at ring {self.ring}, special prime included: "
                f"at most {SEAL_BITS[self.ring]}; take a larger ring or fewer bits"
            )

    @cached_property
    def slots(self) -> int:
        """How many values one ciphertext holds."""
        return self.ring // 2

    @cached_property
    def modulus(self) -> int:
        """Q, the product of the primes without the special one."""
        return math.prod(self.primes)

    @cached_property
    def every(self) -> tuple[int, ...]:
        """All primes in SEAL's order: the special one, if there is one, comes last."""
        return self.primes if self.special is None else (*self.primes, self.special)

    @cached_property
    def bits(self) -> int:
        """Bits of the largest modulus of a sample under the secret, which the security table limits."""
        return math.prod(self.every if self.keys else self.primes).bit_length()

    @cached_property
    def all_bits(self) -> int:
        """Bits of all primes together, used or not, which SEAL's own table limits; others call this log Q."""
        return math.prod(self.every).bit_length()

    @property
    def switching_prime(self) -> int:
        """The special prime, for a chain that switches keys."""
        if self.special is None or not self.keys:
            raise InputError("this chain has no evaluation keys, so it can't rotate or relinearise")
        return self.special


def chain(ring: int, prime_bits: tuple[int, ...], special_bits: int | None = None) -> Chain:
    """The chain of the largest primes of the given sizes.

    With `special_bits` it has evaluation keys. Without, it has none, and the smallest special prime; a single prime
    needs no special prime.
    """
    wanted = {bits: prime_bits.count(bits) for bits in prime_bits}
    if special_bits is not None:
        wanted[special_bits] = wanted.get(special_bits, 0) + 1
    found = {bits: list(largest_primes(ring, bits, count)) for bits, count in wanted.items()}
    # The largest of its size becomes the special prime: key switching divides its noise by it.
    unused = None if len(prime_bits) == 1 else smallest_prime(ring)
    special = unused if special_bits is None else found[special_bits].pop(0)
    return Chain(ring, tuple(found[bits].pop(0) for bits in prime_bits), special, special_bits is not None)


def keyless_bits(ring: int) -> int:
    """How many bits the primes of a chain without evaluation keys may have."""
    return min(SECURE_BITS[ring], SEAL_BITS[ring] - smallest_prime(ring).bit_length())


@cache
def largest_primes(ring: int, bits: int, count: int) -> tuple[int, ...]:
    """The `count` largest primes of exactly `bits` bits with a 2N-th root of unity, largest first."""
    step = 2 * ring
    out: list[int] = []
    candidate = ((1 << bits) - 2) // step * step + 1
    while len(out) < count:
        if candidate < 1 << (bits - 1):
            raise InputError(f"ring {ring} has fewer than {count} primes of {bits} bits")
        if is_prime(candidate):
            out.append(candidate)
        candidate -= step
    return tuple(out)


@cache
def smallest_prime(ring: int) -> int:
    """The smallest prime of the form 2 N k + 1."""
    candidate = 2 * ring + 1
    while not is_prime(candidate):
        candidate += 2 * ring
    return candidate


@cache
def is_prime(n: int) -> bool:
    """Miller-Rabin with the bases that decide every n below 2^64."""
    bases = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
    if n < 2 or n >= 1 << 64:
        return False
    for p in bases:
        if n % p == 0:
            return n == p
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in bases:
        x = pow(base, odd, n)
        if x in (1, n - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True
