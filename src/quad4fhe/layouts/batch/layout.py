"""Layout `batch`: one ciphertext per feature, one sample per slot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import msgspec
import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.errors import InputError
from quad4fhe.layouts.base import Layout, check_slots, question_of, read_settings, within_bound
from quad4fhe.layouts.batch import evaluation
from quad4fhe.layouts.batch.costs import reply_form, request_form
from quad4fhe.layouts.batch.privacy import Blinding, Flooding
from quad4fhe.layouts.batch.search import batch_slot_bound, noise_of, search_batch, why_not_batch
from quad4fhe.layouts.flooding import LEAST_SECURITY
from quad4fhe.layouts.forms import Form, Kind, Words
from quad4fhe.layouts.key import Key
from quad4fhe.planning.chains import Chain
from quad4fhe.planning.costs import groups
from quad4fhe.planning.exactness import largest_prime_bits
from quad4fhe.planning.fold import Form as Fold
from quad4fhe.planning.fold import fold
from quad4fhe.planning.integers import IntegerCircuit, quantise
from quad4fhe.planning.plan import Plan
from quad4fhe.planning.target import Choice, Question
from quad4fhe.polynomial import PolynomialModel


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How the linear term is carried, and matrix products per prime for W, V and the skip.

    Above degree 2: the degree, log2 of the scale of a reply, the number of distinct rows of W where some units share
    one, and `trusted`, the largest slot that a client accepts, where it is less than the box allows. Private replies
    have a flooding, and `security` is its lambda.
    """

    form: Fold
    products: tuple[float, float, float]
    degree: Annotated[int, msgspec.Meta(ge=2, le=8)] = 2
    reply: Annotated[int, msgspec.Meta(ge=1, le=900)] | None = None
    trusted: Annotated[float, msgspec.Meta(gt=0)] | None = None
    hidden: Annotated[int, msgspec.Meta(ge=1)] | None = None
    replies: Literal["plain", "private"] = "plain"
    flood: Annotated[int, msgspec.Meta(ge=1, le=900)] | None = None
    security: float | None = None


