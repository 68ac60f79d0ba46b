from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quad4fhe.layouts import _kernels_numba as kernel
from quad4fhe.layouts.batch.evaluation import BatchEvaluator, multiply
from quad4fhe.layouts.masks import expand
from quad4fhe.layouts.residues import residues
from quad4fhe.planning.chains import chain, largest_primes
from quad4fhe.planning.exactness import EXACT, NotExactError, exact_matrices, exact_matrix, residue_bound
from quad4fhe.planning.integers import IntegerCircuit, Scales

PRIMES = [largest_primes(4096, bits, 1)[0] for bits in (17, 20, 24, 26, 31)]


def big(array: np.ndarray) -> np.ndarray:
    return np.array([int(v) for v in array.ravel()], dtype=object).reshape(array.shape)


@given(
    st.sampled_from(PRIMES),
    st.integers(0, 62),
    st.integers(1, 5),
    st.integers(1, 40),
    st.integers(0, 2**31),
    st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_products_equal_python_integers_for_any_weights(q, bits, rows, columns, seed, extreme) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.integers(-(2**bits), 2**bits + 1, size=(rows, columns))
    weights[0] //= 2**20  # rows of different sizes: some need fewer limbs
    half = q // 2
    operand = rng.integers(-half, half + 1, size=(columns, 3)).astype(np.float64)
    if extreme:
        operand = np.where(rng.random(operand.shape) < 0.5, -half, half).astype(np.float64)
        weights = np.abs(weights)
    matrix = exact_matrix(weights, q)
    out = np.empty((rows, 3))
    multiply(matrix, operand, out)
    assert np.abs(out).max() <= EXACT
    assert ((big(out) - big(weights) @ big(operand)) % q == 0).all()


@pytest.mark.parametrize("bits", [4, 20, 40])
def test_matrices_of_several_primes_are_those_of_each_prime(bits: int) -> None:
    weights = np.random.default_rng(bits).integers(-(2**bits), 2**bits, size=(5, 7))
    for q, found in zip(PRIMES, exact_matrices(weights, PRIMES), strict=True):
        alone = exact_matrix(weights, q)
        assert (found.q, found.step, found.headroom) == (q, alone.step, alone.headroom)
        for one, other in zip(found.limbs, alone.limbs, strict=True):
            np.testing.assert_array_equal(one.rows, other.rows)
            np.testing.assert_array_equal(one.weights, other.weights)


def test_weights_beyond_64_bits_are_reduced_first() -> None:
    q = PRIMES[-1]
    weights = np.array([[2**80 + 5, -(2**77) + 3]], dtype=object)
    operand = np.array([[12345.0], [-(q // 2)]])
    out = np.empty((1, 1))
    multiply(exact_matrix(weights, q), operand, out)
    assert (int(out[0, 0]) - ((2**80 + 5) * 12345 + (-(2**77) + 3) * -(q // 2))) % q == 0


def test_limbs_follow_the_proof_row_by_row() -> None:
    q = PRIMES[-1]
    room = EXACT // residue_bound(q) - 2
    fits = np.array([[room]])
    assert len(exact_matrix(fits, q).limbs) == 1
    mixed = exact_matrix(np.array([[room + 1, 0], [1, 1]]), q)
    assert len(mixed.limbs) == 2
    assert mixed.limbs[1].rows.tolist() == [0]
    assert mixed.products == 1.5
    assert mixed.headroom >= 0


def test_the_largest_provable_row_is_exact_at_the_edge() -> None:
    q = PRIMES[-1]
    room = EXACT // residue_bound(q) - 2
    for operand in (float(q // 2), -float(q // 2)):
        out = np.empty((1, 1))
        multiply(exact_matrix(np.array([[room]]), q), np.array([[operand]]), out)
        assert int(out[0, 0]) == room * int(operand)


def test_a_prime_too_large_for_float64_is_refused() -> None:
    with pytest.raises(NotExactError, match="prime"):
        exact_matrix(np.array([[1]]), largest_primes(4096, 40, 1)[0])


def test_rows_too_long_for_three_limbs_are_refused() -> None:
    q = PRIMES[-1]
    with pytest.raises(NotExactError, match="limbs"):
        exact_matrix(np.full((1, 2**20), q // 2), q)


@pytest.mark.parametrize("q", PRIMES)
def test_centred_squares_match_python_integers_at_the_extremes(q: int) -> None:
    edge = residue_bound(q)
    rng = np.random.default_rng(0)
    top = EXACT - residue_bound(q)
    values = rng.integers(-top, top, size=(4, 2, 64)).astype(np.float64)
    values[0, :, :8] = [[top, -top, edge, -edge, q, -q, 0, q // 2]] * 2
    bias = np.array([0.0, q // 2, -(q // 2), 1.0])
    exact = big(values)
    exact[:, 0] += big(bias)[:, None]
    out = np.empty((4, 3, 64))
    kernel.square(values.copy(), bias, q, out)
    a, b = exact[:, 0], exact[:, 1]
    assert ((big(out[:, 0]) - a * a) % q == 0).all()
    assert ((big(out[:, 1]) - 2 * a * b) % q == 0).all()
    assert ((big(out[:, 2]) - b * b) % q == 0).all()
    assert np.abs(out).max() <= edge


@pytest.mark.parametrize("q", PRIMES)
def test_stored_residues_are_canonical(q: int) -> None:
    top = EXACT - residue_bound(q)
    values = np.random.default_rng(1).integers(-top, top, size=(2, 3, 50)).astype(np.float64)
    values[0, 0, :6] = [0, q, -q, -1, q - 1, top]
    bias = np.array([0.0, -1.0])
    out = np.empty((2, 3, 50), dtype=np.uint32)
    exact = big(values)
    exact[:, 0] += big(bias)[:, None]
    kernel.store(values.copy(), bias, q, out)
    assert (big(out) == exact % q).all()


@pytest.mark.parametrize("q", PRIMES)
def test_loaded_residues_are_centred(q: int) -> None:
    words = np.array([0, 1, q // 2, q // 2 + 1, q - 1], dtype=np.uint32).reshape(1, 1, 5)
    out = np.empty((1, 1, 5))
    kernel.load(words, q, out)
    assert out.ravel().tolist() == [0, 1, q // 2, q // 2 + 1 - q, -1]


def test_big_biases_become_centred_residues() -> None:
    q = PRIMES[0]
    numbers = np.array([2**100, -(2**100), 0, q, -1], dtype=object)
    found = residues(numbers, q)
    assert ((big(found) - numbers) % q == 0).all()
    assert np.abs(found).max() <= q // 2


@given(st.integers(0, 2**31), st.sampled_from([(31, 31), (26, 25), (20, 22)]), st.booleans())
@settings(max_examples=12, deadline=None)
def test_the_whole_circuit_on_residues_equals_python_integers(seed, prime_bits, skip) -> None:
    """(c0, c1) -> W c + t -> three polynomials -> V . + U c + c, against big integers, on a few columns."""
    rng = np.random.default_rng(seed)
    made = chain(4096, prime_bits)
    d, m, K = 3, 4, 2
    W, V = rng.integers(-(2**25), 2**25, size=(m, d)), rng.integers(-(2**30), 2**30, size=(K, m))
    t = np.array([int(v) << 40 for v in rng.integers(-(2**30), 2**30, m)], dtype=object)
    c = np.array([int(v) << 60 for v in rng.integers(-(2**30), 2**30, K)], dtype=object)
    U = np.array([int(v) << 50 for v in rng.integers(-(2**30), 2**30, K * d)], dtype=object).reshape(K, d)
    circuit = IntegerCircuit(W, t, V, U if skip else None, c, np.zeros(d), Scales(1, 1, 1))
    first = np.stack([rng.integers(0, q, size=(d, 1, 4096)) for q in made.primes], axis=2).astype(np.uint32)
    seed_bytes = rng.integers(0, 256, size=32).astype(np.uint8)
    masks = expand(seed_bytes.tobytes(), d, made.primes, 4096).astype(np.uint32)[:, None]
    request = np.concatenate([first, masks], axis=1)
    (reply,) = BatchEvaluator(circuit, made).answer([seed_bytes, first])
    for place, q in enumerate(made.primes):
        for column in (0, 17, 4095):
            x = big(request[:, :, place, column])
            y = big(W) @ x
            y0, y1 = y[:, 0] + t, y[:, 1]
            wanted = np.stack([big(V) @ (y0 * y0) + c, big(V) @ (2 * y0 * y1), big(V) @ (y1 * y1)], axis=1)
            if skip:
                wanted[:, :2] += U @ x
            assert (big(reply[:, :, place, column]) == wanted % q).all()
