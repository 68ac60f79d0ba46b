"""`Layout`: the interface of one way to put samples into ciphertexts.

A layout is one subclass in its own folder and one line in the registry (`layouts/__init__.py`). Planning, client,
server, container, service, command line and report call the layout and never compare its name.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, TypeVar

import msgspec
import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.errors import InputError
from quad4fhe.layouts.forms import Form, Kind, Words
from quad4fhe.layouts.key import Key
from quad4fhe.planning.bounds import ENCODED_BITS
from quad4fhe.planning.chains import Chain
from quad4fhe.planning.plan import Plan
from quad4fhe.planning.target import Choice, Question
from quad4fhe.polynomial import PolynomialModel

LARGEST_MESSAGE = 2**31  # bytes of a reply

S = TypeVar("S")


class Evaluator(ABC):
    """The server's side of one plan. It may trust its input, which the session has checked against its form."""

    @abstractmethod
    def answer(self, request: Sequence[Words]) -> tuple[Words, ...]:
        """The arrays of the reply to the arrays of a request."""


class Layout(ABC):
    """One layout.

    `purpose` completes the sentence "layout NAME: ...". `canaries` says whether a request has room for known samples
    beside others. `replies` are the kinds of replies it offers.
    """

    name: ClassVar[str]
    purpose: ClassVar[str]
    replies: ClassVar[tuple[str, ...]]
    canaries: ClassVar[bool] = False

    # Planning.

    @abstractmethod
    def search(self, question: Question) -> list[Choice]:
        """The candidates for a question, among them the cheapest that keeps the decisions; empty if nothing fits."""

    @abstractmethod
    def why_not(self, question: Question) -> str:
        """Why `search` found nothing, and what to do instead."""

    @abstractmethod
    def check_settings(self, plan: Plan) -> None:
        """Reject numbers that no plan of this layout can have; called before anything else uses them."""

    @abstractmethod
    def reply_chain(self, plan: Plan) -> Chain:
        """The chain that the values of a reply have to fit."""

    def reply_scale(self, plan: Plan) -> float:
        """log2 of the scale of a reply."""
        return plan.scales.out

    @abstractmethod
    def reply_bound(self, plan: Plan, model: PolynomialModel) -> float:
        """A bound on every value of a reply under this plan, as the holder of the model computes it."""

    @abstractmethod
    def describe(self, plan: Plan) -> list[str]:
        """Lines that describe where samples are placed, the keys and the scales."""

    # Messages.

    @abstractmethod
    def form(self, plan: Plan, kind: Kind) -> Form:
        """What a request or a reply consists of."""

    def memory(self, plan: Plan) -> int:
        """Bytes a worker can need at once for requests of this plan: twice what is held while one is answered."""
        words = sum(self.form(plan, kind).words for kind in Kind) + self.work_words(plan)
        return 16 * words

    def work_words(self, plan: Plan) -> int:
        """Words of work space, beyond messages, that grow with the plan."""
        return 0

    # The client.

    @abstractmethod
    def encrypt(self, key: Key, plan: Plan, Z: Array) -> tuple[Words, ...]:
        """Encrypt shifted samples Z (n <= per_request, d) with a fresh key: the arrays of a request."""

    @abstractmethod
    def decrypt(self, key: Key, plan: Plan, reply: Sequence[Words]) -> tuple[Array, bool]:
        """Logits (per_request, K), and whether the reply is plausible: no wrong key, nothing damaged."""

    # The server.

    @abstractmethod
    def evaluator(self, model: PolynomialModel, plan: Plan) -> Evaluator:
        """The model prepared for requests of this plan."""

    # What is the same for all.

    def check(self, plan: Plan) -> None:
        """Reject a plan that this layout can't carry out safely; called for every plan that is made or read."""
        self.check_settings(plan)
        # Overflow is silent, so a plan that could overflow must not exist, wherever it was read from.
        modulus, scale = self.reply_chain(plan).modulus, self.reply_scale(plan)
        if modulus < 2 * plan.domain.bound * 2.0**scale or scale >= modulus.bit_length():
            raise InputError("this plan could overflow: its chain is too short for its scales and domain; plan again")
        # A client reads as much as its plan allows.
        size = self.form(plan, Kind.reply).payload
        if size > LARGEST_MESSAGE:
            raise InputError(f"this plan has replies of {size} bytes, the most is {LARGEST_MESSAGE}; plan again")


def read_settings(plan: Plan, kind: type[S]) -> S:
    """The layout's own settings of a plan as the layout's type; raises InputError for others."""
    try:
        return msgspec.convert(plan.settings, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"the settings of this plan are not those of layout {plan.layout} ({error})") from None


def question_of(plan: Plan, model: PolynomialModel) -> Question:
    """The question that a plan answers, without the margins and samples, which no bound over the box depends on."""
    decisions = max(plan.samples, plan.calibration)
    return Question(model, plan.domain.box, np.empty(0), None, plan.precision, decisions)


def check_slots(plan: Plan) -> None:
    """Reject a plan whose inputs don't fit into slots everywhere in its box.

    Values that are too large can't be encoded, and values of more than a word only by a slower path. A client must not
    fail, or take longer, depending on a sample.
    """
    reach = max(1.0, plan.reach)
    if plan.scales.x + math.log2(reach) > min(ENCODED_BITS, plan.chain.modulus.bit_length() - 3):
        raise InputError(
            f"inputs up to {reach:.3g} do not fit at a scale of 2^{plan.scales.x}: plan again, with a narrower box or "
            "with standardised features"
        )


def within_bound(plan: Plan, slots: Array) -> bool:
    """Whether every slot of a reply lies within the plan's bound: the plausibility test of layouts with slots.

    Under a wrong key the decrypted coefficients are (by RLWE) as good as uniform modulo Q, and as Q / scale >= 2 bound,
    all N/2 slots of one output fall within the bound with probability at most (2 / sqrt(N))^(N/2), by Ball's bound on
    sections of the cube: 2^-10240 at N = 4096. Damage to the residues spreads over all slots in the same way.
    """
    return bool(np.abs(slots).max() <= plan.domain.bound * (1 + 1e-6))
