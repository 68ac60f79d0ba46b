"""Canaries find out a server that computes something else, and an honest one passes; all with real encryption."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import poisson

from quad4fhe import Fit, InputError, PolynomialModel
from quad4fhe.cli import main
from quad4fhe.he.canaries import Known, Mixture
from quad4fhe.he.session import Client, ReplyError
from quad4fhe.layouts.planner import plan
from quad4fhe.planning.plan import Plan
from quad4fhe.serve.client import Remote
from support.exchange import connect, run
from support.hostile import HostileServer, evaluating, zeros
from support.serving import inside, small_fit
from support.standins import SHARED, random_model, stand_in

RUNS, COUNT = 10, 32


@pytest.fixture(scope="module")
def fit() -> Fit:
    return small_fit(4, 8, 3, seed=1)


@pytest.fixture(scope="module")
def made(fit: Fit) -> Plan:
    return plan(fit, samples=2048, layout="batch", precision="fast", replies="plain")  # a request of 2,048


@pytest.fixture(scope="module")
def known(fit: Fit) -> Known:
    X = np.random.default_rng(8).uniform(*fit.box, size=(200, fit.model.features))
    return Known(X, fit.model.logits(X))


def scaled(model: PolynomialModel, factor: float) -> PolynomialModel:
    return PolynomialModel.quadratic(model.W1, model.b1, factor * model.S, factor * model.T, factor * model.c)


def test_an_honest_server_passes_and_rows_come_back_in_order(fit: Fit, made: Plan, known: Known) -> None:
    for n in (1, made.per_request - COUNT, made.per_request + 5):
        X = inside(fit, n)
        with HostileServer({}, evaluating(fit, made)) as server, Remote(server.url, plan=made) as remote:
            found = remote.predict(X, known=known, canaries=COUNT)
        assert np.mean(found.decisions == fit.model.decide(X)) > 0.998
        logits = fit.model.logits(X)
        assert np.abs(found.logits - logits + logits.mean(axis=1, keepdims=True)).max() <= made.error.bound
        assert found.requests == server.posts() == -(-n // (made.per_request - COUNT))


@pytest.mark.parametrize("lie", ["zeros", "weights", "another"])
def test_a_server_that_lies_is_detected_in_ten_runs_of_ten(fit: Fit, made: Plan, known: Known, lie: str) -> None:
    answer = {
        "zeros": lambda: zeros(made),
        "weights": lambda: evaluating(fit, made, scaled(fit.model, 1.05)),
        "another": lambda: evaluating(fit, made, small_fit(4, 8, 3, seed=2).model),
    }[lie]()
    X = inside(fit, 100)
    caught = 0
    with HostileServer({}, answer) as server, Remote(server.url, plan=made) as remote:
        for _ in range(RUNS):
            with pytest.raises(ReplyError, match="canaries have wrong logits"):
                remote.predict(X, known=known, canaries=COUNT)
            caught += 1
        assert len(remote.predict(X).decisions) == 100  # without canaries none of it is noticed
    assert caught == RUNS


@pytest.mark.parametrize("name", ["breast_cancer", "shuttle"])
@pytest.mark.parametrize("calibrated", [True, False])
def test_trained_models_raise_no_alarm_and_other_weights_do(trained, name: str, calibrated: bool) -> None:
    data = trained(name)
    model = PolynomialModel.shared(data.mlp, *SHARED[name])
    X = data.X_cal[:1500].astype(np.float64)
    honest = stand_in(model, X)
    made = plan(honest, samples=2048, layout="batch", precision="strict", X=X if calibrated else None)
    pairs = Known(X, model.logits(X))
    answers = {"honest": evaluating(honest, made), "weights": evaluating(honest, made, scaled(model, 1.05))}
    client = Client(made)
    for _ in range(RUNS):
        mixture = Mixture(made, X[:50], pairs, COUNT)
        for name, answer in answers.items():
            (block,) = mixture.blocks()
            _, reply = answer(0, client.encrypt(block))
            logits = client.read(reply)
            if name == "honest":
                mixture.read(logits)
            else:
                with pytest.raises(ReplyError, match="canaries have wrong logits"):
                    mixture.read(logits)


def test_what_the_server_sees_does_not_depend_on_the_canaries_outcome(fit: Fit, made: Plan, known: Known) -> None:
    X = inside(fit, 2 * made.per_request)
    transcripts = []
    for answer in (evaluating(fit, made), zeros(made)):
        with HostileServer({}, answer) as server, Remote(server.url, plan=made) as remote:
            try:
                remote.predict(X, known=known, canaries=COUNT)
            except ReplyError:
                assert transcripts
            transcripts.append(server.seen)
    assert transcripts[0] == transcripts[1]
    assert server.posts() == 3


def places(mixture: Mixture) -> Any:
    return mixture._places


def test_samples_and_canaries_lie_anywhere_and_each_time_elsewhere(fit: Fit, made: Plan, known: Known) -> None:
    X = inside(fit, 3000)
    seen = np.zeros(made.per_request)
    for _ in range(200):
        drawn = places(Mixture(made, X, known, COUNT))
        assert sorted(drawn[drawn >= 0]) == list(range(3000))
        assert ((drawn < -1).sum(axis=1) == COUNT).all()
        assert all(len(set(row[row < -1])) == COUNT for row in drawn)
        seen += (drawn < -1).sum(axis=0)
    expected = 200 * 2 * COUNT / made.per_request
    # Poisson counts of mean 6.25: their variance is their mean where places are uniform.
    assert 0.8 < seen.var() / expected < 1.2
    assert seen.max() <= poisson.isf(1e-9 / made.per_request, expected)
    other = places(Mixture(made, X, known, COUNT))
    assert np.mean(other == drawn) < 0.5
    orders = [row[row >= 0] for row in (drawn.ravel(), other.ravel())]
    assert np.mean(orders[0] == orders[1]) < 0.01


def test_one_wrong_slot_is_missed_as_often_as_the_documents_say(fit: Fit, made: Plan, known: Known) -> None:
    """A lie in L of S slots meets none of R canaries with probability C(S - L, R) / C(S, R)."""
    slots, lies, draws, X = made.per_request, 64, 2500, inside(fit, 10)
    wanted = np.prod([(slots - lies - i) / (slots - i) for i in range(COUNT)])
    missed = sum(not (places(Mixture(made, X, known, COUNT))[0, :lies] < -1).any() for _ in range(draws))
    assert abs(missed / draws - wanted) < 6.2 * np.sqrt(wanted * (1 - wanted) / draws)  # about 0.06


def test_wrong_canaries_are_refused_before_anything_is_sent(fit: Fit, made: Plan, known: Known) -> None:
    X = inside(fit, 2)
    single = plan(fit, samples=1, layout="lift", precision="fast")
    outside = Known(known.X + 100, known.logits)
    with HostileServer(made.to_dict(), zeros(made)) as server:
        with Remote(server.url, plan=made) as remote:
            for arguments, said in (
                ({"canaries": 3}, "need both"),
                ({"known": known}, "need both"),
                ({"known": known, "canaries": 201}, "got 200; give more"),
                ({"known": known, "canaries": made.per_request}, "room for samples"),
                ({"known": outside, "canaries": 3}, "the known samples: .*outside the box"),
                ({"known": Known(known.X, known.logits[:, :2]), "canaries": 3}, "use known samples of this model"),
            ):
                with pytest.raises(InputError, match=said):
                    remote.predict(X, **arguments)
        with Remote(server.url, plan=single) as remote, pytest.raises(InputError, match="layout batch"):
            remote.predict(X, known=known, canaries=3)
        assert server.seen == []
        # A plan of the server's own would bring a tolerance of the server's own.
        with Remote(server.url, model=fit.model_id) as remote, pytest.raises(InputError, match="pin the plan"):
            remote.predict(X, known=known, canaries=3)
        assert server.posts() == 0
    with pytest.raises(InputError, match="one row for each"):
        Known(known.X, known.logits[:-1])


def test_the_command_line_makes_known_samples_and_checks_with_them(
    fit: Fit, made: Plan, tmp_path: Path, capsys
) -> None:
    fit.save(tmp_path / "fit.safetensors")
    np.save(tmp_path / "x.npy", inside(fit, 60))
    (tmp_path / "plan.json").write_text(json.dumps(made.to_dict()))
    words = ["predict", str(tmp_path / "fit.safetensors"), str(tmp_path / "x.npy"), "-o", str(tmp_path / "known.npz")]
    assert main(words) == 0
    assert main([*words, "--encrypted"]) == 2
    assert "exact logits" in capsys.readouterr().err
    options = ["--plan", str(tmp_path / "plan.json"), "--canaries", "32", "--known", str(tmp_path / "known.npz")]
    with HostileServer({}, evaluating(fit, made)) as server:
        assert main(["query", server.url, str(tmp_path / "x.npy"), *options]) == 0
        assert "32 in each request, all with the known logits" in capsys.readouterr().out
        server.answer = zeros(made)
        assert main(["query", server.url, str(tmp_path / "x.npy"), *options]) == 2
        out, err = capsys.readouterr()
    assert "32 of 32 canaries have wrong logits" in err
    assert out == ""
    assert main(["query", server.url, str(tmp_path / "x.npy"), *options[:4]]) == 2
    assert main(["query", server.url, str(tmp_path / "x.npy"), *options[:4], "--known", str(tmp_path / "x.npy")]) == 2


def test_a_lie_about_a_class_that_no_canary_is_near_is_detected(fit: Fit, made: Plan, known: Known) -> None:
    """The difference that decides does not see it, and the class wins elsewhere."""
    mixture = Mixture(made, inside(fit, 50), known, COUNT)
    honest = np.zeros((made.per_request, made.shape.outputs))
    hidden = places(mixture)[0] < -1
    honest[hidden] = known.centred()[-2 - places(mixture)[0][hidden]]
    mixture.read(honest)
    lowest = int(np.argmin(known.centred().max(axis=0)))
    lie = honest.copy()
    lie[:, lowest] += 2 * mixture.tolerance_alone
    with pytest.raises(ReplyError, match="canaries have wrong logits"):
        mixture.read(lie)


def test_the_bounds_that_canaries_are_judged_by_are_pinned_with_the_plan(made: Plan) -> None:
    """A server that sent the true plan with a bound of its own had the same hash."""
    for change in ({"bound": 1e30}, {"logit": 1e30}):
        assert replace(made, error=replace(made.error, **change)).sha256 != made.sha256


def test_known_samples_beyond_the_calibration_set_accuse_no_server_with_certainty() -> None:
    """Where a plan bounds errors at the calibration samples, an honest reply can be further off elsewhere."""
    rng = np.random.default_rng(6)
    X = rng.normal(size=(300, 20))
    own = stand_in(random_model(20, 8, 1), X)
    at_samples = plan(own, samples=1000, X=X, layout="batch", precision="fast")
    anywhere = plan(own, samples=1000, layout="batch", precision="fast")
    corners = np.where(rng.random((40, 20)) < 0.5, *at_samples.domain.box)
    for made, rows in ((at_samples, X[:40]), (anywhere, corners), (at_samples, corners)):
        mixture = Mixture(made, X[:10], Known(rows, own.model.logits(rows)), 40)
        client, server = connect(own, made)
        logits = np.concatenate([run(client, server, block) for block in mixture.blocks()])
        if made is at_samples and rows is corners:
            with pytest.raises(ReplyError, match="or the known samples are not the calibration samples"):
                mixture.read(logits)
        else:
            assert mixture.read(logits).shape == (10, 1)
