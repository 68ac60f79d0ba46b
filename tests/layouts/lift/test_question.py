"""One question from end to end: decisions, bounds, checks, and the refusals that protect key and weights."""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import signal

import numpy as np
import pytest

from quad4fhe import InputError
from quad4fhe.he.message import HEADER_BYTES
from quad4fhe.he.seal import SecretKey, SeedError, context
from quad4fhe.he.session import ReplyError, Server
from quad4fhe.layouts.lift._compiled import exact as compiled
from quad4fhe.layouts.lift.layout import Settings, setting_of
from quad4fhe.layouts.lift.search import hides_mask, lift_chains, placements
from quad4fhe.layouts.masks import expand
from quad4fhe.layouts.planner import plan
from quad4fhe.mlp import decide
from quad4fhe.planning.chains import SECURE_BITS
from quad4fhe.planning.describe import describe
from quad4fhe.planning.plan import Plan
from support.exchange import connect, run, sealed
from support.standins import StandInFit, random_model, random_samples, stand_in

REPLIES = ("private", "logits", "plain")


def fit_of(outputs: int, d: int = 5) -> StandInFit:
    return stand_in(random_model(d, 16, outputs), random_samples(300, d))


def wanted(fit: StandInFit, X: np.ndarray) -> np.ndarray:
    logits = fit.model.logits(X)
    return logits if logits.shape[1] == 1 else logits - logits.mean(axis=1, keepdims=True)


@pytest.mark.parametrize("outputs", [1, 2, 3])
@pytest.mark.parametrize("replies", REPLIES)
@pytest.mark.parametrize("samples", [1, 40])
def test_encrypted_decisions_are_the_plaintext_ones(outputs: int, replies: str, samples: int) -> None:
    fit = fit_of(outputs)
    made = plan(fit, samples=samples, layout="lift", replies=replies)
    assert Plan.from_dict(made.to_dict()) == made
    assert made.kept
    X = random_samples(7, 5, seed=3).clip(*fit.box)
    client, server = connect(fit, made)
    logits = run(client, server, X)
    assert np.abs(logits - wanted(fit, X)).max() <= made.error.bound
    assert (decide(logits) == fit.model.decide(X)).all()


def test_errors_have_the_forecast_size() -> None:
    fit = fit_of(3)
    X = random_samples(150, 5, seed=3).clip(*fit.box)
    for replies in REPLIES:
        made = plan(fit, samples=1, layout="lift", replies=replies)
        client, server = connect(fit, made)
        found = run(client, server, X) - wanted(fit, X)
        apart = found[:, 0] - found[:, 1]
        assert 0.4 < np.sqrt((apart**2).mean()) / made.error.typical < 1.6, replies
        assert np.abs(found).max() < made.error.logit


@pytest.mark.parametrize("d", [70, 130])
def test_more_monomials_than_coefficients_take_several_ciphertexts(d: int) -> None:
    fit = fit_of(3, d)
    for replies in ("private", "plain"):
        made = plan(fit, samples=1, layout="lift", replies=replies)
        X = random_samples(3, d, seed=3).clip(*fit.box)
        client, server = connect(fit, made)
        logits = run(client, server, X)
        assert (decide(logits) == fit.model.decide(X)).all()


def test_private_replies_are_the_default_and_plain_ones_say_what_they_give_away() -> None:
    fit = fit_of(3)
    made = plan(fit, samples=1, layout="lift")
    assert Settings(**made.settings).replies == "private"
    assert made.settings["security"] >= 40
    assert "HAND OUT THE WEIGHTS" in describe(plan(fit, samples=1, layout="lift", replies="plain"))
    assert plan(fit, samples=1, replies="private").layout == "lift"


