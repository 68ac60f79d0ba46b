"""Play the harness of HomomorphicEncryption.org's ML-inference workload on MNIST, and measure every stage.

    QUAD4FHE_DATA=FOLDER_OF_MNIST python benchmarks/he_org/run.py [--sizes 0 1 2 3] [--repeats 3] [--out he_org.json]

Builds the submission, then calls its executables in the harness's order, in a temporary copy, several times for every
size. Records CPU and wall time and peak memory of every process (start-up and imports included; of CPU time the
smallest of the repeats), bytes, accuracy, and decisions that differ from the polynomial model in the clear, in all
repeats together. Prints one line per size.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "submission")]

import numpy as np
from sizes import COUNTS, NETWORKS, Size
from stages import STAGES, WITHOUT_SIZE
from training import mnist

from compact import write
from machine import describe
from quad4fhe import Fit

CLIENT = [name for name in STAGES if name.startswith("client_")]


# A process starts with the peak memory of the one that forked it, so a small one stands in between.
MEASURED = """
import json, os, subprocess, sys, time
start = time.perf_counter()
process = subprocess.Popen(sys.argv[2:])
_, status, usage = os.wait4(process.pid, 0)
wall = time.perf_counter() - start
figures = {"cpu_seconds": usage.ru_utime + usage.ru_stime, "wall_seconds": wall, "peak_bytes": usage.ru_maxrss * 1024}
with open(sys.argv[1], "w") as file:
    json.dump(figures, file)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def run(command: list[str], root: Path) -> dict[str, float]:
    """CPU and wall seconds and peak bytes of one process; ends the benchmark if it fails."""
    with tempfile.NamedTemporaryFile() as file:
        done = subprocess.run([sys.executable, "-S", "-c", MEASURED, file.name, *command], cwd=root, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed with {done.returncode}")
        figures: dict[str, float] = json.loads(Path(file.name).read_text())
    return figures


def folder_bytes(folder: Path) -> int:
    """Bytes of the files in a folder."""
    return sum(path.stat().st_size for path in folder.iterdir())


def play(number: int, root: Path, X: Any, y: Any, fitted: Fit, seed: int, repeats: int) -> dict[str, Any]:
    """All stages of one size, with fresh keys for every repeat."""
    os.chdir(root)
    size = Size(str(number))
    chosen = (
        np.arange(len(X)) if size.count == len(X) else np.random.default_rng(seed).permutation(len(X))[: size.count]
    )
    size.pixels.parent.mkdir(parents=True, exist_ok=True)
    np.savetxt(size.pixels, X[chosen], fmt="%.6f")
    runs: list[dict[str, dict[str, float]]] = []
    reports, changed, accuracy = [], 0, 1.0
    for _ in range(repeats):
        shutil.rmtree(root / "io", ignore_errors=True)
        runs.append({})
        for name in STAGES:
            command = [f"submission/build/{name}"] + ([] if name == WITHOUT_SIZE else [str(number)])
            runs[-1][name] = run(command, root)
        labels = np.loadtxt(size.labels, dtype=np.int64, ndmin=1)
        changed += int((labels != fitted.predict(np.load(size.images))).sum())
        accuracy = min(accuracy, float((labels == y[chosen]).mean()))
        reports.append(json.loads(size.report.read_text()))
    stages = {name: min((each[name] for each in runs), key=lambda one: one["cpu_seconds"]) for name in STAGES}
    plan = json.loads(size.plan.read_text())
    sent, received = folder_bytes(size.upload), folder_bytes(size.download)
    out: dict[str, Any] = {
        "images": size.count,
        "layout": plan["layout"],
        "ring": plan["chain"]["ring"],
        "modulus_bits": sum(int(q).bit_length() for q in plan["chain"]["primes"]),
        "repeats": repeats,
        "accuracy": accuracy,
        "changed": changed,
        "public_key_bytes": folder_bytes(size.public),
        "upload_bytes": sent,
        "download_bytes": received,
        "bytes_per_image": (sent + received) / size.count,
        "server_cpu_seconds": stages["server_encrypted_compute"]["cpu_seconds"],
        "server_reported_seconds": {name: min(report[name] for report in reports) for name in reports[0]},
        "client_cpu_seconds": sum(stages[name]["cpu_seconds"] for name in CLIENT),
        "cpu_seconds": sum(stage["cpu_seconds"] for stage in stages.values()),
        "peak_bytes": max(stage["peak_bytes"] for each in runs for stage in each.values()),
        "load": os.getloadavg()[0],
        "stages": stages,
    }
    shutil.rmtree(root / "io")
    print(
        f"{size.name}: {size.count} images, layout {out['layout']}, {out['cpu_seconds']:.2f} s of CPU in all stages; "
        f"server {out['server_cpu_seconds']:.2f} s ({out['server_reported_seconds']['answers']:.2f} s without start-up "
        f"and keys), client {out['client_cpu_seconds']:.2f} s, accuracy {100 * out['accuracy']:.2f}%, "
        f"{out['changed']} decisions changed, {out['bytes_per_image'] / 1e3:.0f} kB per image, "
        f"public keys {out['public_key_bytes']} bytes, peak {out['peak_bytes'] / 2**20:.0f} MiB",
        flush=True,
    )
    return out


def main() -> None:
    """Build, play the sizes, write JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", nargs="+", type=int, choices=range(4), default=[0, 1, 2, 3])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--work", type=Path, help="folder to work in; its trained models are used again")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    out = options.out and options.out.resolve()
    _, _, X, y = mnist(Path.cwd())
    document = {
        "machine": describe("seal-python", "numba"),
        "date": datetime.now(UTC).date().isoformat(),
        "networks": {},
    }
    with tempfile.TemporaryDirectory() as scratch:
        root = (options.work or Path(scratch)).resolve()
        shutil.copytree(HERE, root, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.json", "__pycache__"))
        for network in options.networks:
            # One thread, so that CPU time is the work done; the wrappers inherit the interpreter of this process.
            # Python may keep compiled modules, as it does for an installed package.
            os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
            os.environ |= {"QUAD4FHE_NETWORK": network, "PYTHON": sys.executable, "OPENBLAS_NUM_THREADS": "1"}
            build = [run([str(root / "scripts" / name)], root) for name in ("get_openfhe.sh", "build_task.sh")][-1]
            sys.modules["sizes"].__file__ = str(root / "submission" / "sizes.py")  # its model folder is the copy's
            folder = root / "submission" / "model" / network
            fitted = Fit.load(folder / "fit.safetensors")
            entry = json.loads((folder / "figures.json").read_text()) | {"build": build, "sizes": {}}
            print(f"{network}: accuracy {100 * entry['accuracy_polynomial']:.2f}%", flush=True)
            for number in options.sizes:
                entry["sizes"][list(COUNTS)[number]] = play(number, root, X, y, fitted, options.seed, options.repeats)
            document["networks"][network] = entry
    if out:
        write(out, document)


if __name__ == "__main__":
    main()
