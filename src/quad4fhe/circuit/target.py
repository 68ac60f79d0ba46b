"""What a plan is asked, what answers it, and when an answer keeps the decisions.

Decides what counts as kept (strict, fast), by forecast while searching and with the weights as rounded at the end. The
searches themselves are in `search_batch` and `search_packed`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from quad4fhe._arrays import Array, BoolArray, IntArray
from quad4fhe.circuit.bounds import Bound
from quad4fhe.circuit.chain import Chain
from quad4fhe.circuit.error import (
    DEVIATIONS,
    ErrorForecast,
    Errors,
    Indices,
    Sensitivity,
    box_error,
    box_points,
    closer,
    deciding,
    expected_changes,
    sensitivity,
)
from quad4fhe.circuit.fold import Circuit
from quad4fhe.circuit.forecast import REFERENCE, Forecast, Machine, Shape
from quad4fhe.circuit.quantise import Scales
from quad4fhe.quadratic import QuadraticModel

FAST_SHARE = 1e-3  # fast: the share of decisions that may change
GUARD = 1.02  # the rounded weights may reach a little further than the exact ones; checked once they are known
SMALLEST_BOUND = 2.0  # SEAL wants every scale below Q, so logits smaller than this leave the rest of Q unused
_FEW = 4096  # closest calibration decisions looked at while searching; all of them are in the final forecast
_NO_DECISION = 1e-12  # margins below this share of the bound are ties to float64 itself: no plan can keep them


def allowed_changes(calibration: int) -> float:
    """The expected number of changed calibration decisions that `fast` puts up with.

    The promise is one in a thousand on data not seen: a set a quarter as large as the calibration set keeps it in 99
    of 100 cases (Poisson). So small sets, which may lose none, get more precision than large ones.
    """
    from scipy.special import gammaincinv  # here: see `error`

    quarter = math.floor(FAST_SHARE * calibration / 4)
    return 4 * float(gammaincinv(quarter + 1, 0.01))


def unseen_changes(margins: Array, deviation: float) -> float:
    """The expected number of changes among a quarter as many samples not seen, from the density of small margins.

    A few hundred calibration samples have none near zero by luck alone; the density over the smallest hundredth (five
    at least) says how many an unseen set will have there. A Gaussian error e takes density * E[max(e, 0)] of them.
    """
    decided = margins[margins > 0]  # exact ties are for no plan to keep
    count = min(decided.size, max(5, decided.size // 100))
    if not count:
        return 0.0
    density = count / decided.size / float(np.partition(decided, count - 1)[count - 1])
    return decided.size / 4 * density * deviation / math.sqrt(2 * math.pi)


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked: the model, its domain, its margins, and points to forecast at (or None for the whole box)."""

    model: QuadraticModel
    box: Array
    margins: Array
    points: Array | None
    precision: Literal["strict", "fast"]
    samples: int

    @property
    def shape(self) -> Shape:
        """The network's sizes."""
        return Shape(self.model.features, self.model.units, self.model.outputs)


@dataclass(frozen=True, eq=False)
class Choice:
    """An answer, with the forecast it was chosen by."""

    layout: Literal["batch", "packed"]
    circuit: Circuit
    bound: Bound
    slot_bound: float
    chain: Chain
    scales: Scales
    per_request: int
    products: tuple[float, float, float]
    error: ErrorForecast
    missed: bool
    forecast: Callable[[Machine], Forecast]

    @cached_property
    def cost(self) -> Forecast:
        """The bill on the reference machine, by which choices are compared."""
        return self.forecast(REFERENCE)


