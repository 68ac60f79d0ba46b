"""How a sample is encoded, and so how long it takes, follows from the plan's box and never from the sample."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from quad4fhe import Client, Plan, plan
from quad4fhe.he import seal
from quad4fhe.planning.chains import chain
from support.standins import random_model, random_samples, stand_in

FIT = stand_in(random_model(3, 8, 3), random_samples(200, 3))


def steps_of(made: Plan, X: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """The steps of the encoder that a request takes, and what decides between them."""
    seen: list[tuple[object, ...]] = []
    modulo = seal.modulo

    def spied_modulo(coefficients, primes, size):
        seen.append((len(coefficients), size))
        return modulo(coefficients, primes, size)

    with monkeypatch.context() as patch:
        patch.setattr(seal, "modulo", spied_modulo)
        Client(made).encrypt(X)
    return seen


@pytest.mark.parametrize("bits", [None, 30, 39, 48, 52, 56])
def test_the_way_a_request_is_encoded_does_not_depend_on_samples(bits, monkeypatch) -> None:
    """A server that chooses the scale of its plan could put the border between two ways next to a feature."""
    made = plan(FIT, samples=4, layout="batch", precision="fast", replies="plain")
    if bits is not None:
        domain = dataclasses.replace(made.domain, bound=1e-60)
        scales = dataclasses.replace(made.scales, x=bits, w=0, v=0)
        wide = chain(16384, (31,) * 8)
        made = dataclasses.replace(made, domain=domain, scales=scales, chain=wide, per_request=wide.slots)
    low, high = made.domain.box
    tiny = np.clip(np.full((1, 3), 1e-9), low, high)
    shown = [np.clip(np.zeros((1, 3)), low, high), tiny, high[None], low[None], np.array([[low[0], 0.0, 0.0]])]
    first = steps_of(made, shown[0], monkeypatch)
    assert first
    assert all(steps_of(made, X, monkeypatch) == first for X in shown[1:])
