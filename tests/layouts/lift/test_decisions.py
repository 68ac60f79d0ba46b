"""Decisions only: the sign of a score is kept, its size hardly told."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from quad4fhe import InputError
from quad4fhe.he.container import Reply
from quad4fhe.he.session import Client, ReplyError, connect
from quad4fhe.layouts.lift import decisions
from quad4fhe.layouts.planner import plan
from quad4fhe.mlp import decide
from quad4fhe.planning.describe import describe
from quad4fhe.planning.plan import Plan
from support.standins import StandInFit, random_model, random_samples, stand_in


def fit_of(outputs: int, features: int = 5) -> StandInFit:
    return stand_in(random_model(features, 6, outputs), random_samples(300, features))


def planned(fit: StandInFit) -> Plan:
    return plan(fit, samples=1, layout="lift", replies="decisions", X=random_samples(300, fit.model.features))


@pytest.mark.parametrize(("outputs", "features"), [(1, 5), (2, 5), (2, 60)])
def test_no_decision_changes_and_no_size_is_told_twice(outputs: int, features: int) -> None:
    fit = fit_of(outputs, features)
    made = planned(fit)
    assert made.kept
    assert made.settings["security"] >= 40
    assert made.reliable is None
    client, server = connect(fit, made)
    X = random_samples(300, features)[:40]
    found = np.concatenate([client.decrypt(server.evaluate(client.encrypt(x[None])[0])) for x in X])
    assert (decide(found) == fit.model.decide(X)).all()
    exact = fit.model.logits(X)
    exact -= 0.0 if outputs == 1 else exact.mean(axis=1, keepdims=True)
    factors = found[:, 0] / exact[:, 0]
    assert factors.min() > 2**7.5
    assert factors.max() < 2**24.5
    assert np.log2(factors.max() / factors.min()) > 8


def test_factors_are_even_in_their_logarithm_and_never_small() -> None:
    logs = np.log2([decisions.draw_factor() for _ in range(30_000)])
    assert logs.min() >= decisions.LEAST_FACTOR
    assert logs.max() < decisions.LARGEST_FACTOR
    share = (logs - decisions.LEAST_FACTOR) / decisions.SPREAD
    assert abs(share.mean() - 0.5) < 6.2 / np.sqrt(12 * 30_000)
    # 16 binomial counts of mean 1,875: 0.15 is 6.7 deviations.
    assert np.abs(np.histogram(share, bins=16, range=(0, 1))[0] / 1875 - 1).max() < 0.15


def test_two_replies_to_one_request_share_nothing_but_the_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = fit_of(2)
    made = planned(fit)
    client, server = connect(fit, made)
    request = client.encrypt(random_samples(300, 5)[:1])[0]
    # The sum of the two answers is the offset and fresh noise, whatever the factor.
    sums = []
    for factor in (2**8, 2**24 - 1):
        monkeypatch.setattr(decisions, "draw_factor", lambda factor=factor: factor)
        reply = server.evaluate(request)
        answers, plausible = client._layout.decrypt(client._secret, made, reply.chunks)
        assert plausible
        sums.append(float(answers.sum()))
    assert max(map(abs, sums)) <= made.settings["tolerance"]


def test_a_wrong_key_and_an_empty_reply_are_noticed() -> None:
    fit = fit_of(2)
    made = planned(fit)
    client, server = connect(fit, made)
    request = client.encrypt(fit.box[:1])[0]
    reply = server.evaluate(request)
    other = Client(made)
    other._key_id = client.key_id
    other.reopen(reply.identity.nonce, 1)
    with pytest.raises(ReplyError, match="does not decrypt"):
        other.decrypt(reply)
    with pytest.raises(ReplyError, match="does not decrypt"):
        client.decrypt(Reply(reply.identity, [np.zeros_like(chunk) for chunk in reply.chunks]))
    client.decrypt(reply)


def test_more_than_two_classes_are_refused_with_the_reason() -> None:
    with pytest.raises(InputError, match=r"two classes, and this model has 3.*3 pairs; take replies='private'"):
        planned(fit_of(3))
    with pytest.raises(InputError, match="wanted one of plain"):
        plan(fit_of(2), samples=1, layout="packed", replies="decisions")


@pytest.mark.parametrize(
    "change",
    [{"factor": None}, {"factor": 4}, {"factor": 60}, {"replies": "private"}, {"group": 2}, {"flood": 30}],
)
def test_a_plan_without_a_proper_factor_is_refused(change: dict[str, Any]) -> None:
    made = planned(fit_of(2))
    assert "replies decisions" in describe(made)
    with pytest.raises(InputError, match="plan again"):
        dataclasses.replace(made, settings={**made.settings, **change})


@pytest.mark.parametrize("q", [2**45 - 229375, 1125899906826241])
def test_masks_times_a_factor_are_exact(q: int) -> None:
    values = np.random.default_rng(0).integers(0, q, 500, dtype=np.uint64)
    for factor in (256, 12345, 2**24 - 1):
        wanted = [int(v) * factor % q for v in values]
        assert decisions._times(values, factor, q).tolist() == wanted
