"""The plan: layout, ring, chain, scales and limbs for a fit, chosen so that nobody has to.

Decides every parameter that client and server must share, and refuses by construction what is insecure or could
overflow. The search over chains is in `search_batch` and `search_packed`, the words in
`describe`; keys and ciphertexts are left to `he`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from quad4fhe._arrays import Array, BoolArray, tensor
from quad4fhe._arrays import samples as checked_samples
from quad4fhe._files import check_place, one_line, opened, parsing, write_atomically
from quad4fhe._threads import few_threads
from quad4fhe.circuit.bounds import bound
from quad4fhe.circuit.chain import Chain
from quad4fhe.circuit.domain import ENCODED_BITS, Domain
from quad4fhe.circuit.error import ErrorForecast
from quad4fhe.circuit.fold import Form, checked_box, fold, forms, nearest_zero
from quad4fhe.circuit.forecast import REFERENCE, Forecast, Machine, Shape
from quad4fhe.circuit.packing import Packing
from quad4fhe.circuit.promise import Deployed, ReliableAbove, deployed, reliable_above
from quad4fhe.circuit.quantise import Scales, quantise
from quad4fhe.circuit.search_batch import batch_slot_bound, noise_of, search_batch
from quad4fhe.circuit.search_packed import packed_slot_bound, search_packed, why_not_packed
from quad4fhe.circuit.target import Choice, Question
from quad4fhe.errors import InputError
from quad4fhe.proof.holdout import Guarantee
from quad4fhe.proof.reliable import is_above
from quad4fhe.quadratic import QuadraticModel

Layout = Literal["batch", "packed"]
Precision = Literal["strict", "fast"]
VERSION = 1
_PRIVATE = ("precision", "samples", "products", "error", "calibration", "smallest_margin", "forecast", "promise")
_LARGEST_NUMBER = 2**200  # of any kind; nothing a plan says of a real model comes near
LARGEST_MESSAGE = 2**31  # bytes of a reply, and of a client's evaluation keys


class Fitted(Protocol):
    """What a plan needs to know of a fit."""

    @property
    def model(self) -> QuadraticModel:
        """The polynomial model."""

    @property
    def box(self) -> Array:
        """Per-feature minimum and maximum over the calibration set, shape (2, d)."""

    @property
    def margins(self) -> Array:
        """Gap of the two largest logits of each calibration sample, or |score| for K = 1; shape (n,)."""


@dataclass(frozen=True)
class Plan:
    """Every shared parameter, as plain literals; `to_dict` and `from_dict` go through JSON and back."""

    version: int
    layout: Layout
    precision: Precision
    samples: int
    shape: Shape
    form: Form
    chain: Chain
    scales: Scales
    per_request: int
    products: tuple[float, float, float]
    domain: Domain
    error: ErrorForecast
    calibration: int
    smallest_margin: float
    forecast: Forecast
    model_id: str
    reliable: ReliableAbove | None = None
    promise: Deployed | None = None

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise InputError(f"plan version {self.version}, this library reads version {VERSION}: plan again")
        if len(self.domain.low) != self.shape.features or len(self.domain.high) != self.shape.features:
            raise InputError(f"the domain has {len(self.domain.low)} features, the model {self.shape.features}")
        _check_ranges(self)
        if self.chain.keys != (self.layout == "packed"):
            counted = "counts" if self.chain.keys else "does not count"
            raise InputError(
                f"layout {self.layout} with a chain that {counted} the special prime of evaluation keys; plan again"
            )
        # Overflow is silent, so a plan that could overflow must not exist, wherever it was read from.
        modulus = self.value_chain.modulus
        if modulus < 2 * self.domain.bound * 2.0**self.scales.out or self.scales.out >= modulus.bit_length():
            raise InputError("this plan could overflow: its chain is too short for its scales and domain; plan again")
        _check_layout(self)

    @property
    def value_chain(self) -> Chain:
        """The chain the final value has to fit: layout packed has dropped one prime by then."""
        return self.chain if self.layout == "batch" else replace(self.chain, primes=self.chain.primes[:-1])

    @property
    def kept(self) -> bool:
        """Whether no calibration decision lies closer than its error bound."""
        return not self.error.close

    def is_reliable(self, logits: Array) -> BoolArray | None:
        """Which decisions are reliable by their logits (n, K), (n,); None where the plan has no threshold."""
        return None if self.reliable is None else is_above(logits, self.reliable.threshold)

    @property
    def shift(self) -> Array:
        """What the client takes off every feature before encoding, shape (d,)."""
        return nearest_zero(self.domain.box)

    @cached_property
    def reach(self) -> float:
        """The largest size of a shifted feature anywhere in the box."""
        return float(np.abs(self.domain.box - self.shift).max())

    @property
    def packing(self) -> Packing:
        """Where things lie in layout packed."""
        s = self.shape
        return Packing(self.chain.slots, self.per_request, s.features, s.units, s.outputs)

    @cached_property
    def sha256(self) -> bytes:
        """A hash of everything client and server must agree on; costs and counts are not part of it.

        What the plan says of its error is: a client judges canaries by it.
        """
        fields = self.to_dict()
        for private in (
            "precision",
            "samples",
            "products",
            "calibration",
            "smallest_margin",
            "forecast",
            "promise",
        ):
            fields.pop(private, None)
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(b"quad4fhe-plan-1" + text.encode()).digest()

    def to_dict(self) -> dict[str, Any]:
        """Plain literals, ready for JSON."""
        out: dict[str, Any] = msgspec.to_builtins(self)
        return out

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Plan:
        """Read a plan back; it is checked like a new one (security table, overflow)."""
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise InputError(
                f"not a plan of this library ({one_line(error)}); make one with: quad4fhe plan FIT --json"
            ) from None

    @classmethod
    def from_json(cls, data: bytes) -> Plan:
        """Read the content of a plan file; it is checked like a new plan."""
        with parsing("the plan", "make one with: quad4fhe plan FIT --json"):
            fields = msgspec.json.decode(data, type=dict[str, Any])
        return cls.from_dict(fields)

    def save(self, path: str | Path) -> None:
        """Write the plan to one JSON file, whole or not at all: what `quad4fhe plan --json` prints."""
        write_atomically(check_place(path), msgspec.json.encode(self.to_dict()) + b"\n")

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan file that `save` or `quad4fhe plan --json` wrote; it is checked like a new plan."""
        with opened(path) as file:
            return cls.from_json(file.read_bytes())


