"""`Layout`: the interface of one way to put samples into ciphertexts.

A layout is one subclass in its own folder and one line in the registry (`layouts/__init__.py`). Planning, client,
server, container, service, command line and report call the layout and never compare its name.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import msgspec
import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.errors import InputError
from quad4fhe.layouts.backend import Backend, Key
from quad4fhe.layouts.forms import Form, Kind, Words
from quad4fhe.layouts.residues import KernelName
from quad4fhe.planning.bounds import ENCODED_BITS
from quad4fhe.planning.chains import Chain
from quad4fhe.planning.costs import Counts
from quad4fhe.planning.plan import Plan
from quad4fhe.planning.target import Choice, Question
from quad4fhe.polynomial import PolynomialModel

LARGEST_MESSAGE = 2**31  # bytes of a reply, and of a client's evaluation keys

S = TypeVar("S")


class Evaluator(ABC):
    """The server's side of one plan. It may trust its input, which the session has checked against its form."""

    def prepare(self, keys: Sequence[Words]) -> Any:
        """A client's evaluation keys in the form in which `evaluate` takes them; called once per client."""
        raise InputError("this layout has no evaluation keys; send the request alone")

    @abstractmethod
    def evaluate(self, chunks: Iterable[Words], keys: Any) -> tuple[Words, ...]:
        """The parts of the reply to the chunks of a request; `keys` is what `prepare` returned, or None."""

    def prepare_reply(self, chunks: Iterable[Words], keys: Any) -> tuple[tuple[Words, ...], bytes]:
        """The part of a reply that follows from a request's seed, and the bytes that `answer` needs for the rest.

        Those bytes are for one answer, and for the server alone.
        """
        raise InputError("this layout prepares nothing; send the request alone")

    def answer(self, chunks: Iterable[Words], kept: bytes) -> tuple[Words, ...] | None:
        """The rest of the reply to a prepared request; None if `kept` is of another seed or other random roundings."""
        raise InputError("this layout prepares nothing; send the request alone")

    def work_ahead(self, keys: Any) -> bool:
        """Do a little that a client's next request needs and that does not depend on it; False if all is done."""
        return False


