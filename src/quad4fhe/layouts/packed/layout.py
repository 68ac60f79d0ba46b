"""Layout `packed`: one sample, or a few interleaved, in one ciphertext, answered with few rotations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import msgspec
import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.errors import InputError
from quad4fhe.layouts.backend import Backend, Key
from quad4fhe.layouts.base import Layout, check_slots, question_of, read_settings, within_bound
from quad4fhe.layouts.forms import Form, Kind, Words
from quad4fhe.layouts.packed import evaluation
from quad4fhe.layouts.packed.costs import keys_form, packed_counts, reply_form, request_form
from quad4fhe.layouts.packed.noise import unit_variance
from quad4fhe.layouts.packed.packing import Packing
from quad4fhe.layouts.packed.search import packed_slot_bound, search_packed, why_not_packed
from quad4fhe.layouts.residues import KernelName
from quad4fhe.planning.chains import Chain
from quad4fhe.planning.costs import Counts, groups, readable_count
from quad4fhe.planning.fold import centred, fold
from quad4fhe.planning.plan import Plan
from quad4fhe.planning.target import Choice, Question
from quad4fhe.polynomial import PolynomialModel


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None: everything follows from the network's shape, the ring and the samples a request."""


def packing_of(plan: Plan) -> Packing:
    """Where things lie."""
    s = plan.shape
    return Packing(plan.chain.slots, plan.per_request, s.features, s.units, s.outputs)


class PackedLayout(Layout):
    """One quick query: the server needs a client's evaluation keys once."""

    name: ClassVar[str] = "packed"
    purpose: ClassVar[str] = "one quick query, or a few, with evaluation keys"

    def search(self, question: Question) -> list[Choice]:
        """The cheapest packing for each chain."""
        return search_packed(question)

    def why_not(self, question: Question) -> str:
        """Units, weights or logits that do not fit."""
        return why_not_packed(question)

    def check_settings(self, plan: Plan) -> None:
        """Slots, samples a request, and a packing of this shape."""
        check_slots(plan)
        read_settings(plan, Settings)
        slots, per_request = plan.chain.slots, plan.per_request
        if not 1 <= per_request <= slots or slots % per_request:
            raise InputError(f"{per_request} samples a request do not divide {slots} slots")
        packing_of(plan)

    def reply_chain(self, plan: Plan) -> Chain:
        """One prime was rescaled away."""
        return replace(plan.chain, primes=plan.chain.primes[:-1])

    def reply_bound(self, plan: Plan, model: PolynomialModel) -> float:
        """Partial sums and padding included."""
        return packed_slot_bound(question_of(plan, model), plan.chain, packing_of(plan), plan.scales)

    def counts(self, plan: Plan) -> Counts:
        """The operations of one request."""
        return packed_counts(packing_of(plan))

    def describe(self, plan: Plan) -> list[str]:
        """Requests, rotations, keys, scales."""
        packing, requests = packing_of(plan), groups(plan.samples, plan.per_request)
        return [
            f"layout packed: {plan.per_request} sample{'s' if plan.per_request > 1 else ''} a request, "
            f"{readable_count(requests, 'request')} of {readable_count(packing.chunks, 'ciphertext')}; "
            f"{sum(packing.rotations())} rotations with {len(packing.steps())} Galois keys, one relinearisation, one "
            "rescale",
            f"scales: features 2^{plan.scales.x}, second weights 2^{plan.scales.v}",
        ]

    def simulated(self, model: PolynomialModel, plan: Plan, rng: np.random.Generator) -> Callable[[Array], Array]:
        """The noise of encryption is added where it meets that of key switching: at the hidden units."""
        circuit, packing = fold(model, plan.domain.box, "skip"), packing_of(plan)
        _, T, constant = (part.floats() for part in centred(model))
        hidden = np.sqrt(unit_variance(model, packing, plan.chain)).T * 2.0**-plan.scales.x
        # A plaintext is encoded once, so its rounding is the same for every request. Random rounding has the variance
        # 1/6 on average over all fractions; DITHER, for the bound, is its largest.
        plain = np.sqrt(plan.chain.ring / 6 / 2) * 2.0**-plan.scales.v
        V = circuit.V + rng.normal(size=circuit.V.shape) * plain
        if packing.columns > 1:
            T = T + rng.normal(size=T.shape) * plain

        def logits(z: Array) -> Array:
            y = z @ circuit.W.T + circuit.t
            y = y + rng.normal(size=y.shape) * hidden[: len(y)]
            out: Array = (y * y) @ V.T + constant + y @ T.T
            return out

        return logits

    def form(self, plan: Plan, kind: Kind) -> Form | None:
        """Requests, replies and keys."""
        packing = packing_of(plan)
        if kind is Kind.keys:
            return keys_form(packing, plan.chain)
        return request_form(packing, plan.chain) if kind is Kind.request else reply_form(plan.chain)

    def encrypt(self, key: Key, plan: Plan, Z: Array) -> Iterator[Words]:
        """One ciphertext per chunk of features."""
        return evaluation.encrypt(key, Z, packing_of(plan), plan.scales.x, plan.reach)

    def decrypt(self, key: Key, plan: Plan, reply: Sequence[Words]) -> tuple[Array, bool]:
        """Logits lie in a few of the slots; the others obey the bound too."""
        slots = key.decrypt(key.context.ciphertext(reply[0][0], 2.0**plan.scales.out, drops=1))
        return evaluation.logits_of(slots, packing_of(plan)), within_bound(plan, slots)

    def make_keys(self, key: Key, plan: Plan) -> tuple[Words, ...]:
        """Relinearisation, and only the Galois keys this packing uses."""
        words = key.switching_words(packing_of(plan).steps())
        return (words.reshape(-1, *words.shape[2:]),)

    def evaluator(
        self, model: PolynomialModel, plan: Plan, backend: Backend, kernel: KernelName
    ) -> evaluation.PackedEvaluator:
        """Every weight encoded once."""
        return evaluation.PackedEvaluator(model, plan.shift, plan.chain, plan.scales, packing_of(plan), backend)


LAYOUT = PackedLayout()
