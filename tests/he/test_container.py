from __future__ import annotations

import hashlib
import io
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quad4fhe import InputError
from quad4fhe.he import container
from quad4fhe.he.container import HEADER_BYTES, Identity, Kind, Reply, Request
from quad4fhe.he.session import Client, connect
from quad4fhe.layouts.batch import costs
from quad4fhe.layouts.planner import plan
from quad4fhe.planning.plan import Plan
from support.standins import StandInFit, random_model, random_samples, stand_in

MUTATIONS = 12_000


@pytest.fixture(scope="module")
def fit() -> StandInFit:
    return stand_in(random_model(2, 4, 2), random_samples(200, 2))


@pytest.fixture(scope="module")
def plans(fit: StandInFit) -> dict[str, Plan]:
    return {layout: plan(fit, samples=4, layout=layout, precision="fast") for layout in ("batch", "packed")}


def random_residues(made: Plan, kind: Kind, seed: int) -> np.ndarray:
    wanted = container.form(made, kind).parts[-1]
    rng = np.random.default_rng(seed)
    out = np.empty(wanted.shape, dtype=wanted.dtype)
    for place, q in enumerate(wanted.primes):
        out[:, :, place] = rng.integers(0, q, size=out[:, :, place].shape, dtype=wanted.dtype)
    return out


def with_seed(made: Plan, sent: np.ndarray) -> list[np.ndarray]:
    """The residues of a request, after the seed where its layout has one."""
    *before, _ = container.form(made, Kind.request).parts
    return [*(np.full(part.shape, 7, dtype=part.dtype) for part in before), sent]


@pytest.mark.parametrize("layout", ["batch", "packed"])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), key=st.binary(min_size=16, max_size=16), nonce=st.binary(min_size=16, max_size=16))
def test_requests_and_replies_come_back_as_they_were(plans, layout, seed, key, nonce) -> None:
    made = plans[layout]
    identity = Identity(made.sha256, made.model_id, key, nonce)
    sent = random_residues(made, Kind.request, seed)
    data = b"".join(container.write_request(made, Request(identity, with_seed(made, sent))))
    assert len(data) == container.size(made, Kind.request)
    assert container.peek(data) == (Kind.request, identity)
    request = container.read_request(made, io.BytesIO(data))
    chunks = list(request.chunks)
    assert request.identity == identity
    assert b"".join(c.tobytes() for c in chunks) == b"".join(c.tobytes() for c in with_seed(made, sent))
    answer = random_residues(made, Kind.reply, seed)
    data = b"".join(container.write_reply(made, Reply(identity, [answer])))
    assert len(data) == container.size(made, Kind.reply)
    reply = container.read_reply(made, io.BytesIO(data))
    assert reply.identity == identity
    (found,) = reply.chunks
    assert found.dtype == answer.dtype
    assert (found == answer).all()


def test_a_mapped_request_is_read_without_a_copy_and_without_its_digest_but_with_every_other_check(plans) -> None:
    made = plans["batch"]
    identity = Identity(made.sha256, made.model_id, bytes(16), bytes(16))
    sent = random_residues(made, Kind.request, 1)
    data = bytearray(b"".join(container.write_request(made, Request(identity, with_seed(made, sent)))))

    def read() -> list[np.ndarray]:
        return list(container.read_request(made, container.View(memoryview(data)), hashed=True).chunks)

    _, chunk = read()
    assert np.shares_memory(chunk, np.frombuffer(data, dtype=np.uint8))
    assert (chunk == sent).all()
    del chunk
    container.check_digest(io.BytesIO(data), len(data))
    data[HEADER_BYTES] ^= 1
    read()
    for length in (0, 10, len(data) - 1, len(data), len(data) + 1):
        with pytest.raises(InputError, match=r"SHA-256|ends \d+ bytes early"):
            container.check_digest(io.BytesIO(data), length)
    data[HEADER_BYTES + 32 : HEADER_BYTES + 36] = b"\xff" * 4
    with pytest.raises(InputError, match="not below its prime"):
        read()
    data[0] ^= 1
    with pytest.raises(InputError, match="not a quad4fhe container"):
        read()


def test_evaluation_keys_come_back_as_they_were(plans) -> None:
    client = Client(plans["packed"])
    keys = client.evaluation_keys()
    data = b"".join(container.write_keys(client.plan, client.key_id, keys))
    assert len(data) == container.size(client.plan, Kind.keys)
    key_id, found = container.read_keys(client.plan, io.BytesIO(data))
    assert key_id == client.key_id
    for one, other in zip(found.chunks, keys.chunks, strict=True):
        assert (one == other).all()


@pytest.mark.parametrize("layout", ["batch", "packed"])
def test_an_answer_through_containers_is_the_answer_without(fit, plans, layout) -> None:
    made = plans[layout]
    client, server = connect(fit, made)
    X = random_samples(3, 2).clip(*fit.box)
    request = b"".join(container.write_request(made, next(client.stream(X))))
    reply = server.evaluate(container.read_request(made, io.BytesIO(request)))
    back = container.read_reply(made, io.BytesIO(b"".join(container.write_reply(made, reply))))
    assert (client.decide(back) == fit.model.decide(X)).all()


