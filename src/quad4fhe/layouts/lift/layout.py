"""Layout `lift`: the client encrypts the monomials of its inputs, the server applies one linear map."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.errors import InputError
from quad4fhe.layouts.backend import Backend, Context, Key
from quad4fhe.layouts.base import Evaluator, Layout, question_of, read_settings
from quad4fhe.layouts.flooding import LEAST_SECURITY, flood_security, zero_noise
from quad4fhe.layouts.forms import Form, Kind, Part, Words
from quad4fhe.layouts.lift import evaluation
from quad4fhe.layouts.lift.arithmetic import MOST_BITS
from quad4fhe.layouts.lift.costs import lift_forecast
from quad4fhe.layouts.lift.decisions import LARGEST_FACTOR
from quad4fhe.layouts.lift.evaluation import LiftServer
from quad4fhe.layouts.lift.monomials import Lift, Placement, rows_of, with_check
from quad4fhe.layouts.lift.noise import LiftNoise, Norms, Scales, check_tolerance, lift_confidence
from quad4fhe.layouts.lift.powers import count_monomials, lift_of_degree, lift_question, weights_of
from quad4fhe.layouts.lift.search import (
    BLANKS,
    MOST_INPUTS,
    MOST_LIFT,
    MOST_MONOMIALS,
    REPLIES,
    Found,
    Replies,
    lift_bound,
    most_shown,
    offset_of,
    request_noise,
    search_lift,
    shown_bits,
    why_not_lift,
)
from quad4fhe.layouts.lift.zeros import ZeroPool, pool_bytes
from quad4fhe.layouts.masks import SEED_BYTES, as_bytes, from_bytes
from quad4fhe.layouts.residues import KernelName
from quad4fhe.planning.chains import Chain
from quad4fhe.planning.costs import Counts, groups, readable_count
from quad4fhe.planning.integers import Scales as IntegerScales
from quad4fhe.planning.plan import Plan
from quad4fhe.planning.target import Choice, Question
from quad4fhe.polynomial import PolynomialModel

MOST_KEPT = 2**18  # bytes of a prepared reply that a server keeps

_LEARNS = {
    "private": "a reply tells the client the answers at its own ciphertext and nothing else about the weights",
    "logits": "a reply tells an honest client the logits of the rounded model and nothing else about the weights",
    "decisions": "a reply tells an honest client a decision, and of the size of its score little; see docs/lift.md",
    "plain": "PLAIN REPLIES HAND OUT THE WEIGHTS: a client can solve for all of them from a few replies",
}


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Replies, the rows of the map in one reply, and the scales of `lift.noise`.

    `security` is the lambda of private replies. Every answer has `offset` added; the sum of a sample's answers is known
    by that, and `tolerance` is what an honest one is off by at most. `factor` is log2 of the largest random factor of
    decisions. With `blanks` the client checks so many coefficients that have no answer, instead of the sum.
    `degree` is that of the model.
    """

    replies: Replies
    group: int
    lift: int
    grain: int
    weights: float
    bits: int
    flood: int | None
    security: float | None
    offset: float
    tolerance: float
    factor: int | None = None
    blanks: int = 0
    degree: Annotated[int, msgspec.Meta(ge=2, le=8)] = 2


@lru_cache(maxsize=64)
def settings_of(plan: Plan) -> Settings:
    """The layout's own settings of a plan, read once."""
    return read_settings(plan, Settings)


@lru_cache(maxsize=64)
def setting_of(plan: Plan) -> evaluation.Setting:
    """What client and server share, from a plan."""
    s, shape = read_settings(plan, Settings), plan.shape
    size = count_monomials(shape.features, s.degree)
    place = Placement(plan.chain.ring, size, rows_of(shape.outputs, s.blanks), s.group, plan.per_request, s.blanks)
    return evaluation.Setting(plan.chain, place, Scales(s.lift, s.grain, s.weights, s.bits, s.flood, s.factor))


