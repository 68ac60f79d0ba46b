"""How often a random pool of calibration rows is separable, by its size; prints a table and writes JSON.

    python benchmarks/pools.py --data DATA --out benchmarks/pools.json [--draws 100]

The published small-pool runs on Diabetes are hard at 5, 10 and 20%, the reproduction's mostly are not. The published
pools have half as many rows. Here the model of the reproduction's small-pool run (seed 2026, width 256) is kept and the
pool drawn again and again, at the published sizes and at ours: what changes is the rows alone.
"""

from __future__ import annotations

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[_name] = "1"  # before numpy and torch: the same arithmetic as in the reproduction

import argparse
from pathlib import Path

import numpy as np

from compact import write
from machine import describe
from quad4fhe import fit
from quad4fhe_reproduce.prepare import prepare
from quad4fhe_reproduce.recipes import recipe
from quad4fhe_reproduce.train import train

SIZES = {"diabetes": (238, 476, 954, 1908), "breast_cancer": (14, 28, 57, 114)}


def main() -> None:
    """Draw, fit, count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draws", type=int, default=100)
    options = parser.parse_args()
    rows = []
    for name, sizes in SIZES.items():
        how = recipe(name)
        parts = prepare(how, options.data, 2026, pool=True)
        mlp, _ = train(parts, how.training, 256, 2026)
        rng = np.random.default_rng(0)
        for size in sizes:
            hard = 0
            for _ in range(options.draws):
                pool = rng.choice(len(parts.y_reserve), size, replace=False)
                hard += fit(mlp, parts.X_reserve[pool], polish=False, family="shared").regime == "hard"
            rows.append({"set": name, "rows": size, "hard": hard, "draws": options.draws})
            print(f"{name}, {size} rows: hard in {hard} of {options.draws} random pools", flush=True)
    if options.out is not None:
        write(options.out, {"machine": describe(), "pools": rows})


if __name__ == "__main__":
    main()
