"""Server CPU a sample by degree, against degree 2 of an earlier commit and the paper's own circuit, in one run.

Otto, width 256, strict plans of layout batch over the calibration range, plain replies. The models above degree 2 are
each unit's own least-squares polynomial, rounded as a unitwise fit is: their cost is that of a fit, without its time.
All of them take turns, each with one BLAS thread (more of them spin), and the smallest time of each counts:

    git worktree add ../old 47a9d6e
    python benchmarks/degrees_cost.py --old ../old

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
from types import SimpleNamespace
from typing import Any

import numpy as np

from degrees import load
from machine import describe
from quad4fhe import MLP, Client, Server, fit, plan
from quad4fhe._progress import silent
from quad4fhe._threads import one_thread
from quad4fhe.fitting.degrees.fitting import own_coefficients
from quad4fhe.fitting.degrees.rounding import GRID, Units, rounded_units
from quad4fhe.fitting.families.selection import Selection
from quad4fhe.he.paper import PaperCircuit, quad
from quad4fhe.mlp import decide
from quad4fhe.polynomial import PolynomialModel

ROWS = 12_000  # of the calibration set, for models and plans
DEGREES = (2, 3, 4, 8)

# Runs under the earlier commit: its own fit, plan and server, and one evaluation for each line it reads.
OLD = """
import sys, time
import numpy as np
from quad4fhe import MLP, Client, Server, fit, plan
with np.load(sys.argv[1]) as z:
    mlp, X = MLP(z["W1"], z["b1"], z["W2"], z["b2"]), z["X_cal"][: int(sys.argv[2])]
fitted = fit(mlp, X, family="shared")
made = plan(fitted, samples=8192, X=X, layout="batch")
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

    def __init__(self, subject: Any, X: Any) -> None:
        """Plan, encrypt, and check one reply against the model in the clear."""
        made = plan(subject, samples=8192, X=X, layout="batch", widen=0.0)
        self.chain, self.slots = made.chain, made.per_request
        client, self.server = Client(made), Server(subject, made)
        self.server.warm_up()
        part = X[: made.per_request].astype(np.float64)
        self.request = client.encrypt(part)[0]
        found = client.decrypt(self.server.evaluate(self.request))[: len(part)]
        self.changed = int(np.count_nonzero(decide(found) != subject.model.decide(part)))
        self.checked = len(part)
        self.bytes = (made.forecast.upload_bytes / 8192, made.forecast.download_bytes / 8192)

    def seconds(self) -> float:
        """Of CPU for one sample."""
        start = time.process_time()
        self.server.evaluate(self.request)
        return (time.process_time() - start) / self.slots


class Old:
    """The earlier commit in a process of its own."""

    def __init__(self, path: Path, model: Path) -> None:
        """Start it and wait for its plan."""
        environment = {**os.environ, "PYTHONPATH": str(path / "src"), "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-c", OLD, str(model), str(ROWS)]
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


def by_unit(mlp: MLP, X: Any, degree: int) -> Any:
    """Each unit's own least-squares polynomial, rounded."""
    selection = Selection(mlp, X, mlp.decide(X), degree, seed=2026, budget=2**31, progress=silent)
    weights, constant = selection.prior
    y = X @ mlp.W1.T + mlp.b1
    units = Units.of(y.min(axis=0), y.max(axis=0))
    model = rounded_units(mlp, units, selection.basis, own_coefficients(mlp, weights), constant, GRID[0])
    return subject_of(model, X)


def subject_of(model: PolynomialModel, X: Any) -> Any:
    """What a plan needs to know of a fit."""
    logits = np.sort(model.logits(X), axis=1)
    box = np.stack([X.min(axis=0), X.max(axis=0)]).astype(np.float64)
    return SimpleNamespace(model=model, box=box, margins=logits[:, -1] - logits[:, -2])


def main() -> None:
    """Measure in turns, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True, help="a working tree of the earlier commit")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()
    if not (options.old / "src" / "quad4fhe").is_dir():
        parser.error(f"--old {options.old}: no working tree of quad4fhe; make one as described above")
    mlp, X, _ = load("otto", Path("."))
    X = X[:ROWS]
    quadratic = fit(mlp, X, family="shared")
    runs = {2: Encrypted(quadratic, X)}
    for degree in DEGREES[1:]:
        runs[degree] = Encrypted(by_unit(mlp, X, degree), X)
        print("degree", degree, runs[degree].chain.bits, "bits", flush=True)
    old = Old(options.old, Path(os.environ.get("QUAD4FHE_DATA", "../shared/data")) / "models" / "otto.npz")
    paper = PaperCircuit(mlp, quad(quadratic.alpha, quadratic.beta, quadratic.eta), depth=4)
    question = paper.encrypt(X[: paper.batch].astype(np.float64))
    times: dict[str, list[float]] = {"paper": [], "old": [], **{str(degree): [] for degree in runs}}
    for _ in range(options.rounds):
        start = time.process_time()
        paper.evaluate(question)
        times["paper"].append((time.process_time() - start) / paper.batch)
        times["old"].append(old.seconds())
        for degree, run in runs.items():
            times[str(degree)].append(run.seconds())
    best = {name: min(values) for name, values in times.items()}
    document = {
        "machine": describe("seal-python"),
        "rounds": options.rounds,
        "old": {"ring": old.ring, "primes": old.primes, "bits": old.bits, "server_us": 1e6 * best["old"]},
        "paper": {"server_us": 1e6 * best["paper"]},
        "degrees": [
            {
                "degree": degree,
                "ring": run.chain.ring,
                "primes": len(run.chain.primes),
                "bits": run.chain.bits,
                "changed": run.changed,
                "checked": run.checked,
                "up_bytes": run.bytes[0],
                "down_bytes": run.bytes[1],
                "server_us": 1e6 * best[str(degree)],
                "over_old": best[str(degree)] / best["old"],
                "paper_over_this": best["paper"] / best[str(degree)],
            }
            for degree, run in runs.items()
        ],
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    with one_thread():
        main()
