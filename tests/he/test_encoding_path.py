"""How a sample is encoded, and so how long it takes, follows from the plan's box and never from the sample."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from quad4fhe.he import seal
from quad4fhe.he.seal import Context, SecretKey
from quad4fhe.he.session import Client
from quad4fhe.layouts.planner import plan
from quad4fhe.planning.chains import chain
from quad4fhe.planning.plan import Plan
from support.standins import random_model, random_samples, stand_in

FIT = stand_in(random_model(3, 8, 3), random_samples(200, 3))


@pytest.fixture(params=["compiled", "by SEAL"])
def transforms(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What transforms coefficients: numba's kernels, or SEAL where numba is not installed."""
    if request.param == "compiled":
        pytest.importorskip("numba", reason="numba is not installed: the extra 'fast' has the compiled kernels")
    else:
        monkeypatch.setattr(Context, "_compiled", None)
    return str(request.param)


def steps_of(made: Plan, X: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """The steps of the encoder that a request takes, and what decides between them."""
    seen: list[tuple[object, ...]] = []
    residues, modulo = Context.residues, seal.modulo

    def spied(context, coefficients, drops=0, size=None):
        seen.append(("residues", len(coefficients)))
        return residues(context, coefficients, drops, size)

    def spied_modulo(coefficients, primes, size):
        seen.append(("modulo", len(coefficients), size))
        return modulo(coefficients, primes, size)

    with monkeypatch.context() as patch:
        patch.setattr(Context, "residues", spied)
        patch.setattr(seal, "modulo", spied_modulo)
        Client(made).encrypt(X)
    return seen


@pytest.mark.parametrize("layout", ["batch", "packed"])
@pytest.mark.parametrize("bits", [None, 30, 39, 48, 52, 56])
def test_the_way_a_request_is_encoded_does_not_depend_on_samples(transforms, layout, bits, monkeypatch) -> None:
    """A server that chooses the scale of its plan could put the border between two ways next to a feature."""
    made = plan(FIT, samples=4, layout=layout, precision="fast")
    if bits is not None:
        domain = dataclasses.replace(made.domain, bound=1e-60)
        scales = dataclasses.replace(made.scales, x=bits, w=0, v=0)
        wide = chain(16384, (31,) * 8) if layout == "batch" else made.chain
        made = dataclasses.replace(
            made,
            domain=domain,
            scales=scales,
            chain=wide,
            per_request=wide.slots if layout == "batch" else made.per_request,
        )
    low, high = made.domain.box
    tiny = np.clip(np.full((1, 3), 1e-9), low, high)
    shown = [np.clip(np.zeros((1, 3)), low, high), tiny, high[None], low[None], np.array([[low[0], 0.0, 0.0]])]
    first = steps_of(made, shown[0], monkeypatch)
    assert all(steps_of(made, X, monkeypatch) == first for X in shown[1:])
    if bits is not None:
        assert bool(first) == (bits > 40 or transforms == "compiled")


@pytest.mark.parametrize("bits", [30, 45, 55, 60])
@pytest.mark.usefixtures("transforms")
def test_every_way_encodes_the_same_numbers(bits: int) -> None:
    key = SecretKey(Context(chain(8192, (56, 56, 40), 60)))
    values = np.random.default_rng(0).uniform(-1, 1, size=(5, 4096))
    values[2] = 0.0
    for reach in (None, 1.0, 2.0):
        plains = key.context.dithered(values, 2.0**bits, reach=reach)
        found = np.stack([key.context.encoder.decode(plain) for plain in plains])
        assert np.abs(found - values).max() < 2.0 ** (8 - min(bits, 40))
        assert not found[2].any()
