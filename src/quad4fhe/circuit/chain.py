"""Rings and chains: which primes exist, and how many bits are secure.

Decides the security table and the primes of a chain. Every chain is checked against the table when it is made, so an
insecure one can't be carried further. How a chain is used is left to `plan`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from quad4fhe.errors import InputError

# Homomorphic Encryption Standard, 128-bit security, ternary secret: bits of the whole modulus, special prime included.
SECURE_BITS = {1024: 27, 2048: 54, 4096: 109, 8192: 218, 16384: 438, 32768: 881}
RINGS = (4096, 8192, 16384)


@dataclass(frozen=True)
class Chain:
    """A ring of degree N, the primes of its ciphertexts, and the special prime that SEAL keeps for key switching.

    Where no evaluation key exists the special prime is never used; SEAL still asks for one, so it is the smallest.
    """

    ring: int
    primes: tuple[int, ...]
    special: int

    def __post_init__(self) -> None:
        if self.ring not in SECURE_BITS:
            raise InputError(f"ring {self.ring} is not one of {', '.join(map(str, SECURE_BITS))}")
        modulus = self.special
        for q in self.primes:
            modulus *= q
        every = (*self.primes, self.special)
        if len(set(every)) != len(every) or not self.primes:
            raise InputError(f"a chain needs one or more distinct primes and a special prime, got {every}")
        for q in every:
            if q % (2 * self.ring) != 1 or not is_prime(q):
                raise InputError(f"{q} is not a prime of the form {2 * self.ring} k + 1")
        if modulus.bit_length() > SECURE_BITS[self.ring]:
            raise InputError(
                f"a modulus of {modulus.bit_length()} bits is not 128-bit secure at ring {self.ring}: "
                f"at most {SECURE_BITS[self.ring]} bits; take a larger ring or fewer bits"
            )

    @property
    def slots(self) -> int:
        """How many values one ciphertext holds."""
        return self.ring // 2

    @property
    def modulus(self) -> int:
        """Q, the product of the primes without the special one."""
        product = 1
        for q in self.primes:
            product *= q
        return product

    @property
    def bits(self) -> int:
        """The size of the whole modulus, special prime included: what the security table is about."""
        return (self.modulus * self.special).bit_length()


def chain(ring: int, prime_bits: tuple[int, ...], special_bits: int | None = None) -> Chain:
    """The chain of the largest primes of the given sizes; without `special_bits`, the smallest special prime."""
    wanted = {bits: prime_bits.count(bits) for bits in prime_bits}
    if special_bits is not None:
        wanted[special_bits] = wanted.get(special_bits, 0) + 1
    found = {bits: list(largest_primes(ring, bits, count)) for bits, count in wanted.items()}
    # The largest of its size becomes the special prime: key switching divides its noise by it.
    special = smallest_prime(ring) if special_bits is None else found[special_bits].pop(0)
    return Chain(ring, tuple(found[bits].pop(0) for bits in prime_bits), special)


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
