"""A layout is one entry of the registry: a toy one works everywhere without another line changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from quad4fhe import Client, InputError, Plan, describe, plan
from quad4fhe.he import message
from quad4fhe.he.canaries import Known, Mixture
from quad4fhe.he.predict import predict_encrypted
from quad4fhe.he.session import Server
from quad4fhe.layouts import LAYOUTS, layout_of
from quad4fhe.layouts.batch.layout import BatchLayout
from quad4fhe.layouts.forms import Kind
from quad4fhe.planning.target import Choice, Question
from support.standins import StandInFit, random_model, random_samples, stand_in


class Toy(BatchLayout):
    """Layout batch under another name, at no cost."""

    name = "toy"
    purpose = "a layout of the tests"

    def search(self, question: Question) -> list[Choice]:
        nothing = dict.fromkeys(("client_seconds", "server_seconds", "upload_bytes", "download_bytes"), 0)
        return [replace(c, layout="toy", cost=replace(c.cost, **nothing)) for c in super().search(question)]


@pytest.fixture
def toy() -> Iterator[None]:
    with LAYOUTS.added("toy", Toy()):
        yield


@pytest.fixture(scope="module")
def fit() -> StandInFit:
    return stand_in(random_model(3, 6, 2), random_samples(200, 3))


@pytest.mark.usefixtures("toy")
def test_a_toy_layout_is_planned_encrypted_and_sent(fit: StandInFit) -> None:
    made = plan(fit, samples=4, precision="fast")
    assert made.layout == "toy"
    assert Plan.from_json(json.dumps(made.to_dict()).encode()) == made
    assert describe(made)
    X = random_samples(4, 3, seed=5).clip(*fit.box)
    assert (predict_encrypted(fit, made, X).decisions == fit.model.decide(X)).all()
    client, server = Client(made), Server(fit, made)
    server.warm_up()
    request = client.encrypt(X)
    assert len(request) == message.size(made, Kind.request)
    assert (client.decide(server.answer(request)) == fit.model.decide(X)).all()
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
        bill, sizes = made.forecast, [layout.form(made, kind).payload for kind in Kind]
        assert [bill.upload_bytes, bill.download_bytes] == sizes
        assert layout.memory(made) > 2 * sum(sizes)