class BatchLayout(Layout):
    """Many samples at once: a sample costs microseconds."""

    name: ClassVar[str] = "batch"
    purpose: ClassVar[str] = "many samples at once"
    replies: ClassVar[tuple[str, ...]] = ("private", "plain")
    canaries: ClassVar[bool] = True

    def search(self, question: Question) -> list[Choice]:
        """The cheapest chain for each form the model can take."""
        private = question.replies != "plain"
        found = (search_batch(question, form, private=private) for form in question.folding.forms)
        return [choice for choice in found if choice is not None]

    def why_not(self, question: Question) -> str:
        """Logits that no chain holds."""
        return why_not_batch(question)

    def check_settings(self, plan: Plan) -> None:
        """Slots, samples a request, primes."""
        check_slots(plan)
        settings, chain = read_settings(plan, Settings), plan.chain
        # Fewer would let a plan's author choose how many requests, and so how many observations, a query consists of.
        if plan.per_request != chain.slots:
            raise InputError(f"layout batch has {chain.slots} samples a request, one a slot, not {plan.per_request}")
        most = largest_prime_bits(settings.degree)
        if max(chain.primes) >= 1 << most:
            raise InputError(f"layout batch of degree {settings.degree} has primes of at most {most} bits; plan again")
        flooding = _flooding(plan)
        if (settings.replies == "plain") != (flooding is None) or (flooding is None) != (settings.security is None):
            raise InputError("only plain replies have no flooding; plan again")
        if flooding is not None and settings.security is not None:
            given = flooding.security
            if flooding.bits > chain.modulus.bit_length() or not LEAST_SECURITY <= settings.security <= given + 1e-6:
                raise InputError(
                    f"this plan floods too little for private replies of {LEAST_SECURITY} bits; plan again"
                )

    def reply_chain(self, plan: Plan) -> Chain:
        """Nothing is rescaled."""
        return plan.chain

    def reply_scale(self, plan: Plan) -> float:
        """The product of all scales."""
        settings = read_settings(plan, Settings)
        return plan.scales.out if settings.reply is None else settings.reply

    def reply_bound(self, plan: Plan, model: PolynomialModel) -> float:
        """From the integers that run."""
        running = self.circuit(plan, model).dequantised()
        noise = noise_of(question_of(plan, model), running, plan.chain, plan.scales)
        return batch_slot_bound(replace(noise, flooding=_flooding(plan), out=self.reply_scale(plan)))

    def circuit(self, plan: Plan, model: PolynomialModel) -> IntegerCircuit:
        """The circuit that runs."""
        settings = read_settings(plan, Settings)
        made = quantise(fold(model, plan.domain.box, settings.form), plan.scales)
        if (made.degree, made.out) != (settings.degree, self.reply_scale(plan)):
            raise InputError(f"this plan is for degree {settings.degree}, the model has {made.degree}; plan again")
        return made

    def describe(self, plan: Plan) -> list[str]:
        """Requests, the linear term, scales, limbs."""
        settings, requests = read_settings(plan, Settings), groups(plan.samples, plan.per_request)
        carried = _CARRIED[settings.form]
        first, second, _ = settings.products
        return [
            f"layout batch: one ciphertext per feature, up to {plan.per_request} samples in its slots, "
            f"{requests} request{'s' if requests > 1 else ''}; {carried}",
            f"scales: features 2^{plan.scales.x}, first weights 2^{plan.scales.w}, second weights 2^{plan.scales.v}, "
            f"reply 2^{self.reply_scale(plan):.0f}; {first:.3g} and {second:.3g} exact matrix products per prime",
            *_trusted(settings),
            *_told(settings),
        ]

    def form(self, plan: Plan, kind: Kind) -> Form:
        """Requests and replies."""
        settings = read_settings(plan, Settings)
        if kind is Kind.request:
            return request_form(plan.shape, plan.chain, private=settings.flood is not None)
        return reply_form(plan.shape, plan.chain, settings.degree)

    def work_words(self, plan: Plan) -> int:
        """The hidden layer and the skipped terms, where features come in several chunks, and the masks of a seed."""
        shape = plan.shape
        return ((shape.units + shape.outputs) * 2 + shape.features) * len(plan.chain.primes) * plan.chain.ring

    def encrypt(self, key: Key, plan: Plan, Z: Array) -> tuple[Words, ...]:
        """Feature by feature, and the public key."""
        return evaluation.encrypt(key, Z, plan.scales.x, plan.reach, private=_flooding(plan) is not None)

    def decrypt(self, key: Key, plan: Plan, reply: Sequence[Words]) -> tuple[Array, bool]:
        """Every slot is a logit."""
        slots = evaluation.decrypt(key, reply[0], self.reply_scale(plan))
        plausible = within_bound(plan, slots)
        if plausible:
            _check_trusted(read_settings(plan, Settings), slots)
        return slots, plausible

    def evaluator(self, model: PolynomialModel, plan: Plan) -> evaluation.BatchEvaluator:
        """The integer circuit on residues."""
        flooding = _flooding(plan)
        blinding = None if flooding is None else Blinding(flooding)
        return evaluation.BatchEvaluator(self.circuit(plan, model), plan.chain, blinding)


def _flooding(plan: Plan) -> Flooding | None:
    settings = read_settings(plan, Settings)
    if settings.flood is None:
        return None
    return Flooding(plan.chain, plan.shape.outputs, settings.degree, settings.flood)


def _told(settings: Settings) -> list[str]:
    if settings.security is None:
        return ["replies plain: from enough replies a client can solve for the weights"]
    return [
        "replies private: a reply tells the client the values at its own ciphertexts and nothing else about the "
        f"weights; within 2^-{math.floor(settings.security)} of that for each reply"
    ]


def _trusted(settings: Settings) -> list[str]:
    if settings.trusted is None:
        return []
    return [
        f"degree {settings.degree}: a polynomial grows quickly beyond the calibration data; the client rejects replies "
        f"with a logit above {settings.trusted:.4g}, which would cost the other samples of a request their precision"
    ]


def _check_trusted(settings: Settings, slots: Array) -> None:
    """Decoding loses a share of the largest slot: beyond `trusted`, the error bound of the plan would not hold."""
    largest = np.abs(slots).max(axis=1)
    if settings.trusted is None or float(largest.max()) <= settings.trusted:
        return
    rows = np.flatnonzero(largest > settings.trusted)
    listed = ", ".join(map(str, rows[:5].tolist())) + (", ..." if rows.size > 5 else "")
    raise InputError(
        f"logits of sample {listed} of the request reach {float(largest.max()):.4g}, and the error bound of this plan "
        f"holds only up to {settings.trusted:.4g}; leave out what lies far from the calibration data, or plan with a "
        "narrower box and clip (--clip)"
    )


_CARRIED: dict[str, str] = {
    "square": "linear term by completing the square",
    "skip": "linear term by a linear skip from the input",
    "units": "a polynomial per unit, expanded in powers of the key",
}

LAYOUT = BatchLayout()