def test_damage_to_the_carrying_bits_is_noticed() -> None:
    """Damage before a reply was written, which its SHA-256 does not show."""
    fit = fit_of(3)
    made = plan(fit, samples=1, layout="lift")
    client, server = connect(fit, made)
    bits, noticed = made.settings["bits"], 0
    for i in range(40):
        reply = bytearray(server.answer(client.encrypt(fit.box[:1])))
        at = (i + 1) * bits - 2  # the highest bit but one of the i-th number: answers first, then masks
        reply[HEADER_BYTES + at // 8] ^= 1 << (at % 8)
        try:
            client.read(sealed(reply))
        except ReplyError:
            noticed += 1
    # A third of the secret's coefficients are zero: what they multiply has no meaning, and no damage there either.
    assert noticed >= 16


def test_an_empty_reply_is_refused() -> None:
    fit = fit_of(3)
    made = plan(fit, samples=1, layout="lift")
    client, server = connect(fit, made)
    reply = bytearray(server.answer(client.encrypt(fit.box[:1])))
    for byte in (0, 255):
        reply[HEADER_BYTES:-32] = bytes([byte]) * (len(reply) - HEADER_BYTES - 32)
        with pytest.raises(ReplyError, match="does not decrypt to values"):
            client.read(sealed(reply))


@pytest.mark.parametrize("replies", REPLIES)
def test_one_output_tells_one_number_a_sample(replies: str) -> None:
    """Further coefficients would tell whoever crafts a request further functionals of the weights."""
    made = plan(fit_of(1), samples=40, layout="lift", replies=replies)
    assert setting_of(made).place.reads == made.per_request == made.told


def test_nothing_lets_a_caller_choose_a_seed() -> None:
    """Both forms of one encryption give the key, and a seed used twice gives the difference of two messages."""
    for method in (SecretKey.zeros, SecretKey.__init__):
        assert not {"seed", "mask", "masks", "rng"} & set(inspect.signature(method).parameters)
    made = context(plan(fit_of(3), samples=1, layout="lift", replies="plain").chain)
    key = SecretKey(made)
    assert len({SecretKey(made).seed for _ in range(20)}) == 20
    assert (key.zeros(1) != key.zeros(1)).any()  # the next mask, and fresh noise
    with pytest.raises(AttributeError):
        key.seed = bytes(32)  # type: ignore[misc]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_key_is_not_used_in_a_forked_process() -> None:
    key = SecretKey(context(plan(fit_of(3), samples=1, layout="lift").chain))
    key.zeros(1)
    with key._lock:  # as if another thread encrypted while this one forks
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            try:
                key.zeros(1)
            except SeedError:
                os._exit(0)
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_seeded_encryptions_have_the_noise_of_seal() -> None:
    made = plan(fit_of(3), samples=1, layout="lift")
    key = SecretKey(context(made.chain))
    first = np.concatenate([key.zeros(3), key.zeros(1)])
    masks = expand(key.seed, 4, made.chain.primes, made.chain.ring)
    exact = compiled(made.chain)
    pair = np.stack([first, np.zeros_like(first)], axis=1)
    # first + (0 - mask)(-s) = first + mask s = -e
    primes = np.array(made.chain.primes, dtype=np.uint64)[:, None]
    values = key._values[: len(primes)]
    minus = np.where(values == 0, values, primes - values)
    noise = exact.from_ntt(exact.rebased(pair, masks, minus))[:, 0].astype(np.int64)
    noise[noise > made.chain.primes[0] // 2] -= made.chain.primes[0]
    assert np.abs(noise).max() <= 21
    assert 3.0 < noise.std() < 3.5


def test_a_plan_that_floods_too_little_can_not_be_made() -> None:
    made = plan(fit_of(3), samples=1, layout="lift")
    fields = made.to_dict()
    for change in ({"flood": made.settings["flood"] - 20}, {"flood": None}, {"security": 12.0}, {"replies": "plain"}):
        with pytest.raises(InputError):
            Plan.from_dict({**fields, "settings": {**fields["settings"], **change}})


def test_a_server_takes_no_plan_that_hides_less_than_logits_alone() -> None:
    """Only the weights tell how much a plan of logits has to hide, so the plan itself can be made."""
    fit = fit_of(3)
    made = plan(fit, samples=1, layout="lift", replies="logits")
    Server(fit, made)
    fields = made.to_dict()
    weaker = Plan.from_dict({**fields, "settings": {**fields["settings"], "flood": made.settings["flood"] - 2}})
    with pytest.raises(InputError, match="floods too little to tell logits alone"):
        Server(fit, weaker)


def test_sizes_are_what_travels() -> None:
    fit = fit_of(3)
    for replies in REPLIES:
        made = plan(fit, samples=1, layout="lift", replies=replies)
        client, server = connect(fit, made)
        request = client.encrypt(fit.box[:1])
        framing = HEADER_BYTES + 32
        assert len(request) == made.forecast.upload_bytes + framing
        assert len(server.answer(request)) == made.forecast.download_bytes + framing


def test_samples_that_share_a_private_reply_show_little_of_its_mask() -> None:
    """A client with a malformed key reads linear functions of u: one for each coefficient that it is sent."""
    fit = fit_of(3)
    made = plan(fit, samples=200, layout="lift")
    setting = setting_of(made)
    entropy = made.chain.ring * math.log2(3)
    shown = made.per_request * made.settings["group"] * (math.log2(made.chain.modulus) - made.settings["flood"])
    assert shown <= entropy / 2
    most = made.chain.ring // (setting.place.group * setting.place.size)
    if most * made.settings["group"] * (math.log2(made.chain.modulus) - made.settings["flood"]) > entropy / 2:
        with pytest.raises(InputError, match="false key"):
            dataclasses.replace(made, per_request=most)
    plain = plan(fit, samples=200, layout="lift", replies="plain")
    assert plain.per_request >= made.per_request


def test_rows_that_share_a_private_reply_show_little_of_its_mask() -> None:
    """A group of rows is read from one ciphertext too, also where there is one sample."""
    fields = plan(fit_of(3), samples=1, layout="lift").to_dict()
    flood, ring = 60, fields["chain"]["ring"]
    each = sum(map(math.log2, fields["chain"]["primes"])) - flood
    share = math.prod(fields["chain"]["primes"]).bit_length() / SECURE_BITS[ring]
    most = int(ring * math.log2(3) * (1 - share) / each)  # what is left of u is as secure as the table's ring for Q
    assert 3 < most < ring // 21  # 21 monomials: all of these rows have room

    def grouped(rows: int) -> Plan:
        settings = {**fields["settings"], "group": rows, "flood": flood, "security": 40.0}
        return Plan.from_dict({**fields, "shape": {**fields["shape"], "outputs": rows}, "settings": settings})

    assert grouped(most).settings["group"] == most
    with pytest.raises(InputError, match="false key"):
        grouped(most + 1)
    # A reply of one row takes any number of them, so the planner always has a choice.
    wide = [place for place in placements(4096, 6, 600, 1) if hides_mask(next(lift_chains("private")), place)]
    assert 1 in {place.group for place in wide}
    assert max(place.group for place in wide) < max(place.group for place in placements(4096, 6, 600, 1))


def test_groups_that_leave_no_room_for_a_block_are_refused() -> None:
    """A plan may come from a stranger: no block of zero coefficients, and no request of many ciphertexts."""
    made = plan(fit_of(3), samples=1, layout="lift", replies="plain")
    assert made.chain.ring == 2048

    def changed(features: int, group: int) -> Plan:
        fields = made.to_dict()
        fields["shape"] |= {"outputs": group, "features": features}
        fields["domain"] |= {"low": [-1.0] * features, "high": [1.0] * features}
        fields["settings"] |= {"group": group, "lift": 10, "grain": 10, "weights": 4.0}
        fields["scales"] |= {"x": 10}
        return Plan.from_dict(fields)

    assert setting_of(changed(5, 2048)).place.inputs == 21  # blocks of one coefficient
    with pytest.raises(InputError, match="groups of 1 to 2048"):
        changed(5, 4096)
    with pytest.raises(InputError, match="requests of 255 ciphertexts"):
        changed(40, 1000)
