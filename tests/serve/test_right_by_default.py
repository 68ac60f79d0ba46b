"""A bare server hides its weights, and a client that names no layout gets the one that sends the fewest bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from quad4fhe import Fit, InputError, plan
from quad4fhe.he import message
from quad4fhe.he.message import Kind
from quad4fhe.serve.client import Remote, cheapest
from quad4fhe.serve.models import HostedModel
from support.serving import RunningServer, inside, until
from support.standins import random_model, random_samples, stand_in

PLAIN = "plain replies: any client learns the weights of fit from a few of them"


@pytest.fixture(scope="module")
def bare(fitted: tuple[Path, Fit]) -> Iterator[RunningServer]:
    with RunningServer(fitted[0], "--workers", "1", plain=False) as running:
        yield running


def test_a_bare_server_offers_private_replies_alone(bare: RunningServer) -> None:
    (listed,) = bare.document["models"]
    assert {"lift", "batch"} <= set(listed["layouts"])
    for layout in listed["layouts"]:
        with Remote(bare.url, model=listed["id"], layout=layout) as remote:
            assert remote.plan.settings["replies"] == "private"
    assert not any("plain replies" in line for line in bare.log)


def test_few_rows_travel_in_lift_and_many_in_one_batch(bare: RunningServer, fitted: tuple[Path, Fit]) -> None:
    fit = fitted[1]
    with Remote(bare.url) as remote:
        for rows, layout in ((2, "lift"), (2000, "batch"), (1, "lift")):
            X = inside(fit, rows)
            found = remote.predict(X)
            assert remote.plan.layout == layout
            assert found.requests == -(-rows // remote.plan.per_request)
            assert (found.decisions == fit.model.decide(X)).all()


def test_plain_replies_come_alone_when_asked_for_and_say_what_they_give_away(fitted: tuple[Path, Fit]) -> None:
    with RunningServer(fitted[0], "--workers", "1", "--replies", "plain") as running:
        for layout in running.document["models"][0]["layouts"]:
            with Remote(running.url, layout=layout) as remote:
                assert remote.plan.plain
        until(lambda: any(line.endswith(PLAIN) for line in running.log))


def test_a_model_never_has_plain_and_private_replies_at_once(fitted: tuple[Path, Fit]) -> None:
    fit = fitted[1]
    both = plan(fit, samples=1, layout="lift"), plan(fit, samples=9, layout="batch", replies="plain")
    with pytest.raises(InputError, match=r"plain replies \(layout batch\) give away .* --replies private"):
        HostedModel(fit, both)


@pytest.mark.parametrize("private", [False, True])
def test_the_layout_of_the_fewest_bytes_is_taken(private: bool) -> None:
    fit = stand_in(random_model(64, 32, 3), random_samples(300, 64))
    replies = "private" if private else "plain"
    plans = [plan(fit, samples=100, layout=layout, replies=replies) for layout in ("lift", "batch")]
    chosen = [cheapest(plans, rows).layout for rows in (1, 5, 5000)]
    assert chosen == ["lift", "lift", "batch"]
    for rows, layout in zip((1, 5, 5000), chosen, strict=True):
        sent = {one.layout: -(-rows // one.per_request) * message.size(one, Kind.request) for one in plans}
        assert layout == min(sent, key=sent.__getitem__)
    switch = next(rows for rows in range(1, 5000) if cheapest(plans, rows).layout == "batch")
    assert all(cheapest(plans, rows).layout == "batch" for rows in np.arange(switch, 5 * switch))
