from __future__ import annotations

import numpy as np
import pytest

from quad4fhe import MLP, InputError
from quad4fhe_reproduce.circuit import SQUARE, Activation, PaperCircuit, quad


def network(d: int, m: int, K: int) -> MLP:
    rng = np.random.default_rng(0)
    return MLP(
        rng.normal(size=(m, d)) / np.sqrt(d), rng.normal(size=m) * 0.3, rng.normal(size=(K, m)), rng.normal(size=K)
    )


@pytest.mark.parametrize(
    ("activation", "depth", "products"),
    [
        (SQUARE, 3, 1),
        (quad(0.1, 0.5, 0.2), 4, 1),
        (Activation("Remez-3", (0.1, 0.5, 0.2, -0.01)), 4, 2),
        (Activation("Remez-5", (0.1, 0.5, 0.2, -0.01, -0.02, 0.003)), 5, 4),
        (Activation("Remez-7", (0.1, 0.5, 0.2, -0.01, -0.02, 0.003, 0.002, -0.0004)), 5, 5),
        (Activation("even", (0.1, 0.5, 0.2, 0.0, -0.02)), 5, 2),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_the_papers_circuit_equals_its_plaintext(activation: Activation, depth: int, products: int) -> None:
    circuit = PaperCircuit(network(10, 1024, 2), activation, depth=max(depth, 4))
    X = np.random.default_rng(1).normal(size=(circuit.batch, 10))
    found = circuit.decrypt(circuit.evaluate(circuit.encrypt(X)), len(X))
    assert np.abs(found - circuit.plaintext_logits(X)).max() < 1e-3
    assert activation.depth == depth
    assert circuit.counts.ct_ct == products
    assert set(circuit.seconds) == {"product", "activation", "output"}


@pytest.mark.parametrize("activation", [SQUARE, quad(0.1, 0.5, 0.2)], ids=["Square", "Quad"])
def test_levels_to_spare_are_dropped_before_the_second_layer(activation: Activation) -> None:
    circuit = PaperCircuit(network(6, 1024, 2), activation, depth=5)
    X = np.random.default_rng(1).normal(size=(circuit.batch, 6))
    replies = circuit.evaluate(circuit.encrypt(X))
    assert [reply.coeff_modulus_size() for reply in replies] == [1, 1]  # only the first prime is left
    assert np.abs(circuit.decrypt(replies, len(X)) - circuit.plaintext_logits(X)).max() < 1e-3


def test_features_beyond_the_width_are_chunked() -> None:
    circuit = PaperCircuit(network(40, 16, 2), quad(0.1, 0.5, 0.2))
    assert (circuit.chunks, circuit.span) == (3, 16)
    X = np.random.default_rng(1).normal(size=(5, 40))
    found = circuit.decrypt(circuit.evaluate(circuit.encrypt(X)), 5)
    assert np.abs(found - circuit.plaintext_logits(X)).max() < 1e-3


def test_otto_has_the_papers_operation_counts() -> None:
    """Table VII: 1 encryption, 139 ct-pt, 93 rotations; ct-ct is 1 and rescales 13 at depth 4 (2 and 14 at depth 5)."""
    circuit = PaperCircuit(network(93, 256, 9), quad(0.05, 0.4, 0.2))
    circuit.evaluate(circuit.encrypt(np.zeros((1, 93))))
    counts = circuit.counts
    assert (counts.encryptions, counts.ct_ct, counts.ct_pt, counts.rotations, counts.rescales) == (1, 1, 139, 93, 13)


def test_a_polynomial_too_deep_for_the_chain_is_refused() -> None:
    with pytest.raises(InputError, match="depth 5"):
        PaperCircuit(network(2, 4, 1), Activation("Remez-5", (0.0, 1.0, 1.0, 1.0, 1.0, 1.0)), depth=4)
    with pytest.raises(InputError, match="degree 8"):
        PaperCircuit(network(2, 4, 1), Activation("big", (1.0,) * 9), depth=6)
