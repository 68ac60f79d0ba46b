"""One run from its task to its record: data, model, fits, measurements.

Decides which fits and measurements each kind of run takes. How each is done is left to `prepare`, `train`, `measure`
and `encrypted`; in which order runs come, and in which process, to `runner`.
"""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from quad4fhe.errors import FitError, InputError
from quad4fhe.fitting import Fit, fit
from quad4fhe.fitting.design import Design
from quad4fhe.mlp import MLP
from quad4fhe_reproduce.data.prepared import file_hash
from quad4fhe_reproduce.encrypted import ciphertext_experiments, folded
from quad4fhe_reproduce.measure import Bench, fitted, margins, measured_baselines, relu
from quad4fhe_reproduce.prepare import Features, Parts, draw_pool, prepare
from quad4fhe_reproduce.recipes import POOLS, WIDTH
from quad4fhe_reproduce.records import VERSION, Dropped, Fitted, LiftedPlane, PoolResult, Record, Task
from quad4fhe_reproduce.store import Store
from quad4fhe_reproduce.train import train

_SHARED = ("paper", "polished")
DROPPED = (0.01, 0.05)
AUTO_CLASSES = 10
"""Up to so many classes the spread over seeds is also measured for auto; beyond, it would take hours."""
_SHOWN = 600  # points of a lifted plane that are kept for its picture, beside hull corners and lost decisions


def run(task: Task, data: Path, store: Store) -> Record:
    """Do one run, or read it if it is already there."""
    sha256, origin = file_hash(task.recipe.data, data)
    key = task.key(sha256)
    done = store.read(task, key)
    if done is not None:
        return done
    cpu, wall = time.process_time(), time.perf_counter()
    parts = prepare(task.recipe, data, task.seed, pool=task.kind == "pool")
    mlp, epochs = _model(task, parts, sha256, store)
    bench = Bench.full(mlp, parts)
    results = _KINDS[task.kind](task, parts, bench)
    record = Record(
        version=VERSION,
        key=key,
        task=task,
        data_sha256=sha256,
        origin=origin,
        library=_library(),
        machine=f"{platform.machine()} {platform.system()}, Python {platform.python_version()}",
        cpu_seconds=round(time.process_time() - cpu, 2),
        wall_seconds=round(time.perf_counter() - wall, 2),
        epochs=epochs,
        classes=parts.classes,
        features=mlp.features,
        n_train=len(parts.y_train),
        n_cal=len(bench.X_cal),
        n_test=len(bench.X_test),
        relu=relu(bench),
        **results,
    )
    store.write(record)
    return record


def _library() -> str:
    from importlib.metadata import version

    return version("quad4fhe")


def _model(task: Task, parts: Parts, sha256: str, store: Store) -> tuple[MLP, int]:
    key = task.model_key(sha256)
    stored = store.read_model(key)
    if stored is not None:
        return stored
    mlp, epochs = train(parts, task.recipe.training, task.width, task.seed)
    store.write_model(key, mlp, epochs)
    return mlp, epochs


def _shared_fit(name: str, mlp: MLP, X: Features, seed: int) -> Fit:
    """The paper's own coefficients, or the polished ones."""
    return fit(mlp, X, family="shared", polish=name == "polished", seed=seed)


def _fit(name: str, bench: Bench, task: Task) -> tuple[Fit, Fitted]:
    started = time.process_time()
    if name in _SHARED:
        result = _shared_fit(name, bench.mlp, bench.X_cal, task.seed)
    else:
        result = fit(bench.mlp, bench.X_cal, family=name, seed=task.seed)
    return result, fitted(name, bench, result, time.process_time() - started)


def _shared(bench: Bench, task: Task) -> tuple[list[Fit], list[Fitted]]:
    """The paper's own coefficients and the polished ones; the same where the fit is hard."""
    pairs = [_fit(name, bench, task) for name in _SHARED]
    return [result for result, _ in pairs], [row for _, row in pairs]


def _plain(task: Task, parts: Parts, bench: Bench) -> dict[str, Any]:
    fits, rows = _shared(bench, task)
    out: dict[str, Any] = {"fits": rows, "baselines": measured_baselines(bench)}
    if task.width == WIDTH or bench.classes == 2:
        out["dropped"] = _without_the_unsure(task, bench)
    if bench.classes == 2:
        out["plane"] = _plane(bench.mlp, bench.X_cal, fits[0], task.seed)
    return out


