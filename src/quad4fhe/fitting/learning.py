"""From the shared fit to the family that was asked for: the rows to learn from, the candidate and its figures.

`select` judges families by cross-validation and fits them. The figures of the result are measured on all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quad4fhe._arrays import Array, IntArray
from quad4fhe.errors import InputError, TargetNotReachedError
from quad4fhe.fitting import notes
from quad4fhe.fitting.diagnostics import Conditioning
from quad4fhe.fitting.families import AUTO, FAMILIES
from quad4fhe.fitting.features import FOLDS, blends_for, stratified_rows
from quad4fhe.fitting.run import Candidate, Run
from quad4fhe.fitting.select import Priors, Selection
from quad4fhe.io.rows import ArrayRows
from quad4fhe.mlp import MLP
from quad4fhe.polynomial import PolynomialModel
from quad4fhe.proof.exact import target_labels
from quad4fhe.regime import Regime
from quad4fhe.workers.shards import Shard

MOST = 100_000
"""Rows fetched of a data set that is not in memory. Strengths are counted in rows, so more would only refine them."""
_FEWEST = 2 * FOLDS  # rows
_SMALLEST, _LARGEST = 2.0**-16, 2.0**16  # logits in this range are fitted as they are


class Learned(NamedTuple):
    """Samples X (n, d) and the ReLU model's decisions on them (n,)."""

    X: NDArray[Any]
    target: IntArray


class NoRoomError(InputError):
    """The rows that families learn from do not fit in the memory allowed."""


def learned(run: Run, memory: int | None) -> Learned:
    """All rows if they are one array in this process, else at most MOST, every class in its share."""
    shards = run.shards
    if shards.in_memory and isinstance(shards.rows, ArrayRows):
        return Learned(shards.rows.array, np.concatenate(shards.map(_targets)))
    share = min(1.0, MOST / shards.samples)
    rows = round(share * shards.samples)
    features, filled = shards.rows.shape[1], rows * (1 + blends_for(rows))
    wanted = 8 * filled * (features + 6 * run.design.classes)
    if filled > rows:
        wanted += 8 * rows * features  # made rows stand behind a copy of the real ones
    if memory is not None and 2 * wanted > memory:
        raise NoRoomError(
            f"families other than shared keep {rows} rows in memory, {wanted / 1e6:.0f} MB, which may be at most half "
            f"of the {memory / 1e6:.0f} MB allowed; allow {2 * wanted / 1e6:.0f} MB, or use family='shared'"
        )
    found = dict(shards.stream(_some_rows, share, run.seed))
    X, target = (np.concatenate([found[k][part] for k in range(shards.count)]) for part in (0, 1))
    if share < 1:
        run.notes.append(notes.SOME_ROWS.format(target.size, shards.samples))
    return Learned(X, target)


def _targets(shard: Shard) -> IntArray:
    return target_labels(shard, shard.subject)[0]


def _some_rows(shard: Shard, share: float, seed: int) -> Learned:
    target = _targets(shard)
    chosen = np.arange(shard.samples)
    if share < 1:
        chosen = stratified_rows(target, round(share * shard.samples), seed + shard.index)
    kept = [
        chunk[chosen[(chosen >= rows.start) & (chosen < rows.stop)] - rows.start]
        for rows, chunk in shard.chunks(8 * shard.subject.features)
    ]
    return Learned(np.concatenate(kept), target[chosen])


def replace(
    run: Run,
    base: Candidate,
    family: str,
    learn: Callable[[], tuple[Learned, Priors]],
    target: float | None,
    budget: int,
) -> Candidate:
    """A certified candidate of `family`; for "auto" of the smallest that reaches `target` or cross-validates best.

    Parameters
    ----------
    run
        The fit in the making.
    base
        The shared fit, certified.
    family
        The name of a learned family, or "auto".
    learn
        Returns the rows that families learn from, and a function that fits the shared family to some of them.
    target
        The calibration agreement to reach, if there is one.
    budget
        Bytes for the standardised features.
    """
    wanted = _wanted(run, base, family, target)
    if not wanted:
        return base
    with run.stage("families"):
        try:
            part, priors = learn()
        except NoRoomError:
            if family != AUTO or target is not None:
                raise
            run.notes.append(notes.NO_ROOM)
            return base
        power = power_of(run.mlp, part.X)
        scaled = scaled_head(run.mlp, -power)
        selection = Selection(scaled, part.X, part.target, 2, seed=run.seed, budget=budget, progress=run.progress)
        selection.judge_shared(priors)
        for name in wanted:
            selection.judge(name)
    if family != AUTO:
        found = _fitted(run, selection, family, power)
    elif target is None:
        name = selection.choose()
        found = base if name == base.family else _fitted(run, selection, name, power)
    else:
        found = _first_that_reaches(run, selection, base, target, power)
    if found is not base:
        run.notes.append(notes.SHARED.format(100 * base.agreement))
    run.families = [judged.trial for judged in selection.judged.values()]
    run.family_trace = selection.trace
    with run.stage("diagnostics"):
        models = {base.family: base.model, found.family: found.model}
        run.conditioning = [_conditioning(run, name, model) for name, model in models.items()]
    return found


