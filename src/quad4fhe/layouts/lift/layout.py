"""Layout `lift`: the client encrypts the monomials of its inputs, the server applies one linear map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, ClassVar

import msgspec
import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.errors import InputError
from quad4fhe.layouts.base import Evaluator, Layout, question_of, read_settings
from quad4fhe.layouts.flooding import LEAST_SECURITY, blinding_deviation, flood_security
from quad4fhe.layouts.forms import Form, Kind, Words
from quad4fhe.layouts.key import Key
from quad4fhe.layouts.lift import evaluation
from quad4fhe.layouts.lift._compiled import exact
from quad4fhe.layouts.lift.arithmetic import MOST_BITS
from quad4fhe.layouts.lift.costs import lift_forecast
from quad4fhe.layouts.lift.evaluation import LiftServer
from quad4fhe.layouts.lift.monomials import Lift, Placement, with_offset
from quad4fhe.layouts.lift.noise import LiftNoise, Norms, Scales, check_tolerance, lift_confidence
from quad4fhe.layouts.lift.powers import count_monomials, lift_of_degree, lift_question, weights_of
from quad4fhe.layouts.lift.search import (
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
from quad4fhe.planning.chains import Chain
from quad4fhe.planning.costs import groups, readable_count
from quad4fhe.planning.integers import Scales as IntegerScales
from quad4fhe.planning.plan import Plan
from quad4fhe.planning.target import Choice, Question
from quad4fhe.polynomial import PolynomialModel

_LEARNS = {
    "private": "a reply tells the client the answers at its own ciphertext and nothing else about the weights",
    "logits": "a reply tells an honest client the logits of the rounded model and nothing else about the weights",
    "plain": "PLAIN REPLIES HAND OUT THE WEIGHTS: a client can solve for all of them from a few replies",
}


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Replies, the rows of the map in one reply, and the scales of `lift.noise`.

    `security` is the lambda of private replies. Every answer has `offset` added; the sum of a sample's answers is known
    by that, and `tolerance` is what an honest one is off by at most. With one
    output there is no such sum, and both are 0.
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
    place = Placement(plan.chain.ring, size, shape.outputs, s.group, plan.per_request)
    return evaluation.Setting(plan.chain, place, Scales(s.lift, s.grain, s.weights, s.bits, s.flood))


@lru_cache(maxsize=64)
def lift_of(plan: Plan) -> Lift:
    """The monomials over a plan's box."""
    return lift_of_degree(plan.domain.box, plan.shift, read_settings(plan, Settings).degree)


