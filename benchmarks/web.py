"""The page that encrypts in the browser: its size, its start, one question, 200 rows, its memory, and its decisions.

    python benchmarks/web.py DATA [--rows 200] [--starts 7] [--questions 400] [-o FILE]

Needs Chromium and the packages of clients/web (`npm --prefix clients/web ci`). A real server answers a real browser,
and `clients/web/bench/measure.ts` measures. CPU times are those of the browser's renderer process, which runs the page
and its worker; wall times are recorded with the machine's load, since they mean little beside other work.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compact import write
from machine import describe
from quad4fhe import MLP, Fit, Plan, fit, plan
from quad4fhe.he.session import connect

CLIENT = Path(__file__).parents[1] / "clients" / "web"
NODE = CLIENT / "node_modules" / ".bin" / "node"
MODELS = ("breast_cancer", "otto", "shuttle", "digits")
LAYOUTS = {"lift": 1, "batch": 2048}
PROGRAM = "from quad4fhe.cli import entry_point; entry_point()"


def model(data: Path, name: str) -> tuple[Fit, NDArray[np.float64]]:
    """A fit of a trained model, and its test samples."""
    if name == "digits":
        from sklearn.datasets import load_digits
        from sklearn.neural_network import MLPClassifier

        X, y = load_digits(return_X_y=True)
        X = X / 16.0
        network = MLPClassifier((32,), max_iter=60, random_state=0, tol=1e-2).fit(X[:1200], y[:1200])
        return fit(MLP.from_sklearn(network), X[:1200], family="shared"), X[1200:]
    z = np.load(data / "models" / f"{name}.npz")
    found = fit(MLP(z["W1"], z["b1"], z["W2"], z["b2"]), z["X_cal"][:4000], family="shared")
    return found, z["X_test"].astype(np.float64)


def decisions(found: Fit, made: Plan, X: NDArray[np.float64]) -> list[int]:
    """The decisions of the Python client."""
    client, server = connect(found, made)
    out: list[int] = client.decide([server.evaluate(request) for request in client.encrypt(X)]).tolist()
    return out


def served(stack: ExitStack, folder: Path, name: str, found: Fit, plans: list[Plan]) -> str:
    """Start a server with a page, and return its address."""
    found.save(folder / f"{name}.safetensors")
    words = ["serve", str(folder / f"{name}.safetensors"), "--page", "--workers", "1", "--port", "0", "--json"]
    for made in plans:
        file = folder / f"{name}-{made.layout}.json"
        made.save(file)
        words += ["--plan", str(file)]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)
    assert process.stdout is not None
    text = b""
    while not text.rstrip().endswith(b"}"):
        text += process.stdout.readline()
    url: str = json.loads(text)["url"]
    return url


def measure(data: Path, rows: int, starts: int, questions: int) -> dict[str, Any]:
    """What the browser found."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None or not NODE.exists():
        raise SystemExit("chromium and the packages of clients/web are needed: npm --prefix clients/web ci")
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, models = Path(name), {}
        for each in MODELS:
            found, X = model(data, each)
            plans = [plan(found, samples=samples, layout=layout) for layout, samples in LAYOUTS.items()]
            low, high = plans[0].domain.box
            inside = X[(np.clip(X, low, high) == X).all(axis=1)][:rows]
            wanted = {made.layout: decisions(found, made, inside) for made in plans}
            url = served(stack, folder, each, found, plans)
            models[each] = {"url": url, "rows": inside.tolist(), "decisions": wanted}
            print(each, len(inside), "rows", file=sys.stderr)
        spec = {"chromium": chromium, "timed": "otto", "starts": starts, "questions": questions, "models": models}
        (folder / "spec.json").write_text(json.dumps(spec))
        load = os.getloadavg()
        done = subprocess.run(
            [NODE, "bench/measure.ts", str(folder / "spec.json")], cwd=CLIENT, stdout=subprocess.PIPE, check=True
        )
        found_there: dict[str, Any] = json.loads(done.stdout)
        return {"load_before": load, "load_after": os.getloadavg(), **found_there}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--starts", type=int, default=7)
    parser.add_argument("--questions", type=int, default=400)
    parser.add_argument("-o", "--out", type=Path)
    arguments = parser.parse_args()
    begun = time.perf_counter()
    found = measure(arguments.data, arguments.rows, arguments.starts, arguments.questions)
    result = {"machine": describe(), **found, "seconds": round(time.perf_counter() - begun)}
    print(json.dumps(result, indent=2))
    if arguments.out is not None:
        result["question"].pop("heaps")
        write(arguments.out, result)


if __name__ == "__main__":
    main()
