"""Other tools beside ours: the same networks, the same machine, one thread, CPU time.

    python benchmarks/peers.py [--peers ours tenseal orion1 orion2 concrete] [--networks otto breast_cancer mnist]

Every peer runs in a virtual environment of its own, which this script makes in a cache folder outside the repository,
and in a program of its own (`peer_programs/`), as a user of that tool would write it, in its best form that we found
and in its tutorial's. Tools whose licence forbids commercial use (HElayers) run only when named. Each figure is the
smallest of several runs; ratios are to our figures of the same run. Prints a table, and writes JSON with --out, where
results of an existing file that are not run again stay as they are; each has its own date, commit and load. Without
`ours` among the peers, a network that was prepared before is not fitted again.
"""

from __future__ import annotations

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "GOMAXPROCS"):
    os.environ[_name] = "1"  # before numpy, and for every peer

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from compact import write
from machine import describe
from peer_networks import networks
from peer_ours import measure

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Peer:
    """A tool: what to install, the program that uses it, and the forms the program knows."""

    name: str
    program: str
    requirements: tuple[str, ...]
    licence: str
    forms: tuple[str, ...]
    repeats: int = 3
    by_name_only: bool = False


PEERS = {
    "tenseal": Peer("TenSEAL", "tenseal_program.py", ("tenseal",), "Apache-2.0", ("one", "tutorial", "wrong", "many")),
    "orion1": Peer("Orion 1", "orion1_program.py", ("orion-fhe",), "MIT", ("one", "tutorial"), 5),
    "orion2": Peer(
        "Orion 2",
        "orion2_program.py",
        ("orion-v2-compiler", "orion-v2-evaluator", "orion-v2-lattigo"),
        "MIT",
        ("one", "tutorial"),
        5,
    ),
    "concrete": Peer("Concrete ML", "concrete_program.py", ("concrete-ml",), "BSD-3-Clause-Clear", ("one", "few"), 1),
    "helayers": Peer(
        "HElayers", "helayers_program.py", ("pyhelayers",), "non-commercial", ("one", "tutorial", "many"), 7, True
    ),
}


def environment(key: str, peer: Peer, cache: Path) -> Path:
    """The interpreter of the peer's own environment, made if it is not there."""
    folder = cache / key
    python = folder / "bin" / "python"
    done = folder / "installed"
    if not done.exists():
        print(f"installing {', '.join(peer.requirements)} in {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "-q", "numpy", *peer.requirements]
        made = subprocess.run(install, capture_output=True, text=True, check=False)
        if made.returncode:
            raise RuntimeError(f"does not install here: {made.stderr.strip().splitlines()[-1]}")
        done.touch()
    return python


def run(python: Path, peer: Peer, task: Path, form: str, limit: int) -> dict[str, Any]:
    """One result of a peer's program, or why there is none."""
    command = [str(python), str(HERE / "peer_programs" / peer.program), str(task), form, str(peer.repeats)]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit, env=clean)
    except subprocess.TimeoutExpired:
        return {"peer": peer.name, "form": form, "skipped": f"stopped after {limit} s"}
    lines = [line for line in done.stdout.splitlines() if "RESULT " in line]
    if done.returncode or not lines:
        why = (done.stderr.strip() or "no result").splitlines()[-1]
        return {"peer": peer.name, "form": form, "skipped": f"failed: {why[:200]}"}
    found: dict[str, Any] = json.loads(lines[-1].split("RESULT ", 1)[1])
    return found | {"licence": peer.licence}


