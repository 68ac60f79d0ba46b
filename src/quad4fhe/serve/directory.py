"""The models that a server offers, as its client reads them: names, ids and shapes.

A name or the first digits of an id are for people; the client asks for a model by its whole id. Everything here comes
from the server and is not trusted: it is checked before it is shown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import msgspec

from quad4fhe.errors import InputError
from quad4fhe.serve.http import HttpClient, ServiceError

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_BYTES = 2**20  # of the whole list
_SHORTEST = 4  # digits of a short id


class Entry(msgspec.Struct, frozen=True):
    """A model in the list of a server. `plans` has the hash of each layout's plan; older servers do not send it."""

    id: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    name: Annotated[str, msgspec.Meta(pattern=rf"^{_NAME}\Z")]
    features: Annotated[int, msgspec.Meta(ge=1)]
    outputs: Annotated[int, msgspec.Meta(ge=1)]
    layouts: list[Annotated[str, msgspec.Meta(pattern=rf"^{_NAME}\Z")]]
    plans: dict[str, Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]] = {}


class _List(msgspec.Struct, frozen=True):
    models: Annotated[list[Entry], msgspec.Meta(min_length=1, max_length=1000)]


def is_id(model: str) -> bool:
    """Whether this is a model's whole id."""
    return re.fullmatch("[0-9a-f]{64}", model) is not None


def is_name(name: str) -> bool:
    """Whether a model may have this name."""
    return re.fullmatch(_NAME, name) is not None


def name_from(stem: str) -> str:
    """Return a model's name made from the name of its file."""
    name = re.sub("[^A-Za-z0-9._-]+", "-", stem).lstrip("._-")[:64]
    return name or "model"


def read_list(http: HttpClient) -> list[Entry]:
    """Ask a server for its models."""
    try:
        return msgspec.json.decode(http.ask("GET", "/models", None, 0, _BYTES), type=_List).models
    except (msgspec.DecodeError, RecursionError):
        raise ServiceError("the server does not speak this protocol: /models is not what it should be") from None


def find(entries: Sequence[Entry], wanted: str | None) -> Entry:
    """Return the model with this name, id or beginning of an id; the only model for None."""
    if wanted is None:
        found = list(entries)
        problem = f"the server has {len(found)} models"
    else:
        found = [entry for entry in entries if entry.name == wanted]
        if not found and len(wanted) >= _SHORTEST:
            found = [entry for entry in entries if entry.id.startswith(wanted.lower())]
        problem = f"{wanted[:80]!r} is {'more than one' if found else 'none'} of the server's models"
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{entry.name} ({entry.id[:12]})" for entry in (found or entries)[:8])
    raise InputError(f"{problem}; name one with --model: {known}")
