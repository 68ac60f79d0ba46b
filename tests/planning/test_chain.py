from __future__ import annotations

from dataclasses import replace

import numpy as np
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
    keyless_bits,
    largest_primes,
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
    assert chain(8192, (58, 58, 38), 60).bits == 214 == SECURE_BITS[8192]
    with pytest.raises(InputError, match="216 bits is not 128-bit secure"):
        chain(8192, (58, 58, 40), 60)  # within the table of 2018
    with pytest.raises(InputError, match="107 bits is not 128-bit secure"):
        chain(4096, (36, 36), 35)
    with pytest.raises(InputError, match="128-bit secure"):
        chain(8192, (60, 60, 40, 40, 40))


def test_the_special_prime_counts_where_keys_exist_and_there_alone() -> None:
    without = chain(4096, (31, 31, 31))
    assert (without.keys, without.bits) == (False, 93)
    assert chain(4096, (31, 31), 31).bits == 93
    with pytest.raises(InputError, match="109 bits is not 128-bit secure"):
        replace(without, keys=True)
    with pytest.raises(InputError, match="no evaluation keys"):
        _ = without.switching_prime


def test_seal_accepts_every_chain_that_can_be_made() -> None:
    for ring in (4096, 8192, 16384):
        largest = keyless_bits(ring)
        sizes = tuple(largest // (largest // 30) for _ in range(largest // 30))
        assert Context(chain(ring, sizes)).chain.bits <= SECURE_BITS[ring]
    with pytest.raises(InputError, match="SEAL refuses"):
        chain(4096, (52, 52))  # 104 of 106 bits, but SEAL adds a special prime of 16 and allows 109


def test_one_prime_without_keys_needs_no_special_prime() -> None:
    (q,) = largest_primes(2048, 50, 1)
    alone = Chain(2048, (q,), None, keys=False)
    assert (alone.every, alone.bits) == ((q,), 50)
    context = Context(alone)
    key = SecretKey(context)
    values = np.linspace(-1.0, 1.0, alone.slots)
    assert np.abs(key.decrypt(key.encrypt(values, 2.0**30)) - values).max() < 1e-4
    assert len(key.to_bytes()) == SecretKey.size(alone)
    with pytest.raises(InputError, match="without a special prime"):
        Chain(2048, (q,), None, keys=True)
    with pytest.raises(InputError, match="without a special prime"):
        Chain(4096, largest_primes(4096, 30, 2), None, keys=False)


def test_a_chain_of_wrong_numbers_is_refused() -> None:
    good = chain(4096, (30, 30))
    with pytest.raises(InputError, match="distinct"):
        Chain(4096, (good.primes[0], good.primes[0]), good.special, keys=False)
    with pytest.raises(InputError, match="not a prime"):
        Chain(4096, (good.primes[0] + 2,), good.special, keys=False)
    with pytest.raises(InputError, match="ring"):
        Chain(4095, good.primes, good.special, keys=False)
    with pytest.raises(InputError, match="fewer than"):
        chain(16384, (16, 16))


def test_primes_have_the_wanted_sizes_and_roots_of_unity() -> None:
    made = chain(8192, (54, 54, 40), 54)
    assert [q.bit_length() for q in made.every] == [54, 54, 40, 54]
    assert all(q % 16384 == 1 for q in made.every)
    assert made.switching_prime > max(made.primes)
    assert smallest_prime(4096) == 40961
