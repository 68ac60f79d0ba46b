"""The paper's encrypted experiments as functions: precision sweep and minimum feasible configuration.

`quad4fhe bench` prints their tables, and `quad4fhe reproduce` records them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from quad4fhe._arrays import Array
from quad4fhe._progress import Progress, silent
from quad4fhe.errors import InputError
from quad4fhe.he.predict import predict_encrypted
from quad4fhe.layouts import LAYOUTS
from quad4fhe.layouts.planner import plan
from quad4fhe.mlp import MLP, decide
from quad4fhe.planning.plan import Fitted, Plan
from quad4fhe.report.preactivations import preactivations
from quad4fhe_reproduce.baselines.remez import remez
from quad4fhe_reproduce.circuit import SQUARE, Activation, PaperCircuit, monomials, quad

SWEEP = (25, 30, 35, 40, 45)
REPLIES = {"lift": "private", "batch": "plain"}  # plain is what the paper's circuit gives; `lift` hides the weights


@dataclass(frozen=True)
class Configuration:
    """A row of the search grid: ring, depth, bits of the scale, and bits of the first and special primes (`ends`)."""

    ring: int
    depth: int
    log2_scale: int = 40
    ends: int = 60

    @property
    def log_q(self) -> int:
        """Bits of the whole modulus."""
        return 2 * self.ends + self.depth * self.log2_scale


# The paper's grid, then the configurations that the security table allows in rings 2^12 and 2^13.
PAPER_GRID = (
    Configuration(2**14, 4),
    Configuration(2**14, 5),
    Configuration(2**15, 5),
    Configuration(2**15, 6),
)
SMALL_GRID = (
    Configuration(2**12, 3, log2_scale=18, ends=26),
    Configuration(2**13, 3, log2_scale=40, ends=47),
    Configuration(2**13, 4, log2_scale=33, ends=41),
    Configuration(2**13, 5, log2_scale=28, ends=37),
)


@dataclass(frozen=True)
class Outcome:
    """The result of one scheme in one configuration; `reason` says why it is not feasible."""

    scheme: str
    ring: int
    depth: int
    log_q: int
    log2_scale: int
    feasible: bool
    reason: str
    samples: int
    mismatches: int
    accuracy: float | None
    max_error: float
    server_seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain literals, ready for JSON."""
        return asdict(self)


def schemes(mlp: MLP, coefficients: tuple[float, float, float], X_cal: ArrayLike) -> list[Activation]:
    """The schemes of the paper's encrypted tables: Square, Quad with these coefficients, Remez-2, 3, 5, 7."""
    data = preactivations(mlp, X_cal)
    minimax = [monomials(remez(degree, data.lo, data.hi)) for degree in (2, 3, 5, 7)]
    return [SQUARE, quad(*coefficients), *minimax]


def run_paper(mlp: MLP, activation: Activation, where: Configuration, X: Array, y: Array | None = None) -> Outcome:
    """Run one scheme of the paper's circuit in one configuration, on the samples X, batch by batch."""

    def refused(reason: str) -> Outcome:
        size = (where.ring, where.depth, where.log_q, where.log2_scale)
        return Outcome(activation.name, *size, False, reason, 0, 0, None, np.nan, np.nan)

    try:
        circuit = PaperCircuit(
            mlp, activation, ring=where.ring, depth=where.depth, log2_scale=where.log2_scale, ends=where.ends
        )
    except InputError as error:
        return refused(str(error))
    batches, seconds = [], 0.0
    for start in range(0, len(X), circuit.batch):
        part = X[start : start + circuit.batch]
        inputs = circuit.encrypt(part)
        begin = time.process_time()
        try:
            replies = circuit.evaluate(inputs)
        except (InputError, ValueError, RuntimeError) as error:
            return refused(f"does not complete: {error}")
        seconds += time.process_time() - begin
        batches.append(circuit.decrypt(replies, len(part)))
    logits, plain = np.concatenate(batches), circuit.plaintext_logits(X)
    return _outcome(activation.name, where, logits, plain, y, seconds)


