"""Beyond the shared quadratic: from the shared fit to the family that was asked for, with its certificate.

Decides what is returned when a family, a target or the best is wanted. How families are judged and fitted is left to
`families`; the shared fit, which they all start from, to the cascade.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from dataclasses import replace as with_changes
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from quad4fhe._arrays import Array
from quad4fhe.certificate import Certificate
from quad4fhe.errors import InputError, TargetNotReachedError
from quad4fhe.exact import target_labels
from quad4fhe.fitting import notes
from quad4fhe.fitting.families import ORDER, Families, Priors
from quad4fhe.fitting.learned import Learned
from quad4fhe.fitting.pool import FOLDS
from quad4fhe.fitting.run import Run, Solution
from quad4fhe.fitting.trials import Conditioning, FamilyStep, FamilyTrial
from quad4fhe.fitting.unitwise import per_unit
from quad4fhe.mlp import MLP
from quad4fhe.quadratic import QuadraticModel
from quad4fhe.shards import Shard

_FEWEST = 2 * FOLDS  # rows
_SMALLEST, _LARGEST = 2.0**-16, 2.0**16  # logits that are fitted as they are


@dataclass(frozen=True)
class Replacement:
    """A model that may become the fit: its coefficients, what is certified of it, and what it was compared with."""

    family: str
    regime: str
    model: QuadraticModel
    alpha: Any
    beta: Any
    eta: Any
    tau: float
    margin: float
    normalised_margin: float
    certificate: Certificate
    margins: Array
    trials: list[FamilyTrial] = field(default_factory=list)
    trace: list[FamilyStep] = field(default_factory=list)
    conditioning: list[Conditioning] = field(default_factory=list)

    @property
    def agreement(self) -> float:
        """The share of calibration decisions that is kept."""
        n = self.certificate.samples
        return (n - len(self.certificate.mismatches)) / n


def shared(run: Run, solution: Solution) -> Replacement:
    """The shared fit itself."""
    certificate, margins = run.certified or run.certify(run.model(solution))
    return Replacement(
        family="shared",
        regime=solution.regime,
        model=run.model(solution),
        alpha=solution.alpha,
        beta=solution.beta,
        eta=solution.eta,
        tau=solution.tau,
        margin=solution.margin,
        normalised_margin=solution.normalised_margin,
        certificate=certificate,
        margins=margins,
    )


def replace(
    run: Run,
    base: Replacement,
    family: str,
    learn: Callable[[], tuple[Learned, Priors]],
    target: float | None,
    budget: int,
) -> Replacement:
    """The family asked for; with "auto" the smallest that reaches the target, or the one that cross-validates best.

    `learn` gives the rows that families learn from, and the shared fit to some of them.
    """
    if family == "auto":
        if base.certificate.statement == "lossless":
            run.notes.append(notes.LOSSLESS)
            return base
        if target is not None and base.agreement >= target:
            run.notes.append(notes.TARGET_REACHED)
            return base
    n = run.lift.samples
    if n < _FEWEST:
        if family != "auto":
            raise InputError(f"family={family!r} needs at least {_FEWEST} calibration rows, and X_cal has {n}")
        run.notes.append(notes.TOO_FEW.format(n, _FEWEST))
        return base
    with run.stage("families"):
        learned, priors = learn()
        power = _power(run.mlp, learned.X)
        tried = Families(
            _scaled_head(run.mlp, -power),
            learned.X,
            learned.target,
            _scaled(base.model, -power),
            lambda rows: _scaled(priors(rows), -power),
            seed=run.seed,
            budget=budget,
            progress=run.progress,
        )
        for name in ORDER[1:] if family == "auto" else (family,):
            tried.judge(name)
    if family != "auto":
        found = _fitted(run, tried, family, power)
    elif target is None:
        name = tried.choose()
        found = base if name == "shared" else _fitted(run, tried, name, power)
    else:
        found = _first_that_reaches(run, tried, base, target, power)
    models = {"shared": base.model, found.family: found.model}
    with run.stage("diagnostics"):
        conditioning = [_conditioning(run, name, model) for name, model in models.items()]
    return with_changes(
        found,
        trials=[judged.trial for judged in tried.judged.values()],
        trace=tried.trace,
        conditioning=conditioning,
    )


def _first_that_reaches(run: Run, tried: Families, base: Replacement, target: float, power: int) -> Replacement:
    best = base
    for name in tried.eligible():
        if name == "shared":
            continue
        found = _fitted(run, tried, name, power)
        if found.agreement >= target:
            estimate = tried.judged[name].trial.agreement
            if estimate < target:
                run.notes.append(notes.TARGET_DOUBTFUL.format(100 * estimate))
            return found
        best = max(best, found, key=lambda each: each.agreement)
    raise TargetNotReachedError(
        f"no family reaches the target of {100 * target:.3f}%: the best is {best.family} with "
        f"{100 * best.agreement:.3f}%; lower the target, or use more representative calibration data"
    )


def _fitted(run: Run, tried: Families, family: str, power: int) -> Replacement:
    with run.stage("families"):
        S, T, c = tried.fit(family)
        alpha: Array | None = None
        beta: Array | None = None
        eta: Array | None = None
        if family == "unitwise":
            alpha, beta, eta = per_unit(tried.mlp, S, T, c)  # the same for every scale of the head
            model = QuadraticModel.unitwise(run.mlp, alpha, beta, eta)
        else:
            model = _scaled(QuadraticModel(run.mlp.W1, run.mlp.b1, S, T, c), power)
    certificate, margins = run.certify(model)
    worst = _worst_margin(run, model)
    setting = tried.judged[family].setting
    assert setting is not None
    return Replacement(
        family=family,
        regime=setting.regime,
        model=model,
        alpha=alpha,
        beta=beta,
        eta=eta,
        tau=0.0,
        margin=worst,
        normalised_margin=worst / _norm((model.S, model.T, model.c)),
        certificate=certificate,
        margins=margins,
    )


def _power(mlp: MLP, X: ArrayLike) -> int:
    """The power of two that logits are divided by while other families are fitted, so that no square of them overflows.

    Their softmax means something on the scale of trained logits alone: what is near it stays as it is.
    """
    logits = mlp.logits(X)
    largest = float(np.abs(logits if logits.shape[1] == 1 else logits - logits[:, :1]).max())
    return 0 if not 0 < largest < np.inf or _SMALLEST <= largest <= _LARGEST else int(np.frexp(largest)[1]) - 4


def _scaled_head(mlp: MLP, power: int) -> MLP:
    return mlp if power == 0 else MLP(mlp.W1, mlp.b1, np.ldexp(mlp.W2, power), np.ldexp(mlp.b2, power))


def _scaled(model: QuadraticModel, power: int) -> QuadraticModel:
    """Logits times a power of two: the same decisions, and exactly the same model but for its exponents."""
    if power == 0:
        return model
    S, T, c = (np.ldexp(each, power) for each in (model.S, model.T, model.c))
    return QuadraticModel(model.W1, model.b1, S, T, c)


def _worst_margin(run: Run, model: QuadraticModel) -> float:
    """The target's logit minus its strongest rival's, where that is least."""
    return float(run.shards.total(min, _worst_of, run.mlp, model))


def _worst_of(shard: Shard, mlp: MLP, model: QuadraticModel) -> float:
    worst = np.inf
    labels, _ = target_labels(shard, mlp)
    for rows, chunk in shard.chunks(8 * (model.features + 2 * model.units)):
        y = chunk @ model.W1.T + model.b1
        logits = (y * y) @ model.S.T + y @ model.T.T + model.c
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


def _conditioning(run: Run, family: str, model: QuadraticModel) -> Conditioning:
    terms, largest = run.shards.total(np.maximum, _sizes_of, model)
    sizes = (np.abs(model.S).max(), np.abs(model.T).max(), np.abs(model.c).max())
    return Conditioning(
        family=family, largest=float(max(sizes)), amplification=float(terms / largest) if largest else 1.0
    )


def _sizes_of(shard: Shard, model: QuadraticModel) -> Array:
    """The largest sum of absolute terms of a logit, and the largest logit."""
    terms, largest = 0.0, 0.0
    S, T, c = np.abs(model.S), np.abs(model.T), np.abs(model.c)
    for _, chunk in shard.chunks(8 * (model.features + 3 * model.units)):
        y = chunk @ model.W1.T + model.b1
        squares = y * y
        largest = max(largest, float(np.abs(squares @ model.S.T + y @ model.T.T + model.c).max()))
        terms = max(terms, float((squares @ S.T + np.abs(y) @ T.T + c).max()))
    return np.array([terms, largest])
