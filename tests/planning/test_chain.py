from __future__ import annotations

import pytest
import seal

from quad4fhe import InputError
from quad4fhe.he.seal import Context, SecretKey
from quad4fhe.planning.chains import (
    SEAL_BITS,
    SECURE_BITS,
    Chain,
    chain,
    is_prime,
    largest_primes,
    most_bits,
    smallest_prime,
)


def test_primality_agrees_with_trial_division() -> None:
    for n in range(2, 5000):
        assert is_prime(n) == all(n % p for p in range(2, int(n**0.5) + 1))
    assert is_prime(2147377153)
    assert not is_prime(3215031751)  # the smallest composite that fools bases 2, 3, 5 and 7


# Table 5.2 of ePrint 2024/463 (128 bits, classical, ternary), and SEAL's own (2018), typed from their sources.
GUIDELINES = {1024: 26, 2048: 53, 4096: 106, 8192: 214, 16384: 430, 32768: 868}
STANDARD = {1024: 27, 2048: 54, 4096: 109, 8192: 218, 16384: 438, 32768: 881}


def test_the_limits_are_those_of_the_guidelines_of_2024() -> None:
    assert SECURE_BITS == GUIDELINES
    assert all(SECURE_BITS[ring] < SEAL_BITS[ring] == seal.CoeffModulus.MaxBitCount(ring) for ring in STANDARD)
    assert SEAL_BITS == STANDARD


def test_a_chain_above_the_security_table_cannot_be_made() -> None:
    with pytest.raises(InputError, match="107 bits is not 128-bit secure"):
        chain(4096, (36, 36, 35))
    with pytest.raises(InputError, match="128-bit secure"):
        chain(8192, (60, 60, 40, 40, 40))


def test_seals_special_prime_is_the_smallest_and_counts_for_seal_alone() -> None:
    made = chain(4096, (31, 31, 31))
    assert (made.bits, made.every) == (93, (*made.primes, 40961))
    assert made.all_bits == 109


def test_seal_accepts_every_chain_that_can_be_made() -> None:
    for ring in (4096, 8192, 16384):
        largest = most_bits(ring)
        sizes = tuple(largest // (largest // 30) for _ in range(largest // 30))
        assert Context(chain(ring, sizes)).chain.bits <= SECURE_BITS[ring]
    with pytest.raises(InputError, match="SEAL refuses"):
        chain(4096, (52, 52))  # 104 of 106 bits, but SEAL adds a special prime of 16 and allows 109


def test_one_prime_needs_no_special_prime() -> None:
    (q,) = largest_primes(2048, 50, 1)
    alone = Chain(2048, (q,))
    assert (alone.every, alone.bits) == ((q,), 50)
    assert SecretKey(Context(alone)).zeros(2).shape == (2, 1, 2048)


def test_a_chain_of_wrong_numbers_is_refused() -> None:
    good = chain(4096, (30, 30))
    with pytest.raises(InputError, match="distinct"):
        Chain(4096, (good.primes[0], good.primes[0]))
    with pytest.raises(InputError, match="not a prime"):
        Chain(4096, (good.primes[0] + 2,))
    with pytest.raises(InputError, match="ring"):
        Chain(4095, good.primes)
    with pytest.raises(InputError, match="fewer than"):
        chain(16384, (16, 16))


def test_primes_have_the_wanted_sizes_and_roots_of_unity() -> None:
    made = chain(8192, (54, 54, 40))
    assert [q.bit_length() for q in made.every] == [54, 54, 40, 17]
    assert all(q % 16384 == 1 for q in made.every)
    assert smallest_prime(4096) == 40961
