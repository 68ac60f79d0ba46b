"""Layout batch: requests under a seed, and replies that tell their values and nothing else."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import os
import pickle
import signal
from typing import Any

import numpy as np
import pytest

from quad4fhe import InputError
from quad4fhe.he import container
from quad4fhe.he.container import EvaluationKeys, Kind, Request
from quad4fhe.he.seal import Context, SecretKey
from quad4fhe.he.seeded import SeededEncryptor, SeedError
from quad4fhe.he.session import Client, Server, connect
from quad4fhe.layouts.batch.evaluation import BatchEvaluator
from quad4fhe.layouts.batch.privacy import Blinding, Flooding
from quad4fhe.layouts.flooding import draw_flood
from quad4fhe.layouts.masks import expand
from quad4fhe.layouts.planner import plan
from quad4fhe.planning.chains import chain
from quad4fhe.planning.describe import describe
from quad4fhe.planning.integers import IntegerCircuit, Scales
from quad4fhe.planning.plan import Plan
from quad4fhe.planning.simulate import SimulatedClient, SimulatedServer, run
from support.standins import StandInFit, random_model, random_samples, stand_in


@pytest.fixture(scope="module")
def fit() -> StandInFit:
    return stand_in(random_model(4, 6, 3), random_samples(300, 4))


@pytest.fixture(scope="module")
def made(fit: StandInFit) -> Plan:
    return plan(fit, samples=300, layout="batch", replies="private")


def test_private_replies_keep_every_decision_within_the_plans_bound(fit: StandInFit, made: Plan) -> None:
    assert made.kept
    assert made.settings["security"] >= 40
    assert "within 2^-" in describe(made)
    X = random_samples(300, 4)
    client, server = connect(fit, made)
    exact = fit.model.logits(X)
    exact -= exact.mean(axis=1, keepdims=True)
    for found in (run(client, server, X), run(SimulatedClient(made), SimulatedServer(fit, made), X)):
        assert np.abs(found - exact).max() < made.error.bound
        assert (found.argmax(axis=1) == exact.argmax(axis=1)).all()


def test_a_request_is_half_as_long_and_every_one_has_its_own_seed(fit: StandInFit) -> None:
    made = plan(fit, samples=300, layout="batch")
    form = container.form(made, Kind.request)
    both = 2 * 4 * made.shape.features * len(made.chain.primes) * made.chain.ring
    assert form.payload <= 0.52 * both
    client = Client(made)
    seeds = {client.encrypt(fit.box[:1])[0].chunks[0].tobytes() for _ in range(3)}
    assert len(seeds) == 3


def test_a_seed_can_not_be_chosen_copied_or_used_in_two_processes(made: Plan) -> None:
    for call in (SecretKey.seeded, SeededEncryptor.encrypt):
        assert not {"seed", "mask", "number"} & set(inspect.signature(call).parameters)
    key = SecretKey(Context(made.chain))
    fresh = key.seeded()
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            attempt(fresh)
    with pytest.raises(AttributeError):
        fresh.seed = bytes(32)  # type: ignore[misc]
    fresh.encrypt([key.context.zero_plain])
    with fresh._lock:  # as if another thread encrypted while this one forks
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            try:
                fresh.encrypt([key.context.zero_plain])
            except SeedError:
                os._exit(0)
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_each_encryption_takes_the_next_mask_also_after_one_that_failed(made: Plan) -> None:
    key = SecretKey(Context(made.chain))
    fresh, primes = key.seeded(), made.chain.primes
    fresh.encrypt([key.context.zero_plain])
    with pytest.raises(TypeError):
        fresh.encrypt([None])
    third = fresh.encrypt([key.context.zero_plain])[0]
    masks = expand(fresh.seed, "request", 3, primes, made.chain.ring)
    sizes = [noise_of(key, third, mask) for mask in masks]
    assert sizes[2] <= 21
    assert min(sizes[:2]) > 2**20


def noise_of(key: SecretKey, first: Any, mask: Any) -> int:
    """The largest coefficient of first + mask s modulo the first prime."""
    primes, ring = key.context.chain.primes, key.context.chain.ring
    values = key._values[: len(primes)].astype(object)
    total = np.array([(first[p] + mask[p] * values[p]) % q for p, q in enumerate(primes)], dtype=np.uint64)
    found = key.context.exact().from_ntt(total.reshape(1, len(primes), ring))[0, 0].astype(np.int64)
    return int(np.minimum(found, primes[0] - found).max())


def test_a_wrong_seed_does_not_decrypt(fit: StandInFit, made: Plan) -> None:
    client, server = connect(fit, made)
    request = client.encrypt(fit.box[:1])[0]
    seed, residues = request.chunks
    reply = server.evaluate(Request(request.identity, [seed ^ np.uint8(1), residues]))
    with pytest.raises(Exception, match="does not decrypt"):
        client.decrypt(reply)


CHAIN = dataclasses.replace(chain(4096, (28, 28)), keys=True)
# Both models have the value 9 x^2 where the second feature is zero.
FIRST = IntegerCircuit(
    np.array([[3, 0]]),
    np.array([0], object),
    np.array([[1]]),
    None,
    np.array([0], object),
    np.zeros(2),
    Scales(1, 1, 1),
)
SECOND = dataclasses.replace(FIRST, W=np.array([[3, 0], [0, 5]]), t=np.array([0, 0], object), V=np.array([[1, 7]]))


def crafted(key: SecretKey) -> list[Any]:
    """A request without noise: the first feature encrypts 5, the second exactly zero."""
    seed, primes = b"s" * 32, CHAIN.primes
    masks = expand(seed, "request", 2, primes, CHAIN.ring).astype(object)
    secret = key._values[:2].astype(object)
    first = np.array([[(5 * (f == 0) - masks[f, p] * secret[p]) % q for p, q in enumerate(primes)] for f in range(2)])
    return [np.frombuffer(seed, dtype=np.uint8)[None], first.astype(np.uint32)[:, None]]


def test_two_models_with_equal_values_are_told_apart_when_plain_and_not_when_private() -> None:
    """The client knows both models and its key, and asks without noise; plain replies differ in the masks alone."""
    context = Context(CHAIN)
    key, flooding = SecretKey(context), Flooding(CHAIN, 1, 2, 40)
    request = crafted(key)
    plain = {name: BatchEvaluator(c, CHAIN).evaluate(request)[0] for name, c in (("a", FIRST), ("b", SECOND))}
    assert (plain["a"] != plain["b"]).any()
    secret = key._values[:2].astype(object)
    values = {name: opened(reply, secret) for name, reply in plain.items()}
    assert (values["a"] == values["b"]).all()

    blinding = Blinding(flooding, context, context.exact("auto"))
    zero = context.zero_encryptor(*key.seeded_public_key())
    for circuit in (FIRST, SECOND):
        seen = []
        for _ in range(2):
            (reply,) = BatchEvaluator(circuit, CHAIN, blinding=blinding).evaluate(request, zero)
            seen.append(reply)
            for guess in plain.values():  # what is left of a right and of a wrong guess looks the same
                left = (reply.astype(np.int64) - guess.astype(np.int64)) % modulus()
                shares = left[0, 1:] / modulus()[0]
                assert abs(shares.mean() - 0.5) < 0.02
                assert abs(shares.var() - 1 / 12) < 0.01
                assert len(np.unique(left[0, 1:, 0])) > 8000
                noise = coefficients(context, opened(left, secret))
                assert 2**38 < max(map(abs, noise)) <= 2**40 + 2**37
        assert (seen[0] != seen[1]).mean() > 0.99


def modulus() -> np.ndarray:
    return np.array(CHAIN.primes, dtype=np.int64)[:, None]


def opened(reply: Any, secret: Any) -> np.ndarray:
    """c0 + c1 s + c2 s^2 modulo each prime, (primes, N)."""
    c = reply[0].astype(object)
    return np.array(
        [(c[0, p] + c[1, p] * secret[p] + c[2, p] * secret[p] ** 2) % q for p, q in enumerate(CHAIN.primes)]
    )


def coefficients(context: Context, values: Any) -> list[int]:
    """Whole numbers from values in NTT form modulo both primes."""
    found = context.exact().from_ntt(values.astype(np.uint64)[None])[0].astype(object)
    q, r = CHAIN.primes
    whole = (found[0] + q * (((found[1] - found[0]) * pow(q, -1, r)) % r)) % (q * r)
    return [int(x) if x < q * r // 2 else int(x) - q * r for x in whole]


def test_flooding_is_even_and_the_same_modulo_every_prime() -> None:
    flood, primes = 40, CHAIN.primes
    drawn = draw_flood(flood, 4096, primes).astype(object)
    q, r = primes
    whole = (drawn[0] + q * (((drawn[1] - drawn[0]) * pow(q, -1, r)) % r)) % (q * r)
    centred = np.array([int(x) if x < q * r // 2 else int(x) - q * r for x in whole], dtype=float) / 2.0**flood
    assert -1 <= centred.min() < -0.99
    assert 0.99 < centred.max() < 1
    assert abs(centred.mean()) < 0.05
    assert abs(centred.var() - 1 / 3) < 0.03


def test_the_zero_encryptions_noise_stays_below_what_flooding_is_made_for() -> None:
    context = Context(CHAIN)
    key, flooding = SecretKey(context), Flooding(CHAIN, 1, 2, 40)
    zero, secret = context.zero_encryptor(*key.seeded_public_key()), key._values[:2].astype(object)
    x, y = zero().astype(object), zero().astype(object)
    whole = np.stack([x[0], x[1] + y[0], y[1]])[None] % modulus()
    noise = coefficients(context, opened(whole, secret))
    assert 2 < max(map(abs, noise)) <= flooding.hidden
    assert flooding.security == pytest.approx(41 - math.log2(4096 * flooding.hidden))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flood": 30}, "floods too little"),
        ({"security": 39.0}, "floods too little"),
        ({"security": 200.0}, "floods too little"),
        ({"flood": 800}, "floods too little"),
        ({"security": None}, "no flooding"),
        ({"replies": "plain"}, "no flooding"),
        ({"replies": "plain", "flood": None, "security": None}, "special prime"),
        ({"replies": "decisions"}, "settings"),
    ],
)
def test_a_plan_that_calls_private_what_is_not_is_refused(made: Plan, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        dataclasses.replace(made, settings={**made.settings, **change})


def test_private_replies_need_a_public_key_and_take_no_other_second_half(fit: StandInFit, made: Plan) -> None:
    client, server = Client(made), Server(fit, made)
    request = client.encrypt(fit.box[:1])[0]
    with pytest.raises(InputError, match="no evaluation keys of this client"):
        server.evaluate(request)
    keys = client.evaluation_keys()
    assert keys is not None
    (data,) = keys.chunks
    half = sum(-(-made.chain.ring * q.bit_length() // 8) for q in made.chain.every)
    assert data.size == 32 + half  # a seed and one half: there is no place for the other
    bad = data.copy()
    bad[32:] = 255
    with pytest.raises(InputError, match="not below its prime"):
        server.register(client.key_id, EvaluationKeys([bad]))
    server.register(client.key_id, keys)
    first, second = (server.evaluate(Request(request.identity, request.chunks)) for _ in range(2))
    assert (first.chunks[0] != second.chunks[0]).mean() > 0.99


def test_what_a_malformed_public_key_gives_away() -> None:
    """Statement A asks for a well-formed key. With pk0 a large constant instead, the flooding no longer hides u.

    The first polynomial then shows u itself, coefficient by coefficient, and u takes the mask off the second. If this
    test fails, docs/lift.md says too little about layout batch.
    """
    context, (q, r), special = Context(CHAIN), CHAIN.primes, CHAIN.special
    assert special is not None
    size = r * special * ((q // 3) * pow(r * special, -1, q) % q)  # q / 3 modulo q, zero modulo the others
    seed = b"k" * 32
    first = np.array([np.full(CHAIN.ring, size % p, dtype=np.uint64) for p in CHAIN.every])
    zero = context.zero_encryptor(seed, first)
    blinding = Blinding(Flooding(CHAIN, 1, 2, 40), context, context.exact("auto"))
    silent = [np.zeros((1, 32), dtype=np.uint8), np.zeros((2, 1, 2, CHAIN.ring), dtype=np.uint32)]
    (reply,) = BatchEvaluator(FIRST, CHAIN, blinding=blinding).evaluate(silent, zero)
    (plain,) = BatchEvaluator(FIRST, CHAIN).evaluate(silent)

    step = size // special % (q * r)  # what u is multiplied by in the first polynomial
    shown = coefficients(context, reply[0, 0].astype(object))
    choices = {value: (step * value + q * r // 2) % (q * r) - q * r // 2 for value in (-1, 0, 1)}
    u = np.array([min(choices, key=lambda v: abs(choices[v] - x)) for x in shown])
    assert max(abs(choices[int(v)] - x) for v, x in zip(u, shown, strict=True)) <= 2**40 + 2**14
    assert {-1, 0, 1} == set(u.tolist())

    # The mask of the second polynomial: round(pk1 u / P), up to small noise; modulo r nothing else is in the way.
    turned = product_of(u, expand(seed, "key", 1, CHAIN.every, CHAIN.ring)[0])
    mask = np.array([((int(x) + special // 2) // special) % r for x in turned], dtype=object)
    seen = context.exact().from_ntt(reply[0, 1].astype(np.uint64)[None])[0, 1].astype(object)
    meant = context.exact().from_ntt(plain[0, 1].astype(np.uint64)[None])[0, 1].astype(object)
    left = (seen - mask - meant + r // 2) % r - r // 2
    assert np.abs(left.astype(float)).max() < 200  # of 2^28: the polynomial that should be hidden is in the open


def product_of(u: Any, values: Any) -> list[int]:
    """The coefficients of a polynomial u times one in NTT form, as whole numbers modulo all primes."""
    total = math.prod(CHAIN.every)
    out = np.zeros(CHAIN.ring, dtype=object)
    for p, own in zip(CHAIN.every, values, strict=True):
        one = wide(np.mod(u, p), p, forward=True)
        found = wide((one.astype(object) * own.astype(object) % p).astype(np.uint64), p, forward=False)
        rest = total // p
        out = (out + found.astype(object) * (rest * pow(rest, -1, p))) % total
    return [int(x) if x < total // 2 else int(x) - total for x in out]


def wide(row: Any, q: int, *, forward: bool) -> Any:
    kernels = pytest.importorskip("quad4fhe.layouts.lift._kernels_numba")
    values = np.ascontiguousarray(row[None].astype(np.uint64))
    (kernels.to_ntt if forward else kernels.from_ntt)(values, q)
    return values[0]


def test_a_forked_server_draws_other_encryptions_of_zero() -> None:
    context = Context(CHAIN)
    zero = context.zero_encryptor(*SecretKey(context).seeded_public_key())
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, zero()[1, 0, :8].tobytes() + draw_flood(60, 4, CHAIN.primes).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(read, 10_000)
    ours = zero()[1, 0, :8].tobytes() + draw_flood(60, 4, CHAIN.primes).tobytes()
    assert len(theirs) == len(ours)
    assert theirs[:64] != ours[:64]
    assert theirs[64:] != ours[64:]
