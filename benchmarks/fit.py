"""How much quicker the fitting core is than the generic way: a QP over all samples with Clarabel, in one run.

    python benchmarks/fit.py [--data DIR] [--out benchmarks/fit.json] [--quick]

Prints ratios against the named baseline and writes them, with the machine and commit, as JSON. CPU seconds, one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from machine import describe
from quad4fhe import MLP
from quad4fhe.fitting import pairs
from quad4fhe.fitting.design import Block, Design
from quad4fhe.fitting.hulls import Apart, closest
from quad4fhe.fitting.margins import CAPS
from quad4fhe.fitting.sweeps import Sweeper, tally
from reference_solvers import dual_reduced_hulls, hard_pairs, soft_pairs

REPEATS = 5
CLARABEL = 1e-8  # its default tolerances, as a user would leave them


def best_cpu(function: Callable[[], Any], repeats: int = REPEATS) -> tuple[float, Any]:
    """The shortest CPU time of several runs, and the last result."""
    best, result = np.inf, None
    for _ in range(repeats):
        start = time.process_time()
        result = function()
        best = min(best, time.process_time() - start)
    return best, result


def load(folder: Path, name: str) -> Design:
    """The coordinates of one trained model."""
    with np.load(folder / "models" / f"{name}.npz") as z:
        return Design.of_samples(MLP(z["W1"], z["b1"], z["W2"], z["b2"]), z["X_cal"])


def one_cap(folder: Path) -> dict[str, Any]:
    """One reduced-hull cap on Diabetes (n = 7,630): support oracle against D-RCH over all weights."""
    points, positive = load(folder, "diabetes").points
    sides = points[positive], points[~positive]
    ours, found = best_cpu(lambda: closest(*sides, 0.01), 20)
    generic, (u, v) = best_cpu(lambda: dual_reduced_hulls(*sides, 0.01, 0.01, CLARABEL), 3)
    cascade, _ = best_cpu(lambda: [closest(*sides, cap) for cap in CAPS])
    assert isinstance(found, Apart)
    difference = abs(found.distance - float(np.linalg.norm(u - v))) / found.distance
    return {
        "ours_s": ours,
        "clarabel_s": generic,
        "ratio": generic / ours,
        "whole_grid_s": cascade,
        "relative_difference_of_margins": difference,
    }


def cascade(folder: Path, name: str) -> dict[str, Any]:
    """Hard then soft over the whole grid of C, against Clarabel on all n(K-1) rows with n slacks."""
    stats = load(folder, name)

    def ours() -> tuple[Any, Any, int]:
        sweeper = Sweeper(stats)
        hard = pairs.separate_pairs(sweeper)
        soft = pairs.soft_pairs(sweeper)
        return hard, soft, sweeper.sweeps

    seconds, (hard, soft, sweeps) = best_cpu(ours, 3)
    start = time.process_time()
    (whole,) = stats.map(lambda block: block)
    status, _, _ = hard_pairs(whole, CLARABEL)
    worst = 0.0
    for step in soft.trace:
        _, value = soft_pairs(whole, step.weight, CLARABEL)
        mine = 0.5 * step.norm**2 + step.weight * step.slack_sum
        worst = max(worst, abs(mine - value) / value)
    generic = time.process_time() - start
    return {
        "ours_s": seconds,
        "clarabel_s": generic,
        "ratio": generic / seconds,
        "sweeps": sweeps,
        "hard": type(hard).__name__,
        "clarabel_hard": status,
        "largest_relative_difference_of_objectives": worst,
        "largest_gap": max(step.gap for step in soft.trace),
    }


def synthetic(n: int, K: int) -> Design:
    """Coordinates of a random 256-unit model with clustered hidden activations, of the size of the paper's largest."""
    rng = np.random.default_rng(0)
    m = 256
    head, b = rng.standard_normal((m, K)) * 1.5 / 16, rng.standard_normal(K) * 0.1
    centres = rng.standard_normal((K, m)) * 0.75
    Q, L, target = np.empty((n, K)), np.empty((n, K)), np.empty(n, dtype=np.int64)
    for start in range(0, n, 4096):
        rows = slice(start, min(start + 4096, n))
        size = rows.stop - start
        y = rng.standard_normal((size, m)) + centres[rng.integers(0, K, size)]
        target[rows] = np.argmax(np.maximum(y, 0) @ head + b, axis=1)
        L[rows] = y @ head
        Q[rows] = (y * y) @ head
    return Design.of(Block(np.stack([Q, L]), head.sum(axis=0), b, target))


def largest(n: int, K: int) -> dict[str, Any]:
    """The whole grid of C at the paper's largest size, counted in sweeps of the n x K score matrix."""
    stats = synthetic(n, K)

    def solve() -> tuple[Any, Any, int]:
        sweeper = Sweeper(stats)
        return pairs.separate_pairs(sweeper), pairs.soft_pairs(sweeper), sweeper.sweeps

    seconds, (hard, soft, sweeps) = best_cpu(solve, 2)
    one, _ = best_cpu(lambda: tally(stats, soft.theta))
    tracemalloc.start()
    solve()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "pairs": n * (K - 1),
        "hard": type(hard).__name__,
        "sweeps": sweeps,
        "cpu_s": seconds,
        "one_sweep_s": one,
        "time_in_sweeps": seconds / one,
        "memory_beyond_the_statistics_MiB": peak / 2**20,
        "largest_gap": max(step.gap for step in soft.trace),
    }


def main() -> None:
    """Run everything and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("QUAD4FHE_DATA", "../shared/data")))
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--quick", action="store_true", help="a tenth of the synthetic problem, and no Otto")
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": describe("clarabel")}
    results["largest"] = largest(8_800 if options.quick else 88_000, 200)
    print("largest", json.dumps(results["largest"], indent=2))
    results["one_cap_diabetes"] = one_cap(options.data)
    print("one cap", json.dumps(results["one_cap_diabetes"], indent=2))
    for name in ("sst5",) if options.quick else ("sst5", "otto"):
        results[f"cascade_{name}"] = cascade(options.data, name)
        print(f"cascade {name}", json.dumps(results[f"cascade_{name}"], indent=2))
    options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    with threadpool_limits(1):  # both sides of every ratio use one thread
        main()
