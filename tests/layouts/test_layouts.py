"""A layout is one entry of the registry: a toy one works everywhere without another line changed."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from quad4fhe import Client, InputError, Plan, Server, describe, plan
from quad4fhe.he import container
from quad4fhe.he.canaries import Known, Mixture
from quad4fhe.he.container import Identity, Kind, Request
from quad4fhe.he.predict import predict_encrypted
from quad4fhe.layouts import LAYOUTS, layout_of
from quad4fhe.layouts.batch.layout import BatchLayout
from quad4fhe.layouts.forms import Form, Part
from quad4fhe.planning.simulate import SimulatedClient, SimulatedServer, run
from quad4fhe.planning.target import Choice, Question
from support.standins import StandInFit, random_model, random_samples, stand_in


class Toy(BatchLayout):
    """Layout batch under another name, at no cost."""

    name = "toy"
    purpose = "a layout of the tests"

    def search(self, question: Question) -> list[Choice]:
        free = [replace(choice, layout="toy") for choice in super().search(question)]
        for choice in free:
            choice.__dict__["cost"] = replace(choice.cost, client_seconds=0.0, server_seconds=0.0)
        return free


@pytest.fixture
def toy() -> Iterator[None]:
    with LAYOUTS.added("toy", Toy()):
        yield


@pytest.fixture(scope="module")
def fit() -> StandInFit:
    return stand_in(random_model(3, 6, 2), random_samples(200, 3))


@pytest.mark.usefixtures("toy")
def test_a_toy_layout_is_planned_simulated_encrypted_and_sent(fit: StandInFit) -> None:
    made = plan(fit, samples=4, precision="fast")
    assert made.layout == "toy"
    assert Plan.from_json(json.dumps(made.to_dict()).encode()) == made
    assert describe(made)
    X = random_samples(4, 3, seed=5).clip(*fit.box)
    run(SimulatedClient(made), SimulatedServer(fit, made), X)
    assert (predict_encrypted(fit, made, X).decisions == fit.model.decide(X)).all()
    client, server = Client(made), Server(fit, made)
    server.warm_up()
    (request,) = client.encrypt(X)
    data = b"".join(container.write_request(made, request))
    assert len(data) == container.size(made, Kind.request)
    reply = server.evaluate(container.read_request(made, io.BytesIO(data)))
    assert (client.decide(reply) == fit.model.decide(X)).all()
    assert Mixture(made, X, Known(X, fit.model.logits(X)), 2).requests == 1


def test_a_plan_of_an_unknown_layout_can_not_be_read(fit: StandInFit) -> None:
    with LAYOUTS.added("toy", Toy()):
        made = plan(fit, samples=4, layout="toy", precision="fast")
    with pytest.raises(InputError, match="layout is 'toy', wanted"):
        Plan.from_dict(made.to_dict())


def test_the_words_of_a_plan_are_short(fit: StandInFit) -> None:
    made = plan(fit, samples=4, layout="batch", precision="fast")
    assert len(repr(made)) < 160
    assert str(made.domain.low[0]) not in repr(made.domain)


def test_forecast_bytes_are_those_of_the_forms(fit: StandInFit) -> None:
    for name in LAYOUTS.names():
        made = plan(fit, samples=1, layout=name, precision="fast")
        layout = layout_of(made)
        kinds = (Kind.request, Kind.reply, Kind.keys)
        sizes = [0 if (form := layout.form(made, kind)) is None else form.payload for kind in kinds]
        bill = made.forecast
        assert [bill.upload_bytes, bill.download_bytes, bill.key_bytes] == sizes
        assert (layout.memory(made, 2) > layout.memory(made, 1)) == layout.has_keys(made)


SEEDED = Form((Part((2, 32), (), 1), Part((3, 1, 2, 4), (17, 97), 4, step=2)))


def test_a_message_may_have_several_parts() -> None:
    seeds = np.arange(64, dtype=np.uint8).reshape(2, 32)
    rows = np.arange(24, dtype=np.uint32).reshape(3, 1, 2, 4) % 17
    assert SEEDED.payload == 64 + 96
    assert [chunk.shape for chunk in SEEDED.checked("it", [seeds, rows[:2], rows[2:]])] == [
        (2, 32),
        (2, 1, 2, 4),
        (1, 1, 2, 4),
    ]
    for wrong, message in (
        ([seeds], "no rows, wanted 3"),
        ([seeds, rows[:2]], "2 rows, wanted 3"),
        ([seeds, rows, rows], "6 rows, wanted 3"),
        ([rows[:2], seeds], "wanted uint8"),
        ([seeds, rows + np.uint32(17)], "not below its prime 17"),
    ):
        with pytest.raises(InputError, match=message):
            list(SEEDED.checked("it", wrong))


def test_residues_are_checked_once(fit: StandInFit, monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan(fit, samples=4, layout="batch", precision="fast")
    client, server = Client(made), Server(fit, made)
    (request,) = client.encrypt(random_samples(4, 3).clip(*fit.box))
    data = b"".join(container.write_request(made, request))
    seen: list[str] = []
    inner = Part.check
    monkeypatch.setattr(Part, "check", lambda self, name, chunk: (seen.append(name), inner(self, name, chunk))[1])
    reply = server.evaluate(container.read_request(made, io.BytesIO(data)))
    assert seen == ["the request"] * 2  # the seed, and the residues
    back = container.read_reply(made, io.BytesIO(b"".join(container.write_reply(made, reply))))
    client.decrypt(back)
    assert seen == ["the request", "the request", "the reply"]


def test_chunks_checked_for_one_form_are_checked_again_for_another(fit: StandInFit) -> None:
    made = plan(fit, samples=4, layout="batch", precision="fast")
    other = Form.of((1, 2, 1, made.chain.ring), (2**20,))
    chunks = other.checked("the request", [np.ones((1, 2, 1, made.chain.ring), dtype=np.uint32)])
    with pytest.raises(InputError, match="the request is"):
        Server(fit, made).evaluate(Request(Identity.of(made, bytes(16)), chunks))
