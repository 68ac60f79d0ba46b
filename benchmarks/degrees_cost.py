"""Server CPU a sample by degree, against degree 2 of an earlier commit and the paper's own circuit, in one run.

Otto, width 256, strict plans of layout batch over the calibration range, plain replies, fits of `unitwise` and `head`
to all calibration rows. All of them take turns, each with one BLAS thread (more of them spin), and the smallest time of
each counts. Fits take a minute or two each and are kept in a folder; measure when nothing else runs:

    git worktree add ../old 47a9d6e
    python benchmarks/degrees_cost.py --old ../old --fits ../fits

Writes benchmarks/degrees_cost.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from compact import write
from degrees import load
from machine import describe
from quad4fhe import MLP, Client, Fit, fit, plan
from quad4fhe._threads import one_thread
from quad4fhe.he.session import Server
from quad4fhe.mlp import decide
from quad4fhe_reproduce.circuit import PaperCircuit, quad

MODEL = "otto"
CASES = [("shared", 2), *((family, degree) for family in ("unitwise", "head") for degree in (2, 3, 4, 6, 8))]

# Runs under the earlier commit: its own fit, plan and server, and one evaluation for each line it reads.
OLD = """
import sys, time
import numpy as np
from quad4fhe import MLP, Client, Server, fit, plan
with np.load(sys.argv[1]) as z:
    mlp, X = MLP(z["W1"], z["b1"], z["W2"], z["b2"]), z["X_cal"]
fitted = fit(mlp, X, family="shared")
made = plan(fitted, samples=8192, X=X, layout="batch", replies="plain")
client, server = Client(made), Server(fitted, made)
part = X[: made.per_request]
request = next(iter(client.encrypt(part)))
server.evaluate(request)
print(made.chain.ring, len(made.chain.primes), made.chain.bits, made.per_request, flush=True)
for _ in sys.stdin:
    start = time.process_time()
    server.evaluate(request)
    print(time.process_time() - start, flush=True)
"""


class Encrypted:
    """A plan and its server with one request, evaluated again and again."""

    def __init__(self, fitted: Fit, X: Any) -> None:
        """Plan, encrypt, and check one reply against the model in the clear."""
        made = plan(fitted, samples=8192, X=X, layout="batch", replies="plain", widen=0.0)
        self.fitted, self.chain, self.slots = fitted, made.chain, made.per_request
        client, self.server = Client(made), Server(fitted, made)
        self.server.warm_up()
        part = X[: made.per_request].astype(np.float64)
        self.request = client.encrypt(part)
        found = client.read(self.server.answer(self.request))[: len(part)]
        self.changed = int(np.count_nonzero(decide(found) != fitted.model.decide(part)))
        self.checked = len(part)
        self.bytes = (made.forecast.upload_bytes / 8192, made.forecast.download_bytes / 8192)

    def seconds(self) -> float:
        """Of CPU for one sample."""
        start = time.process_time()
        self.server.answer(self.request)
        return (time.process_time() - start) / self.slots


class Old:
    """The earlier commit in a process of its own."""

    def __init__(self, path: Path, model: Path) -> None:
        """Start it and wait for its plan."""
        environment = {**os.environ, "PYTHONPATH": str(path / "src"), "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-c", OLD, str(model)]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.ring, self.primes, self.bits, self.slots = map(int, self.process.stdout.readline().split())

    def seconds(self) -> float:
        """Of CPU for one sample."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline()) / self.slots


def fit_of(mlp: MLP, X: Any, family: str, degree: int, folder: Path) -> Fit:
    """A fit, kept for the next run."""
    path = folder / f"{MODEL}-{family}-{degree}.safetensors"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        fit(mlp, X, family=family, degree=degree).save(path)
        print("fitted", family, degree, flush=True)
    return Fit.load(path)


def main() -> None:
    """Measure in turns, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True, help="a working tree of the earlier commit")
    parser.add_argument("--fits", type=Path, required=True, help="the folder where fits are kept")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()
    if not (options.old / "src" / "quad4fhe").is_dir():
        parser.error(f"--old {options.old}: no working tree of quad4fhe; make one as described above")
    mlp, X, Xt = load(MODEL, Path("."))
    runs = {}
    for case in CASES:
        runs[case] = Encrypted(fit_of(mlp, X, *case, options.fits), X)
        print(*case, runs[case].chain.bits, "bits", flush=True)
    quadratic = runs["shared", 2].fitted
    old = Old(options.old, Path(os.environ.get("QUAD4FHE_DATA", "../shared/data")) / "models" / f"{MODEL}.npz")
    paper = PaperCircuit(mlp, quad(quadratic.alpha, quadratic.beta, quadratic.eta), depth=4)
    question = paper.encrypt(X[: paper.batch].astype(np.float64))
    times: dict[Any, list[float]] = {"paper": [], "old": [], **{case: [] for case in runs}}
    for _ in range(options.rounds):
        start = time.process_time()
        paper.evaluate(question)
        times["paper"].append((time.process_time() - start) / paper.batch)
        times["old"].append(old.seconds())
        for case, run in runs.items():
            times[case].append(run.seconds())
    best = {name: min(values) for name, values in times.items()}
    document = {
        "machine": describe("seal-python"),
        "rounds": options.rounds,
        "old": {"ring": old.ring, "primes": old.primes, "bits": old.bits, "server_us": 1e6 * best["old"]},
        "paper": {"server_us": 1e6 * best["paper"]},
        "fits": [
            {
                "family": case[0],
                "degree": run.fitted.degree,
                "units": run.fitted.model.units,
                "test": float(np.mean(run.fitted.model.decide(Xt) == mlp.decide(Xt))),
                "ring": run.chain.ring,
                "primes": len(run.chain.primes),
                "bits": run.chain.bits,
                "changed": run.changed,
                "checked": run.checked,
                "up_bytes": run.bytes[0],
                "down_bytes": run.bytes[1],
                "server_us": 1e6 * best[case],
                "over_old": best[case] / best["old"],
                "paper_over_this": best["paper"] / best[case],
            }
            for case, run in runs.items()
        ],
    }
    write(options.out, document)
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    with one_thread():
        main()
