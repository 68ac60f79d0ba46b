"""A fit of degree above two: which degree and family, and the rounded, certified candidate.

Families are judged by cross-validation at the degree that was asked for and at the one below, which is taken instead
where it clearly keeps more. For two classes the shared family first separates hulls, then reduced hulls, in R^p.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe._forecast import server_seconds
from quad4fhe.errors import InputError, TargetNotReachedError
from quad4fhe.fitting import notes
from quad4fhe.fitting.basis import Basis
from quad4fhe.fitting.families import AUTO, DEGREES, FAMILIES, SHARED
from quad4fhe.fitting.features import FOLDS
from quad4fhe.fitting.learning import Learned, measure, power_of, scaled_head
from quad4fhe.fitting.margins import Problem
from quad4fhe.fitting.rounding import FINER, GRID, SHARES, Bits, Copies, Units, rounded_units
from quad4fhe.fitting.run import Candidate, Run
from quad4fhe.fitting.select import Judged, Selection, own_coefficients
from quad4fhe.mlp import MLP, decide
from quad4fhe.polynomial import PolynomialModel
from quad4fhe.proof.guarantee import margins_of
from quad4fhe.regime import Regime
from quad4fhe.workers.shards import Shard

_FEWEST = 2 * FOLDS  # rows
_CHUNK = 8_192
_LOST = 0.25  # of a standard error: what rounding the coefficients may cost
_LEFT_OUT = 1.0  # of a standard error: what leaving out the smallest polynomials of a head may cost


@dataclass(frozen=True, eq=False)
class _Tried:
    """A family at a degree, as it was judged."""

    selection: Selection
    judged: Judged

    @property
    def score(self) -> float:
        return self.judged.mean


class Ladder:
    """The degrees of one fit: judged when asked for, fitted on all rows."""

    def __init__(self, run: Run, part: Learned, family: str, budget: int, highest: int) -> None:
        if run.design.samples < _FEWEST:
            raise InputError(
                f"degrees above 2 need at least {_FEWEST} calibration rows, X_cal has {run.design.samples}"
            )
        self.run, self.part, self.budget, self.highest = run, part, budget, highest
        self.families = tuple(FAMILIES.names()) if family == AUTO else (family,)
        self.power = power_of(run.mlp, part.X)
        self.mlp = scaled_head(run.mlp, -self.power)
        low, high = run.shards.total(_wider, _ranges)
        self.low, self.high = low, high
        self._selections: dict[tuple[int, bool], Selection] = {}
        self._tried: dict[int, _Tried] = {}
        self._made: dict[int, PolynomialModel] = {}
        self._seconds: dict[int, float] = {}

    def judge(self, degree: int) -> _Tried:
        """The smallest family within one standard error of the best at this degree."""
        if degree not in self._tried:
            tried = [self._judged(degree, name) for name in self.families]
            best = max(tried, key=lambda each: each.score)
            self._tried[degree] = next(each for each in tried if _ties(each, best))
        return self._tried[degree]

    def estimate(self, degree: int) -> float:
        """The share of held-out calibration decisions that the judged family keeps."""
        return float(self.judge(degree).judged.kept[0].mean())

    def _judged(self, degree: int, family: str) -> _Tried:
        run = self.run
        with run.stage("families"):
            selection = self._selection(degree, pooled=family == SHARED)
            before = len(selection.trace)
            judged = selection.judge(family)
        run.families.append(judged.trial)
        run.family_trace += selection.trace[before:]
        return _Tried(selection, judged)

    def _selection(self, degree: int, *, pooled: bool) -> Selection:
        """The folds and features of a degree, which unitwise and head have in common."""
        if (degree, pooled) not in self._selections:
            self._selections[degree, pooled] = Selection(
                self.mlp,
                self.part.X,
                self.part.target,
                degree,
                pooled=pooled,
                seed=self.run.seed,
                budget=self.budget,
                progress=self.run.progress,
                highest=self.highest,
            )
        return self._selections[degree, pooled]

    def cost(self, degree: int) -> float:
        """Server time of the judged family over that of degree 2, by the planner; infinite if one has no plan."""
        for each in (2, degree):
            if each not in self._seconds:
                self.run.progress(f"cost of degree {each}", 0, 0)
                model = self._quadratic() if each == 2 else self._model(each)
                with self.run.stage("families"):
                    margins = margins_of(model.logits(self.part.X))
                    self._seconds[each] = server_seconds(model, self.run.design.box, self.part.X, margins)
        least, own = self._seconds[2], self._seconds[degree]
        return own / least if np.isfinite([least, own]).all() else np.inf

    def _quadratic(self) -> PolynomialModel:
        """The judged family of degree 2 on all rows, which is not rounded."""
        tried = self.judge(2)
        S, T, c = (np.ldexp(each, self.power) for each in tried.selection.quadratic(tried.judged.family))
        return PolynomialModel.quadratic(self.run.mlp.W1, self.run.mlp.b1, S, T, c)

    def _model(self, degree: int) -> PolynomialModel:
        """The judged family of a degree on all rows, rounded."""
        if degree not in self._made:
            tried = self.judge(degree)
            basis, family = tried.selection.basis, tried.judged.family
            with self.run.stage("families"):
                weights, constant = tried.selection.point(family)
                if FAMILIES.get(family).is_free:
                    self._made[degree] = self._free(basis, weights, constant)
                else:
                    own = own_coefficients(self.mlp, weights)
                    if family == SHARED:  # equal for all units but for the last bits that dividing by W2 costs
                        own = np.repeat(np.median(own, axis=1, keepdims=True), own.shape[1], axis=1)
                    self._made[degree] = self.rounded(basis, own, constant)
        return self._made[degree]

    def fit(self, degree: int) -> Candidate:
        """The judged family of a degree on all rows, rounded and certified."""
        tried, run = self.judge(degree), self.run
        family = tried.judged.family
        found: Candidate | None = None
        if family == SHARED:
            found = self._separated(tried.selection.basis)
            if found is not None and (found.regime.is_hard or found.regime.is_reduced):
                return measure(run, found)
        model = self._model(degree)
        if found is not None and self._kept(found.model) > self._kept(model):
            return measure(run, found)
        return measure(run, Candidate(run.mlp, family, Regime("kl"), None, None, None, free=model))

    def _separated(self, basis: Basis) -> Candidate | None:
        """A shared fit that separates the decisions, strictly or with slack."""
        run = self.run

        def make(regime: Regime, coefficients: Array, eta: float, tau: float) -> Candidate:
            own = np.broadcast_to(coefficients[:, None], (basis.degree, run.mlp.units))
            constant = run.mlp.b2 + eta * run.mlp.head_sums
            model = self._rounded(basis, own, constant, lossless=regime.is_hard)
            theta = np.append(coefficients, [eta, 1.0])
            return Candidate(run.mlp, SHARED, regime, None, None, None, free=model, theta=theta)

        return Problem(run, run.design.in_basis(basis), make).first()

    def _rounded(self, basis: Basis, own: Array, constant: Array, *, lossless: bool = False) -> PolynomialModel:
        """The same as `rounded`, for constants on the scale of the logits."""
        return self.rounded(basis, own, np.ldexp(constant, -self.power), lossless=lossless)

    def rounded(self, basis: Basis, own: Array, constant: Array, *, lossless: bool = False) -> PolynomialModel:
        """The model of fewest bits that keeps the fit's decisions but for a fraction of a standard error."""
        pooled = bool((basis.mean == basis.mean[0]).all() and (own == own[:, :1]).all())
        low, high = (self.low, self.high) if not pooled else (self.low.min(), self.high.max())
        units = Units.of(np.broadcast_to(low, self.low.shape), np.broadcast_to(high, self.low.shape))
        make = partial(rounded_units, self.mlp, units, basis, own, constant)
        if lossless:
            return self._fewest_bits(make, self.part.target.size, 0.0)
        weights = np.concatenate([self.mlp.W2 * each for each in own], axis=1)
        return self._fewest_bits(make, self._kept_unrounded(basis, weights, constant))

    def _free(self, basis: Basis, weights: Array, constant: Array) -> PolynomialModel:
        """A free head of the fewest polynomials within a standard error of all of them, then of the fewest bits."""
        copies = Copies.split(weights, self.mlp.units)
        counts = sorted({min(len(copies), max(1, round(share * self.mlp.units))) for share in SHARES} | {len(copies)})
        makers = [self._maker(copies.first(max(1, count)), basis, constant) for count in counts]
        kept = self._kept(makers[-1](GRID[-1]))
        taken = next(make for make in makers if self._kept(make(GRID[-1])) >= kept - self._allowed(kept, _LEFT_OUT))
        return self._fewest_bits(taken, self._kept_unrounded(basis, weights, constant), _LEFT_OUT + _LOST)

    def _maker(self, part: Copies, basis: Basis, constant: Array) -> Callable[[Bits], PolynomialModel]:
        units = Units.of(self.low[part.of], self.high[part.of])
        return partial(rounded_units, part.network(self.mlp), units, part.basis(basis), part.own, constant)

    def _fewest_bits(
        self, make: Callable[[Bits], PolynomialModel], wanted: int, share: float = _LOST
    ) -> PolynomialModel:
        """The model of fewest bits that keeps `wanted` decisions but for this share of a standard error.

        Where no number of bits does, the one that keeps most.
        """
        most = self._kept(make(GRID[-1]))
        enough = most >= wanted - self._allowed(wanted, share)
        if enough:  # compare with the finest of the usual ones: it may keep some more, or fewer, by chance
            wanted, share = most, min(share, _LOST)
        tried: list[tuple[int, PolynomialModel]] = []
        for bits in GRID if enough else (GRID[-1], *FINER):
            model = make(bits)
            tried.append((self._kept(model), model))
            if tried[-1][0] >= wanted - self._allowed(wanted, share):
                return self._unscaled(model)
        return self._unscaled(max(tried, key=lambda each: each[0])[1])

    def _kept_unrounded(self, basis: Basis, weights: Array, constant: Array) -> int:
        """How many decisions polynomials of these weights (K, p m) and constants (K,) keep before they are rounded."""
        kept, m = 0, self.mlp.units
        for start in range(0, len(self.part.X), _CHUNK):
            rows = slice(start, start + _CHUNK)
            y = np.asarray(self.part.X[rows], dtype=np.float64) @ self.mlp.W1.T + self.mlp.b1
            terms = (phi @ weights[:, k * m : (k + 1) * m].T for k, phi in enumerate(basis.polynomials(y)))
            kept += int(np.count_nonzero(decide(sum(terms, constant)) == self.part.target[rows]))
        return kept

    def _allowed(self, kept: int, share: float = _LOST) -> float:
        return share * float(np.sqrt(kept * (1 - kept / self.part.target.size)))

    def _kept(self, model: PolynomialModel) -> int:
        return int(np.count_nonzero(decide(model.logits(self.part.X)) == self.part.target))

    def _unscaled(self, model: PolynomialModel) -> PolynomialModel:
        if self.power == 0 or model.V is None or model.a is None:
            return model
        V, c = np.ldexp(model.V, self.power), np.ldexp(model.c, self.power)
        return PolynomialModel.by_unit(model.W1, model.b1, V, model.a, c)


