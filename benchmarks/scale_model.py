"""What a scoring run costs on many machines, from the constants that `scale.py` measured: a table of what breaks first.

    python benchmarks/scale_model.py benchmarks/scale.json [--machines 100] [--cores 16] [--network 1.25e9]
        [--storage 10e9] [--rows 100e6] [--pool ray]

Every limit is in requests a second, and the smallest one is the pace. Network is bytes a second of one machine,
storage those of the shared file system. CPU times are those of the machine that measured: run `scale.py` on yours.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any


def limits(measured: dict[str, Any], pool: str, payload: str, options: argparse.Namespace) -> dict[str, float]:
    """Requests a second that each part could do if the others had no limit."""
    m, moved = measured["median"], measured["request_bytes"] + measured["reply_bytes"]
    key = f"{pool} {payload}"
    found = {
        "cores of the workers": options.machines * options.cores / m[f"{key} worker_cpu_1"],
        "network of the workers": options.machines * options.network / moved,
        "one core of the driver": 1 / m[f"{key} driver_cpu"],
    }
    if payload == "bytes":
        found["network of the driver"] = options.network / moved
    found["shared storage" if payload == "files" else "storage of the driver"] = options.storage / moved
    return found


def main() -> None:
    """Print the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path)
    parser.add_argument("--machines", type=int, default=100)
    parser.add_argument("--cores", type=int, default=16)
    parser.add_argument("--network", type=float, default=1.25e9)
    parser.add_argument("--storage", type=float, default=10e9)
    parser.add_argument("--rows", type=float, default=100e6)
    parser.add_argument("--pool", default="ray")
    options = parser.parse_args()
    measured = json.loads(options.measured.read_text())
    requests = math.ceil(options.rows / measured["per_request"])
    m = measured["median"]
    into, out = requests * measured["request_bytes"], requests * measured["reply_bytes"]
    print(f"{options.rows:.3g} rows are {requests} requests: {into / 1e9:.0f} GB in, {out / 1e9:.0f} GB out")
    for payload in ("files", "bytes"):
        cpu = m[f"{options.pool} {payload} worker_cpu_1"]
        print(f"\n{options.pool}, payload {payload}: {requests * cpu / 3600:.1f} core hours")
        found = limits(measured, options.pool, payload, options)
        for name, rate in sorted(found.items(), key=lambda pair: pair[1]):
            print(f"  {name:24s} {rate:9.1f} requests/s  {rate * cpu:8.1f} workers kept busy  {requests / rate:9.1f} s")
    again = out / m["hash_bytes_per_second"]
    print(f"\nresuming after all of it reads and hashes {out / 1e9:.0f} GB: {again:.0f} s on one core")


if __name__ == "__main__":
    main()
