"""The target of a plan's search, its candidates, and the check that a candidate keeps the decisions.

The check compares the integer circuit with the exact model at every calibration sample. The decision must be the same,
with a margin to every other class that is larger than noise and float64 errors. Each layout has its own search.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np

from quad4fhe._arrays import Array, BoolArray
from quad4fhe.planning.bounds import Bound, bound
from quad4fhe.planning.chains import Chain
from quad4fhe.planning.costs import Forecast, Shape
from quad4fhe.planning.fold import Circuit, Folding
from quad4fhe.planning.integers import Scales
from quad4fhe.planning.noise import (
    UNIT,
    ErrorForecast,
    Indices,
    Noise,
    between,
    box_points,
    deciding,
    difference,
    evaluation_error,
    expected_changes,
    moved_by_rounding,
)
from quad4fhe.polynomial import PolynomialModel

FAST_SHARE = 1e-3  # of decisions that may change with precision fast
GUARD = 1.02  # the circuit that runs may reach a little further than the exact one; checked once it is known
SMALLEST_BOUND = 2.0  # SEAL wants every scale below Q, so logits smaller than this leave the rest of Q unused


def allowed_changes(calibration: int) -> float:
    """The expected number of changed calibration decisions that `fast` allows.

    `fast` promises at most one change in a thousand on unseen data: a set a quarter as large as the calibration set
    keeps that promise in 99 of 100 cases (Poisson). So small sets, which may lose none, get more precision.
    """
    from scipy.special import gammaincinv  # not at the top: see `noise.expected_changes`

    quarter = math.floor(FAST_SHARE * calibration / 4)
    return 4 * float(gammaincinv(quarter + 1, 0.01))


def unseen_changes(margins: Array, deviation: float) -> float:
    """The expected number of changes among unseen samples, a quarter as many, from the density of small margins.

    A few hundred calibration samples may have no margin near zero by luck alone. The density of the smallest hundredth
    (at least five) estimates how many an unseen set will have. A Gaussian error e changes density * E[max(e, 0)] of
    them.
    """
    decided = margins[margins > 0]  # no plan can keep an exact tie
    count = min(decided.size, max(5, decided.size // 100))
    if not count:
        return 0.0
    density = count / decided.size / float(np.partition(decided, count - 1)[count - 1])
    return decided.size / 4 * density * deviation / math.sqrt(2 * math.pi)


@dataclass(frozen=True, eq=False)
class Question:
    """The input of a search: the model, its box, its margins, and the points to forecast at (None: the whole box).

    `replies` is the kind of replies.
    """

    model: PolynomialModel
    box: Array
    margins: Array
    points: Array | None
    precision: Literal["strict", "fast"]
    samples: int
    replies: str = "private"

    @cached_property
    def shape(self) -> Shape:
        """The network's sizes."""
        return Shape(self.model.features, self.model.units, self.model.outputs)

    @cached_property
    def decisions(self) -> int:
        """How many decisions the failure probability of a plan covers."""
        return max(self.samples, int(self.margins.size))

    @cached_property
    def sides(self) -> int:
        """How many logits a margin lies between."""
        return 1 if self.model.outputs == 1 else 2

    @cached_property
    def folding(self) -> Folding:
        """The model over the box, folded."""
        return Folding(self.model, self.box)

    @cached_property
    def reference(self) -> Circuit:
        """The exact model, folded: what every circuit is compared with."""
        return self.folding.circuit(self.folding.forms[-1])

    @cached_property
    def limits(self) -> Bound:
        """The bounds of the exact model over the box."""
        return bound(self.reference, self.box)

    @cached_property
    def reach(self) -> Array:
        """The largest |x - shift| of each feature over the box, (d,)."""
        out: Array = np.abs(self.box - self.folding.shift).max(axis=0)
        return out

    def bound_of(self, circuit: Circuit) -> Bound:
        """The bounds of a folded circuit over the box."""
        return self.limits if circuit is self.reference else bound(circuit, self.box)

    @cached_property
    def logits(self) -> Array:
        """The exact model's logits at the points, (n, K), up to `evaluation_error`."""
        assert self.points is not None
        return self.reference.logits(self.points)

    @cached_property
    def deciding(self) -> tuple[Indices, Indices]:
        """The classes of the largest and second largest logit at each point."""
        return deciding(self.logits)

    @cached_property
    def lost(self) -> float:
        """A bound on the float64 error of a margin anywhere in the box, in the plaintext model and in `reference`."""
        here = float(evaluation_error(self.reference, self.reach[None]).max())
        return self.sides * (here + float(_plain_error(self.model, np.abs(self.box).max(axis=0)[None])[0]))

    @cached_property
    def certain(self) -> BoolArray:
        """Which decisions are certain in float64, (n,); no plan has to keep the others."""
        sure: BoolArray = self.margins > self.lost
        if self.points is None:
            return sure
        rows = np.arange(len(self.points))
        first, second = self.deciding
        gap = np.abs(self.logits[:, 0]) if self.sides == 1 else self.logits[rows, first] - self.logits[rows, second]
        sure = (gap > self.lost) & (self.margins > self.lost)
        open_ = np.flatnonzero(~sure)
        if open_.size:
            X = self.points[open_]
            here = evaluation_error(self.reference, np.abs(X - self.reference.shift)).max(axis=1)
            least = np.minimum(gap[open_], self.margins[open_])
            sure[open_] = least > self.sides * (here + _plain_error(self.model, np.abs(X)))
        return sure


