"""Layout batch: requests under a seed, and replies that tell their values and nothing else."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import Any

import numpy as np
import pytest

from quad4fhe import InputError
from quad4fhe.he import message
from quad4fhe.he.message import Kind
from quad4fhe.he.seal import Context, SecretKey
from quad4fhe.he.session import ReplyError
from quad4fhe.layouts.batch.evaluation import BatchEvaluator
from quad4fhe.layouts.batch.privacy import Blinding, Flooding
from quad4fhe.layouts.blinding import draw
from quad4fhe.layouts.flooding import blinding_deviation, draw_flood, zero_noise
from quad4fhe.layouts.lift._compiled import add_zeros, exact
from quad4fhe.layouts.masks import expand
from quad4fhe.layouts.planner import plan
from quad4fhe.planning.chains import chain
from quad4fhe.planning.describe import describe
from quad4fhe.planning.integers import IntegerCircuit, Scales
from quad4fhe.planning.plan import Plan
from support.exchange import connect, run, sealed
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
    wanted = fit.model.logits(X)
    wanted -= wanted.mean(axis=1, keepdims=True)
    found = run(client, server, X)
    assert np.abs(found - wanted).max() < made.error.bound
    assert (found.argmax(axis=1) == wanted.argmax(axis=1)).all()


def test_a_request_is_half_as_long_as_its_ciphertexts(fit: StandInFit) -> None:
    made = plan(fit, samples=300, layout="batch", replies="plain")
    both = 2 * 4 * made.shape.features * len(made.chain.primes) * made.chain.ring
    assert message.size(made, Kind.request) <= 0.52 * both


def test_a_wrong_seed_does_not_decrypt(fit: StandInFit, made: Plan) -> None:
    client, server = connect(fit, made)
    request = bytearray(client.encrypt(fit.box[:1]))
    request[message.HEADER_BYTES] ^= 1
    reply = bytearray(server.answer(sealed(request)))
    reply[message.HEADER_BYTES - 32 : message.HEADER_BYTES] = next(iter(client._open))
    with pytest.raises(ReplyError, match="does not decrypt"):
        client.read(sealed(reply))


CHAIN = chain(4096, (28, 28))
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


def crafted(key: SecretKey, point: Any = (5, 5)) -> list[Any]:
    """A request without noise: the first feature encrypts `point` modulo each prime, in NTT form, the second exactly
    zero; and a public key without any."""
    primes, seed = CHAIN.primes, b"s" * 32
    masks = expand(seed, 3, primes, CHAIN.ring).astype(object)
    secret = key._values[:2].astype(object)
    own = [point, (0, 0), (0, 0)]
    first = np.array([[(own[f][p] - masks[f, p] * secret[p]) % q for p, q in enumerate(primes)] for f in range(3)])
    return [np.frombuffer(seed, dtype=np.uint8), first.astype(np.uint32)[:, None]]


def test_two_models_with_equal_values_are_told_apart_when_plain_and_not_when_private() -> None:
    """The client knows both models and its key, and asks without noise; plain replies differ in the masks alone."""
    key, flooding = SecretKey(Context(CHAIN)), Flooding(CHAIN, 1, 2, 40)
    request = crafted(key)
    plain = {name: BatchEvaluator(c, CHAIN).answer(request)[0] for name, c in (("a", FIRST), ("b", SECOND))}
    assert (plain["a"] != plain["b"]).any()
    secret = key._values[:2].astype(object)
    values = {name: opened(reply, secret) for name, reply in plain.items()}
    assert (values["a"] == values["b"]).all()

    for circuit in (FIRST, SECOND):
        seen = []
        for _ in range(2):
            (reply,) = BatchEvaluator(circuit, CHAIN, Blinding(flooding)).answer(request)
            seen.append(reply)
            for guess in plain.values():  # what is left of a right and of a wrong guess looks the same
                left = (reply.astype(np.int64) - guess.astype(np.int64)) % modulus()
                shares = left[0, 1:] / modulus()[0]
                assert abs(shares.mean() - 0.5) < 0.02
                assert abs(shares.var() - 1 / 12) < 0.01
                assert len(np.unique(left[0, 1:, 0])) > 8000
                noise = coefficients(opened(left, secret))
                assert 2**38 < max(map(abs, noise)) <= 2**40 + 2**37
        assert (seen[0] != seen[1]).mean() > 0.99


def test_a_crafted_request_of_layout_batch_is_told_two_numbers_for_each_of_its_samples() -> None:
    """Slots are complex: a request can ask for 9 x^2 at any polynomial x, and reads all N coefficients."""
    key, x = SecretKey(Context(CHAIN)), np.random.default_rng(5).integers(-500, 500, CHAIN.ring)
    point = exact(CHAIN).to_ntt(np.stack([np.mod(x, q).astype(np.uint64) for q in CHAIN.primes])[None])[0]
    evaluator = BatchEvaluator(FIRST, CHAIN, Blinding(Flooding(CHAIN, 1, 2, 10)))
    (reply,) = evaluator.answer(crafted(key, point.astype(object)))
    found = np.array(coefficients(opened(reply, key._values[:2].astype(object))), dtype=float)
    square = np.append(np.convolve(x, x), 0)
    wanted = 9 * (square[: CHAIN.ring] - square[CHAIN.ring :])
    assert found.size == 2 * CHAIN.slots
    for half in (slice(0, CHAIN.slots), slice(CHAIN.slots, None)):
        assert np.corrcoef(found[half], wanted[half])[0, 1] > 0.99


def modulus() -> np.ndarray:
    return np.array(CHAIN.primes, dtype=np.int64)[:, None]


def opened(reply: Any, secret: Any) -> np.ndarray:
    """c0 + c1 s + c2 s^2 modulo each prime, (primes, N)."""
    c = reply[0].astype(object)
    return np.array(
        [(c[0, p] + c[1, p] * secret[p] + c[2, p] * secret[p] ** 2) % q for p, q in enumerate(CHAIN.primes)]
    )


def coefficients(values: Any) -> list[int]:
    """Whole numbers from values in NTT form modulo both primes."""
    found = exact(CHAIN).from_ntt(values.astype(np.uint64)[None])[0].astype(object)
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
    key, flooding = SecretKey(Context(CHAIN)), Flooding(CHAIN, 1, 2, 40)
    secret = key._values[:2].astype(object)
    keys = np.stack([key.zeros(1)[0], expand(key.seed, 1, CHAIN.primes, CHAIN.ring)[0]])
    whole = np.zeros((1, 3, 2, CHAIN.ring), dtype=np.uint64)
    add_zeros(whole[0], whole[0, 0].copy(), keys, draw(CHAIN.ring, 2), CHAIN.primes)
    noise = np.array(coefficients(opened(whole, secret)), dtype=float)
    assert 2 < np.abs(noise).max() <= zero_noise(CHAIN.ring, 2)
    assert noise.std() <= flooding.hidden == blinding_deviation(CHAIN.ring, 2)
    assert flooding.security == pytest.approx(41 - math.log2(4096 * flooding.hidden))


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"flood": 30}, "floods too little"),
        ({"security": 39.0}, "floods too little"),
        ({"security": 200.0}, "floods too little"),
        ({"flood": 800}, "floods too little"),
        ({"security": None}, "no flooding"),
        ({"replies": "plain"}, "no flooding"),
        ({"replies": "decisions"}, "settings"),
    ],
)
def test_a_plan_that_calls_private_what_is_not_is_refused(made: Plan, change: dict[str, Any], wanted: str) -> None:
    with pytest.raises(InputError, match=wanted):
        dataclasses.replace(made, settings={**made.settings, **change})


def test_what_a_malformed_public_key_gives_away() -> None:
    """Statement A asks for a well-formed key. With pk0 a large constant instead, the flooding no longer hides u.

    The first polynomial then shows u itself, coefficient by coefficient, and u takes the mask off the second. If this
    test fails, docs/private_replies.md says too little about layout batch.
    """
    (q, r), ring, seed = CHAIN.primes, CHAIN.ring, b"k" * 32
    step = q * r // 3
    constant = np.array([np.full(ring, step % p) for p in CHAIN.primes], dtype=np.uint32)  # in NTT form
    silent = [np.frombuffer(seed, dtype=np.uint8), np.zeros((3, 1, 2, ring), dtype=np.uint32)]
    silent[1][2, 0] = constant
    (reply,) = BatchEvaluator(FIRST, CHAIN, Blinding(Flooding(CHAIN, 1, 2, 40))).answer(silent)
    (plain,) = BatchEvaluator(FIRST, CHAIN).answer(silent)

    apart = coefficients((reply[0, 0].astype(np.int64) - plain[0, 0].astype(np.int64)) % modulus())
    u = np.array([round(x / step) for x in apart])
    assert max(abs(step * int(v) - x) for v, x in zip(u, apart, strict=True)) <= 2**40 + 2**14
    assert {-1, 0, 1} == set(u.tolist())

    # The mask of the second polynomial is pk1 u + e1, and there the second zero adds its own first half, step * u'.
    pk1 = expand(seed, 3, CHAIN.primes, ring)[2].astype(object)
    turned = exact(CHAIN).to_ntt(np.stack([np.mod(u, p) for p in CHAIN.primes])[None].astype(np.uint64))[0]
    mask = np.array([pk1[p] * turned[p].astype(object) % prime for p, prime in enumerate(CHAIN.primes)])
    left = coefficients((reply[0, 1].astype(object) - plain[0, 1].astype(object) - mask) % modulus())
    assert max(abs(x - step * round(x / step)) for x in left) <= 21  # e1 alone: what should be hidden is in the open


def test_a_forked_server_draws_other_encryptions_of_zero() -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, draw(4096, 1).u.tobytes()[:64] + draw_flood(60, 4, CHAIN.primes).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(read, 10_000)
    ours = draw(4096, 1).u.tobytes()[:64] + draw_flood(60, 4, CHAIN.primes).tobytes()
    assert len(theirs) == len(ours)
    assert theirs[:64] != ours[:64]
    assert theirs[64:] != ours[64:]