def _seed(task: Task, parts: Parts, bench: Bench) -> dict[str, Any]:
    _, rows = _shared(bench, task)
    return {"fits": [*rows, _fit("auto", bench, task)[1]] if bench.classes <= AUTO_CLASSES else rows}


def _families(task: Task, parts: Parts, bench: Bench) -> dict[str, Any]:
    fits, rows = _shared(bench, task)
    best, row = _fit("auto", bench, task)
    for family in ("unitwise", "head"):
        # What auto has chosen it has fitted: the same rows, folds and setting give the same model.
        result, own = (best, structs.replace(row, name=family)) if best.family == family else _fit(family, bench, task)
        fits.append(result)
        rows.append(own)
    fits.append(best)
    rows.append(row)
    named = {row.name: result for result, row in zip(fits, rows, strict=True)}
    return {"fits": rows, "encrypted": folded(named, bench)}


def _ckks(task: Task, parts: Parts, bench: Bench) -> dict[str, Any]:
    fits, rows = _shared(bench, task)
    return {"fits": rows, **ciphertext_experiments(fits[0], bench)}


def _pool(task: Task, parts: Parts, bench: Bench) -> dict[str, Any]:
    return {"pools": [_one_pool(task, parts, bench.mlp, share) for share in POOLS]}


def _one_pool(task: Task, parts: Parts, mlp: MLP, share: float) -> PoolResult:
    rows = draw_pool(parts, share, task.seed)
    if rows.size == 0:
        few = min(round(share * parts.rows), len(parts.y_reserve))
        why = f"{few} rows are fewer than {parts.classes} classes"
        return PoolResult(share=share, rows=few, missing_classes=parts.classes, why_unavailable=why)
    missing = parts.classes - int(np.unique(parts.y_reserve[rows]).size)
    bench = Bench(mlp, parts.X_reserve[rows], parts.X_test, parts.y_test)
    try:
        fits = _shared(bench, task)[1]
        fits.append(_fit("auto", bench, task)[1])
    except (FitError, InputError) as error:
        return PoolResult(share=share, rows=rows.size, missing_classes=missing, why_unavailable=str(error))
    return PoolResult(
        share=share, rows=rows.size, missing_classes=missing, fits=fits, baselines=measured_baselines(bench)
    )


def _without_the_unsure(task: Task, bench: Bench) -> list[Dropped]:
    """Fit again without the calibration rows on which the ReLU model is least sure."""
    order = np.argsort(margins(bench.relu_cal), kind="stable")
    out = []
    for share in DROPPED:
        kept = np.sort(order[round(share * order.size) :])
        for name in _SHARED:
            result = _shared_fit(name, bench.mlp, bench.X_cal[kept], task.seed)
            out.append(
                Dropped(
                    share=share,
                    fit=name,
                    regime=str(result.regime),
                    alpha=float(result.alpha),
                    beta=float(result.beta),
                    eta=float(result.eta),
                    agreement_test=float(result.agreement(bench.X_test)),
                    agreement_all=float(result.agreement(bench.X_cal)),
                )
            )
    return out


def _plane(mlp: MLP, X: Features, paper: Fit, seed: int) -> LiftedPlane:
    from scipy.spatial import ConvexHull

    design = Design.of_samples(mlp, X)
    points, positive = design.points
    lost = paper.predict(X) != positive
    shown = set(np.flatnonzero(lost).tolist())
    shown |= set(np.random.default_rng(seed).permutation(len(X))[:_SHOWN].tolist())
    for side in (positive, ~positive):
        own = np.flatnonzero(side)
        if own.size > 2:
            shown |= set(own[ConvexHull(points[own]).vertices].tolist())
    rows = sorted(shown)
    return LiftedPlane(
        q=[float(f"{v:.5g}") for v in points[rows, 0]],
        h=[float(f"{v:.5g}") for v in points[rows, 1]],
        positive=positive[rows].tolist(),
        lost=lost[rows].tolist(),
        offset=design.shift,
        bias=float(design.b[1] - design.b[0]),
    )


_KINDS = {"plain": _plain, "seed": _seed, "families": _families, "ckks": _ckks, "pool": _pool}