def _check_ranges(plan: Plan) -> None:
    """Refuse numbers no plan can have, before any of them is used."""
    if not all(abs(number) < _LARGEST_NUMBER for number in _numbers(plan.to_dict())):
        raise InputError("a number of this plan is not finite, or too large to be true; plan again")
    scales, domain, shape = plan.scales, plan.domain, plan.shape
    for name, fine in (
        ("scales", all(0 <= bits <= 100 for bits in (scales.x, scales.w, scales.v))),
        ("bound of the logits", 0 < domain.bound < np.inf),
        ("box", np.isfinite(domain.box).all() and (domain.box[0] <= domain.box[1]).all()),
        ("failure probability", 0 < plan.error.failure < 1),
        (
            "shape",
            _in_range(shape.features, 2**16) and _in_range(shape.units, 2**16) and _in_range(shape.outputs, 2**12),
        ),
        ("number of samples", _in_range(plan.samples, 2**53)),
        ("model id", len(plan.model_id) == 64 and set(plan.model_id) <= set("0123456789abcdef")),
        ("margin of reliable decisions", plan.reliable is None or (plan.reliable.threshold or 0.0) >= 0),
        ("primes", max(plan.chain.every) < 2**60),
    ):
        if not fine:
            raise InputError(f"the {name} of this plan can't be right; plan again")
    # Values that are too large can't be encoded, and values of more than a word only by a slower path. A client must
    # not fail, or take longer, depending on a sample, so every point of the box has to fit.
    reach = max(1.0, plan.reach)
    bits = scales.x + math.log2(reach)
    if bits > min(ENCODED_BITS, plan.chain.modulus.bit_length() - 3):
        raise InputError(
            f"inputs up to {reach:.3g} do not fit at a scale of 2^{scales.x}: plan again, with a narrower box or with "
            "standardised features"
        )


def _in_range(count: int, most: int) -> bool:
    return 1 <= count <= most


def _check_layout(plan: Plan) -> None:
    """Refuse what the layout can't be, and messages of absurd sizes: a client reads as much as its plan allows."""
    chain, per_request = plan.chain, plan.per_request
    if plan.layout == "batch":
        # Fewer would let a plan's author choose how many requests, and so how many observations, a query consists of.
        if per_request != chain.slots:
            raise InputError(f"layout batch has {chain.slots} samples a request, one a slot, not {per_request}")
        if max(chain.primes) >= 2**32:
            raise InputError("layout batch has primes of at most 32 bits; plan again")
        largest = plan.shape.outputs * 3 * len(chain.primes) * chain.ring * 4
    else:
        if not 1 <= per_request <= chain.slots or chain.slots % per_request:
            raise InputError(f"{per_request} samples a request do not divide {chain.slots} slots")
        keys = 1 + len(plan.packing.steps())
        largest = keys * len(chain.primes) * 2 * (len(chain.primes) + 1) * chain.ring * 8
    if largest > LARGEST_MESSAGE:
        raise InputError(f"this plan has messages of {largest} bytes, the most is {LARGEST_MESSAGE}; plan again")


def _numbers(value: Any) -> Iterator[float]:
    """Every number in nested dicts and lists."""
    if isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _numbers(each)
    elif isinstance(value, int | float):
        yield value


def _check_margins(model: QuadraticModel, X: Array, margins: Array) -> None:
    """Refuse samples that are not the calibration set: a promise about them would be none about it."""
    logits = model.logits(X)
    ordered = np.sort(logits, axis=1)
    found = np.abs(logits[:, 0]) if model.outputs == 1 else ordered[:, -1] - ordered[:, -2]
    size = float(np.abs(logits).max(initial=0.0))
    wrong = np.flatnonzero(np.abs(found - margins) > 1e-9 * size)
    if wrong.size:
        raise InputError(f"X is not the fit's calibration data: the margin of row {int(wrong[0])} is not the fit's")


