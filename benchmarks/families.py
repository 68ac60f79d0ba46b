"""The families side by side: agreement, accuracy and macro-F1 on test data that no choice has seen.

Fits every family to the trained models of the data folder, on all calibration rows and on 1% pools, for several seeds
(folds, polish and pool are drawn from the seed). The baseline of every ratio is the shared fit to the same rows in the
same run. Writes JSON after every fit, so that an interrupted run can be continued:

    python benchmarks/families.py --out benchmarks/families.json
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from compact import write
from machine import describe
from quad4fhe import MLP, fit, plan, verify
from quad4fhe.fitting.features import stratified_rows

DATA = Path(os.environ.get("QUAD4FHE_DATA", Path(__file__).parents[2] / "shared" / "data"))
CASES = (("otto", 1.0), ("shuttle", 1.0), ("diabetes", 1.0), ("sst5", 1.0), ("otto", 0.01), ("shuttle", 0.01))


def macro_f1(truth: Any, decided: Any) -> float:
    """The mean over the classes present in `truth` of the harmonic mean of precision and recall."""
    scores = []
    for label in np.unique(truth):
        hit = int(np.sum((truth == label) & (decided == label)))
        scores.append(2 * hit / (int(np.sum(truth == label)) + int(np.sum(decided == label))))
    return float(np.mean(scores))


def measure(name: str, share: float, family: str, seed: int) -> dict[str, Any]:
    """One fit, judged on the test data."""
    with np.load(DATA / "models" / f"{name}.npz") as z:
        mlp = MLP(z["W1"], z["b1"], z["W2"], z["b2"])
        X_cal, X_test, y_test = z["X_cal"], z["X_test"], z["y_test"]
    if share < 1:
        X_cal = X_cal[stratified_rows(mlp.decide(X_cal), round(share * X_cal.shape[0]), seed)]
    start = time.process_time()
    fitted = fit(mlp, X_cal, family=family, seed=seed)  # type: ignore[arg-type] # a str from the options
    seconds = time.process_time() - start
    verified = verify(fitted, mlp, X_cal)
    relu, decided = mlp.decide(X_test), fitted.predict(X_test)
    d = fitted.diagnostics
    return {
        "model": name,
        "share": share,
        "rows": int(X_cal.shape[0]),
        "family": family,
        "seed": seed,
        "taken": fitted.family,
        "regime": str(fitted.regime),
        "statement": verified.statement,
        "calibration": d.calibration.agreement,
        "test": float(np.mean(relu == decided)),
        "accuracy": float(np.mean(decided == y_test)),
        "relu_accuracy": float(np.mean(relu == y_test)),
        "macro_f1": macro_f1(y_test, decided),
        "relu_macro_f1": macro_f1(y_test, relu),
        "estimates": {t.family: [t.agreement, t.spread] for t in d.families},
        "conditioning": {c.family: [c.largest, c.amplification] for c in d.conditioning},
        "cpu_seconds": round(seconds, 2),
    }


def plans(name: str) -> list[dict[str, Any]]:
    """The encryption plan of each family on one model: the family should cost agreement, not cryptography."""
    with np.load(DATA / "models" / f"{name}.npz") as z:
        mlp, X_cal = MLP(z["W1"], z["b1"], z["W2"], z["b2"]), z["X_cal"]
    rows = []
    for family in ("shared", "unitwise", "head"):
        fitted = fit(mlp, X_cal, family=family)  # type: ignore[arg-type] # one of three words
        for precision in ("strict", "fast"):
            # One of two words, which the loop widens to str.
            made = plan(
                fitted,
                samples=2048,
                layout="batch",
                precision=precision,  # type: ignore[arg-type]
                replies="plain",
                X=X_cal,
                box=fitted.box,
            )
            rows.append(
                {
                    "model": name,
                    "family": family,
                    "precision": precision,
                    "ring": made.chain.ring,
                    "bits": made.chain.all_bits,
                    "error": made.error.typical,
                    "error_bound": made.error.bound,
                    "close": len(made.error.close),
                    "seconds": made.forecast.seconds,
                    "calibration": fitted.diagnostics.calibration.agreement,
                }
            )
            print(rows[-1], flush=True)
    return rows


def table(results: list[dict[str, Any]]) -> None:
    """Mean and spread over the seeds, and lost decisions as a ratio to shared."""
    groups: dict[tuple[str, float], dict[str, list[dict[str, Any]]]] = {}
    for r in results:
        groups.setdefault((r["model"], r["share"]), {}).setdefault(r["family"], []).append(r)
    print("| model | rows | family | seeds | agreement | worst | lost / shared | accuracy | macro-F1 | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for (name, _), families in groups.items():
        lost = {r["seed"]: 1 - r["test"] for r in families.get("shared", [])}
        for family, runs in families.items():
            test = 100 * np.array([r["test"] for r in runs])
            ratio = np.mean([(1 - r["test"]) / lost[r["seed"]] for r in runs if r["seed"] in lost])
            spread = test.std(ddof=1) if test.size > 1 else 0.0
            accuracy, f1 = (100 * float(np.mean([r[key] for r in runs])) for key in ("accuracy", "macro_f1"))
            print(
                f"| {name} | {runs[0]['rows']} | {family} | {test.size} | {test.mean():.2f} ± {spread:.2f} | "
                f"{test.min():.2f} | {ratio:.2f} | {accuracy:.2f} | {f1:.2f} | "
                f"{np.mean([r['cpu_seconds'] for r in runs]):.1f} |"
            )


def main() -> None:
    """Run what is not yet in the file, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--families", nargs="+", default=["shared", "auto", "unitwise", "head"])
    parser.add_argument("--models", nargs="+", default=sorted({name for name, _ in CASES}))
    parser.add_argument("--plans", action="store_true", help="only the encryption plan of each family, one seed")
    options = parser.parse_args()
    document: dict[str, Any] = {"results": []}
    if options.out.exists():
        document = json.loads(options.out.read_text())
    if options.plans:
        names = sorted({name for name, _ in CASES})
        document["plans"] = {"machine": describe(), "rows": [row for name in names for row in plans(name)]}
        write(options.out, document)
        return
    known = {(r["model"], r["share"], r["family"], r["seed"]) for r in document["results"]}
    for family in options.families:
        for name, share in CASES:
            for seed in range(options.seeds):
                if name in options.models and (name, share, family, seed) not in known:
                    document["machine"] = describe()
                    document["results"].append(measure(name, share, family, seed))
                    write(options.out, document)
    table(document["results"])


if __name__ == "__main__":
    main()
