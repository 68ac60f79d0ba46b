from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from quad4fhe import MLP, Fit, InputError, PolynomialModel, fit
from quad4fhe.layouts import layout_of
from quad4fhe.layouts.batch.costs import batch_forecast, batch_seconds
from quad4fhe.layouts.batch.layout import BatchLayout
from quad4fhe.layouts.batch.search import batch_chains, prove
from quad4fhe.layouts.planner import plan
from quad4fhe.names import Names
from quad4fhe.planning.bounds import bound
from quad4fhe.planning.chains import SECURE_BITS
from quad4fhe.planning.costs import REFERENCE, Shape
from quad4fhe.planning.describe import describe
from quad4fhe.planning.fold import fold
from quad4fhe.planning.integers import quantise
from quad4fhe.planning.noise import decoding_error
from quad4fhe.planning.plan import Plan
from quad4fhe.planning.target import allowed_changes
from support.standins import StandInFit, random_model, random_samples, stand_in


@pytest.fixture(scope="module")
def small() -> StandInFit:
    return stand_in(random_model(8, 24, 4), random_samples(600, 8))


@pytest.fixture(scope="module")
def small_plan(small: StandInFit) -> Plan:
    return plan(small, samples=100, layout="batch")


@pytest.mark.parametrize("layout", ["batch", "lift"])
@pytest.mark.parametrize("precision", ["strict", "fast"])
@pytest.mark.parametrize("with_samples", [True, False])
def test_every_plan_is_secure_and_cannot_overflow_on_its_box(small, layout, precision, with_samples) -> None:
    X = random_samples(600, 8) if with_samples else None
    made = plan(small, samples=50, layout=layout, precision=precision, X=X)
    assert made.chain.bits <= SECURE_BITS[made.chain.ring]
    circuit = fold(small.model, made.domain.box, made.settings.get("form", "skip"))
    if layout == "batch":
        circuit = quantise(circuit, made.scales).dequantised()
    corners = np.random.default_rng(0).choice([0.0, 1.0], size=(500, 8))
    box = made.domain.box
    reached = np.abs(circuit.logits(box[0] + corners * (box[1] - box[0]))).max()
    assert reached <= made.domain.bound
    assert 2 * made.domain.bound * 2.0 ** layout_of(made).reply_scale(made) <= made.chain.modulus
    assert bound(circuit, box).logit <= made.domain.bound * 1.01


@pytest.mark.parametrize("with_samples", [True, False])
def test_strict_leaves_no_calibration_decision_closer_than_its_error(small, with_samples) -> None:
    made = plan(small, samples=50, layout="batch", X=random_samples(600, 8) if with_samples else None)
    assert made.kept
    assert made.error.close == ()
    if not with_samples:
        assert made.error.bound < made.smallest_margin
    assert "none can change" in describe(made)


def test_samples_at_hand_make_the_plan_no_dearer(small) -> None:
    blind = plan(small, samples=50, layout="batch")
    seeing = plan(small, samples=50, layout="batch", X=random_samples(600, 8))
    assert seeing.forecast.seconds <= blind.forecast.seconds


def test_a_chain_that_decodes_coarsely_is_passed_over(monkeypatch) -> None:
    draw = np.random.default_rng(7)
    X = draw.standard_normal((200, 4))
    mlp = MLP(draw.standard_normal((12, 4)), draw.standard_normal(12), draw.standard_normal((3, 12)), np.zeros(3))
    fitted = fit(mlp, X, family="unitwise", degree=4)
    usual = plan(fitted, samples=8, X=X, layout="batch")
    assert not usual.error.close

    def coarse(made, out, slot):  # SEAL rounds at the highest word of a modulus, if that word is nearly empty
        return decoding_error(made, out, slot) + 100.0 * (made.bits == usual.chain.bits)

    monkeypatch.setattr("quad4fhe.layouts.batch.decoding.decoding_error", coarse)
    other = plan(fitted, samples=8, X=X, layout="batch")
    assert other.chain.bits != usual.chain.bits
    assert not other.error.close
    assert other.error.bound < 1


def test_fast_is_no_dearer_than_strict_and_expects_less_than_one_in_a_thousand(small) -> None:
    fast = plan(small, samples=50, layout="batch", precision="fast")
    assert fast.forecast.seconds <= plan(small, samples=50, layout="batch").forecast.seconds
    assert fast.error.changes <= allowed_changes(600) <= 0.6