def _plain_error(model: PolynomialModel, reach: Array) -> Array:
    """A bound on the float64 error of a logit of the plaintext model at |x| <= reach (n, d); shape (n,)."""
    y = reach @ np.abs(model.W1).T + np.abs(model.b1)
    power, terms = y, y @ np.abs(model.A[0]).T + np.abs(model.c)
    for block in model.A[1:]:
        power = power * y
        terms = terms + power @ np.abs(block).T
    count = model.degree * model.features + model.units + 8 * model.degree
    out: Array = count * UNIT / (1 - count * UNIT) * terms.max(axis=1)
    return out


@dataclass(frozen=True, eq=False)
class Choice:
    """A result of a search, with the forecast that it is compared by; `settings` are those of the layout."""

    layout: str
    circuit: Circuit
    bound: Bound
    slot_bound: float
    chain: Chain
    scales: Scales
    per_request: int
    settings: dict[str, Any]
    error: ErrorForecast
    missed: bool
    anywhere: Callable[[], float]
    cost: Forecast


def allowed_unseen(question: Question) -> float:
    """The allowed expected changes among a quarter as many unseen samples; strict: none in 99 of 100 cases."""
    return 0.01 if question.precision == "strict" else allowed_changes(question.margins.size) / 4


@dataclass(frozen=True, eq=False)
class Verdict:
    """The error of a circuit that runs, whether it misses the target, and the bound over the typical error.

    `anywhere` computes a bound on the error of any deciding difference in the box.
    """

    error: ErrorForecast
    missed: bool
    over: float
    anywhere: Callable[[], float]


def verdict(question: Question, running: Circuit, noise: Noise, decode: float, excused: float | None = None) -> Verdict:
    """Compare a circuit that runs with `noise` to the exact model; `decode` is the error of decoding.

    A plan need not keep decisions closer than the part of it that every chain has, `excused`: all of it by default.
    """
    excused = decode if excused is None else excused
    found = _over_box if question.points is None else _at_points
    typical, mean, limit, alone, changes, close = found(question, running, noise, decode)
    unkept = question.certain & close & (question.margins > question.sides * excused)
    missed = unseen_changes(question.margins, 1.0) * mean > allowed_unseen(question)
    if question.precision == "strict":
        missed = missed or bool(unkept.any())
    else:
        missed = missed or changes > allowed_changes(question.margins.size)
    source = "box" if question.points is None else "samples"
    confidence = noise.confidence
    over = limit / (confidence.deviations * typical) if typical > 0 else 1.0
    listed = tuple(np.flatnonzero(close | ~question.certain).tolist())
    error = ErrorForecast(typical, limit, alone, changes, listed, source, confidence.failure)
    return Verdict(error, missed, over, partial(_limit, question, running, noise, decode))


_Found = tuple[float, float, float, float, float, BoolArray]


