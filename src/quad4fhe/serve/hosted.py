"""What a server offers: models, each with one plan per layout.

Decides how a request finds its plan: by the model's id and the plan's hash, both of which every container names. How a
plan is made is left to `circuit`, how a request is answered to `worker`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quad4fhe.circuit.plan import Plan, require_model
from quad4fhe.errors import InputError
from quad4fhe.fitting.result import Fit
from quad4fhe.he.container import Kind, size


@dataclass(frozen=True, eq=False)
class Hosted:
    """One model and its plans."""

    fit: Fit
    plans: tuple[Plan, ...]

    def __post_init__(self) -> None:
        for plan in self.plans:
            require_model(plan, self.fit.model)
        layouts = [plan.layout for plan in self.plans]
        if not layouts or len(set(layouts)) != len(layouts):
            raise InputError(f"a model needs one plan for each layout it is served in, got {layouts or 'none'}")

    @property
    def model_id(self) -> str:
        """The model's name: its SHA-256."""
        return self.plans[0].model_id

    def by_layout(self, layout: str | None) -> Plan | None:
        """The plan of a layout; without one, the first."""
        return next((plan for plan in self.plans if layout in (None, plan.layout)), None)

    def by_hash(self, sha256: bytes) -> Plan | None:
        """The plan that a container names."""
        return next((plan for plan in self.plans if plan.sha256 == sha256), None)

    def largest(self, kind: Kind) -> int:
        """The most bytes a container of this kind may have; 0 where no plan has such a kind."""
        fitting = [p for p in self.plans if kind is not Kind.keys or p.layout == "packed"]
        return max((size(plan, kind) for plan in fitting), default=0)

    def to_dict(self) -> dict[str, Any]:
        """What `GET /models` says of it."""
        shape = self.plans[0].shape
        return {
            "id": self.model_id,
            "features": shape.features,
            "outputs": shape.outputs,
            "layouts": [plan.layout for plan in self.plans],
        }


def catalogue(hosted: list[Hosted]) -> dict[str, Hosted]:
    """Hosted models by id; raises InputError where two are the same."""
    out = {one.model_id: one for one in hosted}
    if len(out) != len(hosted) or not hosted:
        raise InputError("a server needs one or more different models; the same fit was given twice, or none")
    return out
