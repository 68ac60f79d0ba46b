"""The models of a server, each with one plan per layout.

The plan's hash, which every request holds, identifies its plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quad4fhe.errors import InputError
from quad4fhe.fitting.result import Fit
from quad4fhe.he import message
from quad4fhe.layouts.forms import Kind
from quad4fhe.planning.plan import Plan, require_model


@dataclass(frozen=True, eq=False)
class HostedModel:
    """One model, its plans and its name for people."""

    fit: Fit
    plans: tuple[Plan, ...]
    name: str = "model"

    def __post_init__(self) -> None:
        for plan in self.plans:
            require_model(plan, self.fit)
        layouts = [plan.layout for plan in self.plans]
        if not layouts or len(set(layouts)) != len(layouts):
            raise InputError(f"a model needs one plan for each layout it is served in, got {layouts or 'none'}")
        plain = [plan.layout for plan in self.plans if plan.plain]
        if plain and len(plain) < len(layouts):
            raise InputError(
                f"plain replies (layout {', '.join(plain)}) give away the weights that the model's other replies hide; "
                "serve it with private plans alone (quad4fhe plan FIT --replies private), or with plain ones alone"
            )

    @property
    def model_id(self) -> str:
        """What clients call the model; see `Fit.model_id`."""
        return self.plans[0].model_id

    def by_layout(self, layout: str | None) -> Plan | None:
        """The plan of a layout; the first plan for None."""
        return next((plan for plan in self.plans if layout in (None, plan.layout)), None)

    def by_hash(self, sha256: bytes) -> Plan | None:
        """The plan with this hash, or None."""
        return next((plan for plan in self.plans if plan.sha256 == sha256), None)

    @property
    def largest(self) -> int:
        """The most bytes a request may have."""
        return max(message.size(plan, Kind.request) for plan in self.plans)

    def to_dict(self) -> dict[str, Any]:
        """The model's entry in `GET /models`."""
        shape = self.plans[0].shape
        return {
            "id": self.model_id,
            "name": self.name,
            "features": shape.features,
            "outputs": shape.outputs,
            "layouts": [plan.layout for plan in self.plans],
            "plans": {plan.layout: plan.sha256.hex() for plan in self.plans},
        }


def catalogue(hosted: list[HostedModel]) -> dict[str, HostedModel]:
    """Return models by id; raises InputError if two are the same."""
    out = {one.model_id: one for one in hosted}
    if len(out) != len(hosted) or not hosted:
        raise InputError("a server needs one or more different models; the same fit was given twice, or none")
    names = [one.name for one in hosted]
    if again := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"two models are called {again[0]!r}; give each its own name with --name, in the order of FIT")
    return out
