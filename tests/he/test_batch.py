from __future__ import annotations

import numpy as np
import pytest

from quad4fhe import InputError
from quad4fhe.circuit.bounds import bound
from quad4fhe.circuit.chain import chain
from quad4fhe.circuit.fold import fold
from quad4fhe.circuit.quantise import Scales, quantise
from quad4fhe.he import batch, seal
from standins import random_model, random_samples

CHAIN = chain(4096, (31, 31, 31))
SCALES = Scales(20, 13, 16)


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
    reply = batch.BatchEvaluator(integers, CHAIN).evaluate(batch.encrypt(key, X - circuit.shift, SCALES.x))
    assert reply.shape == (3, 3, 3, 4096)
    assert np.abs(batch.decrypt(key, reply, SCALES.out) - circuit.logits(X)).max() < 1e-2


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda r: r[:2], "features"),
        (lambda r: np.concatenate([r, r]), "features"),
        (lambda r: r[:, :1], "wanted uint32"),
        (lambda r: r[..., :4095], "wanted uint32"),
        (lambda r: r.astype(np.uint64), "wanted uint32"),
        (lambda r: r + np.uint32(2**31), "not below the prime"),
        (lambda r: r[:0], "features"),
    ],
)
def test_a_damaged_request_is_refused_before_use(spoil, message: str) -> None:
    evaluator = batch.BatchEvaluator(quantise(fold(random_model(3, 4, 2), box_of(3), "skip"), SCALES), CHAIN)
    with pytest.raises(InputError, match=message):
        evaluator.evaluate([spoil(np.zeros((3, 2, 3, 4096), dtype=np.uint32))])
    with pytest.raises(InputError, match="0 features"):
        evaluator.evaluate([])


def test_features_are_streamed_in_chunks_of_bounded_memory(monkeypatch) -> None:
    monkeypatch.setattr(batch, "CHUNK_BYTES", 2 * 8 * 3 * 4096)
    key = seal.SecretKey(seal.Context(CHAIN))
    X = random_samples(5, 7)
    sizes = [chunk.shape[0] for chunk in batch.encrypt(key, X, 20)]
    assert sizes == [2, 2, 2, 1]


def test_the_layout_of_raw_ciphertexts_is_checked_and_another_seal_refused(monkeypatch) -> None:
    seal.check_layout.__wrapped__()
    monkeypatch.setattr(seal.seal, "__version__", "4.5.0")
    with pytest.raises(seal.SealError, match=r"wanted 4\.4"):
        seal.check_layout.__wrapped__()
    monkeypatch.undo()
    monkeypatch.setattr(seal, "_HEADER", 121)
    with pytest.raises((seal.SealError, ValueError)):
        seal.check_layout.__wrapped__()


def test_a_chain_seal_does_not_accept_is_reported() -> None:
    made = chain(8192, (26, 26))
    object.__setattr__(made, "special", 2**70 // 3)
    with pytest.raises((seal.SealError, ValueError, TypeError)):
        seal.Context(made)