def with_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add each peer's server time and total time per sample over our quickest of the same kind."""
    for many in (False, True):
        kind = [row for row in rows if "server" in row and (row["per_request"] > 1) == many]
        own = [row for row in kind if row["peer"] == "quad4fhe"]
        for row in kind:
            for name, parts in (("server", ("server",)), ("total", ("encrypt", "server", "decrypt"))):
                cost = sum(row[part] for part in parts) / row["per_request"]
                if own:
                    ours = min(sum(each[part] for part in parts) / each["per_request"] for each in own)
                    row[f"{name}_over_ours"] = cost / ours
    return rows


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """Print one network's table."""
    print(f"\n{title}, CPU ms; bytes in kB")
    for row in rows:
        label = f"{row['peer']} {row['form']}"
        if "skipped" in row:
            print(f"  {label:28} {row['skipped']}")
            continue
        n = row["per_request"]
        times = " / ".join(f"{1e3 * row[part] / n:.4g}" for part in ("encrypt", "server", "decrypt"))
        sizes = " / ".join(
            "-" if row[part] is None else f"{row[part] / (1e3 if part == 'key_bytes' else 1e3 * n):.4g}"
            for part in ("upload_bytes", "download_bytes", "key_bytes")
        )
        changed = f"{row['changed']} of {row['samples']} changed"
        ratio = f"x{row['total_over_ours']:.3g}" if "total_over_ours" in row else ""
        print(f"  {label:28} {times:28} {sizes:28} {changed:22} {row['lines']} lines {ratio}", flush=True)


def main() -> None:
    """Measure the peers on the networks."""
    parser = argparse.ArgumentParser()
    free = [key for key, peer in PEERS.items() if not peer.by_name_only]
    parser.add_argument("--peers", nargs="+", choices=["ours", *PEERS], default=["ours", *free])
    parser.add_argument("--networks", nargs="+", choices=list(networks()), default=list(networks()))
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("QUAD4FHE_DATA", "../shared/data")))
    caches = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    parser.add_argument("--cache", type=Path, default=caches / "quad4fhe-peers", help="environments and trained nets")
    parser.add_argument("--limit", type=int, default=600, help="seconds for one form of a peer on one network")
    parser.add_argument("--jobs", type=int, default=1, help="programs at a time; each still computes in one thread")
    parser.add_argument("--forms", nargs="+", help="only these forms of the peers, by default all")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    for name in options.networks:
        run_of = {"date": datetime.now(UTC).date().isoformat(), "commit": describe()["commit"]}
        run_of |= {"load": round(os.getloadavg()[0], 1), "jobs": options.jobs}
        facts, task, rows = prepared(name, options)
        rows += peer_rows(task, options)
        show(f"{name} {facts['shape']}", with_ratios(rows))
        if options.out:
            document = known(options.out)
            before = document["networks"].get(name, {"results": []})["results"]
            made = {(row["peer"], row["form"]): row | run_of for row in rows}
            stay = [row for row in before if (row["peer"], row["form"]) not in made]
            document["networks"][name] = facts | {"results": [*stay, *made.values()]}
            document["machine"] = describe("seal-python", "numba")
            write(options.out, document)


def known(path: Path | None) -> dict[str, Any]:
    """The results that a file has already."""
    if path is None or not path.exists():
        return {"threads": 1, "networks": {}}
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def prepared(name: str, options: argparse.Namespace) -> tuple[dict[str, Any], Path, list[dict[str, Any]]]:
    """Shape and kept share of a network, its file for the peers, and our own results if they are asked for."""
    before, task = known(options.out)["networks"].get(name), options.cache / f"{name}.npz"
    if before is not None and task.exists() and "ours" not in options.peers:
        return {part: before[part] for part in ("shape", "kept")}, task, []
    network = networks()[name](options.data, options.cache)
    kept = float(np.mean(network.fit.predict(network.X_test) == network.mlp.decide(network.X_test)))
    rows = measure(network) if "ours" in options.peers else []
    return {"shape": network.shape, "kept": kept}, network.write(options.cache / name), rows


def peer_rows(task: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The results of the peers that are asked for."""
    rows: list[dict[str, Any]] = []
    cases: list[tuple[Path, Peer, Path, str, int]] = []
    for key in [key for key in options.peers if key != "ours"]:
        peer = PEERS[key]
        try:
            python = environment(key, peer, options.cache)
        except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
            rows.append({"peer": peer.name, "form": "all", "skipped": str(error)[:200]})
            continue
        forms = [form for form in peer.forms if options.forms is None or form in options.forms]
        cases += [(python, peer, task, form, options.limit) for form in forms]
    with ThreadPoolExecutor(options.jobs) as pool:
        rows += pool.map(lambda case: run(*case), cases)
    return rows


if __name__ == "__main__":
    main()