@lru_cache(maxsize=64)
def prepared_forms(plan: Plan) -> dict[Kind, Form]:
    """The messages of prepared questions; none where the server would have to keep too much of each."""
    setting = setting_of(plan)
    if 8 * setting.place.reads * len(plan.chain.primes) > MOST_KEPT:
        return {}
    sizes = {
        Kind.seed: SEED_BYTES,
        Kind.halves: setting.halves_bytes,
        Kind.prepared: setting.request_bytes,
        Kind.answers: setting.answers_bytes,
    }
    return {kind: _bytes_form(size) for kind, size in sizes.items()}


@lru_cache(maxsize=64)
def lift_of(plan: Plan) -> Lift:
    """The monomials over a plan's box."""
    return lift_of_degree(plan.domain.box, plan.shift, read_settings(plan, Settings).degree)


class LiftLayout(Layout):
    """One question in a millisecond or two; with private replies the server needs a public key once."""

    name: ClassVar[str] = "lift"
    purpose: ClassVar[str] = "one quick question on few features, no evaluation keys, replies that keep the weights"
    replies: ClassVar[tuple[str, ...]] = REPLIES
    compiles: ClassVar[bool] = True
    prepares: ClassVar[bool] = True

    def search(self, question: Question) -> list[Choice]:
        """The cheapest ring, primes and grouping."""
        replies: Replies = next(r for r in REPLIES if r == (question.replies or REPLIES[0]))
        question = lift_question(question)
        found = search_lift(question, replies)
        return [] if found is None else [_choice(question, found, replies)]

    def why_not(self, question: Question) -> str:
        """Too many features, or logits that no chain holds."""
        return why_not_lift(question)

    def check_settings(self, plan: Plan) -> None:
        """Groups, scales, and flooding that keeps its word."""
        s, chain, shape = read_settings(plan, Settings), plan.chain, plan.shape
        size, rows = count_monomials(shape.features, s.degree), rows_of(shape.outputs, s.blanks)
        if size > MOST_MONOMIALS or not 1 <= s.group <= min(rows, chain.ring):
            most = min(rows, chain.ring)
            raise InputError(f"layout lift takes {MOST_MONOMIALS} monomials and groups of 1 to {most}; plan again")
        if not 1 <= plan.per_request <= max(1, chain.ring // (s.group * size)):
            raise InputError(f"{plan.per_request} samples of {size} monomials do not fit ring {chain.ring}; plan again")
        if s.blanks not in (0, BLANKS) or (s.blanks and s.replies == "decisions") or not setting_of(plan).place.roomy:
            raise InputError(f"the check of this plan has no room in ring {chain.ring}; plan again")
        if setting_of(plan).place.inputs > MOST_INPUTS:
            raise InputError(f"layout lift takes requests of {MOST_INPUTS} ciphertexts, this plan has more; plan again")
        place, grain = setting_of(plan).place, s.grain + math.log2(lift_of(plan).largest)
        fine = (
            1 <= s.grain <= s.lift <= MOST_LIFT
            and grain <= 62
            and 8 <= s.bits <= MOST_BITS
            and 0 < s.tolerance < np.inf
            and 0 <= s.offset < np.inf
        )
        if not fine or not 2.0**-200 < s.weights < 2.0**200:
            raise InputError("the scales of this plan can't be right; plan again")
        if (s.replies == "decisions") != (s.factor is not None):
            raise InputError("decisions, and only they, have a random factor; plan again")
        if s.factor is not None and (s.factor, s.group, plan.per_request, rows) != (LARGEST_FACTOR, 1, 1, 2):
            raise InputError("decisions are for one question between two classes, in two replies; plan again")
        if (s.replies == "plain") != (s.flood is None) or (s.flood is None) != (s.security is None):
            raise InputError("only plain replies have no flooding; plan again")
        if s.flood is not None and s.security is not None:
            given = flood_security(zero_noise(chain), s.flood, place.reads)
            if shown_bits(chain, place, s.flood) > most_shown(chain):
                raise InputError("this plan reads so much from a private reply that a false key unmasks it; plan again")
            if s.flood > chain.modulus.bit_length() or not LEAST_SECURITY <= s.security <= given + 1e-6:
                raise InputError(
                    f"this plan floods too little for private replies of {LEAST_SECURITY} bits; plan again"
                )

    def reply_chain(self, plan: Plan) -> Chain:
        """Answers are read modulo Q; switching keeps their size."""
        return plan.chain

    def reply_scale(self, plan: Plan) -> float:
        """log2 of both scales together."""
        return math.log2(setting_of(plan).scales.out)

    def reply_bound(self, plan: Plan, model: PolynomialModel) -> float:
        """Of the answers alone: other coefficients have no meaning."""
        question = lift_question(question_of(plan, model))
        noise, s = _noise(question, plan), read_settings(plan, Settings)
        if check_tolerance(noise) > s.tolerance * (1 + 1e-7):
            raise InputError("this plan's check would refuse honest replies; plan again")
        if s.flood is not None and s.security is not None and s.replies == "logits":
            # Only with the weights at hand can one tell how large the noise is that this flooding has to hide.
            weights, _ = _checked(weights_of(noise.lift, question.reference), s.offset, setting_of(plan))
            hidden = zero_noise(plan.chain) + request_noise(weights, noise.place, s.weights)
            if s.security > flood_security(hidden, s.flood, noise.place.reads) + 1e-6:
                raise InputError("this plan floods too little to tell logits alone; plan again")
        return lift_bound(question, noise, s.offset)

    def counts(self, plan: Plan) -> Counts:
        """The operations of one request."""
        place = setting_of(plan).place
        return Counts(encryptions=place.inputs, ct_pt=place.inputs * place.replies, depth=1)

    def describe(self, plan: Plan) -> list[str]:
        """Requests, grouping, scales, and what a reply tells."""
        s, setting = read_settings(plan, Settings), setting_of(plan)
        place, requests = setting.place, groups(plan.samples, plan.per_request)
        samples = "one sample" if plan.per_request == 1 else f"{plan.per_request} samples"
        key = "no keys at all" if s.flood is None else "a public key, registered once, and no evaluation keys"
        passes = (s.tolerance / plan.domain.bound) ** max(1, s.blanks)
        lines = [
            f"layout lift: {place.size} monomials of {samples} in {readable_count(place.inputs, 'ciphertext')}, "
            f"{readable_count(requests, 'request')}; {readable_count(place.replies, 'ciphertext')} a reply; {key}",
            f"scales: monomials 2^{s.lift}, weights 2^{math.log2(s.weights):.2f}; replies switched to {s.bits} bits",
            f"replies {s.replies}: {_LEARNS[s.replies]}",
        ]
        if s.security is not None:
            lines[-1] += f"; within 2^-{math.floor(s.security)} of that for each reply"
        if passes < 1:
            known = f"{s.blanks} coefficients of a reply have" if s.blanks else "the sum of a sample's answers has"
            lines.append(f"{known} a known value: a wrong key passes with probability {passes:.1g}")
        return lines

    def simulated(self, model: PolynomialModel, plan: Plan, rng: np.random.Generator) -> Callable[[Array], Array]:
        """Gaussian noise of the size that each logit has."""
        noise = _noise(lift_question(question_of(plan, model)), plan)
        circuit = noise.circuit

        def logits(z: Array) -> Array:
            X = z + circuit.shift
            spread = noise.alone(X)
            out: Array = circuit.logits(X) + rng.normal(size=spread.shape) * spread
            return out

        return logits

    def form(self, plan: Plan, kind: Kind) -> Form | None:
        """Bytes: a seed and packed residues, packed numbers modulo 2^bits, and a public key with private replies."""
        setting = setting_of(plan)
        if kind is Kind.keys:
            return None if setting.scales.flood is None else _bytes_form(setting.key_bytes)
        return _bytes_form(setting.request_bytes if kind is Kind.request else setting.reply_bytes)

    def prepared_form(self, plan: Plan, kind: Kind) -> Form | None:
        """Bytes: a seed; packed second halves; a request; packed answers."""
        return prepared_forms(plan).get(kind)

    def work_words(self, plan: Plan) -> int:
        """Weights, masks and replies as words."""
        place, primes = setting_of(plan).place, len(plan.chain.primes)
        return 3 * primes * place.ring * (place.inputs * place.replies + 2 * place.inputs + 3 * place.replies)

    def key_memory(self, plan: Plan) -> int:
        """The public key in SEAL's memory, and a full pool of encryptions of zero."""
        setting = setting_of(plan)
        if setting.scales.flood is None:
            return 0
        return 32 * plan.chain.ring * len(plan.chain.every) + pool_bytes(setting.place, len(plan.chain.primes))

    def encrypt(self, key: Key, plan: Plan, Z: Array) -> Iterator[Words]:
        """One array of bytes."""
        exact = key.context.exact("auto")
        yield _framed(evaluation.encrypt(setting_of(plan), lift_of(plan), key.seeded_zeros, exact, Z))

    def prepare(self, key: Key, plan: Plan) -> bytes:
        """A request of zeros: its masks and noise, without a message."""
        return evaluation.prepare(setting_of(plan), key.seeded_zeros, key.context.exact("auto"))

    def encrypt_prepared(self, plan: Plan, Z: Array, part: bytes) -> list[Words]:
        """The message added to a request of zeros."""
        return [_framed(evaluation.encrypt_prepared(setting_of(plan), lift_of(plan), part, Z))]

    def decrypt(self, key: Key, plan: Plan, reply: Sequence[Words]) -> tuple[Array, bool]:
        """Answers, plausible where all lie within the bound and what the client knows beforehand is there."""
        return _judged(plan, evaluation.decrypt(setting_of(plan), key.ternary, reply[0].reshape(-1)))

    def products(self, key: Key, plan: Plan, halves: Sequence[Words]) -> bytes:
        """As many numbers as are read from a reply."""
        return evaluation.products(setting_of(plan), key.ternary, halves[0].reshape(-1))

    def read_prepared(self, plan: Plan, reply: Sequence[Words], products: bytes) -> tuple[Array, bool]:
        """The same answers and the same checks as in `decrypt`."""
        return _judged(plan, evaluation.read(setting_of(plan), reply[0].reshape(-1), products))

    def make_keys(self, key: Key, plan: Plan) -> tuple[Words, ...]:
        """A public key, its second half as a seed."""
        return (_framed(as_bytes(*key.seeded_public_key(), plan.chain.every)),)

    def evaluator(self, model: PolynomialModel, plan: Plan, backend: Backend, kernel: KernelName) -> LiftEvaluator:
        """The map with its weights rounded at random."""
        return self._evaluator(model, plan, backend, kernel, None)

    def same_evaluator(
        self, model: PolynomialModel, plan: Plan, backend: Backend, kernel: KernelName, rounding: bytes
    ) -> LiftEvaluator:
        """The map with its weights rounded as everywhere else where the seed is known."""
        rng = evaluation.seeded_rng(hashlib.sha256(rounding + plan.sha256).digest())
        return self._evaluator(model, plan, backend, kernel, rng)

    def _evaluator(
        self, model: PolynomialModel, plan: Plan, backend: Backend, kernel: KernelName, rng: np.random.Generator | None
    ) -> LiftEvaluator:
        weights = weights_of(lift_of(plan), lift_question(question_of(plan, model)).reference)
        setting, context = setting_of(plan), backend.context(plan.chain)
        checked, offset = _checked(weights, read_settings(plan, Settings).offset, setting)
        return LiftEvaluator(LiftServer(setting, checked, context.exact(kernel), offset, rng), context)


class LiftEvaluator(Evaluator):
    """The server's side of one plan."""

    def __init__(self, server: LiftServer, context: Context) -> None:
        self._server, self._context = server, context

    def prepare(self, keys: Sequence[Words]) -> ZeroPool:
        """A client's public key, as a source of encryptions of zero."""
        setting = self._server.setting
        chain = setting.chain
        seed, first = from_bytes("the public key", keys[0].reshape(-1), chain.every, chain.ring)
        encrypt = self._context.zero_encryptor(seed, first)
        return ZeroPool(encrypt, setting.place, self._server.arithmetic, len(chain.primes))

    def evaluate(self, chunks: Iterable[Words], keys: Any) -> tuple[Words, ...]:
        """The reply to a request."""
        (request,) = chunks
        return (_framed(self._server.evaluate(request.reshape(-1), keys)),)

    def prepare_reply(self, chunks: Iterable[Words], keys: Any) -> tuple[tuple[Words, ...], bytes]:
        """The second halves, and the answers of the encryptions of zero in them."""
        (seed,) = chunks
        halves, kept = self._server.prepare(seed.tobytes(), keys)
        return (_framed(halves),), kept

    def answer(self, chunks: Iterable[Words], kept: bytes) -> tuple[Words, ...] | None:
        """The answers, which belong to second halves that the client has."""
        (request,) = chunks
        found = self._server.answer(request.reshape(-1), kept)
        return None if found is None else (_framed(found),)

    def work_ahead(self, keys: Any) -> bool:
        """Make encryptions of zero for one reply."""
        return False if keys is None else bool(keys.fill())


def _choice(question: Question, found: Found, replies: Replies) -> Choice:
    scales, place, chain = found.scales, found.place, found.chain
    settings = Settings(
        replies=replies,
        group=place.group,
        lift=scales.lift,
        grain=scales.grain,
        weights=scales.weights,
        bits=scales.bits,
        flood=scales.flood,
        security=found.security,
        offset=offset_of(question) * scales.stretch,
        tolerance=check_tolerance(found.noise),
        factor=scales.factor,
        blanks=place.blanks,
        degree=question.model.degree,
    )
    own = msgspec.to_builtins(settings)
    if scales.factor is None:
        del own["factor"]
    if not place.blanks:
        del own["blanks"]
    if settings.degree == 2:
        del own["degree"]
    private = scales.flood is not None
    return Choice(
        layout=LiftLayout.name,
        circuit=question.reference,
        bound=question.limits,
        slot_bound=found.slot_bound,
        chain=chain,
        scales=IntegerScales(min(100, scales.lift), 0, 0),
        per_request=place.samples,
        settings=own,
        error=found.judged.error,
        missed=found.judged.missed,
        anywhere=found.judged.anywhere,
        scores=scales.factor is None,
        forecast=partial(_forecast, place, chain, question.samples, scales.bits, private),
    )


def _forecast(place: Placement, chain: Chain, samples: int, bits: int, private: bool, machine: Any) -> Any:
    return lift_forecast(place, chain, samples, bits, machine, private=private)


def _noise(question: Question, plan: Plan) -> LiftNoise:
    setting, lift = setting_of(plan), lift_of(plan)
    place = setting.place
    weights, _ = _checked(weights_of(lift, question.reference), read_settings(plan, Settings).offset, setting)
    norms = Norms.of(weights, place.group)
    confidence = lift_confidence(question.decisions, place)
    return LiftNoise(question.reference, lift, norms, place, setting.chain, setting.scales, confidence)


def _checked(weights: Array, offset: float, setting: evaluation.Setting) -> tuple[Array, float]:
    """The map with its check, and the offset that is added after it: to blanks, and to a decision.

    A decision's score is multiplied first, so its offset is not part of the map.
    """
    decision = setting.scales.factor is not None
    return with_check(weights, 0.0 if decision else offset, setting.place.rows), offset


def _judged(plan: Plan, answers: Array) -> tuple[Array, bool]:
    """Logits (per_request, K), and whether all answers are within the bound and the known ones are right."""
    s, samples = settings_of(plan), plan.per_request
    inside = bool((np.abs(answers) <= plan.domain.bound * (1 + 1e-6)).all())
    answers = answers - s.offset
    known = answers[samples:] if s.blanks else answers.sum(axis=1)
    right = bool((np.abs(known) <= s.tolerance).all())
    return answers[:samples, : plan.shape.outputs], inside and right


def _bytes_form(count: int) -> Form:
    return Form((Part((count, 1, 1, 1), (), 1),))


def _framed(data: Any) -> Words:
    out: Words = data.reshape(-1, 1, 1, 1)
    return out


LAYOUT = LiftLayout()
