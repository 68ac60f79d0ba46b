"""Fuzz what strangers' bytes meet, for a bounded time: `make fuzz SECONDS=600 TARGET=plans`.

With atheris the search is guided by coverage; without it the inputs are seeded mutations. Exit 1 means a crash: the
input is kept in the folder .fuzz, and `run.py --replay FILE --target NAME` runs it again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
KEPT = HERE.parents[1] / ".fuzz"
NAMES = ("messages", "plans", "fits")
sys.path.insert(0, str(HERE))


def by_mutations(name: str, seconds: float, runs: int, seed: int) -> int:
    """Seeded mutations until the time or the number of inputs is used up."""
    from mutations import mutated
    from targets import TARGETS

    target, accepted, count, end = TARGETS[name], 0, 0, time.monotonic() + seconds
    for data in mutated(target.seeds(), runs or 10**12, seed):
        if time.monotonic() > end:
            break
        count += 1
        try:
            accepted += target.run(data)
        except Exception:
            KEPT.mkdir(exist_ok=True)
            file = KEPT / f"crash-{name}-{count}"
            file.write_bytes(data)
            print(f"{name}: input {count} crashed; it is kept in {file}", file=sys.stderr)
            raise
    print(f"{name}: {count} mutated inputs, {accepted} accepted, {count - accepted} refused, no crash")
    return count


def by_atheris(name: str, seconds: float, runs: int, seed: int) -> None:
    """Coverage-guided; ends the process."""
    import atheris

    with atheris.instrument_imports(include=["quad4fhe", "msgspec", "safetensors"]):
        from targets import TARGETS, folder
    target = TARGETS[name]
    corpus = folder() / "corpus"
    corpus.mkdir()
    for place, data in enumerate(target.seeds()):
        (corpus / f"seed{place}").write_bytes(data)
    KEPT.mkdir(exist_ok=True)
    longest = 2 * max(map(len, target.seeds()))
    options = [f"-seed={seed}", f"-max_len={longest}", f"-artifact_prefix={KEPT}/{name}-", "-print_final_stats=1"]
    options += [f"-max_total_time={max(1, round(seconds))}"] if seconds else []
    options += [f"-runs={runs}"] if runs else []
    atheris.Setup([sys.argv[0], *options, str(corpus)], lambda data: target.run(data) and None)
    atheris.Fuzz()


def main() -> int:
    """Every target in a process of its own, since atheris ends the process it runs in."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=("all", *NAMES), default="all")
    parser.add_argument("--seconds", type=float, default=20.0, help="for all targets together")
    parser.add_argument("--runs", type=int, default=0, help="at most so many inputs a target; 0: no limit")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=("auto", "atheris", "mutations"), default="auto")
    parser.add_argument("--replay", type=Path, help="run one kept input on the target")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    names = NAMES if chosen.target == "all" else (chosen.target,)
    engine = chosen.engine
    if engine == "auto":
        engine = "atheris" if find_spec("atheris") else "mutations"
    if chosen.replay is not None:
        from targets import TARGETS

        print("accepted" if TARGETS[names[0]].run(chosen.replay.read_bytes()) else "refused")
        return 0
    seconds = chosen.seconds / len(names)
    if chosen.one or engine == "mutations":
        for name in names:
            (by_atheris if engine == "atheris" else by_mutations)(name, seconds, chosen.runs, chosen.seed)
        return 0
    worst = 0
    for name in names:
        options = ["--one", "--target", name, "--seconds", str(seconds), "--runs", str(chosen.runs)]
        command = [sys.executable, __file__, *options, "--seed", str(chosen.seed), "--engine", "atheris"]
        done = subprocess.run(
            command, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True
        )
        counts = [line.split()[-1] for line in done.stderr.splitlines() if "number_of_executed_units" in line]
        print(f"{name}: {counts[0] if counts else '?'} inputs guided by coverage, exit {done.returncode}")
        if done.returncode:
            print(done.stderr[-3000:], file=sys.stderr)
        worst = max(worst, abs(done.returncode))
    return min(worst, 1)


if __name__ == "__main__":
    sys.exit(main())
