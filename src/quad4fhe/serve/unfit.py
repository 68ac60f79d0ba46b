"""What the client says when a server has no plan like the pinned one.

The answer comes from the server's list of models, which is not trusted. So the advice is to compare the hash of a new
plan with the one from the model's owner.
"""

from __future__ import annotations

from shlex import quote

from quad4fhe.planning.plan import Plan
from quad4fhe.serve.directory import Entry, read_list
from quad4fhe.serve.http import HttpClient, ServiceError, UnknownPlanError


def unknown_plan(http: HttpClient, url: str, plan: Plan) -> UnknownPlanError:
    """Return the error for a pinned plan that the server does not have; asks the server for its list of models."""
    came = f"the plan {plan.sha256.hex()[:12]} is for model {plan.model_id[:12]} (layout {plan.layout})"
    try:
        entries = read_list(http)
    except ServiceError:
        return UnknownPlanError(f"{came}, which the server does not have")
    same = next((entry for entry in entries if entry.id == plan.model_id), None)
    if same is not None:
        has = f"the server has this model, {same.name!r}, with other plans: {_plans(same)}"
    else:
        has = "the server has other models: " + ", ".join(f"{one.name} ({one.id[:12]})" for one in entries[:8])
    if same is None and len(entries) > 1:
        return UnknownPlanError(f"{came}, but {has}; choose one: ", f"quad4fhe models {quote(url)}")
    name = (same or entries[0]).name
    fix = "get the plan, and compare its hash with the one from the model's owner: "
    command = f"quad4fhe models {quote(url)} --save-plan plan.json --model {name}"
    return UnknownPlanError(f"{came}, but {has}; {fix}", command)


def _plans(entry: Entry) -> str:
    return ", ".join(f"{layout} {entry.plans.get(layout, '')[:12]}".strip() for layout in entry.layouts)