def test_ties_are_named_and_do_not_stop_the_plan(small) -> None:
    margins = small.margins.copy()
    margins[[3, 77]] = 0.0
    made = plan(dataclasses.replace(small, margins=margins), samples=10, layout="batch")
    assert made.error.close == (3, 77)
    assert not made.kept
    words = describe(made)
    assert "2 of 600 calibration decisions lie closer" in words
    assert "samples 3, 77" in words


def test_auto_takes_lift_for_one_query_and_batch_for_many(small) -> None:
    assert plan(small, samples=1).layout == "lift"
    assert plan(small, samples=9000).layout == "batch"


def test_a_plan_goes_through_json_and_back(small_plan: Plan) -> None:
    again = Plan.from_dict(json.loads(json.dumps(small_plan.to_dict())))
    assert again == small_plan
    assert again.sha256 == small_plan.sha256


def test_a_plan_file_that_was_tampered_with_is_refused(small_plan: Plan) -> None:
    for change, message in (
        (lambda d: d["scales"].update(v=d["scales"]["v"] + 20), "overflow"),
        (lambda d: d["domain"].update(bound=d["domain"]["bound"] * 1e6), "overflow"),
        (lambda d: d["chain"].update(ring=2048), "not a prime|secure"),
        (lambda d: d["chain"]["primes"].append(d["chain"]["primes"][0]), "distinct"),
        (lambda d: d.update(version=1), r"version 1, .* version 2; plan again: quad4fhe plan FIT --json > plan.json"),
        (lambda d: d.update(layout="diagonal"), "layout is 'diagonal', wanted"),
        (lambda d: d.update(per_request=3), "one a slot"),
        (lambda d: d["settings"].update(form="cube"), "settings of this plan are not those of layout batch"),
        (lambda d: d["settings"].update(more=1), "settings of this plan are not those of layout batch"),
        (lambda d: d.update(settings={}), "settings of this plan are not those of layout batch"),
        (lambda d: d["domain"].update(low=d["domain"]["low"][:-1]), "features"),
    ):
        data = json.loads(json.dumps(small_plan.to_dict()))
        change(data)
        with pytest.raises(InputError, match=message):
            Plan.from_dict(data)


def test_nothing_that_a_plan_says_can_change_under_its_hash() -> None:
    """A fast plan was shown as strict, with a promise of its own, under the hash that clients compare."""
    made = plan(promised(), samples=50, layout="lift")
    document = made.to_dict()
    accepted = set()
    for path in leaves(document):
        forged = json.loads(json.dumps(document))
        place = forged
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = other_than(place[path[-1]])
        try:
            assert Plan.from_dict(forged).sha256 != made.sha256, path
            accepted.add(path[0])
        except InputError:
            pass  # no plan at all
    read = {"precision", "samples", "calibration", "smallest_margin", "forecast", "promise", "room"}
    assert accepted >= read | {"model_id", "error", "domain", "clip"}


def promised() -> Fit:
    X = random_samples(900, 4)
    mlp = MLP(*(np.random.default_rng(3).normal(size=shape) for shape in ((8, 4), (8,), (3, 8), (3,))))
    names = Names(("a", "b", "c", "d"), ("x", "y", "z"))
    return fit(mlp.named(names), X, family="shared", holdout=0.5, fresh=True, reliable=0.9)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list) and value:
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(each, (*path, key))
    else:
        yield path