def fixed(ladder: Ladder, degree: int, quadratic: Callable[[], Candidate]) -> Candidate:
    """A fit of this degree, or of the one below where that cross-validates better by more than one standard error.

    `quadratic` makes the fit of degree 2.
    """
    below = max(each for each in DEGREES if each < degree)
    here = ladder.judge(degree)
    if not _ties(here, ladder.judge(below)):
        if here.judged.family == SHARED and (found := ladder.fit(degree)).certified.statement == "lossless":
            return found
        ladder.run.notes.append(notes.LOWER_DEGREE.format(degree, below))
        return quadratic() if below == 2 else ladder.fit(below)
    return ladder.fit(degree)


def chosen(ladder: Ladder, target: float | None, cost: float, quadratic: Callable[[], Candidate]) -> Candidate:
    """The cheapest degree that reaches the target by cross-validation; without one, the best within the cost.

    `quadratic` makes the fit of degree 2.
    """
    if target is not None:
        return _reaching(ladder, target, quadratic)
    allowed, next_one = [2], None
    for degree in DEGREES[1:]:  # each costs more than the one below
        if ladder.cost(degree) > cost:
            next_one = degree
            break
        allowed.append(degree)
    tried = {degree: ladder.judge(degree) for degree in allowed}
    best = max(tried.values(), key=lambda each: each.score)
    taken = next(degree for degree in allowed if _ties(tried[degree], best))
    _note_next(ladder, next_one)
    return quadratic() if taken == 2 else ladder.fit(taken)


