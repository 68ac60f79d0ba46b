"""A simulator of the encrypted circuit: models its rounding and noise and counts operations, without cryptography.

It has the interface of `he.session`, so a program can run on it first. It encrypts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from quad4fhe._arrays import Array
from quad4fhe.errors import InputError
from quad4fhe.planning import layout_named
from quad4fhe.planning.box import check_inside
from quad4fhe.planning.costs import Counts
from quad4fhe.planning.plan import Fitted, Plan, require_model


class ClientLike(Protocol):
    """The interface shared by the real and the simulated client."""

    def stream(self, X: ArrayLike) -> Iterator[Any]:
        """Requests for the samples X, one group at a time."""

    def decrypt(self, replies: Any) -> Array:
        """Logits (n, K) from the replies, in order; for K >= 2 without the mean over the classes."""


class ServerLike(Protocol):
    """The interface shared by the real and the simulated server."""

    def evaluate(self, request: Any) -> Any:
        """The reply to one request."""


@dataclass(frozen=True, eq=False)
class SimulatedRequest:
    """Noisy shifted samples (n, d) in the clear."""

    plan: bytes
    values: Array


@dataclass(frozen=True, eq=False)
class SimulatedReply:
    """Noisy logits (n, K) in the clear."""

    plan: bytes
    values: Array


class SimulatedClient:
    """Client(plan) without keys: adds the noise of a fresh encryption to every slot."""

    def __init__(self, plan: Plan, seed: int = 2026) -> None:
        self.plan = plan
        self._noise = layout_named(plan.layout).sent_noise(plan)
        self._rng = np.random.default_rng(seed)

    def encrypt(self, X: ArrayLike) -> list[SimulatedRequest]:
        """Requests for the samples X (n, d)."""
        return list(self.stream(X))

    def stream(self, X: ArrayLike) -> Iterator[SimulatedRequest]:
        """Requests for the samples X, one group at a time."""
        checked = check_inside(X, self.plan)
        for start in range(0, len(checked), self.plan.per_request):
            z = checked[start : start + self.plan.per_request] - self.plan.shift
            yield SimulatedRequest(self.plan.sha256, z + self._rng.normal(size=z.shape) * self._noise)

    def decrypt(self, replies: SimulatedReply | Iterable[SimulatedReply]) -> Array:
        """Logits (n, K) from the replies, in order."""
        rows = [replies] if isinstance(replies, SimulatedReply) else list(replies)
        if any(reply.plan != self.plan.sha256 for reply in rows):
            raise InputError("the reply belongs to another plan")
        return np.concatenate([reply.values for reply in rows]) if rows else np.empty((0, self.plan.shape.outputs))


class SimulatedServer:
    """Server(fit, plan) on plain numbers: the rounded circuit, the layout's noise, and operation counts."""

    def __init__(self, fit: Fitted, plan: Plan, seed: int = 2027) -> None:
        require_model(plan, fit)
        self.plan = plan
        self.counts = Counts()
        layout = layout_named(plan.layout)
        self._once = layout.counts(plan)
        self._logits = layout.simulated(fit.model, plan, np.random.default_rng(seed))

    def evaluate(self, request: SimulatedRequest) -> SimulatedReply:
        """The reply to one request."""
        if request.plan != self.plan.sha256:
            raise InputError("the request belongs to another plan")
        for name, count in self._once.to_dict().items():
            total = count if name == "depth" else getattr(self.counts, name) + count
            setattr(self.counts, name, total)
        return SimulatedReply(self.plan.sha256, self._logits(request.values))


def run(client: ClientLike, server: ServerLike, X: ArrayLike) -> Array:
    """Logits (n, K) of X through a client and a server, one request at a time."""
    rows = [client.decrypt(server.evaluate(request)) for request in client.stream(X)]
    if not rows:
        raise InputError("X has no samples")
    return np.concatenate(rows)