class Layout(ABC):
    """One layout.

    `purpose` completes the sentence "layout NAME: ...". `canaries` says whether a request has room for known samples
    beside others, `compiles` whether the first evaluation compiles kernels, `prepares` whether requests have a part
    that does not depend on samples. `replies` are the kinds of replies it offers, its default first.
    """

    name: ClassVar[str]
    purpose: ClassVar[str]
    replies: ClassVar[tuple[str, ...]] = ("plain",)
    canaries: ClassVar[bool] = False
    compiles: ClassVar[bool] = False
    prepares: ClassVar[bool] = False

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
    def counts(self, plan: Plan) -> Counts:
        """The operations on ciphertexts of one request."""

    @abstractmethod
    def describe(self, plan: Plan) -> list[str]:
        """Lines that describe where samples are placed, the keys and the scales."""

    def sent_noise(self, plan: Plan) -> float:
        """The deviation that encryption adds to every feature, for the simulated client."""
        return 0.0

    @abstractmethod
    def simulated(self, model: PolynomialModel, plan: Plan, rng: np.random.Generator) -> Callable[[Array], Array]:
        """A function from shifted samples (n, d) to logits (n, K) with the noise of this layout."""

    # Messages.

    @abstractmethod
    def form(self, plan: Plan, kind: Kind) -> Form | None:
        """What a request, a reply or keys consist of; None for keys where a server needs none."""

    def prepared_form(self, plan: Plan, kind: Kind) -> Form | None:
        """The same for the messages of prepared questions; None if the server can't prepare them."""
        return None

    def has_keys(self, plan: Plan) -> bool:
        """Whether the server must be given keys before the first request of a client."""
        return self.form(plan, Kind.keys) is not None

    def counts_special(self, plan: Plan) -> bool:
        """Whether samples modulo all primes, the special one included, leave the client."""
        return self.has_keys(plan)

    def memory(self, plan: Plan, keys: int) -> int:
        """Bytes a worker can need at once for requests of this plan with the keys of so many clients.

        Twice what is held while one request is answered.
        """
        held = [self.form(plan, Kind.request), self.form(plan, Kind.reply)]
        words = sum(form.words for form in held if form is not None) + self.work_words(plan)
        return 16 * words + 2 * keys * self.key_memory(plan)

    def key_memory(self, plan: Plan) -> int:
        """Bytes that a server holds for one client's keys, what it computes from them ahead included."""
        form = self.form(plan, Kind.keys)
        return 0 if form is None else form.payload

    def work_words(self, plan: Plan) -> int:
        """Words of work space, beyond messages, that grow with the plan."""
        return 0

    # The client.

    @abstractmethod
    def encrypt(self, key: Key, plan: Plan, Z: Array) -> Iterator[Words]:
        """Encrypt shifted samples Z (n <= per_request, d) freshly; yields the chunks of the request's parts."""

    def prepare(self, key: Key, plan: Plan) -> bytes:
        """Where `prepares`: the part of a request that does not depend on its samples, for use in one request.

        It begins with its seed.
        """
        raise InputError(f"layout {self.name} has nothing to prepare; leave --prepare out")

    def encrypt_prepared(self, plan: Plan, Z: Array, part: bytes) -> list[Words]:
        """Encrypt shifted samples with what `prepare` made; a part that is used twice shows how samples differ."""
        raise InputError(f"layout {self.name} prepares nothing; encrypt the samples as they are")

    def products(self, key: Key, plan: Plan, halves: Sequence[Words]) -> bytes:
        """What `read_prepared` needs of the second halves of a reply: their products with the secret, where read."""
        raise InputError(f"layout {self.name} prepares nothing; encrypt the samples as they are")

    def read_prepared(self, plan: Plan, reply: Sequence[Words], products: bytes) -> tuple[Array, bool]:
        """`decrypt` of the reply to a prepared request, with the products that were computed ahead."""
        raise InputError(f"layout {self.name} prepares nothing; encrypt the samples as they are")

    @abstractmethod
    def decrypt(self, key: Key, plan: Plan, reply: Sequence[Words]) -> tuple[Array, bool]:
        """Logits (per_request, K), and whether the reply is plausible: no wrong key, nothing damaged."""

    def make_keys(self, key: Key, plan: Plan) -> tuple[Words, ...]:
        """The parts of fresh evaluation keys; called where `has_keys`."""
        raise InputError(f"layout {self.name} has no evaluation keys; send the request alone")

    # The server.

    @abstractmethod
    def evaluator(self, model: PolynomialModel, plan: Plan, backend: Backend, kernel: KernelName) -> Evaluator:
        """The model prepared for requests of this plan."""

    def same_evaluator(
        self, model: PolynomialModel, plan: Plan, backend: Backend, kernel: KernelName, rounding: bytes
    ) -> Evaluator:
        """`evaluator`, with random roundings that follow from a secret seed.

        Workers with the same seed can answer what another one prepared.
        """
        return self.evaluator(model, plan, backend, kernel)

    # What is the same for all.

    def check(self, plan: Plan) -> None:
        """Reject a plan that this layout can't carry out safely; called for every plan that is made or read."""
        self.check_settings(plan)
        special = self.counts_special(plan)
        if plan.chain.keys != special:
            counted = "counts" if plan.chain.keys else "does not count"
            raise InputError(
                f"layout {self.name} with a chain that {counted} the special prime of evaluation keys; plan again"
            )
        # Overflow is silent, so a plan that could overflow must not exist, wherever it was read from.
        modulus, scale = self.reply_chain(plan).modulus, self.reply_scale(plan)
        if modulus < 2 * plan.domain.bound * 2.0**scale or scale >= modulus.bit_length():
            raise InputError("this plan could overflow: its chain is too short for its scales and domain; plan again")
        # A client reads as much as its plan allows.
        sizes = [form.payload for kind in (Kind.reply, Kind.keys) if (form := self.form(plan, kind)) is not None]
        if max(sizes) > LARGEST_MESSAGE:
            raise InputError(f"this plan has messages of {max(sizes)} bytes, the most is {LARGEST_MESSAGE}; plan again")


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