def _reaching(ladder: Ladder, target: float, quadratic: Callable[[], Candidate]) -> Candidate:
    reached: int | None = None
    found: Candidate | None = None
    for degree in DEGREES:  # each costs more than the one below
        if ladder.estimate(degree) >= target:
            reached, found = degree, quadratic() if degree == 2 else ladder.fit(degree)
            if found.agreement >= target:
                _note_next(ladder, next((each for each in DEGREES if each > degree), None))
                return found
    # The highest degree whose estimate reaches the target, or the best estimate.
    best = max(DEGREES, key=ladder.estimate) if reached is None else reached
    kept = 100 * ladder.estimate(best)
    fitted = f", but {100 * found.agreement:.3f}% of the calibration decisions" if found is not None else ""
    raise TargetNotReachedError(
        f"no degree reaches the target of {100 * target:.3f}% by cross-validation and on the calibration set: the best "
        f"is degree {best}, which keeps {kept:.3f}% by cross-validation{fitted}; lower the target, or use more "
        "representative calibration data"
    )


def _note_next(ladder: Ladder, degree: int | None) -> None:
    """What a further degree would keep and cost; it is not known to be of use where no plan fits it."""
    if degree is None or not np.isfinite(cost := ladder.cost(degree)):
        return
    kept = 100 * ladder.estimate(degree)
    ladder.run.notes.append(notes.NEXT_DEGREE.format(degree, kept, cost))


def _ties(candidate: _Tried, best: _Tried) -> bool:
    behind, error = candidate.judged.behind(best.judged)
    return behind <= error


def _ranges(shard: Shard) -> tuple[Array, Array]:
    mlp: MLP = shard.subject
    low, high = np.full(mlp.units, np.inf), np.full(mlp.units, -np.inf)
    for _, chunk in shard.chunks(8 * (mlp.features + mlp.units)):
        y = chunk @ mlp.W1.T + mlp.b1
        low, high = np.minimum(low, y.min(axis=0)), np.maximum(high, y.max(axis=0))
    return low, high


def _wider(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
    return np.minimum(first[0], second[0]), np.maximum(first[1], second[1])
