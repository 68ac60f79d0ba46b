"""One question from end to end: decisions, bounds, checks, and the refusals that protect key and weights."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import os
import pickle
import secrets
from itertools import repeat

import numpy as np
import pytest

from quad4fhe import InputError
from quad4fhe.he.container import EvaluationKeys, Reply, Request
from quad4fhe.he.seal import Context, SecretKey
from quad4fhe.he.seeded import SeedError
from quad4fhe.he.session import Client, ReplyError, Server, connect
from quad4fhe.layouts.lift.evaluation import decrypt as lift_decrypt
from quad4fhe.layouts.lift.layout import Settings, setting_of
from quad4fhe.layouts.lift.search import hides_mask, lift_chains, placements
from quad4fhe.layouts.lift.zeros import ZeroPool
from quad4fhe.layouts.masks import expand
from quad4fhe.layouts.planner import plan
from quad4fhe.mlp import decide
from quad4fhe.planning.describe import describe
from quad4fhe.planning.plan import Plan
from quad4fhe.planning.simulate import SimulatedClient, SimulatedServer, run
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
@pytest.mark.parametrize("kernel", ["auto", "numpy"])
def test_encrypted_decisions_are_the_plaintext_ones(outputs: int, replies: str, samples: int, kernel: str) -> None:
    fit = fit_of(outputs)
    made = plan(fit, samples=samples, layout="lift", replies=replies)
    assert Plan.from_dict(made.to_dict()) == made
    assert made.kept
    X = random_samples(7, 5, seed=3).clip(*fit.box)
    client, server = connect(fit, made, kernel)
    logits = client.decrypt([server.evaluate(request) for request in client.encrypt(X)])
    assert np.abs(logits - wanted(fit, X)).max() <= made.error.bound
    assert (decide(logits) == fit.model.decide(X)).all()


def test_errors_have_the_forecast_size() -> None:
    fit = fit_of(3)
    X = random_samples(150, 5, seed=3).clip(*fit.box)
    for replies in REPLIES:
        made = plan(fit, samples=1, layout="lift", replies=replies)
        client, server = connect(fit, made)
        found = np.concatenate([client.decrypt(server.evaluate(r)) for r in client.encrypt(X)]) - wanted(fit, X)
        simulated = run(SimulatedClient(made), SimulatedServer(fit, made), X) - wanted(fit, X)
        assert 0.6 < found.std() / simulated.std() < 1.6, replies
        assert np.abs(found).max() < made.error.logit


@pytest.mark.parametrize("d", [70, 130])
def test_more_monomials_than_coefficients_take_several_ciphertexts(d: int) -> None:
    fit = fit_of(3, d)
    for replies in ("private", "plain"):
        made = plan(fit, samples=1, layout="lift", replies=replies)
        X = random_samples(3, d, seed=3).clip(*fit.box)
        client, server = connect(fit, made)
        logits = client.decrypt([server.evaluate(request) for request in client.encrypt(X)])
        assert (decide(logits) == fit.model.decide(X)).all()


def test_private_replies_are_the_default_and_plain_ones_say_what_they_give_away() -> None:
    fit = fit_of(3)
    made = plan(fit, samples=1, layout="lift")
    assert Settings(**made.settings).replies == "private"
    assert made.settings["security"] >= 40
    assert "HAND OUT THE WEIGHTS" in describe(plan(fit, samples=1, layout="lift", replies="plain"))
    with pytest.raises(InputError, match="wanted one of plain"):
        plan(fit, samples=1, layout="packed", replies="private")
    assert plan(fit, samples=1, replies="private").layout == "lift"


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_reply_under_a_wrong_key_is_refused(outputs: int) -> None:
    fit = fit_of(outputs)
    for replies in REPLIES:
        made = plan(fit, samples=1, layout="lift", replies=replies)
        client, server = connect(fit, made)
        refused = 0
        for _ in range(4):
            other = Client(made)
            reply = server.evaluate(client.encrypt(fit.box[:1])[0])
            (request,) = other.encrypt(fit.box[:1])
            forged = Reply(dataclasses.replace(request.identity), reply.chunks)
            try:
                other.decrypt(forged)
            except ReplyError as error:
                refused += "wrong key" in str(error)
        # The plan says how rarely a wrong key passes: here once in 10^4 to 10^6 tries, so twice in four is a defect.
        assert made.settings["tolerance"] / made.domain.bound < 1e-4
        assert refused >= 3, replies


def one_output(replies: str, samples: int = 1) -> tuple[StandInFit, Plan]:
    """A model that is checked by blanks."""
    fit = fit_of(1)
    made = plan(fit, samples=samples, layout="lift", replies=replies)
    assert made.settings["blanks"] == 2
    return fit, made


@pytest.mark.parametrize("replies", REPLIES)
def test_an_empty_reply_is_refused_by_its_blanks(replies: str) -> None:
    fit, made = one_output(replies)
    client, server = connect(fit, made)
    reply = server.evaluate(client.encrypt(fit.box[:1])[0])
    for byte in (0, 255):
        (data,) = (np.full_like(chunk, byte) for chunk in reply.chunks)
        with pytest.raises(ReplyError, match="wrong key"):
            client.decrypt(Reply(reply.identity, [data]))


@pytest.mark.parametrize("replies", REPLIES)
@pytest.mark.parametrize("samples", [1, 40])
def test_blanks_have_their_known_value(replies: str, samples: int) -> None:
    """Within the tolerance that the plan states, and a wrong key passes once in 2^20 times at most."""
    fit, made = one_output(replies, samples)
    s, setting = Settings(**made.settings), setting_of(made)
    assert (s.tolerance / made.domain.bound) ** s.blanks < 2**-20
    assert s.tolerance < s.offset
    client, server = connect(fit, made)
    X = random_samples(30, 5, seed=3).clip(*fit.box)
    off = []
    for request in client.encrypt(X):
        (data,) = server.evaluate(request).chunks
        answers = lift_decrypt(setting, client._secret.ternary, data.reshape(-1))
        assert answers.shape == (made.per_request + s.blanks, 1)
        off += (answers[made.per_request :, 0] - s.offset).tolist()
    assert np.abs(off).max() < s.tolerance


def test_blanks_under_wrong_keys_are_even_and_do_not_follow_each_other() -> None:
    """So the chances to pass multiply. 2,000 wrong keys; each limit is more than six deviations away."""
    fit, made = one_output("private")
    client, server = connect(fit, made)
    (data,) = server.evaluate(client.encrypt(fit.box[:1])[0]).chunks
    rng = np.random.default_rng(6)
    keys = rng.integers(-1, 2, (2000, made.chain.ring), dtype=np.int8)
    blanks = np.array([lift_decrypt(setting_of(made), key, data.reshape(-1))[1:, 0] for key in keys])
    edge = made.chain.modulus / 2 / setting_of(made).scales.out
    assert (np.abs((np.abs(blanks) < edge / 2).mean(axis=0) - 0.5) < 0.07).all()
    assert abs(np.corrcoef(blanks.T)[0, 1]) < 0.15
    assert abs(np.corrcoef(np.abs(blanks.T))[0, 1]) < 0.15


def test_blanks_are_flooded_as_answers_are() -> None:
    """Private replies to one request: what a blank shows of the weights differs each time, by the flooding."""
    fit, made = one_output("private")
    setting = setting_of(made)
    client, server = connect(fit, made)
    (request,) = client.encrypt(fit.box[:1])
    chunks = [next(iter(server.evaluate(request).chunks)).reshape(-1) for _ in range(120)]
    reads = np.array([lift_decrypt(setting, client._secret.ternary, data)[:, 0] for data in chunks])
    flood = 2.0 ** made.settings["flood"] / math.sqrt(3) / setting.scales.out
    # 120 numbers of an even distribution: a third is seven deviations of theirs.
    assert (reads.std(axis=0) > 0.66 * flood).all()


@pytest.mark.parametrize("change", [{"blanks": 1}, {"blanks": 3}, {"blanks": -2}, {"blanks": 4000}, {"group": 2}])
def test_a_plan_with_other_blanks_can_not_be_made(change: dict[str, int]) -> None:
    _, made = one_output("private")
    fields = made.to_dict()
    with pytest.raises(InputError):
        Plan.from_dict({**fields, "settings": {**fields["settings"], **change}})
    most = (made.chain.ring - 1) // 21 - 1  # 21 monomials, and room for one sample more
    with pytest.raises(InputError):
        dataclasses.replace(made, per_request=most + 1)
    many = plan(fit_of(3), samples=1, layout="lift").to_dict()
    with pytest.raises(InputError, match="no room"):
        Plan.from_dict({**many, "settings": {**many["settings"], "blanks": 2}})


def test_damage_to_the_carrying_bits_is_noticed() -> None:
    fit = fit_of(3)
    made = plan(fit, samples=1, layout="lift")
    client, server = connect(fit, made)
    bits, noticed = made.settings["bits"], 0
    for i in range(40):
        reply = server.evaluate(client.encrypt(fit.box[:1])[0])
        (data,) = (chunk.copy() for chunk in reply.chunks)
        at = (i + 1) * bits - 2  # the highest bit but one of the i-th number: answers first, then masks
        data[at // 8] ^= 1 << (at % 8)
        try:
            client.decrypt(Reply(reply.identity, [data]))
        except ReplyError:
            noticed += 1
    # A third of the secret's coefficients are zero: what they multiply has no meaning, and no damage there either.
    assert noticed >= 16


def test_a_request_of_another_size_or_with_a_large_residue_is_refused() -> None:
    fit = fit_of(3)
    made = plan(fit, samples=1, layout="lift", replies="plain")
    client, server = connect(fit, made)
    (request,) = client.encrypt(fit.box[:1])
    (data,) = request.chunks
    with pytest.raises(InputError, match="rows"):
        server.evaluate(Request(request.identity, [data[:-1]]))
    large = data.copy()
    large[32:] = 255
    with pytest.raises(InputError, match="not below its prime"):
        server.evaluate(Request(request.identity, [large]))


def test_a_public_key_is_checked_before_seal_sees_it() -> None:
    fit = fit_of(3)
    made = plan(fit, samples=1, layout="lift")
    client, server = Client(made), Server(fit, made)
    keys = client.evaluation_keys()
    assert keys is not None
    (data,) = keys.chunks
    bad = data.copy()
    bad[32:] = 255
    with pytest.raises(InputError, match="not below its prime"):
        server.register(client.key_id, EvaluationKeys([bad]))
    with pytest.raises(InputError, match="no evaluation keys"):
        server.evaluate(client.encrypt(fit.box[:1])[0])


def test_nothing_lets_a_caller_choose_a_seed_or_see_both_forms_of_an_encryption() -> None:
    """Both forms of one encryption give the key, and a seed used twice gives the difference of two messages."""
    for method in (SecretKey.seeded_zeros, SecretKey.seeded_public_key):
        assert not {"seed", "mask", "masks", "rng"} & set(inspect.signature(method).parameters)
    made = plan(fit_of(3), samples=1, layout="lift", replies="plain")
    key = SecretKey(Context(made.chain))
    seeds = {key.seeded_zeros(1)[0] for _ in range(20)}
    assert len(seeds) == 20
    client = Client(made)
    X = np.zeros((1, 5))
    first, second = (bytes(client.encrypt(X)[0].chunks[0].reshape(-1)[:32]) for _ in range(2))
    assert first != second


def test_randomness_that_repeats_is_noticed_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan(fit_of(3), samples=1, layout="lift", replies="plain")
    key = SecretKey(Context(made.chain))
    repeated = repeat(secrets.token_bytes(32))
    monkeypatch.setattr("quad4fhe.he.seeded.secrets.token_bytes", lambda _: next(repeated))
    key.seeded_zeros(1)
    with pytest.raises(SeedError, match="random bytes repeat"):
        key.seeded_zeros(1)
    with pytest.raises(SeedError, match="random bytes repeat"):
        key.seeded_public_key()


def test_seeded_encryptions_have_the_noise_of_seal() -> None:
    made = plan(fit_of(3), samples=1, layout="lift")
    key = SecretKey(Context(made.chain))
    seed, first = key.seeded_zeros(4)
    masks = expand(seed, "request", 4, made.chain.primes, made.chain.ring)
    exact = key.context.exact()
    pair = np.stack([first, np.zeros_like(first)], axis=1)
    # first + (0 - mask)(-s) = first + mask s = -e
    primes = np.array(made.chain.primes, dtype=np.uint64)[:, None]
    values = key._values[: len(primes)]
    minus = np.where(values == 0, values, primes - values)
    noise = exact.from_ntt(exact.rebased(pair, masks, minus))[:, 0].astype(np.int64)
    noise[noise > made.chain.primes[0] // 2] -= made.chain.primes[0]
    assert np.abs(noise).max() <= 21
    assert 3.0 < noise.std() < 3.5


def pool_of(client: Client, server: Server) -> ZeroPool:
    pool = server._keys.get(server.plan.sha256, client.key_id)
    assert isinstance(pool, ZeroPool)
    return pool


def test_an_encryption_of_zero_is_used_once() -> None:
    fit = fit_of(3)
    made = plan(fit, samples=1, layout="lift")
    client, server = connect(fit, made)
    pool = pool_of(client, server)
    while server.work_ahead():
        pass
    assert len(pool) == pool.capacity
    assert not pool.fill()
    taken = [pool.take() for _ in range(pool.capacity + 2)]  # the last two are made on demand
    assert len(pool) == 0
    assert len({zeros.masks.tobytes() for zeros in taken}) == len(taken)
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="used once"):
            copied(pool)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_process_does_not_use_its_parents_encryptions_of_zero() -> None:
    fit = fit_of(3)
    client, server = connect(fit, plan(fit, samples=1, layout="lift"))
    pool = pool_of(client, server)
    while len(pool) == 0:
        pool.fill()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, pool.take().masks.tobytes()[:32])
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 32) != pool.take().masks.tobytes()[:32]


def test_the_same_request_twice_gets_replies_that_share_nothing() -> None:
    fit = fit_of(3)
    made = plan(fit, samples=1, layout="lift")
    client, server = connect(fit, made)
    (request,) = client.encrypt(fit.box[:1])
    one, other = (np.asarray(next(iter(server.evaluate(request).chunks))).reshape(-1) for _ in range(2))
    assert np.mean(one == other) < 0.05


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
        (request,) = client.encrypt(fit.box[:1])
        assert sum(chunk.size for chunk in request.chunks) == made.forecast.upload_bytes
        assert server.evaluate(request).size == made.forecast.download_bytes
        keys = client.evaluation_keys()
        assert (0 if keys is None else keys.size) == made.forecast.key_bytes
        assert setting_of(made).reply_bytes == made.forecast.download_bytes


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
    most = int(ring * math.log2(3) / 2 / each)
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
