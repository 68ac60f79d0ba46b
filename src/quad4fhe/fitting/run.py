"""What the attempts of one fit share: its data, the coefficients they propose, and what is recorded on the way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Literal

import numpy as np

from quad4fhe._arrays import Array, samples_sha256
from quad4fhe._progress import Progress
from quad4fhe.certificate import Certificate, certify
from quad4fhe.evidence import Evidence, evidence_rows, evidence_weights
from quad4fhe.exact import decisions
from quad4fhe.fitting.diagnostics import LineOptimum
from quad4fhe.fitting.notes import UNDECIDED
from quad4fhe.fitting.reduced import ReducedSeparation
from quad4fhe.fitting.sweep import Sweeper, Tally
from quad4fhe.fitting.trace import SoftStep
from quad4fhe.lift import Statistics
from quad4fhe.mlp import MLP
from quad4fhe.quadratic import QuadraticModel
from quad4fhe.shards import Shards

Certified = tuple[Certificate, Array]
"""A certificate and the margins (n,) of the replacement."""

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
    shards: Shards
    lift: Statistics
    threshold: str
    polish: bool
    seed: int
    progress: Progress
    hard: Hard = "not tried"
    evidence: Evidence | None = None
    certified: Certified | None = None
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

    def tally(self, solution: Solution) -> Tally:
        """How many decisions these coefficients keep, in floating point, and the smallest margin."""
        return Sweeper(self.lift.shifted(solution.tau)).tally(np.append(solution.three, 1.0))

    def lost(self, solution: Solution) -> int:
        """How many decisions these coefficients lose, in floating point."""
        return self.lift.samples - self.tally(solution).agreeing

    @cached_property
    def calibration_sha256(self) -> str:
        """The hash of the calibration data; one pass over them."""
        self.progress("hash of the calibration data", 0, 0)
        return samples_sha256("X_cal", self.shards.rows)

    def certify(self, model: QuadraticModel) -> Certified:
        """State exactly what this replacement keeps."""
        with self.stage("certificate"):
            return certify(
                self.mlp,
                model,
                self.shards,
                self.evidence,
                self.progress,
                calibration_sha256=self.calibration_sha256,
            )

    def accept_if_lossless(self, solution: Solution) -> bool:
        """Accept a hard solution only with its certificate: rounding S, T and c may undo a thin separation."""
        if np.isfinite([*solution.three, solution.tau]).all():
            certified = self.certify(self.model(solution))
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
            self.refusal = UNDECIDED
            self.notes.append(UNDECIDED)

    def smallest_evidence(self, named: Evidence, most: int) -> Evidence | None:
        """The fewest of the named rows that contradict each other exactly, or None if no few of them do."""
        targets = self._targets(named.samples)
        rows = evidence_rows(self.mlp, self.shards.rows, targets, named)
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
                if evidence_weights(targets, found, [rows[k] for k in chosen]) is not None:
                    return found
        return None

    def _targets(self, rows: list[int]) -> dict[int, int]:
        """The ReLU model's decisions on a few rows."""
        X = np.stack([self.shards.rows.row(i) for i in rows])
        return dict(zip(rows, decisions(self.mlp, X, "X_cal").label.tolist(), strict=True))
