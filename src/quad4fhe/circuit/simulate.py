"""The encrypted circuit without cryptography: the same calls, rounding and noise modelled, operations counted.

Decides what noise each layout adds. It has the interface of `he.session`, so a program can be tried on it first;
nothing here hides anything from anyone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from quad4fhe._arrays import Array
from quad4fhe.circuit.counts import Counts, batch_counts, packed_counts
from quad4fhe.circuit.domain import check_inside
from quad4fhe.circuit.error import DITHER, slot_noise
from quad4fhe.circuit.fold import centred, fold
from quad4fhe.circuit.packed_noise import unit_variance
from quad4fhe.circuit.plan import Fitted, Plan, require_model
from quad4fhe.circuit.quantise import quantise
from quad4fhe.errors import InputError


class ClientLike(Protocol):
    """What the real and the simulated client have in common."""

    def stream(self, X: ArrayLike) -> Iterator[Any]:
        """Requests for the samples X, one group at a time."""

    def decrypt(self, replies: Any) -> Array:
        """Logits (n, K) from the replies, in order; for K >= 2 without the mean over the classes."""


class ServerLike(Protocol):
    """What the real and the simulated server have in common."""

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
        # Layout packed adds the noise of encryption where it meets that of key switching: at the hidden units.
        self._noise = slot_noise(plan.chain.ring) * 2.0**-plan.scales.x if plan.layout == "batch" else 0.0
        self._rng = np.random.default_rng(seed)

    def encrypt(self, X: ArrayLike) -> list[SimulatedRequest]:
        """Requests for the samples X (n, d)."""
        return list(self.stream(X))

    def stream(self, X: ArrayLike) -> Iterator[SimulatedRequest]:
        """Requests for the samples X, one group at a time."""
        checked = check_inside(X, self.plan.domain)
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
        require_model(plan, fit.model)
        self.plan = plan
        self.counts = Counts()
        self._rng = np.random.default_rng(seed)
        circuit = fold(fit.model, plan.domain.box, plan.form)
        self._T: Array | None = None
        self._hidden = np.zeros((1, plan.shape.units))
        if plan.layout == "batch":
            circuit = quantise(circuit, plan.scales).dequantised()
            self._once = batch_counts(plan.shape, skip=plan.form == "skip")
            self._V = circuit.V
        else:
            _, self._T, constant = (part.floats() for part in centred(fit.model))
            self._once = packed_counts(plan.packing)
            self._hidden = np.sqrt(unit_variance(fit.model, plan.packing, plan.chain)).T * 2.0**-plan.scales.x
            # A plaintext is encoded once, so its rounding is the same for every request.
            plain = np.sqrt(DITHER * plan.chain.ring / 2) * 2.0**-plan.scales.v
            self._V = circuit.V + self._rng.normal(size=circuit.V.shape) * plain
            if plan.packing.columns > 1:
                self._T = self._T + self._rng.normal(size=circuit.V.shape) * plain
        self._circuit = circuit
        self._c = circuit.c if self._T is None else constant

    def evaluate(self, request: SimulatedRequest) -> SimulatedReply:
        """The reply to one request."""
        if request.plan != self.plan.sha256:
            raise InputError("the request belongs to another plan")
        for name, count in self._once.to_dict().items():
            total = count if name == "depth" else getattr(self.counts, name) + count
            setattr(self.counts, name, total)
        z, circuit = request.values, self._circuit
        y = z @ circuit.W.T + circuit.t
        if self.plan.layout == "packed":
            y = y + self._rng.normal(size=y.shape) * self._hidden[: len(y)]
        out = (y * y) @ self._V.T + self._c
        if self._T is not None:
            out = out + y @ self._T.T
        elif circuit.U is not None:
            out = out + z @ circuit.U.T
        return SimulatedReply(self.plan.sha256, out)


def run(client: ClientLike, server: ServerLike, X: ArrayLike) -> Array:
    """Logits (n, K) of X through a client and a server, one request at a time."""
    rows = [client.decrypt(server.evaluate(request)) for request in client.stream(X)]
    if not rows:
        raise InputError("X has no samples")
    return np.concatenate(rows)
