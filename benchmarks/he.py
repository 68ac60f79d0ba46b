"""Encrypted inference against named baselines, one run, one thread, CPU time; prints a table and writes JSON.

    python benchmarks/he.py --out he.json [--data ../shared/data] [--skip-decisions] [--sweep]

Baselines: the paper's circuit (Quad at depth 4) by plain SEAL calls, the bare float64 matrix products by BLAS, and
TenSEAL's vector-matrix calls. Every time is the best of a few repeats, on both sides of each ratio.
"""

from __future__ import annotations

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"  # before numpy: one thread on both sides of every ratio

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from machine import describe
from quad4fhe import MLP, Fit, fit
from quad4fhe.he.calibrate import calibrate
from quad4fhe.he.session import connect
from quad4fhe.layouts.batch.evaluation import TILE
from quad4fhe.layouts.packed.layout import packing_of
from quad4fhe.layouts.planner import plan
from quad4fhe.layouts.residues import kernels
from quad4fhe.mlp import decide
from quad4fhe.planning.plan import Plan
from quad4fhe.planning.simulate import run
from quad4fhe_reproduce.ciphertexts import minimum_configuration, minimum_plan, precision_sweep, schemes, table
from quad4fhe_reproduce.circuit import Activation, PaperCircuit, quad

Floats = NDArray[np.float64]

NAMES = ("breast_cancer", "diabetes", "otto", "shuttle", "sst5")


def box_over(*parts: Floats) -> Floats:
    """The smallest box that holds every sample of every part."""
    return np.stack([np.min([p.min(axis=0) for p in parts], axis=0), np.max([p.max(axis=0) for p in parts], axis=0)])


