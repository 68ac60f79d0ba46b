from __future__ import annotations

import numpy as np
import pytest

from quad4fhe import InputError
from quad4fhe.he import seal
from quad4fhe.layouts.batch import costs
from quad4fhe.layouts.batch import evaluation as batch
from quad4fhe.planning.bounds import bound
from quad4fhe.planning.chains import chain
from quad4fhe.planning.costs import Shape
from quad4fhe.planning.fold import fold
from quad4fhe.planning.integers import Scales, quantise
from support.standins import random_model, random_samples

CHAIN = chain(4096, (31, 31, 31))
SCALES = Scales(20, 13, 16)
SEED = np.zeros((1, 32), dtype=np.uint8)


def box_of(d: int) -> np.ndarray:
    return np.stack([-3 * np.ones(d), 3 * np.ones(d)])


@pytest.mark.parametrize("form", ["square", "skip"])
def test_encrypted_logits_equal_the_plaintext_within_the_noise(form) -> None:
    model = random_model(6, 16, 3)
    circuit = fold(model, box_of(6), form)
    assert 2 * bound(circuit, box_of(6)).logit * 2.0**SCALES.out < CHAIN.modulus
    integers = quantise(circuit, SCALES)
    key = seal.SecretKey(seal.Context(CHAIN))
    X = random_samples(CHAIN.slots, 6)
    (reply,) = batch.BatchEvaluator(integers, CHAIN).evaluate(batch.encrypt(key, X - circuit.shift, SCALES.x))
    assert reply.shape == (3, 3, 3, 4096)
    assert np.abs(batch.decrypt(key, reply, SCALES.out) - circuit.logits(X)).max() < 1e-2


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda r: r[:2], "2 rows, wanted 3"),
        (lambda r: np.concatenate([r, r]), "6 rows, wanted 3"),
        (lambda r: np.concatenate([r, r], axis=1), "wanted uint32"),
        (lambda r: r[..., :4095], "wanted uint32"),
        (lambda r: r.astype(np.uint64), "wanted uint32"),
        (lambda r: r + np.uint32(2**31), "not below its prime"),
        (lambda r: r[:0], "no rows"),
    ],
)
def test_a_damaged_request_is_refused_before_use(spoil, message: str) -> None:
    form = costs.request_form(Shape(3, 4, 2), CHAIN)
    with pytest.raises(InputError, match=message):
        list(form.checked("the request", [SEED, spoil(np.ones((3, 1, 3, 4096), dtype=np.uint32))]))
    for seed in (SEED[:, :31], SEED.astype(np.uint32), np.zeros((1, 33), dtype=np.uint8)):
        with pytest.raises(InputError, match="wanted uint8"):
            list(form.checked("the request", [seed, np.ones((3, 1, 3, 4096), dtype=np.uint32)]))
    with pytest.raises(InputError, match="no rows"):
        list(form.checked("the request", []))


def test_features_are_streamed_in_chunks_of_bounded_memory(monkeypatch) -> None:
    monkeypatch.setattr(costs, "CHUNK_BYTES", 2 * 8 * 3 * 4096)
    key = seal.SecretKey(seal.Context(CHAIN))
    X = random_samples(5, 7)
    sizes = [chunk.shape[0] for chunk in batch.encrypt(key, X, 20)]
    assert sizes == [1, 2, 2, 2, 1]  # the seed comes first


def test_the_layout_of_raw_ciphertexts_is_checked_and_another_seal_refused(monkeypatch) -> None:
    seal.check_layout.__wrapped__()
    monkeypatch.setattr(seal.seal, "__version__", "4.5.0")
    with pytest.raises(seal.SealError, match=r"wanted 4\.4"):
        seal.check_layout.__wrapped__()
    monkeypatch.undo()
    monkeypatch.setattr(seal, "HEADER", 121)
    with pytest.raises((seal.SealError, ValueError)):
        seal.check_layout.__wrapped__()


def test_a_chain_seal_does_not_accept_is_reported() -> None:
    made = chain(8192, (26, 26))
    object.__setattr__(made, "every", (*made.primes, 2**70 // 3))
    with pytest.raises((seal.SealError, ValueError, TypeError)):
        seal.Context(made)