def require_model(plan: Plan, model: QuadraticModel) -> None:
    """Raise InputError unless the plan was made for this very model."""
    found = model.sha256
    if found != plan.model_id:
        raise InputError(f"this plan is for model {plan.model_id[:12]}, but the fit holds {found[:12]}: plan again")


def reply_bound(plan: Plan, model: QuadraticModel) -> float:
    """What no slot of a reply under this plan exceeds, as the holder of the model computes it."""
    question = Question(model, plan.domain.box, np.empty(0), None, plan.precision, max(plan.samples, plan.calibration))
    if plan.layout == "packed":
        return packed_slot_bound(question, plan.chain, plan.packing, plan.scales)
    circuit = fold(model, plan.domain.box, plan.form)
    return batch_slot_bound(noise_of(question, quantise(circuit, plan.scales).dequantised(), plan.chain, plan.scales))


@few_threads()
def plan(
    fit: Fitted,
    *,
    samples: int,
    layout: Literal["auto", "batch", "packed"] = "auto",
    precision: Precision = "strict",
    X: ArrayLike | None = None,
    box: ArrayLike | None = None,
    machine: Machine = REFERENCE,
) -> Plan:
    """Choose every encryption parameter for a fit.

    Parameters
    ----------
    fit
        The fit to run encrypted: its model, input box and margins decide.
    samples
        How many samples are scored together.
    layout
        "batch" (many samples at once, no evaluation keys), "packed" (one quick query), or "auto", the cheaper one.
    precision
        "strict": no calibration decision may change, and of a quarter as many unseen ones none in 99 of 100 cases.
        "fast": at most one in a thousand.
    X
        The calibration samples (n, d), in the order of the fit's margins. With them the error is forecast at each
        sample; without, for the whole box, which is rigorous, larger, and so costs more primes.
    box
        The smallest and largest value of each feature, (2, d), that inputs may have; the fit's own by default.
    machine
        The speed that the forecast of time is made for.
    """
    if samples < 1:
        raise InputError(f"samples is {samples}, wanted at least 1")
    if layout not in ("auto", "batch", "packed") or precision not in ("strict", "fast"):
        raise InputError(f"layout {layout!r} and precision {precision!r}: wanted auto, batch or packed; strict or fast")
    corners = checked_box(fit.box if box is None else box, fit.model.features)
    margins = tensor("margins", fit.margins, 1)
    points = None
    if X is not None:
        points = np.asarray(checked_samples("X", X, fit.model.features), dtype=np.float64)
        if len(points) != len(margins):
            raise InputError(f"X has {len(points)} samples, but the fit has {len(margins)} margins")
        _check_margins(fit.model, points, margins)
    question = Question(fit.model, corners, margins, points, precision, samples)
    found: list[Choice] = []
    if layout != "packed":
        found += [search_batch(question, form) for form in forms(fit.model)]
    if layout != "batch":
        found += search_packed(question)
    if not found:
        raise InputError(why_not_packed(question))
    # A plan that keeps every decision wins over one that does not; then the cheaper one.
    best = min(found, key=lambda choice: (choice.missed, choice.cost.seconds))
    return _made(fit, question, best, machine)


def _made(fit: Fitted, question: Question, choice: Choice, machine: Machine) -> Plan:
    outliers = None
    if question.points is not None and len(question.points) >= 1000:
        inner = np.quantile(question.points, [0.0005, 0.9995], axis=0)
        inner = np.stack([np.maximum(inner[0], question.box[0]), np.minimum(inner[1], question.box[1])])
        if (inner[0] <= inner[1]).all():
            without = bound(choice.circuit, inner).logit
            outliers = float(np.log2(choice.bound.logit / without)) if without > 0 else None
    margins = question.margins
    promised: Guarantee | None = getattr(fit, "guarantee", None)  # only what `quad4fhe.fit` makes has one
    return Plan(
        version=VERSION,
        layout=choice.layout,
        precision=question.precision,
        samples=question.samples,
        shape=question.shape,
        form=choice.circuit.form,
        chain=choice.chain,
        scales=choice.scales,
        per_request=choice.per_request,
        products=choice.products,
        domain=Domain(
            low=tuple(question.box[0].tolist()),
            high=tuple(question.box[1].tolist()),
            bound=choice.slot_bound,
            logit=choice.bound.logit,
            method=choice.bound.method,
            interval=choice.bound.interval,
            ellipsoid=choice.bound.ellipsoid,
            outlier_bits=outliers,
        ),
        error=choice.error,
        calibration=int(margins.size),
        smallest_margin=float(margins.min()) if margins.size else 0.0,
        forecast=choice.forecast(machine),
        model_id=fit.model.sha256,
        reliable=reliable_above(promised),
        promise=deployed(promised, choice.anywhere),
    )
