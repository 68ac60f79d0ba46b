"""Questions that both sides prepare: the same decisions, one answer for each seed, and nothing kept for long."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quad4fhe import InputError
from quad4fhe.he import ahead, keys
from quad4fhe.he.ahead import PreparedReplies, SpentError, TakenError
from quad4fhe.he.container import Identity, Kind, Reply, Request, form
from quad4fhe.he.prepared import Part, PreparedFolder, PreparedMemory, seed_name
from quad4fhe.he.session import Client, ReplyError, Server
from quad4fhe.layouts.bits import pack, unpack
from quad4fhe.layouts.lift import layout
from quad4fhe.layouts.lift.layout import prepared_forms, setting_of
from quad4fhe.layouts.planner import plan
from quad4fhe.mlp import decide
from quad4fhe.planning.plan import Plan
from support.standins import StandInFit, random_model, random_samples, stand_in

X = random_samples(300, 5)


@pytest.fixture(scope="module")
def fit() -> StandInFit:
    return stand_in(random_model(5, 6, 3), X)


@pytest.fixture(scope="module")
def made(fit: StandInFit) -> Plan:
    return plan(fit, samples=1, layout="lift", X=X)


class Sides:
    """A client with a stored key, its parts in memory, and a server."""

    def __init__(self, fit: StandInFit, made: Plan, rounding: bytes | None = None) -> None:
        self.parts = PreparedMemory()
        self.client = Client(made, keys.generate(made), self.parts)
        self.server = Server(fit, made, rounding=rounding)
        self.server.register(self.client.key_id, self.client.evaluation_keys())

    def prepare(self, count: int) -> None:
        self.client.prepare(count, self.parts, self.server.prepare)

    def request(self, x: np.ndarray = X[0]) -> Request:
        (request,) = self.client.encrypt(x[None])
        return request


@pytest.fixture
def sides(fit: StandInFit, made: Plan) -> Sides:
    return Sides(fit, made)


@pytest.mark.parametrize(
    ("outputs", "replies", "count"),
    [(3, "private", 300), (3, "plain", 300), (1, "private", 60), (3, "logits", 60), (1, "decisions", 60)],
)
def test_prepared_questions_get_the_models_decisions(outputs: int, replies: str, count: int) -> None:
    own = stand_in(random_model(5, 6, outputs), X)
    made = plan(own, samples=1, layout="lift", replies=replies, X=X)
    sides = Sides(own, made)
    sides.prepare(count)
    found = []
    for x in X[:count]:
        request = sides.request(x)
        reply = sides.server.evaluate(request)
        assert (request.kind, reply.kind) == (Kind.prepared, Kind.answers)
        assert reply.size == setting_of(made).answers_bytes
        found.append(sides.client.decrypt(reply))
    assert (decide(np.concatenate(found)) == own.model.decide(X[:count])).all()
    assert len(sides.parts) == len(sides.server._ahead) == sides.server._ahead.bytes == 0


def test_answers_alone_are_a_few_bytes(made: Plan) -> None:
    sizes = {kind: form(made, kind).payload for kind in Kind}
    assert sizes[Kind.answers] == -(-3 * made.settings["bits"] // 8)
    assert sizes[Kind.seed] == 32
    assert sizes[Kind.prepared] == sizes[Kind.request]
    assert abs(sizes[Kind.halves] + sizes[Kind.answers] - sizes[Kind.reply]) <= 1  # both are padded


def test_a_prepared_request_is_answered_once(sides: Sides, fit: StandInFit) -> None:
    sides.prepare(1)
    request = sides.request()
    reply = sides.server.evaluate(request)
    with pytest.raises(SpentError, match="encrypt the samples again and send a whole request"):
        sides.server.evaluate(request)
    assert decide(sides.client.decrypt(reply)) == fit.model.decide(X[:1])
    with pytest.raises(ReplyError, match="no open request"):
        sides.client.decrypt(reply)


def test_of_threads_with_the_same_request_one_is_answered(sides: Sides) -> None:
    sides.prepare(1)
    request, start = sides.request(), threading.Barrier(8)
    results: list[object] = []

    def ask() -> None:
        start.wait()
        try:
            results.append(sides.server.evaluate(request))
        except SpentError as error:
            results.append(error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(type(result).__name__ for result in results) == ["Reply"] + 7 * ["SpentError"]


def test_a_seed_is_registered_once(sides: Sides) -> None:
    part, seed = sides.client.make_part()
    sides.server.prepare(seed)
    with pytest.raises(TakenError, match="prepare another part"):
        sides.server.prepare(seed)
    # Under another name it is not registered either: the name follows from the seed.
    other = replace(seed, identity=replace(seed.identity, nonce=bytes(16)))
    with pytest.raises(InputError, match="not the one that its message names"):
        sides.server.prepare(other)
    assert seed.identity.nonce == part.name == seed_name(part.zeros[:32])
    assert len(sides.server._ahead) == 1
    sides.server._ahead.take(None, seed.identity)
    with pytest.raises(TakenError):
        sides.server.prepare(seed)


def test_what_another_key_prepared_is_not_used(sides: Sides, made: Plan) -> None:
    sides.prepare(1)
    request = sides.request()
    stranger = replace(request, identity=replace(request.identity, key=bytes(16)))
    with pytest.raises(SpentError):
        sides.server.evaluate(stranger)
    elsewhere = replace(request, identity=replace(request.identity, plan=bytes(32)))
    with pytest.raises(InputError, match="another plan or model"):
        sides.server.evaluate(elsewhere)
    sides.client.decrypt(sides.server.evaluate(request))  # it is still there


def test_after_a_restart_the_samples_are_encrypted_again(sides: Sides, fit: StandInFit, made: Plan) -> None:
    sides.prepare(2)
    restarted = Server(fit, made)
    restarted.register(sides.client.key_id, sides.client.evaluation_keys())
    lost = sides.request()
    with pytest.raises(SpentError, match="the server was restarted"):
        restarted.evaluate(lost)
    sides.client.abandon(lost.identity.nonce)
    (fresh,) = sides.client.encrypt(X[:1], prepared=False)
    assert fresh.kind is Kind.request
    seeds = {np.asarray(one.chunks[0]).reshape(-1)[:32].tobytes() for one in (lost, fresh)}
    assert len(seeds) == 2
    assert len(sides.parts) == 1  # the fresh one is of no part
    assert decide(sides.client.decrypt(restarted.evaluate(fresh))) == fit.model.decide(X[:1])


def test_a_part_is_discarded_if_its_reply_is_lost(sides: Sides) -> None:
    def lost(seed: Request) -> Reply:
        sides.server.prepare(seed)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        sides.client.prepare(1, sides.parts, lost)
    assert len(sides.parts) == 0

    def twice(seed: Request) -> Reply:
        sides.server.prepare(seed)
        return sides.server.prepare(seed)

    assert sides.client.prepare(2, sides.parts, twice) == 0

    def mixed_up(seed: Request) -> Reply:
        return sides.server.prepare(sides.client.make_part()[1])

    with pytest.raises(ReplyError, match="not for the seed"):
        sides.client.prepare(1, sides.parts, mixed_up)
    assert len(sides.parts) == 0


def test_servers_answer_for_each_other_only_with_the_same_rounding(fit: StandInFit, made: Plan) -> None:
    one, same, other = (Sides(fit, made, rounding) for rounding in (b"a" * 32, b"a" * 32, b"b" * 32))
    same.server.register(one.client.key_id, one.client.evaluation_keys())
    (part, seed), (another, next_seed) = one.client.make_part(), one.client.make_part()
    halves, kept = one.server.prepare_reply(seed)
    _, next_kept = one.server.prepare_reply(next_seed)
    one.parts.put(one.client.complete_part(part, halves))
    request = one.request()
    for server, wrong in ((other.server, kept), (one.server, next_kept), (same.server, next_kept)):
        with pytest.raises(SpentError):
            server.answer(request, wrong)
    assert decide(one.client.decrypt(same.server.answer(request, kept))) == fit.model.decide(X[:1])
    assert another.products is None


def test_wrong_keys_and_damage_are_noticed(fit: StandInFit, made: Plan) -> None:
    """A wrong key passes with probability 2^-20 at most; two of two do with 2^-40."""
    sides = Sides(fit, made)
    wrong = Client(made, keys.generate(made))
    wrong._key_id = sides.client.key_id
    refused = 0
    for _ in range(2):
        part, seed = sides.client.make_part()
        sides.parts.put(wrong.complete_part(part, sides.server.prepare(seed)))
        try:
            sides.client.decrypt(sides.server.evaluate(sides.request()))
        except ReplyError:
            refused += 1
    assert refused
    bits = made.settings["bits"]
    for place in range(3):
        sides.prepare(1)
        part = sides.parts.take()
        assert part is not None
        assert part.products is not None
        words = unpack(part.products, bits, 3)
        words[place] ^= np.uint64(1 << (bits - 2))
        sides.parts.put(Part(part.zeros, pack(words, bits)))
        with pytest.raises(ReplyError, match="wrong key, or damaged"):
            sides.client.decrypt(sides.server.evaluate(sides.request()))
    sides.prepare(1)
    reply = sides.server.evaluate(sides.request())
    with pytest.raises(ReplyError, match="wrong key, or damaged"):
        sides.client.decrypt(replace(reply, chunks=[np.full_like(chunk, 255) for chunk in reply.chunks]))


def test_replies_of_the_other_form_are_refused(sides: Sides) -> None:
    sides.prepare(1)
    short = sides.server.evaluate(sides.request())
    whole = sides.server.evaluate(sides.request())
    with pytest.raises(ReplyError, match="holds reply, wanted answers"):
        sides.client.decrypt(replace(whole, identity=short.identity))
    with pytest.raises(ReplyError, match="holds answers, wanted reply"):
        sides.client.decrypt(replace(short, identity=whole.identity))
    assert sides.client.decrypt([short, whole]).shape == (2, 3)


def test_second_halves_of_one_seed_are_masked_afresh(fit: StandInFit) -> None:
    """Private ones differ by an even polynomial; plain ones have no mask, and are the same."""
    for replies in ("private", "plain"):
        made = plan(fit, samples=1, layout="lift", replies=replies, X=X)
        sides = Sides(fit, made)
        _, seed = sides.client.make_part()
        (first, kept), (second, also) = sides.server.prepare_reply(seed), sides.server.prepare_reply(seed)
        bits, count = made.settings["bits"], setting_of(made).place.replies * made.chain.ring
        words = [unpack(np.asarray(one.chunks[0]).tobytes(), bits, count) for one in (first, second)]
        apart = ((words[0] - words[1]) << np.uint64(64 - bits)).view(np.int64) / 2.0**63
        assert (kept == also) == (replies == "plain")
        if replies == "plain":
            assert not apart.any()
        else:  # |even on [-1, 1)|: mean 1/2, deviation 1/sqrt(12 count); 8 deviations are 1e-15
            assert abs(np.abs(apart).mean() - 0.5) < 8 / np.sqrt(12 * count)


def test_a_layout_without_prepared_replies_says_so(fit: StandInFit) -> None:
    made = plan(fit, samples=200, layout="batch")
    with pytest.raises(InputError, match="layout batch prepares no replies"):
        form(made, Kind.seed)
    client, server = Client(made), Server(fit, made)
    with pytest.raises(InputError, match="layout batch prepares no replies"):
        server.prepare(Request(Identity.of(made, client.key_id), [], Kind.seed))


def test_replies_with_very_many_answers_are_not_prepared_at_the_server(
    sides: Sides, made: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared_forms.cache_clear()
    monkeypatch.setattr(layout, "MOST_KEPT", 47)  # three answers and two primes take 48
    try:
        with pytest.raises(InputError, match="layout lift prepares no replies"):
            sides.prepare(1)
        assert sides.client.prepare(1, sides.parts) == 1  # the client's half alone
        assert sides.request().kind is Kind.request
    finally:
        prepared_forms.cache_clear()


# --- what a server keeps --------------------------------------------------------------------------------------------


def name(i: int, key: bytes = bytes(16)) -> Identity:
    return Identity(bytes(32), "00" * 32, key, i.to_bytes(16, "big"))


def put(store: PreparedReplies, owner: str, i: int, kept: bytes = b"kept") -> None:
    with store.making(owner, name(i)) as keep:
        keep(kept)


def test_an_owner_gets_what_is_its_own_and_once() -> None:
    store = PreparedReplies()
    put(store, "one", 1, b"a")
    put(store, "other", 1, b"b")  # the same name is another entry
    with pytest.raises(SpentError):
        store.take("third", name(1))
    with pytest.raises(SpentError):
        store.take("one", name(1, b"k" * 16))
    assert store.has("one", name(1))
    assert [store.take("one", name(1)), store.take("other", name(1))] == [b"a", b"b"]
    assert not store.has("one", name(1))
    with pytest.raises(SpentError):
        store.take("one", name(1))


def test_the_latest_seeds_that_are_gone_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "REMEMBERED", 3)
    store = PreparedReplies(per_owner=1)
    for i in range(6):  # each evicts the one before
        put(store, "one", i)
    store.take("one", name(5))
    for i in (3, 4, 5):
        with pytest.raises(TakenError):
            put(store, "one", i)
    put(store, "other", 5)
    put(store, "one", 0)
    assert len(store._gone) == 3


def test_a_name_is_reserved_while_its_reply_is_made_and_free_after_an_error() -> None:
    store = PreparedReplies()
    with store.making("one", name(1)):
        with pytest.raises(TakenError):
            put(store, "one", 1)
        with pytest.raises(SpentError):
            store.take("one", name(1))
    assert not store.has("one", name(1))  # nothing was kept
    put(store, "one", 1)
    with pytest.raises(TakenError):
        put(store, "one", 1)


def test_memory_is_bounded_per_owner_and_in_total() -> None:
    store = PreparedReplies(per_owner=3, total=5 * (512 + 4))
    for i in range(10):
        put(store, "many", i)
    assert len(store) == 3
    assert [store.has("many", name(i)) for i in range(10)] == 7 * [False] + 3 * [True]  # the oldest are evicted
    for i in range(2):
        put(store, "few", i)
    assert (len(store), store.bytes) == (5, 5 * (512 + 4))
    put(store, "third", 0)
    assert len(store) == 5
    assert not store.has("many", name(7))  # the oldest of the owner with most
    assert all(store.has(owner, name(i)) for owner, i in (("few", 0), ("few", 1), ("third", 0)))
    for owner, i in (("many", 8), ("many", 9), ("few", 0), ("few", 1), ("third", 0)):
        store.take(owner, name(i))
    assert (len(store), store.bytes) == (0, 0)
    put(store, "huge", 0, bytes(10_000))
    assert (len(store), store.bytes) == (0, 0)


def test_entries_are_not_copied_or_pickled() -> None:
    for one in (PreparedReplies(), PreparedMemory(), Part(b"")):
        for how in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="used once"):
                how(one)


def test_a_few_large_entries_do_not_evict_the_small_ones_of_others() -> None:
    store = PreparedReplies(total=100_000)
    for i in range(50):
        put(store, "small", i)
    for i in range(100):
        put(store, "large", i, bytes(10_000))
    assert all(store.has("small", name(i)) for i in range(50))
    assert store.bytes == 50 * (512 + 4) + 7 * (512 + 10_000) <= 100_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # threads and fork
def test_a_forked_process_has_neither_entries_nor_parts() -> None:
    store, parts = PreparedReplies(), PreparedMemory()
    put(store, "one", 1)
    parts.put(Part(b"part"))
    child = os.fork()
    if child == 0:
        empty = not store.has("one", name(1)) and parts.take() is None and len(parts) == len(store) == 0
        os._exit(0 if empty else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.take("one", name(1)) == b"kept"
    assert len(parts) == 1


# --- parts on disk --------------------------------------------------------------------------------------------------


def test_parts_on_disk_are_encrypted(sides: Sides, made: Plan, tmp_path: Path) -> None:
    key = keys.generate(made)
    folder = PreparedFolder(tmp_path / "parts", key)
    client = Client(made, key, folder)
    sides.server.register(client.key_id, client.evaluation_keys())
    client.prepare(1, folder, sides.server.prepare)
    (path,) = (tmp_path / "parts").glob("*.ready")
    data = path.read_bytes()
    part = folder.take()
    assert part is not None
    assert part.products is not None
    blocks = [part.zeros[i : i + 16] for i in range(0, len(part.zeros), 16)]
    assert not any(block in data for block in [part.products[:8], *blocks])
    for place in (8 + 16 + 32, 8 + 16 + 32 + 12, len(data) // 2, len(data) - 1):  # nonce, first byte, middle, tag
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert folder.take() is None
        assert not path.exists()
    path.write_bytes(data[: 8 + 16 + 32 + 20])
    assert folder.take() is None
    # Another key does not open it, whatever name it has.
    other = keys.generate(made)
    path.write_bytes(data[:8] + other.key_id + data[24:])
    assert PreparedFolder(tmp_path / "parts", other).take() is None