def test_batches_are_read_feature_by_feature_and_the_digest_before_the_last(plans, monkeypatch) -> None:
    made = plans["batch"]
    identity = Identity(made.sha256, made.model_id, bytes(16), bytes(16))
    sent = random_residues(made, Kind.request, 0)
    data = bytearray(b"".join(container.write_request(made, Request(identity, with_seed(made, sent)))))
    data[-1] ^= 1
    monkeypatch.setattr(costs, "CHUNK_BYTES", 1)
    chunks = iter(container.read_request(made, io.BytesIO(bytes(data))).chunks)
    assert (next(chunks) == 7).all()
    assert (next(chunks) == sent[:1]).all()
    with pytest.raises(InputError, match="SHA-256"):
        next(chunks)


def test_there_is_no_kind_that_could_hold_a_secret_key() -> None:
    assert {kind.name for kind in Kind} == {"request", "reply", "keys", "seed", "halves", "prepared", "answers"}


def test_batch_has_no_evaluation_keys(plans) -> None:
    with pytest.raises(InputError, match="no evaluation keys"):
        container.size(plans["batch"], Kind.keys)


def test_residues_of_another_shape_are_not_written(plans) -> None:
    made = plans["batch"]
    identity = Identity(made.sha256, made.model_id, bytes(16), bytes(16))
    for wrong in (np.zeros((1, 2, 3), dtype=np.uint32), random_residues(made, Kind.request, 0)[:1]):
        with pytest.raises(InputError):
            list(container.write_request(made, Request(identity, with_seed(made, wrong))))
    with pytest.raises(InputError, match="another plan"):
        list(container.write_request(made, Request(replace(identity, plan=bytes(32)), [])))


def test_a_plan_with_a_malformed_model_id_is_refused(plans) -> None:
    for wrong in ("../../etc", "AB" * 32, "ab" * 31):
        with pytest.raises(InputError, match="the model id of this plan"):
            replace(plans["batch"], model_id=wrong)


def signed(data: bytes | bytearray) -> bytes:
    return bytes(data) + hashlib.sha256(data).digest()


def mutate(data: bytes, rng: random.Random, other: bytes) -> bytes:
    """Damage of a random kind; half of the damaged contents get a new digest, so that other checks must find them."""
    sort = rng.randrange(9)
    body = bytearray(data[:-32])
    if sort == 0:
        return data[: rng.randrange(len(data))]
    if sort == 1:
        return data + rng.randbytes(rng.randrange(1, 64))
    if sort == 2:
        flipped = bytearray(data)
        flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(flipped)
    if sort == 3:  # a residue that is not below its prime, with a good digest
        body[-8:] = b"\xff" * 8
        return signed(body)
    if sort == 4:  # another value of a header field, with a good digest; ids are data and stay the same
        place = rng.choice([*range(76), *range(HEADER_BYTES - 24, HEADER_BYTES)])
        body[place] ^= 1 << rng.randrange(8)
        return signed(body)
    if sort == 5:  # a claimed length or shape of any size
        place = rng.randrange(HEADER_BYTES - 24, HEADER_BYTES - 7)
        old = bytes(body)
        body[place : place + 8] = rng.randbytes(8)
        return signed(body) if bytes(body) != old else b""
    if sort == 6:  # the header of one container and the payload of another
        return data[:HEADER_BYTES] + other[HEADER_BYTES:]
    if sort == 7:
        at = rng.randrange(len(data) - 1)
        return data[:at] + data[at + rng.randrange(1, 64) :]
    return rng.randbytes(rng.randrange(400))


def test_twelve_thousand_damaged_containers_are_refused_and_nothing_worse(fit, plans) -> None:
    rng = random.Random(2026)
    cases: list[tuple[Any, bytes, bytes]] = []
    for made in plans.values():
        client, server = connect(fit, made)
        requests = [next(client.stream(random_samples(1, 2).clip(*fit.box))) for _ in range(2)]
        held = [replace(request, chunks=list(request.chunks)) for request in requests]
        sent = [b"".join(container.write_request(made, request)) for request in held]
        replies = [b"".join(container.write_reply(made, server.evaluate(request))) for request in held]
        cases.append((lambda s, m=made: list(container.read_request(m, s).chunks), sent[0], sent[1]))
        cases.append((lambda s, m=made: container.read_reply(m, s), replies[0], replies[1]))
    made = plans["packed"]
    keys = [b"".join(container.write_keys(made, bytes([i] * 16), Client(made).evaluation_keys())) for i in (1, 2)]
    cases.append((lambda s: container.read_keys(made, s), keys[0], keys[1]))
    for number in range(MUTATIONS):
        # Keys are megabytes, so they are tested less often.
        read, data, other = cases[number % 4] if number % 60 else cases[4]
        damaged = mutate(data, rng, other)
        with pytest.raises(InputError):
            read(io.BytesIO(damaged))


def test_containers_of_another_plan_model_or_kind_are_refused(plans) -> None:
    made = plans["batch"]
    identity = Identity(made.sha256, made.model_id, bytes(16), bytes(16))
    data = b"".join(
        container.write_request(made, Request(identity, with_seed(made, random_residues(made, Kind.request, 0))))
    )
    with pytest.raises(InputError, match="another plan"):
        container.read_request(plans["packed"], io.BytesIO(data))
    with pytest.raises(InputError, match="wanted reply"):
        container.read_reply(made, io.BytesIO(data))
    with pytest.raises(InputError, match="another plan or model"):
        container.read_request(replace(made, model_id="ab" * 32), io.BytesIO(data))
