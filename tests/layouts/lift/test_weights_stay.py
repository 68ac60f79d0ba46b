"""Attacks on the weights: they succeed on plain replies and fail on private ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quad4fhe.he.message import HEADER_BYTES
from quad4fhe.he.seal import SecretKey, context
from quad4fhe.he.session import Client, Server
from quad4fhe.layouts import bits
from quad4fhe.layouts.blinding import Draws, draw
from quad4fhe.layouts.flooding import zero_noise
from quad4fhe.layouts.lift import evaluation
from quad4fhe.layouts.lift._compiled import exact
from quad4fhe.layouts.lift.arithmetic import switched
from quad4fhe.layouts.lift.evaluation import LiftServer, Setting, decrypt
from quad4fhe.layouts.lift.layout import setting_of
from quad4fhe.layouts.lift.monomials import Placement
from quad4fhe.layouts.lift.noise import Scales
from quad4fhe.layouts.masks import as_bytes, expand
from quad4fhe.layouts.planner import plan
from quad4fhe.planning.chains import chain
from support.exchange import connect
from support.lattice import reduced
from support.standins import random_model, random_samples, stand_in


def masks_of(setting: Setting, request: bytes) -> np.ndarray:
    """The second halves of a payload's ciphertexts."""
    return expand(request[:32], setting.place.inputs, setting.chain.primes, setting.chain.ring)


def payload(message: bytes) -> bytes:
    return message[HEADER_BYTES:-32]


def answered(server: Server, request: bytes) -> bytes:
    """The payload of the reply to a payload."""
    (reply,) = server._evaluator.answer([np.frombuffer(request, dtype=np.uint8)])
    return bytes(reply.tobytes())