def other_than(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        others = {"strict": "fast", "fast": "strict"}
        return others.get(value, ("0" if value[:1] != "0" else "1") + value[1:])
    if isinstance(value, list):
        return [*value, 0]
    return value * 0.999 + (value == 0) if isinstance(value, float) else (value or 0) + 1


def test_the_hash_of_a_plan_is_the_same_wherever_and_whenever_it_is_made(small: StandInFit, small_plan: Plan) -> None:
    assert plan(small, samples=100, layout="batch").sha256 == small_plan.sha256


def test_bad_questions_are_refused_in_words(small) -> None:
    with pytest.raises(InputError, match="samples is 0"):
        plan(small, samples=0)
    with pytest.raises(InputError, match="layout"):
        plan(small, samples=1, layout="diagonal")
    with pytest.raises(InputError, match="margins"):
        plan(small, samples=1, X=random_samples(10, 8))


@pytest.mark.parametrize("size", [1e50, 1e80])
def test_logits_too_large_for_any_chain_are_refused_with_advice(size: float) -> None:
    model = PolynomialModel.quadratic([[size]], [0.0], [[size]], [[0.0]], [0.0])
    with pytest.raises(InputError, match="standardise"):
        plan(stand_in(model, np.array([[1.0], [2.0]])), samples=1, layout="batch")


def test_where_only_plain_replies_have_a_plan_one_line_says_so(
    small: StandInFit, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = BatchLayout.search
    monkeypatch.setattr(
        BatchLayout, "search", lambda layout, asked: search(layout, asked) if asked.replies == "plain" else []
    )
    with pytest.raises(InputError, match=r"no plan with private replies: .*: quad4fhe plan FIT --replies plain$"):
        plan(small, samples=50, layout="batch")
    assert plan(small, samples=50, layout="batch", replies="plain").plain


@pytest.mark.parametrize("precision", ["strict", "fast"])
@pytest.mark.parametrize("layout", ["batch", "lift"])
def test_replies_are_private_unless_plain_ones_are_asked_for(small: StandInFit, layout: str, precision: str) -> None:
    made = plan(small, samples=50, layout=layout, precision=precision)
    assert made.settings["replies"] == "private"
    assert made.settings["security"] >= 40
    assert "replies private: " in describe(made)
    told = describe(plan(small, samples=50, layout=layout, precision=precision, replies="plain"))
    assert "copies: the weights follow from a few plain replies" in told


def test_alpha_near_zero_takes_the_skip() -> None:
    model = random_model(6, 16, 3, alpha=1e-9)
    made = plan(stand_in(model, random_samples(300, 6)), samples=10, layout="batch")
    assert made.settings["form"] == "skip"
    assert made.kept


def test_limbs_of_a_plan_are_the_proved_ones(small_plan: Plan, small) -> None:
    integers = quantise(fold(small.model, small_plan.domain.box, small_plan.settings["form"]), small_plan.scales)
    proofs = prove(integers, small_plan.chain)
    assert all(p.headroom >= 0 for proof in proofs for p in proof if p is not None)
    assert small_plan.settings["products"][0] == pytest.approx(np.mean([p[0].products for p in proofs]))


def test_the_description_names_ring_primes_box_error_and_bill(small_plan: Plan) -> None:
    words = describe(small_plan)
    for expected in (
        f"ring N = {small_plan.chain.ring}",
        "128-bit security",
        "box",
        " up",
    ):
        assert expected in words


def test_features_of_any_size_get_scales_that_a_client_can_encode() -> None:
    """The planner chose scales that its own plan then refused."""
    rng = np.random.default_rng(0)
    sizes = 10.0 ** rng.uniform(-5, 5, size=12)
    W1 = rng.normal(size=(16, 12)) / sizes
    W2 = rng.normal(size=(2, 16))
    model = PolynomialModel.quadratic(W1, np.zeros(16), 0.1 * W2, 0.5 * W2, np.zeros(2))
    made = plan(stand_in(model, rng.normal(size=(60, 12)) * sizes), samples=60, layout="batch")
    assert made.scales.x + np.log2(max(1.0, made.reach)) <= 62


@pytest.mark.parametrize("private", [False, True])
def test_many_chains_cost_what_each_costs_alone(private: bool) -> None:
    shape, chains = Shape(30, 64, 3), batch_chains()[::20]
    rings, primes = np.array([each.ring for each in chains]), np.array([len(each.primes) for each in chains])
    limbs = (np.full(len(chains), 2), np.arange(len(chains)) % 2 + 1, np.zeros(len(chains), dtype=int))
    found = batch_seconds(shape, rings, primes, 5000, limbs, REFERENCE, 2, None, private=private)
    for i, made in enumerate(chains):
        alone = batch_forecast(shape, made, 5000, (2, i % 2 + 1, 0), REFERENCE, private=private)
        assert (alone.client_seconds, alone.server_seconds) == (found[0][i], found[1][i])
