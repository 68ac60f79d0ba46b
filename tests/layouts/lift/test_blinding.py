"""The server's encryptions of zero: exact sums, even draws, noise of the size that the proof and the bound count."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from quad4fhe.layouts.blinding import Draws, PublicKey, draw, drawn
from quad4fhe.layouts.flooding import blinding_deviation, draw_flood
from quad4fhe.layouts.lift._compiled import Compiled, add_zeros
from quad4fhe.layouts.lift.monomials import Placement
from quad4fhe.planning.chains import Chain, chain

BYTES = 16  # of a coefficient, below 2^127 in size


def product(a: list[int], b: list[int]) -> list[int]:
    """The product modulo X^N + 1 of whole polynomials, as one product of two large integers."""
    n, half = len(a), 1 << (8 * BYTES - 1)
    lift = int.from_bytes(half.to_bytes(BYTES, "little") * (2 * n), "little")  # makes every coefficient positive
    digits = (_large(a) * _large(b) + lift).to_bytes(2 * n * BYTES + 1, "little")
    out = [int.from_bytes(digits[BYTES * i : BYTES * (i + 1)], "little") - half for i in range(2 * n)]
    return [x - y for x, y in zip(out[:n], out[n:], strict=True)]


def _large(a: list[int]) -> int:
    """The value of a polynomial at 256^BYTES."""
    above, below = (b"".join(max(0, x * sign).to_bytes(BYTES, "little") for x in a) for sign in (1, -1))
    return int.from_bytes(above, "little") - int.from_bytes(below, "little")


def plus(*rows: list[int]) -> list[int]:
    return [sum(each) for each in zip(*rows, strict=True)]


CASES = [
    (chain(2048, (46,)), Placement(2048, 100, 3, 1, 1), 40),  # scalar products
    (chain(4096, (46, 46)), Placement(4096, 3000, 2, 2, 1), 40),
    (chain(2048, (50,)), Placement(2048, 600, 7, 6, 1), 41),  # transforms
    (chain(1024, (26,)), Placement(1024, 50, 7, 7, 1), 22),  # a window of the request
    (chain(1024, (26,)), Placement(1024, 100, 1, 1, 6), 24),  # samples
    (chain(2048, (53,)), Placement(2048, 600, 7, 6, 1), 40),  # primes above 2^50
    (chain(2048, (53,)), Placement(2048, 1500, 2, 1, 1), 53),
]


@pytest.mark.parametrize(("made", "place", "bits"), CASES, ids=str)
def test_a_private_reply_is_what_whole_numbers_give(made: Chain, place: Placement, bits: int) -> None:
    rng, exact = np.random.default_rng(7), Compiled(made)
    weights = place.weights(rng.integers(-(2**20), 2**20, (place.rows, place.size)))
    b = np.zeros((place.inputs, len(made.primes), made.ring), dtype=np.uint64)
    a, pk0, pk1 = b.copy(), b[0].copy(), b[0].copy()
    for p, q in enumerate(made.primes):
        for values in (a, b):
            values[:, p] = rng.integers(0, q, (place.inputs, made.ring), dtype=np.uint64)
        pk0[p], pk1[p] = rng.integers(0, q, (2, made.ring), dtype=np.uint64)
    used = place.cut(b.transpose(1, 0, 2))
    b = place.uncut(used).transpose(1, 0, 2)
    draws = drawn(bytes(range(32)), made.ring, place.replies)
    key = PublicKey(pk0, exact.to_ntt(pk1[None])[0])
    reads, halves = exact.linear(weights, place).apply(exact.to_ntt(a), used, key, draws, bits)

    Q = made.modulus
    for r in range(place.replies):
        u = draws.u[r].tolist()
        switched = [0] * made.ring
        for p, q in enumerate(made.primes):
            own = [(weights[r, j].tolist(), a[j, p].tolist(), b[j, p].tolist()) for j in range(place.inputs)]
            second = plus(product(pk1[p].tolist(), u), draws.noise[r].tolist(), *(product(w, x) for w, x, _ in own))
            first = plus(product(pk0[p].tolist(), u), *(product(w, y) for w, _, y in own))
            for i, x in enumerate(second):
                switched[i] += (2 * (x * pow(Q // q, -1, q) % q << bits) + q) // (2 * q)  # rounded to the nearest
            for where, c in np.ndindex(place.places, min(place.group, place.rows - r * place.group)):
                at = int(place.positions[where, c])
                assert int(reads[where, r * place.group + c, p]) == first[at] % q
        assert [x % 2**bits for x in switched] == halves[r].tolist()


def test_without_a_key_the_same_sums_are_plain() -> None:
    made, place = chain(2048, (46,)), Placement(2048, 1500, 5, 3, 1)
    rng, exact = np.random.default_rng(8), Compiled(made)
    weights = place.weights(rng.integers(-(2**40), 2**40, (place.rows, place.size)))
    a = rng.integers(0, made.primes[0], (place.inputs, 1, 2048), dtype=np.uint64)
    used = place.cut(rng.integers(0, made.primes[0], (1, place.inputs, 2048), dtype=np.uint64))
    linear = exact.linear(weights, place)
    reads, halves = linear.apply(a, used, None, None, 40)
    assert (reads == linear.answers(used)).all()
    none = Draws(np.zeros((place.replies, 2048), np.int8), np.zeros((place.replies, 2048), np.int8))
    key = PublicKey(a[0], a[0])
    for one, other in zip(linear.apply(a, used, key, none, 40), (reads, halves), strict=True):
        assert (one == other).all()


@pytest.fixture(scope="module")
def many() -> Draws:
    return drawn(b"a key that is the same each time", 4096, 250)


def test_u_is_even_on_three_values_and_its_neighbours_tell_nothing(many: Draws) -> None:
    u = many.u.reshape(-1).astype(np.int64) + 1
    assert (np.unique(u) == [0, 1, 2]).all()
    for count in (np.bincount(u), np.bincount(3 * u[:-1] + u[1:]), np.bincount(9 * u[:-5:5] + 3 * u[2:-3:5] + u[5::5])):
        assert stats.chisquare(count).pvalue > 1e-3  # of a fixed key, so always the same
    whole = np.bincount(u[: u.size // 5 * 5].reshape(-1, 5) @ 3 ** np.arange(5), minlength=243)
    assert stats.chisquare(whole).pvalue > 1e-3


def test_noise_is_the_difference_of_two_counts_among_21_bits(many: Draws) -> None:
    exact = [math.comb(42, 21 + k) / 2**42 for k in range(-21, 22)]  # by Vandermonde's identity
    noise = many.noise.reshape(-1).astype(np.int64)
    counts = np.bincount(noise + 21, minlength=43)
    common = np.array(exact) * noise.size > 5
    wanted = np.append(np.array(exact)[common], np.array(exact)[~common].sum()) * noise.size
    assert stats.chisquare(np.append(counts[common], counts[~common].sum()), wanted).pvalue > 1e-3
    assert abs(noise.var() / 10.5 - 1) < 5 * math.sqrt(2 / noise.size)
    both = np.corrcoef(many.u.reshape(-1), noise)[0, 1]
    assert abs(both) < 4 / math.sqrt(noise.size)


def test_no_two_replies_share_a_draw() -> None:
    one, other = draw(2048, 2), draw(2048, 2)
    rows = [*one.u, *one.noise, *other.u, *other.noise]
    assert len({row.tobytes() for row in rows}) == len(rows)


@pytest.mark.parametrize("ring", [2048, 4096])
def test_an_encryption_of_zero_decrypts_to_noise_of_the_predicted_size(ring: int) -> None:
    """pk0 u + (pk1 u + e1) s = e1 s - e u, exactly."""
    made, rows = chain(ring, (46,)), 8
    q, exact = made.primes[0], Compiled(made)
    own = drawn(b"one more key that never changes.", ring, 1)  # the client's: s and e have the same distributions
    s, e = own.u[0].astype(np.int64).tolist(), own.noise[0].astype(np.int64).tolist()
    pk1 = np.random.default_rng(1).integers(0, q, ring).tolist()
    pk0 = [-(x + y) % q for x, y in zip(product(pk1, s), e, strict=True)]
    keys = exact.to_ntt(np.array([[pk0], [pk1]], np.uint64))
    found = []
    for seed in range(rows):
        draws, zero = drawn(bytes([seed] * 32), ring, 1), np.zeros((2, 1, ring), np.uint64)
        add_zeros(zero, zero[0], keys, draws, made.primes)
        first, second = exact.from_ntt(zero)[:, 0].tolist()
        decrypted = [x % q for x in plus(first, product(second, s))]
        centred = [x - q if x > q // 2 else x for x in decrypted]
        u, noise = draws.u[0].tolist(), draws.noise[0].tolist()
        assert centred == plus(product(noise, s), [-x for x in product(e, u)])
        found += centred
    deviation = math.sqrt(ring * 10.5 * (2 / 3 + 2 / 3))
    assert np.std(found) == pytest.approx(deviation, rel=0.05)
    assert np.abs(found).max() < 6 * deviation
    assert deviation < blinding_deviation(ring)  # the largest for any noise in the key of 21 at most


def test_whole_ternary_numbers_and_noise_are_strictly_sub_gaussian() -> None:
    """Their moment generating functions stay below those of normal numbers of the same variance."""
    for t in np.linspace(0.01, 8, 200):
        assert (1 + 2 * math.cosh(t)) / 3 <= math.exp(t * t * (2 / 3) / 2)
        assert math.cosh(t / 2) ** 42 <= math.exp(t * t * 10.5 / 2)


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_a_reply_of_several_parts_has_encryptions_of_zero_added_one_further_each(degree: int) -> None:
    made, rng = chain(1024, (26,)), np.random.default_rng(degree)
    (q,), exact = made.primes, Compiled(made)
    parts = rng.integers(0, q, (degree + 1, 1, 1024)).astype(np.uint32)
    flood, keys = rng.integers(0, q, (1, 1024), dtype=np.uint64), rng.integers(0, q, (2, 1, 1024), dtype=np.uint64)
    draws = drawn(bytes(32), 1024, degree)
    wanted = exact.from_ntt(parts.astype(np.uint64))[:, 0].tolist()
    pk0, pk1 = exact.from_ntt(keys)[:, 0].tolist()
    add_zeros(parts, flood, keys, draws, made.primes)
    wanted[0] = plus(wanted[0], flood[0].tolist())
    for d, (u, noise) in enumerate(zip(draws.u.tolist(), draws.noise.tolist(), strict=True)):
        wanted[d] = plus(wanted[d], product(pk0, u))
        wanted[d + 1] = plus(wanted[d + 1], product(pk1, u), noise)
    found = exact.from_ntt(parts.astype(np.uint64))[:, 0].tolist()
    assert found == [[x % q for x in row] for row in wanted]


@pytest.mark.parametrize(
    ("sizes", "flood"),
    [((46, 46), 56), ((50, 50), 89), ((50, 50, 50), 138), ((28, 28, 28), 60), ((60,), 54), ((60, 60), 100)],
)
def test_flooding_is_even_and_one_number_modulo_every_prime(sizes: tuple[int, ...], flood: int) -> None:
    """Sums that wrapped around gave each prime another number."""
    made = chain(8192, sizes)
    Q, drawn = made.modulus, draw_flood(flood, 4000, made.primes)
    parts = [(Q // q) * pow(Q // q, -1, q) for q in made.primes]
    whole = [sum(int(x) * part for x, part in zip(column, parts, strict=True)) % Q for column in drawn.T]
    shares = np.array([(x - Q if x > Q // 2 else x) / 2**flood for x in whole])
    assert -1 <= shares.min() < -0.99
    assert 0.99 < shares.max() < 1
    assert abs(shares.mean()) < 0.05
    assert abs(shares.var() - 1 / 3) < 0.03
