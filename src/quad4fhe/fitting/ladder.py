"""Which degree and family a fit has, by cross-validation, and the certified candidate.

At degree 2 the paper's shared fit comes first, and other families only where it loses decisions. Above, families are
judged at the degree that was asked for and at the one below, which is taken instead where it clearly keeps more, and
the model is rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

import numpy as np

from quad4fhe._arrays import Array, IntArray
from quad4fhe._forecast import server_seconds
from quad4fhe._progress import silent
from quad4fhe.errors import FitError, InputError, TargetNotReachedError
from quad4fhe.fitting import notes
from quad4fhe.fitting.basis import Basis
from quad4fhe.fitting.design import Design, shard_rows
from quad4fhe.fitting.families import AUTO, DEGREES, FAMILIES, SHARED
from quad4fhe.fitting.features import FOLDS
from quad4fhe.fitting.learning import Learned, NoRoomError, conditioning, learned, measure, power_of, scaled_head
from quad4fhe.fitting.margins import Problem
from quad4fhe.fitting.precision import Precision
from quad4fhe.fitting.run import Candidate, Run
from quad4fhe.fitting.select import Judged, Selection, own_coefficients
from quad4fhe.io.rows import ArrayRows
from quad4fhe.mlp import MLP
from quad4fhe.polynomial import PolynomialModel
from quad4fhe.proof.guarantee import margins_of
from quad4fhe.regime import Regime
from quad4fhe.workers.shards import Shard, Shards

_FEWEST = 2 * FOLDS  # rows


@dataclass(frozen=True, eq=False)
class _Tried:
    """A family at a degree, as it was judged."""

    selection: Selection
    judged: Judged

    @property
    def score(self) -> float:
        return self.judged.mean


class Ladder:
    """The degrees and families of one fit: judged when asked for, fitted on all rows.

    Parameters
    ----------
    run
        The fit in the making.
    family
        The name of a family, or "auto".
    regime
        The regime of the shared quadratic, or "auto".
    target
        The calibration agreement to reach, if there is one.
    highest
        The highest degree that may be judged.
    budget
        Bytes for the standardised features.
    memory
        Bytes that all processes together may take; None: no limit.
    """

    def __init__(
        self, run: Run, family: str, regime: str, target: float | None, highest: int, budget: int, memory: int | None
    ) -> None:
        self.run, self.family, self.regime, self.target = run, family, regime, target
        self.highest, self.budget, self.memory = highest, budget, memory
        self.families = tuple(FAMILIES.names()) if family == AUTO else (family,)
        self._selections: dict[tuple[int, bool], Selection] = {}
        self._tried: dict[int, _Tried] = {}
        self._models: dict[int, PolynomialModel] = {}
        self._seconds: dict[int, float] = {}

    def choose(self, degree: int | Literal["auto"], cost: float) -> Candidate:
        """The certified fit of this degree, or of the best one, in the family that was asked for."""
        if degree == 2:
            return self.quadratic()
        if (n := self.run.design.samples) < _FEWEST:
            raise InputError(f"degrees above 2 need at least {_FEWEST} calibration rows, X_cal has {n}")
        return _chosen(self, cost) if degree == "auto" else _fixed(self, degree)

    @cached_property
    def part(self) -> Learned:
        """The rows to learn from."""
        return learned(self.run, self.memory)

    @cached_property
    def power(self) -> int:
        """The power of two that divides the logits."""
        return power_of(self.run.mlp, self.part.X)

    @cached_property
    def mlp(self) -> MLP:
        """The trained model with logits of ordinary size."""
        return scaled_head(self.run.mlp, -self.power)

    @cached_property
    def precision(self) -> Precision:
        """How models of degrees above 2 are rounded."""
        return Precision(self.mlp, self.part, self.power, *self.run.shards.total(_wider, _ranges))

    def quadratic(self) -> Candidate:
        """The fit of degree 2: the shared one, or the family that was asked for.

        For "auto" it is the smallest family that reaches the target, or that cross-validates best.
        """
        run = self.run
        base = Problem(run, run.design, run.shared).solve(self.regime)
        run.certify(base)
        families = self._beyond(base)
        if not families:
            return base
        try:
            with run.stage("families"):
                selection = self._selection(2, pooled=False)
                selection.judge_shared(partial(_shared_on, run, base.model, self.part))
                for name in families:
                    selection.judge(name)
        except NoRoomError:
            if self.family != AUTO or self.target is not None:
                raise
            run.notes.append(notes.NO_ROOM)
            return base
        candidate = self._of_family(selection, base)
        if candidate is not base:
            run.notes.append(notes.SHARED.format(100 * base.agreement))
        run.families = [judged.trial for judged in selection.judged.values()]
        run.family_trace = selection.trace
        with run.stage("diagnostics"):
            models = {each.family: each.model for each in (base, candidate)}
            run.conditioning = [conditioning(run, name, model) for name, model in models.items()]
        return candidate

    def _beyond(self, base: Candidate) -> tuple[str, ...]:
        """The families to try; none if the shared fit is as good as needed, or the rows are too few to compare."""
        n, notable = self.run.design.samples, []
        if self.family == base.family:
            return ()
        if self.family != AUTO:
            if n < _FEWEST:
                raise InputError(f"family={self.family!r} needs at least {_FEWEST} calibration rows, and X_cal has {n}")
            return (self.family,)
        if base.certified.statement == "lossless":
            notable.append(notes.LOSSLESS)
        elif self.target is not None and base.agreement >= self.target:
            notable.append(notes.TARGET_REACHED)
        elif n < _FEWEST:
            notable.append(notes.TOO_FEW.format(n, _FEWEST))
        else:
            return tuple(each.name for each in FAMILIES if each.is_learned)
        self.run.notes += notable if self.highest == 2 else []
        return ()

    def _of_family(self, selection: Selection, base: Candidate) -> Candidate:
        """The family that was asked for at degree 2, or that the judgement is for."""
        if self.family != AUTO:
            return self._learned_quadratic(selection, self.family)
        if self.target is None:
            name = selection.choose()
            return base if name == base.family else self._learned_quadratic(selection, name)
        best = base
        for name in selection.eligible():
            candidate = self._learned_quadratic(selection, name)
            if candidate.agreement >= self.target:
                estimate = selection.judged[name].trial.agreement
                if estimate < self.target:
                    self.run.notes.append(notes.TARGET_DOUBTFUL.format(100 * estimate))
                return candidate
            best = max(best, candidate, key=lambda each: each.agreement)
        raise TargetNotReachedError(
            f"no family reaches the target of {100 * self.target:.3f}%: the best is {best.family} with "
            f"{100 * best.agreement:.3f}%; lower the target, or use more representative calibration data"
        )

    def _learned_quadratic(self, selection: Selection, name: str) -> Candidate:
        with self.run.stage("families"):
            model, alpha, beta, eta = selection.fit(name, self.run.mlp, self.power)
        return measure(self.run, Candidate(self.run.mlp, name, Regime("kl"), alpha, beta, eta, free=model))

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
                model = self._judged_quadratic() if each == 2 else self._model(each)
                with self.run.stage("families"):
                    margins = margins_of(model.logits(self.part.X))
                    self._seconds[each] = server_seconds(model, self.run.design.box, self.part.X, margins)
        least, own = self._seconds[2], self._seconds[degree]
        return own / least if np.isfinite([least, own]).all() else np.inf

    def _judged_quadratic(self) -> PolynomialModel:
        """The judged family of degree 2 on all rows, which is not rounded."""
        tried = self.judge(2)
        S, T, c = (np.ldexp(each, self.power) for each in tried.selection.quadratic(tried.judged.family))
        return PolynomialModel.quadratic(self.run.mlp.W1, self.run.mlp.b1, S, T, c)

    def _model(self, degree: int) -> PolynomialModel:
        """The judged family of a degree on all rows, rounded."""
        if degree not in self._models:
            tried = self.judge(degree)
            basis, family = tried.selection.basis, tried.judged.family
            with self.run.stage("families"):
                weights, constant = tried.selection.point(family)
                if FAMILIES.get(family).is_free:
                    self._models[degree] = self.precision.free(basis, weights, constant)
                else:
                    own = own_coefficients(self.mlp, weights)
                    if family == SHARED:  # equal for all units but for the last bits that dividing by W2 costs
                        own = np.repeat(np.median(own, axis=1, keepdims=True), own.shape[1], axis=1)
                    self._models[degree] = self.precision.rounded(basis, own, constant)
        return self._models[degree]

    def fit(self, degree: int) -> Candidate:
        """The judged family of a degree on all rows, rounded and certified; degree 2 as if it was asked for alone."""
        if degree == 2:
            return self.quadratic()
        tried, run = self.judge(degree), self.run
        family = tried.judged.family
        separated: Candidate | None = None
        if family == SHARED:
            separated = self._separated(tried.selection.basis)
            if separated is not None and (separated.regime.is_hard or separated.regime.is_reduced):
                return measure(run, separated)
        model = self._model(degree)
        if separated is not None and self.precision.kept(separated.model) > self.precision.kept(model):
            return measure(run, separated)
        return measure(run, Candidate(run.mlp, family, Regime("kl"), None, None, None, free=model))

    def _separated(self, basis: Basis) -> Candidate | None:
        """A shared fit that separates the decisions, strictly or with slack."""
        run = self.run

        def make(regime: Regime, coefficients: Array, eta: float, tau: float) -> Candidate:
            own = np.broadcast_to(coefficients[:, None], (basis.degree, run.mlp.units))
            constant = run.mlp.b2 + eta * run.mlp.head_sums
            model = self.precision.rounded(basis, own, np.ldexp(constant, -self.power), lossless=regime.is_hard)
            theta = np.append(coefficients, [eta, 1.0])
            return Candidate(run.mlp, SHARED, regime, None, None, None, free=model, theta=theta)

        return Problem(run, run.design.in_basis(basis), make).first()


def _fixed(ladder: Ladder, degree: int) -> Candidate:
    """A fit of this degree, or of the one below where that cross-validates better by more than one standard error."""
    below = max(each for each in DEGREES if each < degree)
    here = ladder.judge(degree)
    if not _ties(here, ladder.judge(below)):
        if here.judged.family == SHARED and (candidate := ladder.fit(degree)).certified.statement == "lossless":
            return candidate
        ladder.run.notes.append(notes.LOWER_DEGREE.format(degree, below))
        return ladder.fit(below)
    return ladder.fit(degree)


def _chosen(ladder: Ladder, cost: float) -> Candidate:
    """The cheapest degree that reaches the target by cross-validation; without one, the best within the cost."""
    if ladder.target is not None:
        return _reaching(ladder, ladder.target)
    allowed, next_one = [2], None
    for degree in DEGREES[1:]:  # each costs more than the one below
        if ladder.cost(degree) > cost:
            next_one = degree
            break
        allowed.append(degree)
    tried = {degree: ladder.judge(degree) for degree in allowed}
    best = max(tried.values(), key=lambda each: each.score)
    degree = next(degree for degree in allowed if _ties(tried[degree], best))
    _note_next(ladder, next_one)
    return ladder.fit(degree)


def _reaching(ladder: Ladder, target: float) -> Candidate:
    reached: int | None = None
    candidate: Candidate | None = None
    for degree in DEGREES:  # each costs more than the one below
        if ladder.estimate(degree) >= target:
            reached, candidate = degree, ladder.fit(degree)
            if candidate.agreement >= target:
                _note_next(ladder, next((each for each in DEGREES if each > degree), None))
                return candidate
    # The highest degree whose estimate reaches the target, or the best estimate.
    best = max(DEGREES, key=ladder.estimate) if reached is None else reached
    share = 100 * ladder.estimate(best)
    fitted = f", but {100 * candidate.agreement:.3f}% of the calibration decisions" if candidate is not None else ""
    raise TargetNotReachedError(
        f"no degree reaches the target of {100 * target:.3f}% by cross-validation and on the calibration set: the best "
        f"is degree {best}, which keeps {share:.3f}% by cross-validation{fitted}; lower the target, or use more "
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


def _shared_on(run: Run, whole: PolynomialModel, part: Learned, rows: IntArray) -> PolynomialModel:
    """The shared fit to some of the rows; `whole`, the one to all rows, if some have no shared fit of their own."""
    if np.unique(part.target[rows]).size < 2:
        return whole
    with Shards(ArrayRows(part.X[rows]), shard_rows(run.mlp.classes), run.mlp) as shards:
        inner = Run(run.mlp, shards, Design.of_shards(shards, run.mlp), run.threshold, run.polish, run.seed, silent)
        try:
            return Problem(inner, inner.design, inner.shared).solve("auto").model
        except FitError:
            return whole