def _limit(question: Question, running: Circuit, noise: Noise, decode: float) -> float:
    """A bound anywhere in the box: the rounding error of the circuit plus the largest noise."""
    reference, reach = question.reference, question.reach[None]
    same = running is reference  # a layout that rounds at random counts its rounding as noise
    curves = question.limits.curves
    if same:
        moved = 0.0
    elif curves is not None:
        moved = moved_by_rounding(running, reference, curves)
    else:
        moved = bound(difference(running, reference), question.box, rounds=1).logit
    moved += float((evaluation_error(running, reach) + evaluation_error(reference, reach)).max())
    return question.sides * (moved + noise.anywhere() + decode) + question.lost


def _over_box(question: Question, running: Circuit, noise: Noise, decode: float) -> _Found:
    """One bound for the whole box."""
    reference, limit = question.reference, _limit(question, running, noise, decode)
    points = box_points(question.box)
    pair = deciding(running.logits(points))
    shift = between(running.logits(points), pair) - between(reference.logits(points), pair)
    spread = np.sqrt(shift**2 + noise.deviation(points, pair) ** 2)
    typical = float(np.sqrt((spread**2).mean()))
    changes = expected_changes(question.margins, typical)
    return typical, float(spread.mean()), limit, limit / question.sides, changes, question.margins <= limit


def _at_points(question: Question, running: Circuit, noise: Noise, decode: float) -> _Found:
    """Check each sample: the circuit that runs decides the same, and noise can't change that."""
    points, pair = question.points, question.deciding
    assert points is not None
    logits = running.logits(points)
    gaps = between(logits, pair)
    if question.sides == 1:
        gaps = np.where(question.logits[:, 0] > 0, gaps, -gaps)
        exact = np.abs(question.logits[:, 0])
    else:
        exact = between(question.logits, pair)
    own = _lost_by(running, question)
    lost = question.sides * (decode + own)
    reach = noise.bound(points, pair) + lost
    shift, deviation = np.abs(gaps - exact), noise.deviation(points, pair)
    cheap = noise.cheap(points)
    close: BoolArray = gaps <= reach
    if question.precision == "strict" and question.shape.outputs > 2:
        close |= _overtaken(points, logits, pair, noise, cheap, lost)
    if close.any():  # now with the float64 error at the sample itself, not at the worst corner
        rows = np.flatnonzero(close)
        part, mine = points[rows], (pair[0][rows], pair[1][rows])
        near = evaluation_error(running, np.abs(part - running.shift)).max(axis=1)
        lost_here = question.sides * (decode + near)
        still = gaps[rows] <= noise.bound(part, mine) + lost_here
        if question.precision == "strict" and question.shape.outputs > 2:
            still |= _overtaken(part, logits[rows], mine, noise, cheap[rows], lost_here)
        close[rows] = still
    spread = np.sqrt(shift**2 + deviation**2)
    changes = expected_changes(exact - shift, deviation)
    exactness = _lost_by(question.reference, question)
    limit = float((shift + reach + question.sides * exactness).max(initial=0.0))
    errors = (np.abs(logits - question.logits) + cheap).max(axis=1) + own + exactness
    alone = float(errors.max(initial=0.0)) + decode
    return float(np.sqrt((spread**2).mean())), float(spread.mean()), limit, alone, changes, close


def _lost_by(circuit: Circuit, question: Question) -> Array:
    """A bound on the float64 error of a logit of the circuit, (n,) or one number for all points.

    For a square it is small even at the worst corner of the box; for a higher degree it would not be.
    """
    if circuit.a is None:
        return np.asarray(evaluation_error(circuit, question.reach[None]).max())
    assert question.points is not None
    return np.asarray(evaluation_error(circuit, np.abs(question.points - circuit.shift)).max(axis=1))


def _overtaken(
    points: Array, logits: Array, pair: tuple[Indices, Indices], noise: Noise, cheap: Array, lost: Array | float
) -> BoolArray:
    """Which samples may be decided for a third or later class; a cheap bound rules out nearly all pairs."""
    n = len(points)
    rows, (first, second) = np.arange(n), pair
    allowed = np.broadcast_to(np.asarray(lost, dtype=np.float64), (n,))
    gaps = logits[rows, first][:, None] - logits
    gaps[rows, first] = gaps[rows, second] = np.inf
    i, k = np.nonzero(gaps <= cheap + cheap[rows, first][:, None] + allowed[:, None])
    found = np.zeros(n, dtype=np.bool_)
    if i.size:
        found[i[gaps[i, k] <= noise.bound(points[i], (first[i], k)) + allowed[i]]] = True
    return found
