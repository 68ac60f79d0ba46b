"""Minimax polynomials by the Remez exchange: the best approximation of ReLU of a degree, and the stages of Precise.

The exchange works on any union of intervals with a straight-line target on each. The kink of ReLU is an end of two such
intervals, and so always a candidate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quad4fhe._arrays import Array, IntArray
from quad4fhe.errors import InputError, Quad4FHEError
from quad4fhe_reproduce.baselines.polynomial import Polynomial, Series, linear
from quad4fhe_reproduce.baselines.problem import DEGREES, Baseline, Problem

_ROUNDS = 200
_PATIENCE = 10  # rounds without a smaller spread: what is left is rounding
_EQUAL = 1e-13  # relative spread between the largest and the levelled error at which the exchange stops
_ENOUGH = 1e-9  # the spread that is promised; between the two the best round counts
_SKEWS = (1.0, 1.1, 0.9, 1.5)
_ROUNDING = 64 * np.finfo(float).eps  # errors this small against the target can't be told apart in float64


@dataclass(frozen=True)
class Piece:
    """One interval [lo, hi] and the straight line value + slope x to be approximated on it."""

    lo: float
    hi: float
    slope: float
    value: float

    def __call__(self, x: Array) -> Array:
        """The target at x."""
        return self.value + self.slope * x


@dataclass(frozen=True)
class Minimax:
    """The best approximation, its error, and the reference points where the error alternates."""

    series: Series
    error: float
    points: Array


def _extrema(series: Series, pieces: tuple[Piece, ...]) -> tuple[Array, Array]:
    """Every point where target - series can be extreme, in order, and the error there."""
    error_at: dict[float, float] = {}
    for piece in pieces:
        inner = series.critical_points(piece.slope, piece.lo, piece.hi)
        x = np.concatenate([[piece.lo], inner, [piece.hi]])
        error_at.update(zip(x.tolist(), (piece(x) - series(x)).tolist(), strict=True))
    x = np.array(sorted(error_at))
    return x, np.array([error_at[point] for point in x.tolist()])


def _alternating(errors: Array, wanted: int) -> IntArray:
    """Indices of `wanted` errors of alternating sign that keep the largest one and as much of the rest as they can."""
    extrema: list[int] = []
    for i, error in enumerate(errors.tolist()):
        if error == 0.0:
            continue
        if extrema and (errors[extrema[-1]] > 0.0) == (error > 0.0):
            if abs(error) > abs(errors[extrema[-1]]):
                extrema[-1] = i
        else:
            extrema.append(i)
    while len(extrema) > wanted:
        size = np.abs(errors[extrema])
        if len(extrema) == wanted + 1:
            extrema.pop(0 if size[0] < size[-1] else -1)
            continue
        # Dropping an inner point breaks the alternation, so one of its neighbours has to go with it.
        smallest = int(size.argmin())
        if 0 < smallest < len(extrema) - 1:
            neighbour = smallest - 1 if size[smallest - 1] < size[smallest + 1] else smallest + 1
            for index in sorted((smallest, neighbour), reverse=True):
                extrema.pop(index)
        else:
            extrema.pop(smallest)
    return np.array(extrema, dtype=np.int64)


def _first_reference(pieces: tuple[Piece, ...], wanted: int, skew: float) -> Array:
    """Chebyshev points on the union of the pieces, laid end to end as if the gaps were not there.

    `skew` other than one crowds them to one side.
    """
    lengths = np.array([piece.hi - piece.lo for piece in pieces])
    ends = np.concatenate([[0.0], np.cumsum(lengths)])
    along = ends[-1] * (0.5 - 0.5 * np.cos(np.pi * np.arange(wanted) / (wanted - 1))) ** skew
    which = np.clip(np.searchsorted(ends, along, side="right") - 1, 0, len(pieces) - 1)
    starts = np.array([piece.lo for piece in pieces])
    stops = np.array([piece.hi for piece in pieces])
    reference: Array = np.minimum(starts[which] + (along - ends[which]), stops[which])
    return reference


def _exchange(pieces: tuple[Piece, ...], blank: Series, points: Array) -> tuple[Minimax, float]:
    """Run the exchange from one reference; the best round, and how far its largest error is above the levelled one."""
    terms = points.size - 1
    signs = (-1.0) ** np.arange(terms + 1)
    stops = np.array([piece.hi for piece in pieces])
    best, best_spread, since = Minimax(blank, np.inf, points), np.inf, 0
    for _ in range(_ROUNDS):
        homes = np.searchsorted(stops, points)
        target = np.array([float(pieces[i](x)) for i, x in zip(homes, points, strict=True)])
        solution = np.linalg.solve(np.column_stack([blank.basis(points), signs]), target)
        series, levelled = Series(solution[:-1], blank.lo, blank.hi, odd=blank.odd), abs(float(solution[-1]))
        x, errors = _extrema(series, pieces)
        largest = float(np.abs(errors).max())
        rounding = _ROUNDING * float(np.abs(target).max())
        spread = max(0.0, largest - levelled - rounding) / largest if largest > 0.0 else 0.0
        chosen = _alternating(errors, terms + 1)
        since += 1
        if spread < best_spread:
            best, best_spread, since = Minimax(series, largest, x[chosen]), spread, 0
        if spread <= _EQUAL or chosen.size <= terms or since >= _PATIENCE:
            break
        points = x[chosen]
    return best, best_spread


def minimax(pieces: tuple[Piece, ...], terms: int, *, odd: bool = False) -> Minimax:
    """The best uniform approximation of the pieces (in order, none overlapping) by a series of `terms` terms.

    Each round levels the error on a reference of terms + 1 points and moves the reference to the extrema of the error,
    all at once. It stops when the largest error on the pieces is the levelled one, which proves it optimal (de la
    Vallee Poussin): the returned `error` is that largest error.
    """
    blank = Series(np.zeros(terms), pieces[0].lo, pieces[-1].hi, odd=odd)
    for skew in _SKEWS:
        # A reference on which the target can be met exactly has no error to level, and leads nowhere. That happens by
        # symmetry (|x| at points even about zero); a lopsided reference does not share it.
        best, spread = _exchange(pieces, blank, _first_reference(pieces, terms + 1, skew))
        if spread <= _ENOUGH:
            return best
    raise Quad4FHEError(
        f"the Remez exchange with {terms} terms on [{blank.lo}, {blank.hi}] stopped at a spread of {spread:.1e}"
    )


def relu_minimax(degree: int, lo: float, hi: float) -> Minimax:
    """The best approximation of ReLU of `degree` on [lo, hi] with lo < 0 < hi.

    ReLU is zero, or the identity, plus a bump on the shorter side of the kink. Only the bump is approximated, so the
    digits of a small error are not lost against a large straight line.
    """
    shorter_left = -lo < hi
    if shorter_left:
        pieces = (Piece(lo, 0.0, -1.0, 0.0), Piece(0.0, hi, 0.0, 0.0))
    else:
        pieces = (Piece(lo, 0.0, 0.0, 0.0), Piece(0.0, hi, 1.0, 0.0))
    bump = minimax(pieces, degree + 1)
    if not shorter_left:
        return bump
    coefficients = np.array(bump.series.coefficients)
    coefficients[:2] += (0.5 * lo + 0.5 * hi, 0.5 * hi - 0.5 * lo)
    return Minimax(Series(coefficients, lo, hi), bump.error, bump.points)


def remez(degree: int, lo: float, hi: float) -> Polynomial:
    """The minimax polynomial of ReLU on the calibration interval [lo, hi]."""
    if degree < 1:
        raise InputError(f"Remez needs a degree of at least 1, not {degree}")
    name = f"Remez-{degree}"
    exact = linear(name, lo, hi)
    if exact is not None:
        return exact
    return Polynomial(name, (relu_minimax(degree, lo, hi).series,), (lo, hi))


_NAMES = tuple(f"Remez-{degree}" for degree in DEGREES)


def _fit(problem: Problem) -> dict[str, Polynomial]:
    data = problem.preactivations
    return {f"Remez-{degree}": remez(degree, data.lo, data.hi) for degree in problem.degrees}


BASELINE = Baseline("the minimax polynomial of ReLU on the calibration interval", _NAMES, _fit)
