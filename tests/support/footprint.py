"""Run as a program: how much memory a fit takes in all its processes, beyond what a fit of a few rows takes in them.

    python footprint.py '{"fit": {"memory": ...}, "path": "x.npy", "mlp": "mlp.npz"}'

The system's own peak of each process is read, so that no moment is missed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from quad4fhe import MLP, Fit, fit


def _command(pid: int | str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _peak(pid: int | str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def children() -> list[int]:
    """The processes that this one started."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and (folder / "stat").read_text().rpartition(")")[2].split()[1] == str(
                os.getpid()
            ):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def peaks(work: Callable[[], Fit]) -> tuple[Fit, int, list[int]]:
    """What `work` returns, the peak of this process while it ran, and those of the processes it started."""
    Path("/proc/self/clear_refs").write_text("5")
    own_command = _command("self")
    seen: dict[int, int] = {}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            for pid in children():
                # Between fork and exec a child still has the memory, and the command, of this process.
                if _command(pid) not in (b"", own_command):
                    seen[pid] = max(seen.get(pid, 0), _peak(pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        return work(), _peak("self"), list(seen.values())
    finally:
        done.set()
        watcher.join()


def main(asked: dict[str, Any]) -> None:
    with np.load(asked["mlp"]) as z:
        mlp, few = MLP(z["W1"], z["b1"], z["W2"], z["b2"]), z["few"]
    options = asked["fit"]
    limit = options.pop("memory")
    # A short fit may end before its processes were looked at when they were largest: the largest of a few counts.
    base = max(own + sum(others) for _, own, others in (peaks(lambda: fit(mlp, few, **options)) for _ in range(3)))
    found, own_top, others_top = peaks(lambda: fit(mlp, asked["path"], memory=limit, **options))
    above = own_top + sum(others_top) - base
    processes = 1 + len(others_top)
    print(
        json.dumps({"above": above, "processes": processes, "regime": str(found.regime), "samples": found.margins.size})
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
