"""Encrypted inference from beginning to end in one process: what `predict --encrypted` and the demo run.

Decides nothing of its own: a client encrypts, a server that sees only ciphertexts evaluates, the client decrypts; the
times, bytes and differences from the plaintext model are counted on the way.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from quad4fhe._arrays import Array, BoolArray, IntArray, samples
from quad4fhe._progress import Progress, silent
from quad4fhe._threads import few_threads
from quad4fhe.circuit.forecast import readable_bytes, readable_seconds
from quad4fhe.circuit.plan import Fitted, Plan
from quad4fhe.he.session import Client, Server
from quad4fhe.mlp import decide


@dataclass(frozen=True, eq=False)
class Bill:
    """What an encrypted run took: CPU seconds on each side, bytes each way, requests, samples moved into the box.

    Decisions are compared with those of the same model in the clear: `changed` of them differ on the samples that were
    encrypted, `changed_as_given` on the samples before they were moved into the box.
    """

    layout: str
    ring: int
    client_seconds: float
    server_seconds: float
    upload_bytes: int
    download_bytes: int
    key_bytes: int
    requests: int
    clipped: int
    changed: int
    changed_as_given: int


@dataclass(frozen=True, eq=False)
class Prediction:
    """Decisions (n,) and logits (n, K); with the bill where they were computed under encryption.

    `reliable` (n,) says which decisions have the margin that the fit calls reliable; None where it names none.

    Under encryption the logits of several classes come without their mean over the classes, which no decision needs.
    """

    decisions: IntArray
    logits: Array
    bill: Bill | None = None
    reliable: BoolArray | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain literals, ready for JSON."""
        document: dict[str, Any] = {"decisions": self.decisions.tolist(), "logits": self.logits.tolist()}
        document["reliable"] = None if self.reliable is None else self.reliable.tolist()
        return document | {"bill": None if self.bill is None else dict(vars(self.bill))}

    def summary(self) -> list[tuple[str, str]]:
        """The result in words: (name, value) lines."""
        counts = np.bincount(self.decisions, minlength=2)
        shown = ", ".join(f"class {c}: {n}" for c, n in enumerate(counts.tolist()) if n)
        lines = [("decisions", f"{self.decisions.size} samples; {shown}" if shown else "no samples")]
        if self.reliable is not None:
            lines.append(reliable_line(self.reliable))
        bill = self.bill
        if bill is None:
            return [*lines, ("how", "in the clear; add --encrypted for the real thing")]
        lines.append(("how", f"encrypted with CKKS, layout {bill.layout}, ring N = {bill.ring}"))
        differ = f"{bill.changed_as_given} decisions differ from the same model in the clear"
        if bill.clipped:
            differ += f" on the data as given, {bill.changed} on the data after clipping"
            lines.append(("clipped", f"{bill.clipped} samples lay outside the box and were moved to its edge"))
        lines.append(("changed", differ))
        traffic = f"{readable_bytes(bill.upload_bytes)} up, {readable_bytes(bill.download_bytes)} down"
        keys = f", {readable_bytes(bill.key_bytes)} of keys once" if bill.key_bytes else ", no evaluation keys"
        lines.append(("traffic", f"{traffic} in {bill.requests} requests{keys}"))
        spent = f"client {readable_seconds(bill.client_seconds)}, server {readable_seconds(bill.server_seconds)}"
        return [*lines, ("CPU time", spent)]


@few_threads()
def predict_encrypted(
    fit: Fitted, plan: Plan, X: ArrayLike, *, clip: bool = False, progress: Progress = silent
) -> Prediction:
    """Encrypt X (n, d), evaluate, decrypt. A sample outside the box is refused, or with `clip` moved to its edge."""
    checked = np.asarray(samples("X", X, fit.model.features), dtype=np.float64)
    inside = np.clip(checked, *plan.domain.box) if clip else checked
    clipped = int(np.count_nonzero(np.any(inside != checked, axis=1)))
    started = time.process_time()
    client, server = Client(plan), Server(fit, plan)
    keys = client.evaluation_keys()
    server.register(client.key_id, keys)
    requests = client.stream(inside)
    total = -(-len(inside) // plan.per_request)
    rows, up, down, server_seconds, done = [np.empty((0, fit.model.outputs))], 0, 0, 0.0, 0
    for request in requests:
        chunks = list(request.chunks)
        up += sum(chunk.nbytes for chunk in chunks)
        begin = time.process_time()
        reply = server.evaluate(type(request)(request.header, chunks))
        server_seconds += time.process_time() - begin
        down += reply.residues.nbytes
        rows.append(client.decrypt(reply))
        done += 1
        progress("encrypted inference", done, total)
    logits = np.concatenate(rows)
    decisions = decide(logits)
    bill = Bill(
        layout=plan.layout,
        ring=plan.chain.ring,
        client_seconds=time.process_time() - started - server_seconds,
        server_seconds=server_seconds,
        upload_bytes=up,
        download_bytes=down,
        key_bytes=0 if keys is None else len(keys.relin) + len(keys.galois),
        requests=done,
        clipped=clipped,
        changed=int(np.count_nonzero(decisions != fit.model.decide(inside))),
        changed_as_given=int(np.count_nonzero(decisions != _in_the_clear(fit, checked))),
    )
    return Prediction(decisions, logits, bill, plan.is_reliable(logits))


def reliable_line(reliable: BoolArray) -> tuple[str, str]:
    """How many decisions are reliable, in words."""
    return (
        "reliable",
        f"{int(np.count_nonzero(reliable))} of {reliable.size} decisions have the margin that the fit asks for",
    )


def _in_the_clear(fit: Fitted, X: Array) -> IntArray:
    with np.errstate(over="ignore", invalid="ignore"):  # far outside the box logits may be beyond float64
        return fit.model.decide(X)
