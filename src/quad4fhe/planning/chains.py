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
    """A ring of degree N, and the primes of its ciphertexts.

    SEAL asks for one more prime, the special one, as soon as there are two. Nothing here is ever a sample modulo it, so
    the security table does not count it, and it is the smallest there is.
    """

    ring: int
    primes: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.ring not in SECURE_BITS:
            raise InputError(f"ring {self.ring} is not one of {', '.join(map(str, SECURE_BITS))}")
        if len(self.primes) > MOST_PRIMES:  # before multiplying them: an untrusted plan may have a million
            raise InputError(f"a chain of {len(self.primes)} primes; the security table has room for {MOST_PRIMES}")
        if len(set(self.every)) != len(self.every) or not self.primes:
            raise InputError(f"a chain needs one or more distinct primes, none of them SEAL's own, got {self.every}")
        for q in self.primes:
            if q % (2 * self.ring) != 1 or not is_prime(q):
                raise InputError(f"{q} is not a prime of the form {2 * self.ring} k + 1")
        if self.bits > SECURE_BITS[self.ring]:
            raise InputError(
                f"a modulus of {self.bits} bits is not 128-bit secure at ring {self.ring}: "
                f"at most {SECURE_BITS[self.ring]} bits; take a larger ring or fewer bits"
            )
        if self.all_bits > SEAL_BITS[self.ring]:
            raise InputError(
                f"SEAL refuses {self.all_bits} bits at ring {self.ring}, its special prime included: "
                f"at most {SEAL_BITS[self.ring]}; take a larger ring or fewer bits"
            )

    @cached_property
    def slots(self) -> int:
        """How many values one ciphertext holds."""
        return self.ring // 2

    @cached_property
    def modulus(self) -> int:
        """Q, the product of the primes."""
        return math.prod(self.primes)

    @cached_property
    def every(self) -> tuple[int, ...]:
        """All primes in SEAL's order: the special one, if SEAL needs it, comes last."""
        return self.primes if len(self.primes) == 1 else (*self.primes, smallest_prime(self.ring))

    @cached_property
    def bits(self) -> int:
        """Bits of the modulus of every sample under the secret, which the security table limits."""
        return self.modulus.bit_length()

    @cached_property
    def all_bits(self) -> int:
        """Bits of all primes together, which SEAL's own table limits."""
        return math.prod(self.every).bit_length()


def chain(ring: int, prime_bits: tuple[int, ...]) -> Chain:
    """The chain of the largest primes of the given sizes."""
    found = {bits: list(largest_primes(ring, bits, prime_bits.count(bits))) for bits in set(prime_bits)}
    return Chain(ring, tuple(found[bits].pop(0) for bits in prime_bits))


def most_bits(ring: int) -> int:
    """How many bits the primes of a chain may have."""
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
