"""What the attempts of one fit share: its data, the coefficients they propose, and what is recorded on the way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array
from quad4fhe._progress import Progress
from quad4fhe.certificate import Certificate, Evidence, certify, evidence_rows, evidence_weights
from quad4fhe.exact import Decisions
from quad4fhe.fit.diagnostics import LineOptimum
from quad4fhe.fit.reduced import ReducedSeparation
from quad4fhe.fit.sweep import Sweeper
from quad4fhe.fit.trace import SoftStep
from quad4fhe.lift import Lift
from quad4fhe.mlp import MLP
from quad4fhe.quadratic import QuadraticModel

Hard = Literal["feasible", "infeasible", "undecided", "not tried"]


@dataclass
class Solution:
    """Coefficients that one regime proposes, and what its own problem says of them."""

    regime: str
    alpha: float
    beta: float
    eta: float
    tau: float = 0.0
    margin: float = 0.0
    normalised_margin: float = 0.0
    tolerance: float | None = None
    cap: ReducedSeparation | None = None
    step: SoftStep | None = None

    @property
    def three(self) -> Array:
        """The vector (alpha, beta, eta)."""
        return np.array([self.alpha, self.beta, self.eta])


@dataclass
class Run:
    """One fit in the making. `refusal` says why the last attempt gave nothing, should it have been the only one."""

    mlp: MLP
    X: NDArray[Any]
    lift: Lift
    threshold: str
    polish: bool
    seed: int
    progress: Progress
    hard: Hard = "not tried"
    evidence: Evidence | None = None
    certified: tuple[Certificate, Decisions] | None = None
    cap_trace: list[tuple[float, float]] = field(default_factory=list)
    critical_mu: float | None = None
    soft_trace: list[SoftStep] = field(default_factory=list)
    best_line: LineOptimum | None = None
    sweeps: int = 0
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    refusal: str = ""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage and say that it began."""
        self.progress(name, 0, 0)
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def say(self, text: str) -> None:
        """Tell how a long stage is getting on."""
        self.progress(text, 0, 0)

    def model(self, solution: Solution) -> QuadraticModel:
        """The polynomial model with these coefficients."""
        return QuadraticModel.shared(self.mlp, solution.alpha, solution.beta, solution.eta, solution.tau)

    def margins(self, solution: Solution) -> Array:
        """The margin of every sample at these coefficients, (n,)."""
        return Sweeper(shifted(self.lift, solution.tau)).margins(np.append(solution.three, 1.0)).margin

    def lost(self, solution: Solution) -> int:
        """How many decisions these coefficients lose, in floating point."""
        return int(np.count_nonzero(~(self.margins(solution) > 0)))

    def certify(self, solution: Solution) -> tuple[Certificate, Decisions]:
        """State exactly what these coefficients keep."""
        with self.stage("certificate"):
            return certify(self.mlp, self.model(solution), self.X, self.evidence, self.progress)

    def accept_if_lossless(self, solution: Solution) -> bool:
        """Accept a hard solution only with its certificate: rounding S, T and c may undo a thin separation."""
        if np.isfinite([*solution.three, solution.tau]).all():
            certified = self.certify(solution)
            if certified[0].statement == "lossless":
                self.hard, self.certified = "feasible", certified
                return True
        return False

    def refuse_hard(self) -> None:
        """Record what the exact test found where it did not give a lossless fit."""
        if self.evidence is not None:
            self.hard = "infeasible"
            rows = self.evidence.samples
            self.refusal = f"no shared quadratic keeps every decision (calibration rows {rows} contradict each other)"
        else:
            self.hard = "undecided"
            self.refusal = (
                "the hard problem is undecided: no float64 coefficients were found to keep every decision, "
                "and no evidence against them survives exact arithmetic"
            )
            self.notes.append(self.refusal)

    def smallest_evidence(self, named: Evidence, most: int) -> Evidence | None:
        """The fewest of the named rows that contradict each other exactly, or None if no few of them do."""
        rows = evidence_rows(self.mlp, self.X, self.lift.target, named)
        first = int(named.scale)  # the scale row comes first where there is one
        for size in range(1, min(most, len(rows)) + 1):
            for chosen in combinations(range(len(rows)), size):
                picked = [k - first for k in chosen if k >= first]
                found = Evidence(
                    geometry=named.geometry,
                    samples=[named.samples[k] for k in picked],
                    rivals=[named.rivals[k] for k in picked] if named.rivals else [],
                    scale=named.scale and chosen[0] == 0,
                )
                if evidence_weights(self.lift.target, found, [rows[k] for k in chosen]) is not None:
                    return found
        return None


def shifted(lift: Lift, tau: float) -> Lift:
    """The lift with the threshold tau taken from the last class."""
    if not tau:
        return lift
    b = lift.b.copy()
    b[-1] -= tau
    return replace(lift, b=b)