def _wanted(run: Run, base: Candidate, family: str, target: float | None) -> tuple[str, ...]:
    """The families to try; none if the shared fit is as good as needed, or the rows are too few to compare."""
    n = run.design.samples
    if family != AUTO:
        if n < _FEWEST:
            raise InputError(f"family={family!r} needs at least {_FEWEST} calibration rows, and X_cal has {n}")
        return (family,)
    if base.certified.statement == "lossless":
        run.notes.append(notes.LOSSLESS)
    elif target is not None and base.agreement >= target:
        run.notes.append(notes.TARGET_REACHED)
    elif n < _FEWEST:
        run.notes.append(notes.TOO_FEW.format(n, _FEWEST))
    else:
        return tuple(each.name for each in FAMILIES if each.is_learned)
    return ()


def _first_that_reaches(run: Run, selection: Selection, base: Candidate, target: float, power: int) -> Candidate:
    best = base
    for name in selection.eligible():
        found = _fitted(run, selection, name, power)
        if found.agreement >= target:
            estimate = selection.judged[name].trial.agreement
            if estimate < target:
                run.notes.append(notes.TARGET_DOUBTFUL.format(100 * estimate))
            return found
        best = max(best, found, key=lambda each: each.agreement)
    raise TargetNotReachedError(
        f"no family reaches the target of {100 * target:.3f}%: the best is {best.family} with "
        f"{100 * best.agreement:.3f}%; lower the target, or use more representative calibration data"
    )


def _fitted(run: Run, selection: Selection, name: str, power: int) -> Candidate:
    with run.stage("families"):
        model, alpha, beta, eta = selection.fit(name, run.mlp, power)
    return measure(run, Candidate(run.mlp, name, Regime("kl"), alpha, beta, eta, free=model))


def measure(run: Run, found: Candidate) -> Candidate:
    """Certify a candidate and take its margins on all rows."""
    run.certify(found)
    found.margin = float(run.shards.total(min, _worst_of, run.mlp, found.model))
    found.normalised_margin = found.margin / _norm((*found.model.A[::-1], found.model.c))
    return found


def power_of(mlp: MLP, X: ArrayLike) -> int:
    """The power of two that divides the logits while families are fitted, so that no square of them overflows.

    A softmax is meaningful only at the scale of trained logits, so logits of ordinary size stay as they are.
    """
    logits = mlp.logits(X)
    largest = float(np.abs(logits if logits.shape[1] == 1 else logits - logits[:, :1]).max())
    return 0 if not 0 < largest < np.inf or _SMALLEST <= largest <= _LARGEST else int(np.frexp(largest)[1]) - 4


def scaled_head(mlp: MLP, power: int) -> MLP:
    """The model with logits over 2^-power, exactly."""
    return mlp if power == 0 else mlp.scaled(power)


def _worst_of(shard: Shard, mlp: MLP, model: PolynomialModel) -> float:
    """The smallest difference between the target's logit and its strongest rival's."""
    worst = np.inf
    labels, _ = target_labels(shard, mlp)
    for rows, chunk in shard.chunks(8 * (model.features + 2 * model.units)):
        y = chunk @ model.W1.T + model.b1
        logits = model.head(y)
        target = labels[rows]
        if logits.shape[1] == 1:
            worst = min(worst, float(np.where(target == 1, logits[:, 0], -logits[:, 0]).min()))
            continue
        at = np.arange(target.size)
        own = logits[at, target]
        logits[at, target] = -np.inf
        worst = min(worst, float((own - logits.max(axis=1)).min()))
    return worst


def _norm(arrays: Iterable[Array]) -> float:
    flat = np.concatenate([array.ravel() for array in arrays])
    largest = float(np.abs(flat).max())
    return largest * float(np.linalg.norm(flat / largest)) if largest else 1.0


def _conditioning(run: Run, family: str, model: PolynomialModel) -> Conditioning:
    terms, largest = run.shards.total(np.maximum, _sizes_of, model)
    sizes = (np.abs(model.A).max(), np.abs(model.c).max())
    amplification = float(terms / largest) if largest else 1.0
    return Conditioning(family=family, largest=float(max(sizes)), amplification=amplification)


def _sizes_of(shard: Shard, model: PolynomialModel) -> Array:
    """The largest sum of absolute terms of a logit, and the largest logit."""
    terms, largest = 0.0, 0.0
    A, c = np.abs(model.A), np.abs(model.c)
    for _, chunk in shard.chunks(8 * (model.features + 3 * model.units)):
        y = chunk @ model.W1.T + model.b1
        largest = max(largest, float(np.abs(model.head(y)).max()))
        powers = np.abs(y) ** model.degree
        total = powers @ A[-1].T
        for k in range(model.degree - 1, 0, -1):
            total = total + (np.abs(y) ** k) @ A[k - 1].T
        terms = max(terms, float((total + c).max()))
    return np.array([terms, largest])