def secret_weights(server: Server) -> np.ndarray:
    """The whole weights (R, J, N) that a server multiplies with, from its own memory."""
    inner = server._evaluator._server  # type: ignore[attr-defined]
    chain, place = inner.setting.chain, inner.setting.place
    one = np.zeros((place.inputs, len(chain.primes), chain.ring), dtype=np.uint64)
    rows = []
    for j in range(place.inputs):
        unit = one.copy()
        unit[j] = 1  # the polynomial 1, in NTT form
        found = inner._linear.masks(unit)[:, 0].astype(np.int64)
        rows.append(np.where(found > chain.primes[0] // 2, found - chain.primes[0], found))
    return np.stack(rows, axis=1)


def solved(masks: list[np.ndarray], replies: list[np.ndarray], q: int) -> np.ndarray:
    """w_j with sum_j w_j a_j = c for each of J requests, at every index, modulo q: (J, N), by elimination."""
    J, N = len(masks), masks[0].shape[-1]
    out = np.zeros((J, N), dtype=np.uint64)
    for i in range(N):
        rows = [[int(a[j, 0, i]) for j in range(J)] + [int(c[i])] for a, c in zip(masks, replies, strict=True)]
        for p in range(J):
            pivot = next(r for r in range(p, J) if rows[r][p])
            rows[p], rows[pivot] = rows[pivot], rows[p]
            inverse = pow(rows[p][p], -1, q)
            rows[p] = [x * inverse % q for x in rows[p]]
            for r in range(J):
                if r != p:
                    rows[r] = [(x - rows[r][p] * y) % q for x, y in zip(rows[r], rows[p], strict=True)]
        out[:, i] = [row[-1] for row in rows]
    return out


def test_unswitched_plain_replies_give_all_weights_by_linear_algebra() -> None:
    """J requests are enough: two for this one, as for Otto."""
    fit = stand_in(random_model(64, 16, 3), random_samples(200, 64))
    made = plan(fit, samples=1, layout="lift", replies="plain")
    setting = setting_of(made)
    client, server = Client(made), Server(fit, made)
    inner = server._evaluator._server  # type: ignore[attr-defined]
    assert setting.place.inputs >= 2
    assert len(made.chain.primes) == 1
    arithmetic = exact(setting.chain)
    masks = [masks_of(setting, payload(client.encrypt(fit.box[:1]))) for _ in range(setting.place.inputs)]
    replies = [arithmetic.to_ntt(inner._linear.masks(a)) for a in masks]
    q = made.chain.primes[0]
    wanted = secret_weights(server)
    for r in range(setting.place.replies):
        values = solved(masks, [reply[r, 0] for reply in replies], q)
        found = arithmetic.from_ntt(values[:, None, :])[:, 0].astype(np.int64)
        assert (np.where(found > q // 2, found - q, found) == wanted[r]).all()


def guessed(setting: Setting, request: bytes, reply: bytes, size: int) -> list[int]:
    """The weights, none above `size`, of a small model from one reply, by lattice reduction.

    Coefficient i of the reply's mask is sum_t w_t a[i - p_t] modulo Q, but for the rounding of the switch, with the
    weights at known places p_t. Enough of these equations have one short solution.
    """
    chain, place, width = setting.chain, setting.place, setting.scales.bits
    Q, ring = chain.modulus, chain.ring
    masks = exact(chain).from_ntt(masks_of(setting, request))[0]
    mask = [_crt(masks[:, i].tolist(), chain.primes) for i in range(ring)]
    places = np.flatnonzero(place.weights(np.ones((place.rows, place.size), dtype=np.int64))[0, 0]).tolist()
    n = len(places)
    m = n * size.bit_length() // (width - 2) + 4
    words = bits.unpack(reply, width, place.reads + place.replies * ring)[place.reads :].tolist()
    error = max(1, Q >> width)
    up, left = max(1, size // error), max(1, error // size)  # all entries of the solution are then of one size
    rows = []
    for k, p in enumerate(places):
        turned = [mask[i - p] if i >= p else -mask[i - p + ring] for i in range(m)]
        rows.append([up * (x % Q) for x in turned] + [left * int(t == k) for t in range(n)] + [0])
    rows += [[up * Q * int(t == i) for t in range(m)] + [0] * (n + 1) for i in range(m)]
    rows.append([-up * (words[i] * Q >> width) for i in range(m)] + [0] * n + [up * error])
    for row in reduced(rows):
        if abs(row[-1]) == up * error:
            return [x // left * (1 if row[-1] > 0 else -1) for x in row[m : m + n]]
    return []


def _crt(words: list[int], primes: tuple[int, ...]) -> int:
    Q = math.prod(primes)
    return sum(x * (Q // q) * pow(Q // q, -1, q) for x, q in zip(words, primes, strict=True)) % Q


@pytest.mark.parametrize("replies", ["plain", "private", "private without its encryption of zero"])
def test_switched_replies_of_a_small_model_fall_to_lattice_reduction_unless_they_are_private(
    replies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = stand_in(random_model(1, 8, 1), random_samples(100, 1))
    made = plan(fit, samples=1, layout="lift", replies=replies.split()[0])
    setting = setting_of(made)
    client, server = connect(fit, made)
    if "without" in replies:
        none = np.zeros((setting.place.replies, made.chain.ring), dtype=np.int8)
        monkeypatch.setattr("quad4fhe.layouts.lift.evaluation.draw", lambda ring, count: Draws(none, none))
    request = client.encrypt(fit.box[:1])
    reply = server.answer(request)
    weights = secret_weights(server)[0, 0]
    found = guessed(setting, payload(request), payload(reply), int(np.abs(weights).max()))
    wanted = weights[
        np.flatnonzero(setting.place.weights(np.ones((setting.place.rows, 3), dtype=np.int64))[0, 0])
    ].tolist()
    assert (found == wanted) == (replies != "private")


def crafted(key: SecretKey, setting: Setting, message: np.ndarray) -> bytes:
    """A malicious request: b + a s is exactly `message` (J, N), without noise; and an honest public key, if any."""
    chain, place = setting.chain, setting.place
    arithmetic, count = exact(chain), place.inputs + setting.private
    masks = expand(key.seed, count, chain.primes, chain.ring)
    zero = np.zeros((count, 2, len(chain.primes), chain.ring), dtype=np.uint64)
    minus = arithmetic.from_ntt(arithmetic.rebased(zero, masks, key._values))  # (0 - a) s
    own = minus[: place.inputs]
    whole = np.stack([(own[:, p].astype(object) + message) % q for p, q in enumerate(chain.primes)]).astype(np.uint64)
    first = place.cut(whole)
    if setting.private:
        key.zeros(place.inputs)
        first = np.concatenate([first, arithmetic.from_ntt(key.zeros(1))[0]], axis=1)
    return bytes(as_bytes(key.seed, first, chain.primes).tobytes())


@pytest.mark.parametrize("replies", ["plain", "private"])
@pytest.mark.parametrize("outputs", [1, 2])
def test_two_models_with_equal_answers_are_told_apart_by_plain_replies_alone(replies: str, outputs: int) -> None:
    """The client knows both models and its key; the weights differ where its ciphertext is zero."""
    fit = stand_in(random_model(4, 8, outputs), random_samples(100, 4))
    made = plan(fit, samples=1, layout="lift", replies=replies)
    setting = setting_of(made)
    one, two = Server(fit, made), Server(fit, made)
    inner, other = (s._evaluator._server for s in (one, two))  # type: ignore[attr-defined]
    whole = secret_weights(one)
    changed = whole.copy()
    place = setting.place
    changed[:, 0, place.ring - 3] += 12345  # the weight of monomial 3 of the first row
    other._linear = exact(setting.chain).linear(changed, place)
    inner._linear = exact(setting.chain).linear(whole, place)
    message = np.zeros((place.inputs, place.ring), dtype=object)
    message[0, 0] = 2**20
    request = crafted(SecretKey(context(made.chain)), setting, message)
    masks = masks_of(setting, request)
    predicted = [s._linear.masks(masks) for s in (inner, other)]
    width, right, rounds = setting.scales.bits, 0, 60 if replies == "plain" else 240
    rng = np.random.default_rng(0)
    for truth in rng.integers(0, 2, rounds):
        reply = answered((one, two)[truth], request)
        words = bits.unpack(reply, width, place.reads + place.replies * place.ring)[place.reads :]
        expected = [switched(p, setting.chain, width).reshape(-1) for p in predicted]
        wrap = np.int64(1) << np.int64(width)
        far = [np.abs((words - e).astype(np.int64) % wrap - wrap // 2).mean() for e in expected]
        right += int(np.argmax(far)) == truth
    if replies == "plain":
        assert right == rounds
    else:
        assert abs(right - rounds / 2) <= 6.2 * np.sqrt(rounds) / 2  # deviations of guesses: exceeded once in 10^9


@pytest.mark.parametrize("chosen", ["zero", "even numbers", "its own masks"])
def test_a_request_of_any_content_is_told_the_map_at_its_own_point_and_no_more(chosen: str) -> None:
    """c0[p] + (c1 s)[p] = mu[p] + f + n for any b, here one that depends on the masks: what the simulator sends."""
    fit = stand_in(random_model(4, 8, 2), random_samples(200, 4))
    made = plan(fit, samples=1, layout="lift")
    setting, server, key = setting_of(made), Server(fit, made), SecretKey(context(made.chain))
    chain, place, flood = setting.chain, setting.place, setting.scales.flood
    inner = server._evaluator._server  # type: ignore[attr-defined]
    assert flood is not None
    arithmetic, rng = exact(chain), np.random.default_rng(3)
    masks = expand(key.seed, place.inputs, chain.primes, chain.ring)
    b = np.stack([rng.integers(0, q, place.used, dtype=np.uint64) for q in chain.primes])
    if chosen == "zero":
        b[:] = 0
    elif chosen == "its own masks":
        b[:] = place.cut(masks.transpose(1, 0, 2))
    public = arithmetic.from_ntt(key.zeros(place.inputs + 1))[-1]
    data = bytes(as_bytes(key.seed, np.concatenate([b, public], axis=1), chain.primes).tobytes())
    answers = decrypt(setting, key.ternary, np.frombuffer(answered(server, data), dtype=np.uint8)).reshape(-1)

    zero = np.zeros((place.inputs, 2, len(chain.primes), chain.ring), dtype=np.uint64)
    minus = place.cut(arithmetic.from_ntt(arithmetic.rebased(zero, masks, key._values)).transpose(1, 0, 2))  # -a s
    point = np.stack([(row + (q - other)) % q for row, other, q in zip(b, minus, chain.primes, strict=True)])
    mu = inner._linear.answers(point.astype(np.uint64)).reshape(-1, len(chain.primes))
    Q = chain.modulus
    for row, found in zip(mu, answers, strict=True):
        wanted = sum(int(x) * (Q // q) * pow(Q // q, -1, q) for x, q in zip(row, chain.primes, strict=True)) % Q
        apart = (round(found * setting.scales.out) - wanted) % Q
        apart = min(apart, Q - apart)
        switching = len(chain.primes) * (1 + chain.ring) * Q / 2 ** (setting.scales.bits + 1)
        assert apart <= 2**flood + zero_noise(chain.ring) + switching + 2**-40 * Q


def test_a_false_key_reads_the_digits_of_u_that_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """pk0 = 2^(F+1) sum of 3^i X^-i, up to sign, makes the answer to b = 0 a number in base three, digit i is u_i."""
    made, flood, width = chain(1024, (26,)), 8, 26
    (q,), ring = made.primes, made.ring
    setting = Setting(made, Placement(ring, 5, 1, 1, 1), Scales(4, 4, 1.0, width, flood))
    digits = int((math.log2(q) - flood - 1) / math.log2(3))
    assert digits == 10
    request = np.zeros((1, setting.sent), dtype=np.uint64)
    for i in range(digits):
        request[0, setting.place.used + (-i % ring)] = 2 ** (flood + 1) * 3**i * (-1 if i else 1) % q
    kept: list[Draws] = []

    def watched(ring: int, count: int) -> Draws:
        kept.append(draw(ring, count))
        return kept[-1]

    monkeypatch.setattr(evaluation, "draw", watched)
    server = LiftServer(setting, np.array([[900.0, -37.0, 12.0, 5.0, -800.0]]), exact(made))
    for _ in range(20):
        reply = server.answer(as_bytes(bytes(32), request, made.primes))
        value = int(bits.unpack(reply.tobytes(), width, 1)[0]) * q / 2**width
        left = round((value if value < q / 2 else value - q) / 2 ** (flood + 1))
        for u in kept[-1].u[0, :digits].tolist():
            assert (left - u) % 3 == 0
            left = (left - u) // 3
        assert left == 0