@dataclass(frozen=True, eq=False)
class Target:
    """The decisions to keep, and the sensitivity of each (or of points spread over the box).

    `unseen` are the expected changes among unseen samples per unit of error.
    """

    question: Question
    circuit: Circuit
    bound: Bound
    at: Sensitivity
    close: IntArray
    margins: Array
    unseen: float
    hidden_slope: float = 0.0
    weight_slope: float = 0.0
    hidden_bend: float = 0.0
    linear: Array | None = None
    hidden: Array | None = None

    @classmethod
    def of(
        cls, question: Question, circuit: Circuit, largest: Bound, T: Array | None = None, hidden: Array | None = None
    ) -> Target:
        """The target of a question for the circuit in one form.

        Where the layout adds noise to y: T, which it multiplies with y itself, and the noise's variance per unit.
        """
        points = question.points
        at = sensitivity(circuit, box_points(question.box) if points is None else points, T, hidden)
        steep = tilt = bend = 0.0
        if T is not None and hidden is not None:
            slopes = (2 * np.abs(circuit.V) * largest.hidden + np.abs(T)) ** 2
            steep = float(np.sqrt((slopes @ hidden).max()))
            reach = np.abs(question.box - circuit.shift).max(axis=0)
            tilt = float(np.sqrt(slopes.sum(axis=1).max() * (1.0 + (reach * reach).sum())))
            bend = float((np.abs(circuit.V) @ hidden).max())
        order = np.argsort(question.margins, kind="stable")[:_FEW]
        decided = question.margins[order] > _NO_DECISION * largest.logit
        order = order[decided]
        unseen = unseen_changes(question.margins, 1.0)
        few = question.margins[order]
        return cls(question, circuit, largest, at, order, few, unseen, steep, tilt, bend, T, hidden)

    @property
    def allowed_unseen(self) -> float:
        """Expected changes that may be among a quarter as many unseen samples: for strict, none in 99 of 100 cases."""
        return 0.01 if self.question.precision == "strict" else allowed_changes(self.question.margins.size) / 4

    def met(self, errors: Errors, inflate: float) -> bool:
        """Whether these errors keep the decisions, by the forecast; `inflate` is what the rigorous check added."""
        if not self.margins.size:
            return True
        every = self.at.deviation(errors)
        allowed = allowed_changes(self.question.margins.size)
        if self.unseen * float(every.mean()) > self.allowed_unseen:
            return False
        if self.question.points is None:
            spread = float(np.sqrt((every**2).mean()))
            if self.question.precision == "strict":
                return DEVIATIONS * spread * inflate < float(self.margins[0])
            return expected_changes(self.margins, spread) <= allowed
        mine = every[self.close]
        if self.question.precision == "strict":
            return bool((DEVIATIONS * mine * inflate < self.margins).all())
        return expected_changes(self.margins, mine) <= allowed

    def forecast(
        self, rounded: Circuit, moved: Bound | None, errors: Errors, random: Errors
    ) -> tuple[ErrorForecast, bool, float]:
        """The error with the weights as rounded, whether it misses the target, and the rigorous over the forecast one.

        `moved` bounds what rounding did to the circuit; `random` are the errors that stay random after rounding.
        """
        q = self.question
        slopes = (self.hidden_slope, self.weight_slope, self.hidden_bend)
        limit = box_error(rounded, self.bound, moved, random, *slopes)
        if q.points is None:
            mean = float(self.at.deviation(errors).mean())
            typical = float(np.sqrt((self.at.deviation(errors) ** 2).mean()))
            changes = expected_changes(q.margins, typical)
            close = np.flatnonzero(closer(q.margins, limit))
            over = limit / (DEVIATIONS * typical) if typical > 0 else 1.0
        else:
            plain = self.circuit.logits(q.points)
            first, second = deciding(plain)
            change = rounded.logits(q.points) - plain
            rows = np.arange(len(change))
            shift = change[rows, first] - (0.0 if self.circuit.outputs == 1 else change[rows, second])
            noise = self.at.deviation(random)
            each = np.abs(shift) + DEVIATIONS * noise
            typical = float(np.sqrt((shift**2 + noise**2).mean()))
            mean = float(np.sqrt(shift**2 + noise**2).mean())
            changes = expected_changes(q.margins - np.abs(shift), noise)
            others = self._other_rivals(plain, change, first, second, limit, random)
            close = np.flatnonzero(closer(q.margins, each) | others)
            limit, over = float(each.max()), 1.0
        undecided = q.margins <= _NO_DECISION * self.bound.logit
        missed = self.unseen * mean > self.allowed_unseen
        if q.precision == "strict":
            missed = missed or bool((~undecided[close]).any())
        else:
            missed = missed or changes > allowed_changes(q.margins.size)
        source = "box" if q.points is None else "samples"
        return ErrorForecast(typical, limit, changes, tuple(close.tolist()), source), missed, over

    def _other_rivals(
        self, plain: Array, change: Array, first: Indices, second: Indices, limit: float, random: Errors
    ) -> BoolArray:
        """Which samples a third or later logit may overtake, for strict; pairs beyond the box bound are left out."""
        n, K = plain.shape
        found = np.zeros(n, dtype=np.bool_)
        if K <= 2 or self.question.points is None or self.question.precision == "fast":
            return found
        rows = np.arange(n)
        margin = plain[rows, first][:, None] - plain
        margin[rows, first] = margin[rows, second] = np.inf
        i, k = np.nonzero(margin <= limit)
        if i.size == 0:
            return found
        at = sensitivity(self.circuit, self.question.points[i], self.linear, self.hidden, (first[i], k))
        shift = np.abs(change[i, first[i]] - change[i, k])
        found[i[margin[i, k] <= shift + DEVIATIONS * at.deviation(random)]] = True
        return found
