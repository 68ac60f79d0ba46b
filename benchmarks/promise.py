"""How often promises about new inputs are broken, on real data, and how far they lie from the truth.

Rows that neither the ReLU model nor the fit has seen stand for the distribution of inputs: a hold-out is drawn of them
independently (with replacement, which is what the theorems are about), and the truth is the share over all of them.
`rest` draws without replacement instead and takes the rows that are left for the truth. Every setting has 1,000 draws
at confidence 0.9 and 0.99; broken promises may be at most 1 - confidence plus three standard errors. The hostile
settings violate a condition on purpose, and are meant to break it.

    python benchmarks/promise.py --out benchmarks/promise.json [--case digits] [--part reliable]

`--part reliable` draws again for reliable decisions alone and keeps the other figures of the file.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from compact import write
from machine import describe
from quad4fhe import MLP, Fit, fit
from quad4fhe.fitting.features import stratified_rows
from quad4fhe.proof.bounds import by_class, delta_of, lost_share_bound
from quad4fhe.proof.guarantee import HoldOut, Reliable, Terms, margins_of, norms_of, relative
from quad4fhe.proof.holdout import best_power, thresholds

DATA = Path(os.environ.get("QUAD4FHE_DATA", Path(__file__).parents[2] / "shared" / "data"))
DRAWS = 1000
CONFIDENCES = (0.9, 0.99)
Case = tuple[MLP, Any, Any]  # the model, rows it was trained on, rows that it has not seen


def trained(name: str) -> Case:
    """A model of the data folder, calibrated on its training rows."""
    with np.load(DATA / "models" / f"{name}.npz") as z:
        return MLP(z["W1"], z["b1"], z["W2"], z["b2"]), z["X_cal"].astype(float), z["X_test"].astype(float)


def small(name: str, rows: int, units: int = 64, seed: int = 0) -> Case:
    """A model of one's own, trained on `rows` random rows of a data set; at most 10,000 others stay unseen."""
    from sklearn.neural_network import MLPClassifier

    with np.load(DATA / f"{name}.npz") as z:
        X, y = z["X"].astype(float), z["y"]
    order = np.random.default_rng(seed).permutation(len(X))
    train, rest = order[:rows], order[rows : rows + 10_000]
    spread = X[train].std(axis=0)
    Z = (X - X[train].mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = MLPClassifier((units,), max_iter=60, random_state=seed).fit(Z[train], y[train])
    return MLP.from_sklearn(network), Z[train], Z[rest]


CASES: dict[str, Callable[[], Case]] = {
    "breast_cancer": lambda: small("breast_cancer", 114),
    "digits": lambda: small("digits", 600),
    "diabetes": lambda: trained("diabetes"),
    "shuttle": lambda: trained("shuttle"),
    "sst5": lambda: trained("sst5"),
    "mnist": lambda: small("mnist", 5000),
    "otto": lambda: trained("otto"),
}


class Population:
    """Unseen rows under one fit: the class the ReLU model decides, whether it is kept, and the replacement's margin."""

    def __init__(self, found: Fit, X: Any) -> None:
        self.target = found.mlp.decide(X)
        self.label = found.predict(X)
        self.kept = self.target == self.label
        logits = found.model.logits(X)
        self.gap, self.norm = margins_of(logits), norms_of(logits)
        self.classes = found.mlp.classes

    def scores(self, power: float) -> Any:
        """The relative margins."""
        return relative(self.gap, self.norm, power)

    def by_class(self, at: Any) -> tuple[Any, Any]:
        """How many of the rows `at` are of each class, and how many of these are lost."""
        target, kept = self.target[at], self.kept[at]
        n = np.bincount(target, minlength=self.classes)
        return n, np.bincount(target[~kept], minlength=self.classes)


def flagged(rows: Population, known: Any, at: Any, level: float, confidence: float, power: float) -> Reliable:
    """The margin of reliable decisions from the rows `at`, tried at the quantiles of `known` relative margins."""
    table = np.zeros((len(at), 8))
    table[:, 0], table[:, 1] = rows.target[at], 1
    table[:, 2], table[:, 3], table[:, 4] = rows.label[at], rows.gap[at], rows.norm[at]
    terms = Terms(
        confidence=confidence, sha256="0" * 64, split=None, level=level, power=power, thresholds=thresholds(known)
    )
    said = HoldOut(terms, table, np.zeros((2, 1))).guarantee(rows.classes).reliable
    assert said is not None, "a margin was asked for"
    return said


def judged(broken: int, draws: int, confidence: float, gaps: list[float], **more: Any) -> dict[str, Any]:
    """A setting's figures; `gaps` are truth minus promise."""
    delta = 1 - confidence
    allowed = delta + 3 * (delta * (1 - delta) / draws) ** 0.5
    share = broken / draws
    tight = {"truth_minus_promise": round(float(np.median(gaps)), 5)} if gaps else {}
    return {"broken": share, "allowed": round(allowed, 5), "fine": share <= allowed, "draws": draws, **tight, **more}


def hold_outs(rows: Population, size: int, confidence: float, rng: Any) -> dict[str, Any]:
    """Statements overall and by class from hold-outs of this size."""
    delta, n = delta_of(confidence), len(rows.kept)
    truth = float(rows.kept.mean())
    total, lost = rows.by_class(slice(None))
    true_by_class = 1 - lost / np.maximum(total, 1)
    broken = {"overall": 0, "rest": 0, "by_class": 0}
    gaps: dict[str, list[float]] = {"overall": [], "rest": [], "by_class": []}
    for _ in range(DRAWS):
        at = rng.integers(0, n, size)
        promise = 1 - float(lost_share_bound(size, int(np.count_nonzero(~rows.kept[at])), delta))
        broken["overall"] += promise > truth
        gaps["overall"].append(truth - promise)
        counts = list(zip(*(part.tolist() for part in rows.by_class(at)), strict=True))
        each = 1 - np.array([float(bound) for bound in by_class(counts, delta)])
        seen = np.array([count > 0 for count, _ in counts])
        broken["by_class"] += bool((each[seen] > true_by_class[seen]).any())
        gaps["by_class"].append(float((true_by_class - each)[seen].mean()))
        order = rng.permutation(n)
        drawn, rest = order[:size], order[size:]
        promise = 1 - float(lost_share_bound(size, int(np.count_nonzero(~rows.kept[drawn])), delta))
        true_rest = float(rows.kept[rest].mean())
        broken["rest"] += promise > true_rest
        gaps["rest"].append(true_rest - promise)
    return {name: judged(broken[name], DRAWS, confidence, gaps[name]) for name in broken}


def reliable(
    seen: Population, rows: Population, size: int, confidence: float, level: float, rng: Any
) -> dict[str, Any]:
    """The margin of reliable decisions from hold-outs of this size."""
    broken, named, covered, gaps = 0, 0, [], []
    power = best_power(seen.gap, seen.norm, seen.kept)
    known, scores = seen.scores(power), rows.scores(power)
    for _ in range(DRAWS):
        at = rng.integers(0, len(rows.kept), size)
        said = flagged(rows, known, at, level, confidence, power)
        if said.threshold is None:
            continue
        named += 1
        above = scores >= said.threshold
        truth = float(rows.kept[above].mean()) if above.any() else 1.0
        broken += truth < level
        covered.append(float(above.mean()))
        gaps.append(truth - level)
    median = round(float(np.median(covered)), 4) if covered else None
    return judged(broken, DRAWS, confidence, gaps, level=level, power=power, named=named / DRAWS, coverage=median)


def run_case(name: str, family: Any, part: str) -> dict[str, Any]:
    """Everything about one model, or the part about reliable decisions."""
    mlp, X_cal, X = CASES[name]()
    start = time.perf_counter()
    found = fit(mlp, X_cal, family=family)
    rows, seen, rng = Population(found, X), Population(found, X_cal), np.random.default_rng(2026)
    size = min(1000, len(X) // 4)
    out: dict[str, Any] = {
        "family": found.family, "regime": str(found.regime), "calibration": len(X_cal), "unseen": len(X),
        "hold_out": size, "agreement": round(float(rows.kept.mean()), 5), "fit_seconds": time.perf_counter() - start,
    }  # fmt: skip
    level = 0.99 if float(rows.kept.mean()) > 0.9 else 0.95
    for confidence in CONFIDENCES:
        drawn = hold_outs(rows, size, confidence, rng) if part == "all" else {}
        drawn["reliable"] = reliable(seen, rows, size, confidence, level, rng)
        out[f"confidence {confidence}"] = drawn
    out["table"] = table(seen, rows, rng)
    return out


def table(seen: Population, rows: Population, rng: Any) -> list[dict[str, Any]]:
    """Coverage beside plain agreement: the margin from one random half of the unseen rows, judged on the other.

    `coverage` and `kept` are of one half, the means over 20 random halves. `oracle` is the largest coverage that the
    score allows on all unseen rows, which nobody could know.
    """
    power = best_power(seen.gap, seen.norm, seen.kept)
    return [halves(seen.scores(power), rows.scores(power), rows, level, power, rng) for level in (0.99, 0.995)]


def halves(known: Any, scores: Any, rows: Population, level: float, power: float, rng: Any) -> dict[str, Any]:
    """One line of the table."""
    found = []
    for _ in range(20):
        order = rng.permutation(len(rows.kept))
        half, other = order[: len(order) // 2], order[len(order) // 2 :]
        said = flagged(rows, known, half, level, 0.95, power)
        above = np.zeros(len(other), bool) if said.threshold is None else scores[other] >= said.threshold
        found.append((float(above.mean()), float(rows.kept[other][above].mean()) if above.any() else None))
    best = np.argsort(-scores, kind="stable")
    fine = np.flatnonzero(np.cumsum(rows.kept[best]) / np.arange(1, len(best) + 1) >= level)
    kept = [share for _, share in found if share is not None]
    return {
        "level": level, "power": power, "plain": float(rows.kept.mean()), "coverage": found[0][0], "kept": found[0][1],
        "mean_coverage": float(np.mean([covered for covered, _ in found])),
        "mean_kept": float(np.mean(kept)) if kept else None, "named": len(kept) / 20,
        "oracle": float((fine[-1] + 1) / len(best)) if len(fine) else 0.0,
    }  # fmt: skip


def run_hostile() -> dict[str, Any]:
    """Otto with a condition violated: calibration rows as hold-out, and a hold-out that also chose the fit."""
    mlp, X_cal, X = trained("otto")
    rng, size, confidence = np.random.default_rng(2026), 300, 0.9
    delta = delta_of(confidence)
    fits = [
        fit(mlp, X_cal[stratified_rows(mlp.decide(X_cal), 495, seed)], seed=seed, family="shared") for seed in range(24)
    ]
    pool = X_cal[stratified_rows(mlp.decide(X_cal), 495, 0)]
    head = fit(mlp, pool, family="head")
    population, seen = Population(head, X), Population(head, pool)
    truth, broken, gaps = float(population.kept.mean()), 0, []
    for _ in range(DRAWS):
        at = rng.integers(0, len(pool), size)
        promise = 1 - float(lost_share_bound(size, int(np.count_nonzero(~seen.kept[at])), delta))
        broken += promise > truth
        gaps.append(truth - promise)
    out = {"calibration rows as hold-out (head, 495 rows)": judged(broken, DRAWS, confidence, gaps, truth=truth)}
    rows = [Population(found, X) for found in fits]
    shares = [float(each.kept.mean()) for each in rows]
    for name in ("chosen by the hold-out among 24", "the first of 24, not chosen"):
        broken, gaps = 0, []
        for _ in range(DRAWS):
            at = rng.integers(0, len(X), size)
            lost = [int(np.count_nonzero(~each.kept[at])) for each in rows]
            best = int(np.argmin(lost)) if name.startswith("chosen") else 0
            promise = 1 - float(lost_share_bound(size, lost[best], delta))
            broken += promise > shares[best]
            gaps.append(shares[best] - promise)
        out[name] = judged(broken, DRAWS, confidence, gaps)
    return out


OTHERS: dict[str, Callable[[], dict[str, Any]]] = {
    "hostile": run_hostile,
}


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Figures of an earlier run with those of a new one in their places."""
    both = {name: merged(old[name], value) for name, value in new.items() if isinstance(value, dict) and name in old}
    return old | new | both


def main() -> None:
    """Run the cases that were asked for; each is written when it is done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "promise.json")
    parser.add_argument("--case", choices=[*CASES, *OTHERS], action="append")
    parser.add_argument("--part", choices=["all", "reliable"], default="all")
    parser.add_argument("--family", default="shared")
    options = parser.parse_args()
    for name in options.case or [*CASES, *OTHERS]:
        start = time.perf_counter()
        made = OTHERS.get(name)
        result = run_case(name, options.family, options.part) if made is None else made()
        result["seconds"] = round(time.perf_counter() - start, 1)
        document = json.loads(options.out.read_text()) if options.out.exists() else {}
        key = name if made is not None or options.family == "shared" else f"{name} ({options.family})"
        if options.part == "reliable":
            result = merged(document.get(key, {}), result)
        document = {"machine": describe(), **{k: v for k, v in document.items() if k != "machine"}, key: result}
        write(options.out, document)
        print(json.dumps({key: result}), flush=True)


if __name__ == "__main__":
    main()
