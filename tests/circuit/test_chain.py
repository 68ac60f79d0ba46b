from __future__ import annotations

import pytest

from quad4fhe import InputError
from quad4fhe.circuit.chain import SECURE_BITS, Chain, chain, is_prime, smallest_prime


def test_primality_agrees_with_trial_division() -> None:
    for n in range(2, 5000):
        assert is_prime(n) == all(n % p for p in range(2, int(n**0.5) + 1))
    assert is_prime(2147377153)
    assert not is_prime(3215031751)  # the smallest composite that fools bases 2, 3, 5 and 7


def test_a_chain_above_the_security_table_cannot_be_made() -> None:
    assert chain(4096, (31, 31, 31)).bits == 109 == SECURE_BITS[4096]
    with pytest.raises(InputError, match="128-bit secure"):
        chain(4096, (31, 31, 31, 20))
    with pytest.raises(InputError, match="128-bit secure"):
        chain(8192, (60, 40, 40, 40), 60)


def test_a_chain_of_wrong_numbers_is_refused() -> None:
    good = chain(4096, (30, 30))
    with pytest.raises(InputError, match="distinct"):
        Chain(4096, (good.primes[0], good.primes[0]), good.special)
    with pytest.raises(InputError, match="not a prime"):
        Chain(4096, (good.primes[0] + 2,), good.special)
    with pytest.raises(InputError, match="ring"):
        Chain(4095, good.primes, good.special)
    with pytest.raises(InputError, match="fewer than"):
        chain(16384, (16, 16))


def test_primes_have_the_wanted_sizes_and_roots_of_unity() -> None:
    made = chain(8192, (54, 54, 40), 54)
    assert [q.bit_length() for q in (*made.primes, made.special)] == [54, 54, 40, 54]
    assert all(q % 16384 == 1 for q in (*made.primes, made.special))
    assert made.special > max(made.primes)
    assert smallest_prime(4096) == 40961
