"""Exactness: monomials, placements, kernels, packing and masks, each against whole numbers."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from quad4fhe.layouts import bits
from quad4fhe.layouts.lift import _kernels_narrow as narrow
from quad4fhe.layouts.lift import _kernels_numba as wide
from quad4fhe.layouts.lift import arithmetic
from quad4fhe.layouts.lift._compiled import exact
from quad4fhe.layouts.lift.arithmetic import add_whole, residues, switched
from quad4fhe.layouts.lift.evaluation import Setting, _added
from quad4fhe.layouts.lift.monomials import Placement, lift_over, with_offset
from quad4fhe.layouts.lift.noise import Scales
from quad4fhe.layouts.masks import expand, expand_into
from quad4fhe.planning.chains import Chain, largest_primes
from quad4fhe.planning.fold import fold
from support.standins import random_model, random_samples

PLACES = [
    Placement(64, 10, 3, 3, 2),
    Placement(64, 10, 3, 1, 6),
    Placement(64, 10, 5, 2, 3),
    Placement(64, 64, 3, 1, 1),
    Placement(64, 150, 3, 1, 1),
    Placement(64, 150, 5, 3, 1),
    Placement(64, 10, 1, 1, 5),
]


def chain_of(ring: int, *sizes: int) -> Chain:
    primes = tuple(largest_primes(ring, size, sizes.count(size))[sizes[:i].count(size)] for i, size in enumerate(sizes))
    return Chain(ring, primes)


CHAINS = [chain_of(2048, 50), chain_of(2048, 53), chain_of(4096, 60), chain_of(4096, 45, 45)]


def negacyclic(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    whole = np.convolve(a, b)
    out = whole[: a.size].copy()
    out[: whole.size - a.size] -= whole[a.size :]
    return out


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_the_map_of_monomials_is_the_model(outputs: int) -> None:
    model, X = random_model(6, 16, outputs), random_samples(50, 6) + 100.0
    box = np.stack([X.min(axis=0), X.max(axis=0)])
    circuit = fold(model, box, "skip")
    lift = lift_over(box, circuit.shift)
    z = lift.monomials(X - circuit.shift)
    assert z.shape == (50, 28)
    assert np.abs(z @ lift.weights(circuit).T - circuit.logits(X)).max() < 1e-9
    assert np.allclose(lift.norms(X), np.linalg.norm(z, axis=1))
    assert (np.abs(z) <= lift.largest * (1 + 1e-12)).all()
    assert np.abs(with_offset(lift.weights(circuit), 0.5).sum(axis=0)[1:]).max() < 1e-9 or outputs == 1


@pytest.mark.parametrize("place", PLACES)
def test_answers_lie_where_they_are_read(place: Placement) -> None:
    rng = np.random.default_rng(3)
    weights = rng.integers(-9, 9, (place.rows, place.size))
    values = rng.integers(-9, 9, (place.samples, place.size))
    W, m, at = place.weights(weights), place.spread(values), place.positions
    wanted = values @ weights.T
    readers, used = place.readers(W), place.cut(m)
    assert used.shape == (place.used,)
    for row in range(place.rows):
        r, c = divmod(row, place.group)
        whole = sum(negacyclic(W[r, j], m[j]) for j in range(place.inputs))
        assert (whole[at[:, c]] == wanted[:, row]).all()
        assert readers[row] @ used[: readers.shape[1]] == wanted[0, row]
    assert (place.cut(place.uncut(used)) == used).all()


@pytest.mark.parametrize("size", [18, 30, 45, 46, 47, 48, 49, 50])
def test_sums_in_doubles_stay_exact_where_they_grow_most(size: int) -> None:
    """Values at the edges of a residue, with signs that make every sum of a transform or scalar product grow."""
    ring, n = 4096, 4465
    q = largest_primes(ring, size, 1)[0]
    rng = np.random.default_rng(size)
    edges = np.array([0, 1, q // 2 - 1, q // 2, q // 2 + 1, q - 1], dtype=np.uint64)
    rows = [np.full(ring, edge, dtype=np.uint64) for edge in edges]
    rows += [np.where(np.arange(ring) & 1 << k, edges[3], edges[4]) for k in range(12)]
    rows += [edges[rng.integers(0, 6, ring)] for _ in range(6)]
    values = np.stack(rows)
    one, other = values.copy(), values.copy()
    narrow.from_ntt(one, q)
    wide.from_ntt(other, q)
    assert (one == other).all()
    narrow.to_ntt(one, q)
    assert (one == values).all()
    weights = np.stack([np.full(n, edges[3]), np.full(n, edges[4]), edges[rng.integers(0, 6, n)]])
    for x in (np.full(n + 3, edges[3]), edges[rng.integers(0, 6, n + 3)]):
        starts = np.array([0, 3])
        found = narrow.dots(narrow.prepared(weights, q), x, starts, q)
        wanted = [[sum(int(a) * int(b) for a, b in zip(w, x[s:], strict=False)) % q for w in weights] for s in starts]
        assert found.tolist() == wanted


@pytest.mark.parametrize(
    "place",
    [
        Placement(2048, 100, 3, 3, 4),
        Placement(2048, 55, 7, 7, 1),
        Placement(2048, 90, 5, 2, 3),
    ],
)
def test_what_a_request_leaves_out_reaches_no_answer(place: Placement) -> None:
    """Noise fills all coefficients, so the answers of the cut request must be those of the whole one."""
    chain = CHAINS[0]
    assert chain.ring == place.ring
    assert place.windowed
    assert place.used < place.ring
    rng = np.random.default_rng(8)
    q = chain.primes[0]
    weights = place.weights(rng.integers(-9, 9, (place.rows, place.size)))
    dense = rng.integers(0, 2**30, (1, place.ring))
    wanted = np.stack([negacyclic(row[0], dense[0])[place.positions] for row in weights])  # (R, places, group)
    wanted = wanted.transpose(1, 0, 2).reshape(place.places, -1)[:, : place.rows] % q
    used = np.stack([place.cut(dense).astype(np.uint64)] * len(chain.primes))
    assert (exact(chain).linear(weights, place).answers(used)[..., 0].astype(np.int64) == wanted).all()


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: f"{chain.ring}-{chain.bits}")
@pytest.mark.parametrize("width", [16, 33, 40, 50, 51, 60])
def test_switching_rounds_exactly(chain: Chain, width: int) -> None:
    rng = np.random.default_rng(2)
    words = np.stack([rng.integers(0, q, (1, 64), dtype=np.uint64) for q in chain.primes], axis=1)
    wanted = [
        sum(
            ((int(words[0, p, i]) * pow(chain.modulus // q, -1, q) % q << width) + q // 2) // q
            for p, q in enumerate(chain.primes)
        )
        % 2**width
        for i in range(64)
    ]
    assert switched(words, chain, width)[0].tolist() == wanted


@given(st.integers(1, 63), st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=200))
def test_packed_values_come_back(width: int, values: list[int]) -> None:
    cut = np.array([value % 2**width for value in values], dtype=np.uint64)
    data = bits.pack(cut, width)
    assert int.from_bytes(data, "little") == sum(int(x) << (i * width) for i, x in enumerate(cut))
    assert len(data) == bits.packed_bytes(cut.size, width)
    assert (bits.unpack(data, width, cut.size) == cut).all()


def test_masks_are_aes_in_counter_mode_cut_to_the_prime() -> None:
    q, seed = 13 * 2**12 + 1, bytes(range(32))
    start = bytes([0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0])
    block = Cipher(algorithms.AES(seed), modes.ECB()).encryptor()
    stream = b"".join(block.update((int.from_bytes(start) + i).to_bytes(16)) for i in range(768))
    words = [int.from_bytes(stream[2 * i : 2 * i + 2], "little") for i in range(6 * 1024)]
    wanted = [word for word in words if word < q][:2048]
    assert expand(seed, 2, (q,), 2048)[1, 0].tolist() == wanted


def test_masks_from_a_number_on_are_those_of_all() -> None:
    primes = largest_primes(1024, 31, 2)
    some = np.empty((3, 2, 1024), dtype=np.uint32)
    expand_into(some, bytes(32), 4, primes)
    assert (some == expand(bytes(32), 7, primes, 1024)[4:]).all()
    assert np.unique(some).size > 6000  # no two of them are the same


def test_residues_of_negative_numbers_are_canonical() -> None:
    assert residues(np.array([-1, 0, 5]), (97, 193)).tolist() == [[96, 0, 5], [192, 0, 5]]


@pytest.mark.parametrize("bits", [17, 30, 45, 50, 60])
def test_whole_numbers_are_added_to_residues_exactly(bits: int) -> None:
    q, rng = (1 << bits) - 1, np.random.default_rng(bits)
    whole = rng.integers(-(2**62) + 1, 2**62, 500)
    whole[:10] = [0, 1, -1, q, -q, q - 1, 1 - q, 2**62 - 1, 1 - 2**62, (2**61 // q) * q]
    first = rng.integers(0, q, 500, dtype=np.uint64)
    first[10:20], first[20:30] = 0, q - 1
    wanted = [(int(a) + int(b)) % q for a, b in zip(first, whole, strict=True)]
    assert add_whole(first[None], whole, (q,))[0].tolist() == wanted


def test_single_coefficients_are_those_of_the_product() -> None:
    rng = np.random.default_rng(4)
    values, secret = rng.integers(0, 2**40, (2, 64)), rng.integers(-1, 2, 64)
    at = np.array([0, 5, 63])
    wanted = np.stack([negacyclic(row, secret)[at] for row in values]).view(np.uint64)
    words, small = values.astype(np.uint64), secret.astype(np.int8)
    assert (arithmetic.products_at(words, small, at) == wanted).all()


@pytest.mark.parametrize("lift", [40, 41, 83])
def test_a_message_at_a_coarser_scale_than_its_ciphertext_is_added_exactly(lift: int) -> None:
    made, rng = chain_of(4096, 45, 45), np.random.default_rng(lift)
    setting = Setting(made, Placement(4096, 100, 1, 1, 1), Scales(lift, 40, 1.0, 40, None))
    first = np.stack([rng.integers(0, q, 100, dtype=np.uint64) for q in made.primes])
    whole = rng.integers(-(2**60), 2**60, 100)
    found = _added(setting, first, whole)
    for row, own, q in zip(found.tolist(), first.tolist(), made.primes, strict=True):
        assert row == [(x + int(m) * 2 ** (lift - 40)) % q for x, m in zip(own, whole.tolist(), strict=True)]
