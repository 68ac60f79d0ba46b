"""What the attempts of one fit share: the data, the candidates they propose, and what is recorded on the way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from quad4fhe._arrays import Array, samples_sha256
from quad4fhe._progress import Progress
from quad4fhe.fitting.design import Design
from quad4fhe.fitting.diagnostics import Conditioning, FamilyStep, FamilyTrial, SoftStep
from quad4fhe.fitting.families import SHARED
from quad4fhe.fitting.notes import UNDECIDED
from quad4fhe.fitting.sweeps import Tally, tally
from quad4fhe.mlp import MLP
from quad4fhe.polynomial import PolynomialModel
from quad4fhe.proof.certificate import Certificate, certify
from quad4fhe.proof.evidence import Evidence
from quad4fhe.regime import Regime
from quad4fhe.workers.shards import Shards

Hard = Literal["feasible", "infeasible", "undecided", "not tried"]


class Caps(NamedTuple):
    """The cap of a regime rch, and those of the two classes, which are at least 1/n."""

    mu: float
    plus: float
    minus: float


@dataclass
class Candidate:
    """A replacement that may become the fit, and what its own problem says of it.

    `alpha`, `beta` and `eta` are as in `Fit`. `tolerance`, `cap` and `step` belong to the regimes of the cascade.
    `theta` (p + 2,) are the coefficients of a shared polynomial, eta and 1, in the coordinates of its problem.
    `certificate` and `margins` (n,) are there once the run has certified the candidate.
    """

    mlp: MLP
    family: str
    regime: Regime
    alpha: Any
    beta: Any
    eta: Any
    tau: float = 0.0
    margin: float = 0.0
    normalised_margin: float = 0.0
    tolerance: float | None = None
    caps: Caps | None = None
    step: SoftStep | None = None
    free: PolynomialModel | None = None
    theta: Array | None = None
    certificate: Certificate | None = None
    margins: Array = field(default_factory=lambda: np.empty(0))

    @cached_property
    def model(self) -> PolynomialModel:
        """The polynomial model: the one that was given as `free`, else the shared one of the coefficients."""
        return self.free or PolynomialModel.shared(self.mlp, self.alpha, self.beta, self.eta, self.tau)

    @property
    def certified(self) -> Certificate:
        """The certificate, which the run must have made."""
        assert self.certificate is not None
        return self.certificate

    @property
    def agreement(self) -> float:
        """The share of calibration decisions that a certified candidate keeps."""
        n = self.certified.samples
        return (n - len(self.certified.mismatches)) / n


@dataclass
class Run:
    """One fit in the making. `refusal` says why the last attempt gave nothing."""

    mlp: MLP
    shards: Shards
    design: Design
    threshold: str
    polish: bool
    seed: int
    progress: Progress
    hard: Hard = "not tried"
    evidence: Evidence | None = None
    cap_trace: list[tuple[float, float]] = field(default_factory=list)
    critical_mu: float | None = None
    soft_trace: list[SoftStep] = field(default_factory=list)
    sweeps: int = 0
    families: list[FamilyTrial] = field(default_factory=list)
    family_trace: list[FamilyStep] = field(default_factory=list)
    conditioning: list[Conditioning] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    refusal: str = ""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage and report that it began."""
        self.progress(name, 0, 0)
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def say(self, text: str) -> None:
        """Report how far a long stage is."""
        self.progress(text, 0, 0)

    def shared(self, regime: Regime, coefficients: Array, eta: float, tau: float) -> Candidate:
        """The candidate of a shared quadratic, coefficients (alpha, beta)."""
        alpha, beta = (float(value) for value in coefficients)
        theta = np.array([alpha, beta, eta, 1.0])
        return Candidate(self.mlp, SHARED, regime, alpha, beta, eta, tau, theta=theta)

    def tally(self, candidate: Candidate) -> Tally:
        """How many decisions a shared quadratic keeps, in floating point, and its smallest margin."""
        assert candidate.theta is not None
        return tally(self.design.shifted(candidate.tau), candidate.theta)

    def lost(self, candidate: Candidate) -> int:
        """How many decisions a shared quadratic loses, in floating point."""
        return self.design.samples - self.tally(candidate).agreeing

    @cached_property
    def calibration_sha256(self) -> str:
        """The hash of the calibration data; one pass over them."""
        self.progress("hash of the calibration data", 0, 0)
        return samples_sha256("X_cal", self.shards.rows)

    def certify(self, candidate: Candidate) -> None:
        """State exactly what a candidate keeps, unless this was done before."""
        if candidate.certificate is not None:
            return
        with self.stage("certificate"):
            candidate.certificate, candidate.margins = certify(
                self.mlp,
                candidate.model,
                self.shards,
                self.evidence,
                self.progress,
                calibration_sha256=self.calibration_sha256,
            )

    def accept_if_lossless(self, candidate: Candidate) -> bool:
        """Accept a hard candidate only with its certificate: rounding its numbers may undo a thin separation."""
        if candidate.theta is not None and not np.isfinite([*candidate.theta, candidate.tau]).all():
            return False
        self.certify(candidate)
        if candidate.certified.statement != "lossless":
            return False
        self.hard = "feasible"
        return True

    def refuse_hard(self) -> None:
        """Record what the exact test found when it gave no lossless fit."""
        if self.evidence is not None:
            self.hard = "infeasible"
            rows = self.evidence.samples
            power = self.evidence.power
            what = "quadratic" if power == 2 else f"polynomial of degree {power}"
            self.refusal = f"no shared {what} keeps every decision (calibration rows {rows} contradict each other)"
        else:
            self.hard = "undecided"
            self.refusal = UNDECIDED
            self.notes.append(UNDECIDED)