class LiftLayout(Layout):
    """One question in a millisecond or two."""

    name: ClassVar[str] = "lift"
    purpose: ClassVar[str] = "one quick question"
    replies: ClassVar[tuple[str, ...]] = REPLIES

    def search(self, question: Question) -> list[Choice]:
        """The cheapest ring, primes and grouping."""
        replies: Replies = next(r for r in REPLIES if r == question.replies)
        question = lift_question(question)
        found = search_lift(question, replies)
        return [] if found is None else [_choice(question, found, replies)]

    def why_not(self, question: Question) -> str:
        """Too many features, or logits that no chain holds."""
        return why_not_lift(question)

    def check_settings(self, plan: Plan) -> None:
        """Groups, scales, and flooding that keeps its word."""
        s, chain, shape = read_settings(plan, Settings), plan.chain, plan.shape
        size, rows = count_monomials(shape.features, s.degree), shape.outputs
        if size > MOST_MONOMIALS or not 1 <= s.group <= min(rows, chain.ring):
            most = min(rows, chain.ring)
            raise InputError(f"layout lift takes {MOST_MONOMIALS} monomials and groups of 1 to {most}; plan again")
        if not 1 <= plan.per_request <= max(1, chain.ring // (s.group * size)):
            raise InputError(f"{plan.per_request} samples of {size} monomials do not fit ring {chain.ring}; plan again")
        if setting_of(plan).place.inputs > MOST_INPUTS:
            raise InputError(f"layout lift takes requests of {MOST_INPUTS} ciphertexts, this plan has more; plan again")
        place, grain = setting_of(plan).place, s.grain + math.log2(lift_of(plan).largest)
        fine = (
            1 <= s.grain <= s.lift <= MOST_LIFT
            and grain <= 62
            and 8 <= s.bits <= MOST_BITS
            and 0 <= s.tolerance < np.inf
            and 0 <= s.offset < np.inf
            and (s.tolerance > 0) == (rows > 1)
        )
        if not fine or not 2.0**-200 < s.weights < 2.0**200:
            raise InputError("the scales of this plan can't be right; plan again")
        if (s.replies == "plain") != (s.flood is None) or (s.flood is None) != (s.security is None):
            raise InputError("only plain replies have no flooding; plan again")
        if s.flood is not None and s.security is not None:
            given = flood_security(blinding_deviation(chain.ring), s.flood, place.reads)
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
            weights = with_offset(weights_of(noise.lift, question.reference), s.offset)
            hidden = math.hypot(blinding_deviation(plan.chain.ring), request_noise(weights, noise.place, s.weights))
            if s.security > flood_security(hidden, s.flood, noise.place.reads) + 1e-6:
                raise InputError("this plan floods too little to tell logits alone; plan again")
        return lift_bound(question, noise, s.offset)

    def describe(self, plan: Plan) -> list[str]:
        """Requests, grouping, scales, and what a reply tells."""
        s, setting = read_settings(plan, Settings), setting_of(plan)
        place, requests = setting.place, groups(plan.samples, plan.per_request)
        samples = "one sample" if plan.per_request == 1 else f"{plan.per_request} samples"
        lines = [
            f"layout lift: {place.size} monomials of {samples} in {readable_count(place.inputs, 'ciphertext')}, "
            f"{readable_count(requests, 'request')}; {readable_count(place.replies, 'ciphertext')} a reply",
            f"scales: monomials 2^{s.lift}, weights 2^{math.log2(s.weights):.2f}; replies switched to {s.bits} bits",
            f"replies {s.replies}: {_LEARNS[s.replies]}",
        ]
        if s.security is not None:
            lines[-1] += f"; within 2^-{math.floor(s.security)} of that for each reply"
        if place.rows > 1:
            passes = s.tolerance / plan.domain.bound
            lines.append(f"the sum of a sample's answers is known: a wrong key passes with probability {passes:.1g}")
        return lines

    def form(self, plan: Plan, kind: Kind) -> Form:
        """Bytes: a seed and packed residues, or packed numbers modulo 2^bits."""
        setting = setting_of(plan)
        return Form.of_bytes(setting.request_bytes if kind is Kind.request else setting.reply_bytes)

    def work_words(self, plan: Plan) -> int:
        """Weights, masks and replies as words."""
        place, primes = setting_of(plan).place, len(plan.chain.primes)
        return 3 * primes * place.ring * (place.inputs * place.replies + 2 * place.inputs + 3 * place.replies)

    def encrypt(self, key: Key, plan: Plan, Z: Array) -> tuple[Words, ...]:
        """One array of bytes."""
        return (evaluation.encrypt(setting_of(plan), lift_of(plan), key, exact(plan.chain), Z),)

    def decrypt(self, key: Key, plan: Plan, reply: Sequence[Words]) -> tuple[Array, bool]:
        """Answers, plausible where all lie within the bound and what the client knows beforehand is there."""
        return _judged(plan, evaluation.decrypt(setting_of(plan), key.ternary, reply[0]))

    def evaluator(self, model: PolynomialModel, plan: Plan) -> LiftEvaluator:
        """The map with its weights rounded at random."""
        weights = weights_of(lift_of(plan), lift_question(question_of(plan, model)).reference)
        checked = with_offset(weights, read_settings(plan, Settings).offset)
        return LiftEvaluator(LiftServer(setting_of(plan), checked, exact(plan.chain)))


class LiftEvaluator(Evaluator):
    """The server's side of one plan."""

    def __init__(self, server: LiftServer) -> None:
        self._server = server

    def answer(self, request: Sequence[Words]) -> tuple[Words, ...]:
        """One array of bytes."""
        return (self._server.answer(request[0]),)


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
        offset=offset_of(question),
        tolerance=check_tolerance(found.noise),
        degree=question.model.degree,
    )
    own = msgspec.to_builtins(settings)
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
        cost=lift_forecast(place, chain, question.samples, scales.bits, private=private),
    )


def _noise(question: Question, plan: Plan) -> LiftNoise:
    setting, lift = setting_of(plan), lift_of(plan)
    place = setting.place
    weights = with_offset(weights_of(lift, question.reference), read_settings(plan, Settings).offset)
    norms = Norms.of(weights, place.group)
    confidence = lift_confidence(question.decisions, place)
    return LiftNoise(question.reference, lift, norms, place, setting.chain, setting.scales, confidence)


def _judged(plan: Plan, answers: Array) -> tuple[Array, bool]:
    """Logits (per_request, K), and whether all answers are within the bound and the known ones are right."""
    s = settings_of(plan)
    inside = bool((np.abs(answers) <= plan.domain.bound * (1 + 1e-6)).all())
    answers = answers - s.offset
    right = plan.shape.outputs == 1 or bool((np.abs(answers.sum(axis=1)) <= s.tolerance).all())
    return answers, inside and right


LAYOUT = LiftLayout()