def run_plan(fit: Fitted, circuit_plan: Plan, X: Array, y: Array | None = None) -> Outcome:
    """Run the circuit of a plan on the samples X."""
    answer = predict_encrypted(fit, circuit_plan, X)
    assert answer.bill is not None
    plain = fit.model.logits(X)
    if fit.model.outputs > 1:
        plain = plain - plain.mean(axis=1, keepdims=True)
    where = Configuration(circuit_plan.chain.ring, 3, circuit_plan.scales.x, 0)
    name = f"folded {circuit_plan.layout} {circuit_plan.precision}"
    outcome = _outcome(name, where, answer.logits, plain, y, answer.bill.server_seconds)
    return replace(outcome, log_q=circuit_plan.chain.all_bits)


def precision_sweep(
    mlp: MLP,
    activations: Iterable[Activation],
    X: Array,
    y: Array | None = None,
    scales: Sequence[int] = SWEEP,
    progress: Progress = silent,
) -> list[Outcome]:
    """Run every scheme at every log2(scale), at the smallest depth in the paper's grid that it can use."""
    runs = [(activation, scale) for activation in activations for scale in scales]
    out = []
    for done, (activation, scale) in enumerate(runs):
        progress(f"{activation.name} at scale 2^{scale}", done, len(runs))
        out.append(run_paper(mlp, activation, Configuration(2**14, max(4, activation.depth), log2_scale=scale), X, y))
    return out


def minimum_configuration(
    mlp: MLP,
    activations: Iterable[Activation],
    X: Array,
    y: Array | None = None,
    grid: Sequence[Configuration] = SMALL_GRID + PAPER_GRID,
    progress: Progress = silent,
) -> list[Outcome]:
    """Run each scheme on the rows of the grid in order, up to and including the first feasible one."""
    out = []
    for activation in activations:
        for where in grid:
            progress(f"{activation.name} at N = {where.ring}, depth {where.depth}", 0, 0)
            out.append(run_paper(mlp, activation, where, X, y))
            if out[-1].feasible:
                break
    return out


def minimum_plan(
    fit: Fitted, X: Array, y: Array | None = None, X_cal: ArrayLike | None = None, box: ArrayLike | None = None
) -> list[Outcome]:
    """Run the folded circuit in every layout with strict precision: the rows that the table adds to the paper's."""
    plans = [
        plan(fit, samples=len(X), layout=layout, replies=REPLIES[layout], X=X_cal, box=box)
        for layout in LAYOUTS.names()
    ]
    return [run_plan(fit, each, X, y) for each in plans]


def table(outcomes: Iterable[Outcome]) -> str:
    """The outcomes as aligned text."""
    head = ("scheme", "N", "depth", "logQ", "scale", "feasible", "mismatch", "accuracy", "max error", "ms/sample")
    rows = [head]
    for o in outcomes:
        accuracy = "" if o.accuracy is None else f"{100 * o.accuracy:.2f}"
        each = f"{1e3 * o.server_seconds / o.samples:.3g}" if o.samples else ""
        verdict = "yes" if o.feasible else o.reason[:40]
        rows.append(
            (o.scheme, str(o.ring), str(o.depth), str(o.log_q), str(o.log2_scale), verdict,
             f"{o.mismatches}/{o.samples}", accuracy, f"{o.max_error:.1e}", each)
        )  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _outcome(name: str, where: Configuration, logits: Array, plain: Array, y: Array | None, seconds: float) -> Outcome:
    decisions = decide(logits)
    mismatches = int((decisions != decide(plain)).sum())
    accuracy = None if y is None else float((decisions == y[: len(decisions)]).mean())
    return Outcome(
        scheme=name,
        ring=where.ring,
        depth=where.depth,
        log_q=where.log_q,
        log2_scale=where.log2_scale,
        feasible=mismatches == 0,
        reason="" if mismatches == 0 else f"{mismatches} top-1 mismatches",
        samples=len(decisions),
        mismatches=mismatches,
        accuracy=accuracy,
        max_error=float(np.abs(logits - plain).max()),
        server_seconds=seconds,
    )
