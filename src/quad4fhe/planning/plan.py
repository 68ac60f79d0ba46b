"""The plan: every parameter that client and server must share, checked whenever a plan is made or read.

A plan that is insecure or could overflow can't be constructed. `layouts.planner` searches for the best plan, and
`describe` explains it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array, BoolArray
from quad4fhe.errors import InputError
from quad4fhe.io.files import check_place, one_line, opened, parsing, write_atomically
from quad4fhe.names import Names
from quad4fhe.planning import layout_named
from quad4fhe.planning.bounds import Domain
from quad4fhe.planning.box import Room
from quad4fhe.planning.chains import Chain
from quad4fhe.planning.costs import Forecast, Shape
from quad4fhe.planning.fold import nearest_zero
from quad4fhe.planning.integers import Scales
from quad4fhe.planning.noise import ErrorForecast
from quad4fhe.polynomial import PolynomialModel
from quad4fhe.proof.guarantee import Guarantee, Reliable, is_above

Precision = Literal["strict", "fast"]
VERSION = 2
_AGAIN = "plan again: quad4fhe plan FIT --json > plan.json"
_LARGEST_NUMBER = 2**200  # of any field; real plans stay far below


class Hosted(Protocol):
    """What computes on requests: a model, and the name that its plans have for it."""

    @property
    def model(self) -> PolynomialModel:
        """The polynomial model."""

    @property
    def model_id(self) -> str:
        """What clients call the model, 64 hexadecimal digits that tell nothing about its weights."""


class Fitted(Hosted, Protocol):
    """What a plan needs to know about a fit."""

    @property
    def box(self) -> Array:
        """Per-feature minimum and maximum over the calibration set, shape (2, d)."""

    @property
    def margins(self) -> Array:
        """Gap of the two largest logits of each calibration sample, or |score| for K = 1; shape (n,)."""


class PlanLayout(Protocol):
    """What a plan asks of its layout; `layouts.base.Layout` has the rest."""

    def check(self, plan: Plan) -> None:
        """Raise InputError for a plan that the layout can't carry out safely."""

    def reply_chain(self, plan: Plan) -> Chain:
        """The chain that the values of a reply have to fit."""

    def reply_scale(self, plan: Plan) -> float:
        """log2 of the scale of a reply."""

    def describe(self, plan: Plan) -> list[str]:
        """Lines about how the samples lie, keys and scales."""


