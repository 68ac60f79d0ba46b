"""Encrypted inference in one process, for `predict --encrypted` and the demo.

The client encrypts, the server evaluates and sees only ciphertexts, and the client decrypts. The result includes times,
bytes, and differences from the plaintext model.
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
from quad4fhe.he.session import Client, Server
from quad4fhe.mlp import decide
from quad4fhe.names import NONE, Names
from quad4fhe.planning.box import moved
from quad4fhe.planning.costs import readable_bytes, readable_seconds
from quad4fhe.planning.plan import Fitted, Plan


@dataclass(frozen=True, eq=False)
class Bill:
    """The cost of an encrypted run: CPU seconds on each side, bytes each way, requests, samples moved into the box.

    `setup_seconds` is what the server spends once for a plan, before the first request.

    Compared with the same model in plaintext, `changed` decisions differ on the samples that were encrypted, and
    `changed_as_given` on the samples before they were moved into the box.
    """

    layout: str
    ring: int
    client_seconds: float
    server_seconds: float
    upload_bytes: int
    download_bytes: int
    requests: int
    clipped: int
    changed: int
    changed_as_given: int
    setup_seconds: float = 0.0

    def lines(self) -> list[tuple[str, str]]:
        """The bill as (name, value) lines of text."""
        differ = f"{self.changed_as_given} decisions differ from the same model in the clear"
        lines = []
        if self.clipped:
            differ += f" on the data as given, {self.changed} on the data after clipping"
            lines.append(("clipped", f"{self.clipped} samples lay outside the box and were moved to its edge"))
        lines.append(("changed", differ))
        traffic = f"{readable_bytes(self.upload_bytes)} up, {readable_bytes(self.download_bytes)} down"
        several = "1 request" if self.requests == 1 else f"{self.requests} requests"
        lines.append(("traffic", f"{traffic} in {several}"))
        spent = f"client {readable_seconds(self.client_seconds)}, server {readable_seconds(self.server_seconds)}"
        return [*lines, ("CPU time", f"{spent} and {readable_seconds(self.setup_seconds)} once to set up")]


@dataclass(frozen=True, eq=False)
class Prediction:
    """Decisions (n,) and logits (n, K); with the bill if they were computed under encryption.

    `reliable` (n,) marks the decisions with the margin that the fit calls reliable; None if the fit has no such margin.
    `names` are those of the fit or the plan.

    Under encryption, for K >= 2, the mean over the classes is subtracted from the logits; decisions do not need it.
    """

    decisions: IntArray
    logits: Array
    bill: Bill | None = None
    reliable: BoolArray | None = None
    names: Names = NONE

    def to_dict(self) -> dict[str, Any]:
        """Plain literals, ready for JSON."""
        document: dict[str, Any] = {"decisions": self.decisions.tolist(), "logits": self.logits.tolist()}
        document["reliable"] = None if self.reliable is None else self.reliable.tolist()
        document["classes"] = None if self.names.classes is None else list(self.names.classes)
        return document | {"bill": None if self.bill is None else dict(vars(self.bill))}

    def summary(self) -> list[tuple[str, str]]:
        """The result as (name, value) lines of text."""
        counts = np.bincount(self.decisions, minlength=2)
        shown = ", ".join(f"{self.names.decided(c)}: {n}" for c, n in enumerate(counts.tolist()) if n)
        lines = [("decisions", f"{self.decisions.size} samples; {shown}" if shown else "no samples")]
        if self.reliable is not None:
            lines.append(reliable_line(self.reliable))
        bill = self.bill
        if bill is None:
            return [*lines, ("how", "in the clear; add --encrypted for the real thing")]
        lines.append(("how", f"encrypted with CKKS, layout {bill.layout}, ring N = {bill.ring}"))
        return lines + bill.lines()


@few_threads()
def predict_encrypted(
    fit: Fitted, plan: Plan, X: ArrayLike, *, clip: bool = False, progress: Progress = silent
) -> Prediction:
    """Encrypt X (n, d), evaluate, decrypt. A sample outside the box is an error; with `clip` it moves to the edge."""
    checked = np.asarray(samples("X", X, fit.model.features), dtype=np.float64)
    clip = clip or plan.clip
    inside = np.clip(checked, *plan.domain.box) if clip else checked
    clipped = moved(checked, inside)
    started = time.process_time()
    client = Client(plan)
    ready = time.process_time()
    server = Server(fit, plan)
    setup_seconds = time.process_time() - ready
    total = -(-len(inside) // plan.per_request)
    rows, up, down, server_seconds, done = [np.empty((0, fit.model.outputs))], 0, 0, 0.0, 0
    for request in client.requests(inside):
        begin = time.process_time()
        reply = server.answer(request)
        server_seconds += time.process_time() - begin
        up, down = up + len(request), down + len(reply)
        rows.append(client.read(reply))
        done += 1
        progress("encrypted inference", done, total)
    logits = np.concatenate(rows)
    decisions = decide(logits)
    bill = Bill(
        layout=plan.layout,
        ring=plan.chain.ring,
        client_seconds=time.process_time() - started - setup_seconds - server_seconds,
        server_seconds=server_seconds,
        upload_bytes=up,
        download_bytes=down,
        requests=done,
        clipped=clipped,
        changed=int(np.count_nonzero(decisions != fit.model.decide(inside))),
        changed_as_given=int(np.count_nonzero(decisions != _in_the_clear(fit, checked))),
        setup_seconds=setup_seconds,
    )
    return Prediction(decisions, logits, bill, plan.is_reliable(logits, checked), plan.names)


def reliable_line(reliable: BoolArray) -> tuple[str, str]:
    """The (name, value) line that says how many decisions are reliable."""
    return (
        "reliable",
        f"{int(np.count_nonzero(reliable))} of {reliable.size} decisions have the margin that the fit asks for",
    )


def _in_the_clear(fit: Fitted, X: Array) -> IntArray:
    with np.errstate(over="ignore", invalid="ignore"):  # far outside the box, logits may overflow float64
        return fit.model.decide(X)
