from __future__ import annotations

import numpy as np
import pytest

from quad4fhe.he import seal
from quad4fhe.layouts.batch import costs
from quad4fhe.layouts.batch import evaluation as batch
from quad4fhe.planning.bounds import bound
from quad4fhe.planning.chains import chain
from quad4fhe.planning.fold import fold
from quad4fhe.planning.integers import Scales, quantise
from support.standins import random_model, random_samples

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
    reach = float(np.abs(X - circuit.shift).max())
    (reply,) = batch.BatchEvaluator(integers, CHAIN).answer(batch.encrypt(key, X - circuit.shift, SCALES.x, reach))
    assert reply.shape == (3, 3, 3, 4096)
    assert np.abs(batch.decrypt(key, reply, SCALES.out) - circuit.logits(X)).max() < 1e-2


def test_features_in_chunks_give_the_same_reply_as_all_at_once(monkeypatch) -> None:
    circuit = fold(random_model(9, 2, 3), box_of(9), "skip")
    integers = quantise(circuit, SCALES)
    request = batch.encrypt(seal.SecretKey(seal.Context(CHAIN)), random_samples(5, 9), SCALES.x, 9.0)
    (whole,) = batch.BatchEvaluator(integers, CHAIN).answer(request)
    monkeypatch.setattr(costs, "CHUNK_BYTES", 2 * 8 * 3 * 4096)
    (chunked,) = batch.BatchEvaluator(integers, CHAIN).answer(request)
    assert (whole == chunked).all()


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