@dataclass(frozen=True, repr=False)
class Plan:
    """Every shared parameter, as plain literals; `to_dict` and `from_dict` go through JSON and back.

    `settings` are those of the layout, and only the layout reads them. With `clip`, clients move samples outside
    the box to its edge; otherwise they reject them. `room` compares the box with the calibration range.
    """

    version: int
    layout: str
    precision: Precision
    samples: int
    shape: Shape
    chain: Chain
    scales: Scales
    per_request: int
    settings: dict[str, Any]
    domain: Domain
    error: ErrorForecast
    calibration: int
    smallest_margin: float
    forecast: Forecast
    model_id: str
    promise: Guarantee | None = None
    room: Room | None = None
    clip: bool = False
    feature_names: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    feature_part: str | None = None  # the SHA-256 of the part of the network that runs at the client

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise InputError(_other_version(self.version))
        if len(self.domain.low) != self.shape.features or len(self.domain.high) != self.shape.features:
            raise InputError(f"the domain has {len(self.domain.low)} features, the model {self.shape.features}")
        _check_ranges(self)
        layout_named(self.layout).check(self)

    def __hash__(self) -> int:
        return hash(self.sha256)

    def __repr__(self) -> str:
        s, chain = self.shape, self.chain
        return (
            f"Plan(layout {self.layout}, {self.precision}, {s.features}-{s.units}-{s.outputs} network, ring N = "
            f"{chain.ring}, {len(chain.primes)} primes, {self.per_request} samples a request, {self.sha256.hex()[:12]})"
        )

    @property
    def names(self) -> Names:
        """The names of features and classes; None if they are not known."""
        return Names(self.feature_names, self.class_names)

    @property
    def reply_chain(self) -> Chain:
        """The chain that the values of a reply have to fit."""
        return layout_named(self.layout).reply_chain(self)

    @property
    def plain(self) -> bool:
        """Whether replies give the weights away."""
        return bool(self.settings.get("replies", "plain") == "plain")

    @property
    def kept(self) -> bool:
        """Whether no calibration decision lies closer than its error bound."""
        return not self.error.close

    @property
    def told(self) -> int:
        """How many scores a request is told, rows without a sample included: what a quota counts.

        A crafted request is told no more of them in layout lift, and two numbers for each in layout batch, where slots
        are complex.
        """
        return self.per_request * self.shape.outputs

    @property
    def reliable(self) -> Reliable | None:
        """The margin above which decisions are kept more often, if the fit was asked for one."""
        return None if self.promise is None else self.promise.reliable

    def is_reliable(self, logits: Array, X: NDArray[Any] | None = None) -> BoolArray | None:
        """Which decisions with these logits (n, K) are reliable, (n,); None if the plan has no threshold.

        X (n, d) are the samples as they were given. A client may move some that this plan would refuse; the threshold
        was not found on such samples, so they are never reliable.
        """
        if self.reliable is None:
            return None
        above = is_above(logits, self.reliable)
        if X is None or self.clip:
            return above
        low, high = self.domain.box
        inside: BoolArray = ((low <= X) & (high >= X)).all(axis=1)
        return above & inside

    @property
    def shift(self) -> Array:
        """What the client subtracts from every feature before encoding, shape (d,)."""
        return nearest_zero(self.domain.box)

    @cached_property
    def reach(self) -> float:
        """The largest size of a shifted feature anywhere in the box."""
        return float(np.abs(self.domain.box - self.shift).max())

    @cached_property
    def sha256(self) -> bytes:
        """A hash of every field, so that whoever compares it has compared all that a plan says."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(b"quad4fhe-plan-2" + text.encode()).digest()

    def to_dict(self) -> dict[str, Any]:
        """Plain literals, ready for JSON."""
        # Field by field: msgspec leaves out what an instance has from its class, a default that a file did not name.
        return {each.name: msgspec.to_builtins(getattr(self, each.name)) for each in fields(self)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Plan:
        """Read a plan back; it is checked like a new one (security table, overflow)."""
        version = data.get("version") if isinstance(data, dict) else None
        if type(version) is int and version != VERSION:
            raise InputError(_other_version(version))
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
    """Reject numbers that no plan can have, before any of them is used."""
    if not all(abs(number) < _LARGEST_NUMBER for number in _numbers(plan.to_dict())):
        raise InputError("a number of this plan is not finite, or too large to be true; plan again")
    scales, domain, shape = plan.scales, plan.domain, plan.shape
    plan.names.check(shape.features, max(shape.outputs, 2))
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
        ("model id", _is_sha256(plan.model_id)),
        ("feature part's hash", plan.feature_part is None or _is_sha256(plan.feature_part)),
        ("promise", plan.promise is None or plan.promise.possible),
        ("room", plan.room is None or plan.room.possible),
        ("primes", max(plan.chain.every) < 2**60),
    ):
        if not fine:
            raise InputError(f"the {name} of this plan can't be right; plan again")


def _is_sha256(text: str) -> bool:
    return len(text) == 64 and set(text) <= set("0123456789abcdef")


def _in_range(count: int, most: int) -> bool:
    return 1 <= count <= most


def _numbers(value: Any) -> Iterator[float]:
    """Every number in nested dicts and lists."""
    if isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _numbers(each)
    elif isinstance(value, int | float):
        yield value


def _other_version(found: int) -> str:
    return f"the plan has version {found}, and this library reads version {VERSION}; {_AGAIN}"


def require_model(plan: Plan, fit: Hosted) -> None:
    """Raise InputError unless the plan was made for this fit."""
    if fit.model_id != plan.model_id:
        raise InputError(
            f"this plan is for model {plan.model_id[:12]}, but the fit holds {fit.model_id[:12]}; {_AGAIN}"
        )
