"""What the client says when a server has no plan like the pinned one: what the key is for, and which key fits.

The answer comes from the server's list of models, which is not trusted. So the advice is to compare the hash of a new
plan with the one from the model's owner.
"""

from __future__ import annotations

from shlex import quote

from quad4fhe.he.keys import StoredKey, free_name, key_beside, plan_words
from quad4fhe.planning.plan import Plan
from quad4fhe.serve.directory import Entry, read_list
from quad4fhe.serve.http import HttpClient, ServiceError, UnknownPlanError


def unknown_plan(http: HttpClient, url: str, plan: Plan, key: StoredKey | None) -> UnknownPlanError:
    """Return the error for a pinned plan that the server does not have; asks the server for its list of models."""
    came = f"{'the plan' if key is None else key.file or 'the key'} is for {plan_words(plan)}"
    try:
        entries = read_list(http)
    except ServiceError:
        return UnknownPlanError(f"{came}, which the server does not have")
    same = next((entry for entry in entries if entry.id == plan.model_id), None)
    if same is not None:
        has = f"the server has this model, {same.name!r}, with other plans: {_plans(same)}"
    else:
        has = "the server has other models: " + ", ".join(f"{one.name} ({one.id[:12]})" for one in entries[:8])
    served = {(one.id, layout, sha256) for one in entries for layout, sha256 in one.plans.items()}
    if key is not None:
        other = key_beside(key.file, lambda one: _identity(one.plan) in served)
        if other is not None:
            return UnknownPlanError(f"{came}, but {has}; this key fits: --key {quote(str(other))}")
    if same is None and len(entries) > 1:
        return UnknownPlanError(f"{came}, but {has}; choose one: ", f"quad4fhe models {quote(url)}")
    name = (same or entries[0]).name
    fix = "make a key, and compare its plan with the hash from the model's owner: "
    return UnknownPlanError(
        f"{came}, but {has}; {fix}", f"quad4fhe keygen {free_name(name)} --server {quote(url)} --model {name}"
    )


def _plans(entry: Entry) -> str:
    return ", ".join(f"{layout} {entry.plans.get(layout, '')[:12]}".strip() for layout in entry.layouts)


def _identity(plan: Plan) -> tuple[str, str, str]:
    return plan.model_id, plan.layout, plan.sha256.hex()
