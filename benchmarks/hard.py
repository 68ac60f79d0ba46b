"""Which models become lossless with one shared polynomial when the degree grows, with certificates.

Fits the family shared at several degrees to trained models. A row says how many calibration decisions are lost, and
whether the certificate proves that no shared polynomial of the degree keeps all of them, by how many rows. `verify`
checks every certificate in exact arithmetic before its row is written:

    python benchmarks/hard.py --models breast_cancer diabetes --degrees 2 3 4

Models are read from the data folder or from --folder, as .npz with W1, b1, W2, b2, X_cal and X_test.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from compact import write
from degrees import DATA, load
from machine import describe
from quad4fhe import Fit, fit, verify


def measure(name: str, degree: int, folder: Path) -> dict[str, Any]:
    """One model at one degree."""
    mlp, X, X_test = load(name, folder)
    fitted = fit(mlp, X, family="shared", degree=degree)
    verify(Fit.from_bytes(fitted.to_bytes()), mlp, X)
    claim = fitted.certificate
    return {
        "model": name,
        "degree": degree,
        "taken": fitted.degree,
        "regime": str(fitted.regime),
        "statement": claim.statement,
        "samples": claim.samples,
        "lost": len(claim.mismatches),
        "impossible_rows": None if claim.impossible is None else len(claim.impossible.samples) + claim.impossible.scale,
        "lost_test": fitted.agreement(X_test).mismatches,
        "test_samples": len(X_test),
    }


def main() -> None:
    """Measure every model at every degree, write JSON and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--folder", type=Path, default=DATA / "models")
    parser.add_argument("--models", nargs="+", default=["breast_cancer", "diabetes"])
    parser.add_argument("--degrees", nargs="+", type=int, default=[2, 3, 4])
    options = parser.parse_args()
    results = [measure(name, degree, options.folder) for name in options.models for degree in options.degrees]
    write(options.out, {"machine": describe(), "results": results})
    print("| model | degree | regime | lost, calibration | lost, test | impossible, rows |")
    print("|---|---|---|---|---|---|")
    for r in results:
        lost = (f"{r['lost']} of {r['samples']}", f"{r['lost_test']} of {r['test_samples']}")
        proof = "" if r["impossible_rows"] is None else r["impossible_rows"]
        print(f"| {r['model']} | {r['taken']} | {r['regime']} | {lost[0]} | {lost[1]} | {proof} |")


if __name__ == "__main__":
    main()
