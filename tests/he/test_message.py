"""What a message may be: one damaged, cut, foreign or replayed gets one line, and changes nothing."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from quad4fhe import Client, InputError, Plan, answer, plan
from quad4fhe.he import message
from quad4fhe.he.message import HEADER_BYTES, Kind
from quad4fhe.he.seal import SecretKey, SeedError, context
from quad4fhe.he.session import ReplyError, Server
from support.exchange import connect, run, sealed
from support.standins import StandInFit, random_model, random_samples, stand_in

KINDS = [("lift", "private"), ("lift", "plain"), ("batch", "private"), ("batch", "plain")]
FIT = stand_in(random_model(5, 16, 3), random_samples(400, 5))
X = random_samples(2, 5, seed=3).clip(*FIT.box)


def other_plan(layout: str) -> Plan:
    return plan(FIT, samples=4, layout=layout, box=FIT.box * 1.25)


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def made(request: pytest.FixtureRequest) -> Plan:
    layout, replies = request.param
    return plan(FIT, samples=4, layout=layout, replies=replies)


def test_an_answer_is_a_function_of_fit_plan_and_request(made: Plan) -> None:
    """No server object, no registration: any process that has the fit and the plan can answer."""
    client = Client(made)
    request = client.encrypt(X)
    assert isinstance(request, bytes)
    assert len(request) == message.size(made, Kind.request)
    reply = answer(FIT, made, request)
    assert len(reply) == message.size(made, Kind.reply)
    again = stand_in(random_model(5, 16, 3), random_samples(400, 5))
    assert (client.decide(answer(again, made, memoryview(request))) == FIT.model.decide(X)).all()


def test_every_request_has_a_key_and_a_seed_of_its_own(made: Plan) -> None:
    client = Client(made)
    requests = [client.encrypt(X) for _ in range(4)]
    keys = {opened.key.to_bytes() for opened in client._open.values()}
    seeds = {request[HEADER_BYTES : HEADER_BYTES + 32] for request in requests}
    assert len(keys) == len(seeds) == 4


def test_a_key_is_forgotten_with_its_reply(made: Plan) -> None:
    client, server = connect(FIT, made)
    reply = server.answer(client.encrypt(X))
    client.read(reply)
    assert not client._open
    with pytest.raises(ReplyError, match="each reply is read once"):
        client.read(reply)


def test_the_same_request_twice_gets_replies_that_share_nothing() -> None:
    made = plan(FIT, samples=1, layout="lift")
    client, server = connect(FIT, made)
    request = client.encrypt(X[:1])
    one, other = (np.frombuffer(server.answer(request), dtype=np.uint8)[HEADER_BYTES:] for _ in range(2))
    assert np.mean(one == other) < 0.05


def test_a_reply_to_another_request_is_refused(made: Plan) -> None:
    client, server = connect(FIT, made)
    stranger = Client(made)
    client.encrypt(X)
    with pytest.raises(ReplyError, match="answers no open request"):
        client.read(server.answer(stranger.encrypt(X)))


def test_a_reply_of_another_plan_is_refused(made: Plan) -> None:
    other = other_plan(made.layout)
    client, stranger = Client(made), Client(other)
    client.encrypt(X)
    with pytest.raises(ReplyError, match="made for another plan"):
        client.read(answer(FIT, other, stranger.encrypt(X)))


@pytest.mark.parametrize("outputs", [2, 3])
@pytest.mark.parametrize("layout", ["lift", "batch"])
def test_a_reply_under_a_wrong_key_is_refused_even_with_a_forged_header(layout: str, outputs: int) -> None:
    """In layout lift the plan says how rarely a wrong key passes: here once in 10^4 to 10^6 tries."""
    fit = stand_in(random_model(5, 16, outputs), random_samples(300, 5))
    chosen = plan(fit, samples=1, layout=layout)
    server, refused = Server(fit, chosen), 0
    for _ in range(4):
        client, stranger = Client(chosen), Client(chosen)
        reply = bytearray(server.answer(stranger.encrypt(fit.box[:1])))
        reply[HEADER_BYTES - 32 : HEADER_BYTES] = message.digest(client.encrypt(fit.box[:1]))
        try:
            client.read(sealed(reply))
        except ReplyError as error:
            refused += "does not decrypt to values" in str(error)
    assert refused >= 3


@pytest.mark.parametrize("place", [0, 9, 20, HEADER_BYTES - 5, HEADER_BYTES, -40, -1])
def test_one_changed_byte_is_noticed_in_a_request_and_in_a_reply(made: Plan, place: int) -> None:
    client, server = connect(FIT, made)
    request = client.encrypt(X)
    reply = server.answer(request)
    for data, read in ((request, server.answer), (reply, client.read)):
        spoiled = bytearray(data)
        spoiled[place] ^= 1
        with pytest.raises((InputError, ReplyError)) as caught:
            read(bytes(spoiled))
        assert "\n" not in str(caught.value)
    assert (client.decide(reply) == FIT.model.decide(X)).all()


def test_messages_that_are_too_short_or_too_long_are_refused(made: Plan) -> None:
    client, server = connect(FIT, made)
    request = client.encrypt(X)
    for data in (b"", request[:8], request[:HEADER_BYTES], request[:-1], request + b"x", sealed(request[:-40])):
        with pytest.raises(InputError):
            server.answer(data)
    with pytest.raises(InputError, match="the message is a reply, wanted a request"):
        server.answer(server.answer(request))


def test_residues_that_are_not_below_their_prime_are_refused(made: Plan) -> None:
    client, server = connect(FIT, made)
    request = bytearray(client.encrypt(X))
    request[HEADER_BYTES + 32 : -32] = b"\xff" * (len(request) - HEADER_BYTES - 64)
    with pytest.raises(InputError, match="not below its prime"):
        server.answer(sealed(request))


def test_a_message_of_another_release_is_named() -> None:
    made = plan(FIT, samples=1, layout="lift")
    request = bytearray(Client(made).encrypt(X[:1]))
    request[8] = 1
    with pytest.raises(InputError, match="message version 1, this library reads version 2"):
        answer(FIT, made, sealed(request))


def test_no_message_can_hold_a_secret_key() -> None:
    assert {kind.name for kind in Kind} == {"request", "reply"}


def test_a_request_holds_as_many_samples_as_its_plan_says(made: Plan) -> None:
    client = Client(made)
    many = np.repeat(X[:1], made.per_request + 1, axis=0)
    for rows in (many, many[:0]):
        with pytest.raises(InputError, match=f"wanted 1 to {made.per_request}; see client"):
            client.encrypt(rows)
    assert sum(1 for _ in client.requests(many)) == 2


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_neither_client_nor_key_is_copied_by_accident(copied) -> None:
    client = Client(plan(FIT, samples=1, layout="lift"))
    with pytest.raises(TypeError, match=r"client\.secret_bytes"):
        copied(client)
    with pytest.raises(TypeError, match="only one key may use a seed"):
        copied(SecretKey(context(client.plan.chain)))


def test_a_reply_is_read_in_another_process_with_the_secret_bytes(made: Plan) -> None:
    client, server = connect(FIT, made)
    request = client.encrypt(X)
    reader = Client.from_secret_bytes(made, client.secret_bytes())
    assert (reader.decide(server.answer(request)) == FIT.model.decide(X)).all()
    (opened,) = client._open.values()
    restored = SecretKey(context(made.chain), opened.key.to_bytes())
    assert (restored._values == opened.key._values).all()
    with pytest.raises(SeedError, match="encrypts nothing more"):
        restored.zeros(1)
    for wrong in (client.secret_bytes()[:-1], b"x" * 50):
        with pytest.raises(InputError, match="not the secret bytes"):
            Client.from_secret_bytes(made, wrong)
    with pytest.raises(InputError, match="not the secret bytes"):
        Client.from_secret_bytes(other_plan(made.layout), client.secret_bytes())


def test_a_fit_that_is_not_the_plans_is_refused(made: Plan) -> None:
    other: StandInFit = stand_in(random_model(5, 16, 3, seed=9), random_samples(9, 5))
    with pytest.raises(InputError, match="plan again"):
        answer(other, made, Client(made).encrypt(X))


def test_random_bytes_and_mutations_are_answered_in_one_line() -> None:
    """`tests/fuzz` runs many more."""
    made = plan(FIT, samples=1, layout="lift")
    client, server = connect(FIT, made)
    request, rng = client.encrypt(X[:1]), np.random.default_rng(5)
    for _ in range(300):
        data = bytearray(request)
        for _ in range(int(rng.integers(1, 4))):
            data[int(rng.integers(len(data)))] = int(rng.integers(256))
        if rng.random() < 0.5:
            data = bytearray(sealed(data))
        said = ""
        try:
            assert len(server.answer(bytes(data))) == message.size(made, Kind.reply)
        except InputError as error:
            said = str(error)
        assert "\n" not in said
    assert run(client, server, X).shape == (2, 3)