def best(step: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """CPU seconds of the quickest of a few calls, and what the last one returned."""
    times, out = [], None
    for _ in range(repeats):
        start = time.process_time()
        out = step()
        times.append(time.process_time() - start)
    return min(times), out


def random_network(d: int, m: int, K: int) -> MLP:
    """Stand-in weights of the paper's sizes for which no trained model is at hand."""
    rng = np.random.default_rng(2026)
    W1 = rng.normal(size=(m, d)) * 2.0 / np.sqrt(d)
    return MLP(W1, rng.normal(size=m) * 0.5, rng.normal(size=(K, m)) / np.sqrt(m), rng.normal(size=K) * 0.3)


def bare_products(made: Plan) -> float:
    """CPU seconds of the two float64 products of each prime, W by residues and V by residues, and nothing else."""
    d, m, K = made.shape.features, made.shape.units, made.shape.outputs
    ring, primes = made.chain.ring, len(made.chain.primes)
    rng = np.random.default_rng(0)
    W, V = rng.normal(size=(m, d)), rng.normal(size=(K, m))
    X, H = rng.normal(size=(d, 2 * ring)), rng.normal(size=(m, 3 * ring))
    Y, Z = np.empty((m, 2 * ring)), np.empty((K, 3 * ring))
    first, _ = best(lambda: np.matmul(W, X, out=Y), 9)
    second, _ = best(lambda: np.matmul(V, H, out=Z), 9)
    return primes * (first + second)


def batch_times(fit: Fit, made: Plan, X: Floats) -> dict[str, Any]:
    """One full request of layout batch: CPU per sample of client and server, and the bare products."""
    client, server = connect(fit, made)
    shown = X[np.arange(made.per_request) % len(X)]
    encrypting, requests = best(lambda: client.encrypt(shown), 3)
    serving, reply = best(lambda: server.evaluate(requests[0]), 7)
    start = time.process_time()
    client.decrypt(reply)
    decrypting = time.process_time() - start
    bare = bare_products(made)
    n = made.per_request
    return {
        "ring": made.chain.ring,
        "primes": [q.bit_length() for q in made.chain.primes],
        "form": made.settings["form"],
        "products": made.settings["products"],
        "samples": n,
        "server_us": 1e6 * serving / n,
        "client_us": 1e6 * (encrypting + decrypting) / n,
        "upload_bytes": made.forecast.upload_bytes,
        "download_bytes": made.forecast.download_bytes,
        "forecast_server_us": 1e6 * made.forecast.server_seconds / made.samples,
        "forecast_client_us": 1e6 * made.forecast.client_seconds / made.samples,
        "bare_us": 1e6 * bare / n,
        "server_over_bare": serving / bare,
    }


def paper_times(mlp: MLP, activation: Activation, X: Floats, depth: int, repeats: int = 3) -> dict[str, Any]:
    """One batch of the paper's circuit: CPU per sample of client and server, by block, with operation counts."""
    circuit = PaperCircuit(mlp, activation, depth=depth)
    shown = X[: circuit.batch]
    encrypting, inputs = best(lambda: circuit.encrypt(shown), repeats)
    blocks: list[dict[str, float]] = []

    def once() -> Any:
        circuit.encrypt(shown[:1])  # resets the counts; not timed below
        start = time.process_time()
        out = circuit.evaluate(inputs)
        blocks.append({**circuit.seconds, "total": time.process_time() - start})
        return out

    replies = [once() for _ in range(repeats)][-1]
    serving = min(blocks, key=lambda b: b["total"])
    decrypting, logits = best(lambda: circuit.decrypt(replies, len(shown)), repeats)
    n = circuit.batch
    return {
        "scheme": activation.name,
        "depth": depth,
        "samples": n,
        "server_us": 1e6 * serving["total"] / n,
        "client_us": 1e6 * (encrypting + decrypting) / n,
        "activation_us": 1e6 * min(b["activation"] for b in blocks) / n,
        "product_us": 1e6 * serving["product"] / n,
        "output_us": 1e6 * serving["output"] / n,
        "batch_seconds": encrypting + serving["total"] + decrypting,
        "key_bytes": circuit.key_bytes,
        "counts": circuit.counts.to_dict(),
        "max_error": float(np.abs(logits - circuit.plaintext_logits(shown)).max()),
    }


def packed_times(fit: Fit, X: Floats, X_cal: Floats) -> dict[str, Any]:
    """One query of layout packed, end to end, turn by turn with one batch of the paper's circuit.

    The two take turns because other work on the machine slows whatever runs at that moment.
    """
    made = plan(fit, samples=1, layout="packed", X=X_cal, box=box_over(X_cal, X))
    client, server = connect(fit, made)
    keys = client.evaluation_keys()
    paper = PaperCircuit(fit.mlp, quad(fit.alpha, fit.beta, fit.eta), depth=4)
    ours, theirs, serving = [], [], []
    for i in range(7):
        start = time.process_time()
        request = client.encrypt(X[i : i + 1])[0]
        middle = time.process_time()
        reply = server.evaluate(request)
        serving.append(time.process_time() - middle)
        client.decrypt(reply)
        ours.append(time.process_time() - start)
        start = time.process_time()
        paper.decrypt(paper.evaluate(paper.encrypt(X[: paper.batch])), paper.batch)
        theirs.append(time.process_time() - start)
    return {
        "ring": made.chain.ring,
        "primes": [q.bit_length() for q in made.chain.primes],
        "seconds": min(ours),
        "server_seconds": min(serving),
        "paper_seconds": min(theirs),
        "paper_ratio": min(theirs) / min(ours),
        "paper_ratio_median": float(np.median(np.array(theirs) / np.array(ours))),
        "rotations": sum(packing_of(made).rotations()),
        "galois_keys": len(packing_of(made).steps()),
        "key_bytes": keys.size if keys else 0,
        "upload_bytes": made.forecast.upload_bytes,
        "error_bound": made.error.bound,
    }


def tenseal_seconds(fit: Fit, x: Floats) -> dict[str, Any]:
    """TenSEAL in a process of its own; says so where it is not installed."""
    mlp, alpha, beta, eta = fit.mlp, fit.alpha, fit.beta, fit.eta
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.npz"
        np.savez(path, W1=mlp.W1, b1=mlp.b1, W2=mlp.W2, b2=mlp.b2, x=x, alpha=alpha, beta=beta, eta=eta)
        script = Path(__file__).with_name("he_tenseal.py")
        done = subprocess.run([sys.executable, str(script), str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        return {"skipped": "TenSEAL did not run: pip install tenseal", "stderr": done.stderr[-300:]}
    out: dict[str, Any] = json.loads(done.stdout)
    return out


def decisions(name: str, data: Path) -> list[dict[str, Any]]:
    """Top-1 differences between encrypted and plaintext quadratic model over all test samples, both precisions."""
    mlp, X_cal, X_test = load(name, data)
    fitted = fit(mlp, X_cal, family="shared")
    model, own = fitted.model, fitted.box
    outside = int(((X_test < own[0]) | (X_test > own[1])).any(axis=1).sum())
    rows = []
    for precision in ("strict", "fast"):
        domain = box_over(X_cal, X_test)
        made = plan(fitted, samples=len(X_test), layout="batch", precision=precision, X=X_cal, box=domain)
        client, server = connect(fitted, made)
        found = run(client, server, X_test)
        plain = model.logits(X_test)
        plain = plain if plain.shape[1] == 1 else plain - plain.mean(axis=1, keepdims=True)
        rows.append(
            {
                "dataset": name,
                "precision": precision,
                "ring": made.chain.ring,
                "primes": [q.bit_length() for q in made.chain.primes],
                "samples": len(X_test),
                "changed": int((decide(found) != decide(plain)).sum()),
                "max_error": float(np.abs(found - plain).max()),
                "outside_calibration_box": outside,
            }
        )
        print(rows[-1], flush=True)
    return rows


def load(name: str, data: Path) -> tuple[MLP, Floats, Floats]:
    """A trained model with its calibration and test samples."""
    with np.load(data / "models" / f"{name}.npz") as z:
        mlp = MLP(z["W1"], z["b1"], z["W2"], z["b2"])
        return mlp, z["X_cal"].astype(np.float64), z["X_test"].astype(np.float64)


def size_row(name: str, fitted: Fit, X: Floats, X_cal: Floats) -> dict[str, Any]:
    """One network size: layout batch (fast and strict) against the paper's circuit and the bare products."""
    mlp, domain = fitted.mlp, box_over(X_cal, X)
    machine = calibrate()
    paper = paper_times(mlp, quad(fitted.alpha, fitted.beta, fitted.eta), X, 4)
    row: dict[str, Any] = {"size": f"{mlp.features}-{mlp.units}-{mlp.outputs}", "paper": paper}
    for precision in ("fast", "strict"):
        # As many samples as fill a request, so that the forecast a sample can be held against the measurement.
        made = plan(fitted, samples=2048, layout="batch", precision=precision, X=X_cal, box=domain)
        full = made.per_request
        made = plan(fitted, samples=full, layout="batch", precision=precision, X=X_cal, box=domain, machine=machine)
        ours = batch_times(fitted, made, X)
        ours["server_ratio"] = paper["server_us"] / ours["server_us"]
        both = ours["server_us"] + ours["client_us"]
        ours["total_ratio"] = (paper["server_us"] + paper["client_us"]) / both
        row[precision] = ours
        print(
            f"{name} {row['size']} {precision}: N={ours['ring']} primes={ours['primes']} {ours['form']} "
            f"server {ours['server_us']:.1f} us, client {ours['client_us']:.1f} us a sample; paper "
            f"{paper['server_us'] / 1e3:.2f} ms; server x{ours['server_ratio']:.0f}, total x{ours['total_ratio']:.0f}, "
            f"over bare products {ours['server_over_bare']:.2f}; forecast {ours['forecast_server_us']:.1f} and "
            f"{ours['forecast_client_us']:.1f} us",
            flush=True,
        )
    return row


def folded_row(fitted: Fit, X: Floats, X_cal: Floats) -> dict[str, Any]:
    """Our circuit for the claim table: the fold leaves one reduce-and-square per unit as the activation block."""
    made = plan(fitted, samples=2048, layout="batch", X=X_cal, box=box_over(X_cal, X))
    ours = batch_times(fitted, made, X)
    kernel, q, ring, units = kernels(), made.chain.primes[0], made.chain.ring, made.shape.units
    hidden = np.random.default_rng(0).integers(-(q // 2), q // 2, size=(units, 2, TILE)).astype(np.float64)
    out, bias = np.empty((units, 3, TILE)), np.zeros(units)
    once, _ = best(lambda: kernel.square(hidden, bias, q, out), 9)
    activation = once * (ring // TILE) * len(made.chain.primes) / made.per_request
    counts = {"rotate": 0, "relinearise": 0, "rescale": 0}
    shown = {"scheme": "folded (ours)", "depth": 3, "activation_us": 1e6 * activation, "server_us": ours["server_us"]}
    return {**shown, "counts": counts}


def claim_rows(fitted: Fit, X: Floats, X_cal: Floats) -> list[dict[str, Any]]:
    """The paper's claim: every scheme in its own circuit, activation block and total against Remez-7; then ours."""
    shown = schemes(fitted.mlp, (fitted.alpha, fitted.beta, fitted.eta), X_cal)
    rows = [paper_times(fitted.mlp, activation, X, max(4, activation.depth)) for activation in shown]
    last = rows[-1]
    for row in [*rows, folded_row(fitted, X, X_cal)]:
        row["activation_ratio"] = last["activation_us"] / row["activation_us"]
        row["total_ratio"] = last["server_us"] / row["server_us"]
        print(
            f"{row['scheme']} depth {row['depth']}: activation {row['activation_us'] / 1e3:.3f} ms "
            f"(x{row['activation_ratio']:.2f}), total {row['server_us'] / 1e3:.2f} ms (x{row['total_ratio']:.2f}) "
            f"{row['counts']}",
            flush=True,
        )
        if row not in rows:
            rows.append(row)
    return rows


def main() -> None:
    """Run everything that was asked for and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("QUAD4FHE_DATA", "../shared/data")))
    parser.add_argument("--skip-decisions", action="store_true")
    parser.add_argument("--skip-sizes", action="store_true")
    parser.add_argument("--sweep", action="store_true", help="precision sweep and minimum configuration on Otto")
    options = parser.parse_args()
    result: dict[str, Any] = {"machine": describe("seal-python", "numba", "tenseal"), "threads": 1}
    mlp, X_cal, X_test = load("otto", options.data)
    otto = fit(mlp, X_cal, family="shared")
    if not options.skip_sizes:
        result["batch"] = {"otto": size_row("otto", otto, X_test, X_cal)}
        for d, K in ((1024, 60), (768, 100)):
            X = np.clip(np.random.default_rng(1).normal(size=(4000, d)), -3.0, 3.0)
            random = fit(random_network(d, 256, K), X, family="shared")
            result["batch"][f"{d}-256-{K}"] = size_row("random", random, X[:2048], X)
        packed = packed_times(otto, X_test, X_cal)
        packed["tenseal"] = tenseal_seconds(otto, X_test[0])
        if "cpu_seconds" in packed["tenseal"]:
            packed["tenseal_ratio"] = packed["tenseal"]["cpu_seconds"] / packed["seconds"]
        result["packed"] = packed
        print(f"packed otto: {packed}", flush=True)
        result["claim"] = claim_rows(otto, X_test, X_cal)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    if not options.skip_decisions:
        result["decisions"] = [row for name in NAMES for row in decisions(name, options.data)]
    if options.sweep:
        shown = schemes(mlp, (otto.alpha, otto.beta, otto.eta), X_cal)
        with np.load(options.data / "models" / "otto.npz") as z:
            labels = z["y_test"].astype(np.float64)
        swept = precision_sweep(mlp, shown, X_test[:64], labels)
        least = minimum_configuration(mlp, shown, X_test[:64], labels)
        least += minimum_plan(otto, X_test[:64], labels, X_cal, box_over(X_cal, X_test))
        print(table(swept), table(least), sep="\n\n", flush=True)
        result["sweep"], result["minimum"] = [o.to_dict() for o in swept], [o.to_dict() for o in least]
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
