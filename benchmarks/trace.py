"""Counts the work of one fit, one plan and one query: python benchmarks/trace.py --before OTHER/src

Traces `fit`, `plan` and an encrypted query (Client and Server in this process) on 500 made samples of two and of four
classes, and counts modules entered, calls from one module into another, passes that look for NaN in the samples, copies
of samples and weights, and hashes of the weights. With --before the same program runs on another tree of the library
and both are printed side by side; --json FILE keeps them.

Nothing here knows the library's modules: files below quad4fhe/ are modules, and NumPy and hashlib are wrapped. An
array counts as samples or weights by its shape, which no other array of the problem has. Operators (a + 0.0) make
copies that Python can't see, so these are not counted.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import hashlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from machine import describe

ROWS, FEATURES, UNITS, SEED = 500, 19, 37, 2026
MODELS = {"binary": 1, "multiclass": 4}
STEPS = ("fit", "plan", "query")
COUNTS = {
    "modules": "modules entered",
    "crossings": "calls between modules",
    "finiteness": "finiteness passes over X",
    "copies_X": "copies of X",
    "copies_weights": "copies of weights",
    "hashes": "hashes of weights",
}
_COPIERS = ("array", "ascontiguousarray", "asarray", "copy", "hstack", "vstack", "stack", "concatenate")
_METHODS = ("copy", "astype", "tobytes", "flatten")
_SHAPES: dict[str, set[tuple[int, ...]]] = {"X": {(ROWS, FEATURES)}, "weights": {(UNITS, FEATURES)}}


def main() -> None:
    """Trace this tree, and the other one if there is one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="the src/ folder of another tree")
    parser.add_argument("--json", type=Path, help="write the counts to this file")
    parser.add_argument("--crossings", action="store_true", help="name the most frequent calls between modules")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(traced(options.crossings)))
        return
    own = Path(__file__).parents[1] / "src"
    found = {"after": child(own, options.crossings)}
    if options.before is not None:
        found["before"] = child(options.before, options.crossings)
    show(found)
    if options.json is not None:
        document = {"machine": describe(), "rows": ROWS, "features": FEATURES, "units": UNITS, **found}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


def child(source: Path, crossings: bool) -> dict[str, Any]:
    """The counts of one tree, in a process of its own."""
    command = [sys.executable, __file__, "--child", *(["--crossings"] if crossings else [])]
    environment = {**os.environ, "PYTHONPATH": str(source.resolve())}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"the trace of {source} failed:\n{done.stderr}")
    counts: dict[str, Any] = json.loads(done.stdout)
    return counts


def show(found: dict[str, dict[str, Any]]) -> None:
    """Print one table for each model and step."""
    trees = [tree for tree in ("before", "after") if tree in found]
    print(f"{'':34}" + "".join(f"{tree:>10}" for tree in trees) + ("     after/before" if len(trees) > 1 else ""))
    for name in MODELS:
        for step in STEPS:
            print(f"{step}, {name}, {ROWS} rows")
            for key, said in COUNTS.items():
                values = [found[tree][name][step][key] for tree in trees]
                ratio = f"{values[1] / values[0]:17.2f}" if len(values) > 1 and values[0] else ""
                print(f"  {said:32}" + "".join(f"{value:10,}" for value in values) + ratio)
            for tree in trees:
                for call, times in found[tree][name][step].get("calls", []):
                    print(f"    {tree}: {call} {times}")


def made(outputs: int, seed: int) -> tuple[Any, Any]:
    """A random model with so many outputs, and its samples."""
    from quad4fhe import MLP

    rng = np.random.default_rng(seed)
    first = rng.normal(size=(UNITS, FEATURES)) / np.sqrt(FEATURES)
    head = rng.normal(size=(outputs, UNITS)) / np.sqrt(UNITS)
    mlp = MLP(first, rng.normal(size=UNITS), head, rng.normal(size=outputs))
    return mlp, rng.normal(size=(ROWS, FEATURES))


def traced(crossings: bool) -> dict[str, Any]:
    """The counts of every model and step."""
    import quad4fhe
    from quad4fhe import Client, Server, fit, plan

    home = str(Path(quad4fhe.__file__).parent) + os.sep
    found: dict[str, Any] = {}
    for name, outputs in MODELS.items():
        _SHAPES["weights"] = {(UNITS, FEATURES), (outputs, UNITS)}
        made_now: dict[str, Any] = {}

        def query(mlp: Any, X: Any, kept: dict[str, Any]) -> None:
            client, server = Client(kept["plan"]), Server(kept["fit"], kept["plan"])
            if (keys := client.evaluation_keys()) is not None:
                server.register(client.key_id, keys)
            client.decide([server.evaluate(request) for request in client.encrypt(X)])

        steps: dict[str, Callable[[Any, Any, dict[str, Any]], Any]] = {
            "fit": lambda mlp, X, kept: fit(mlp, X, family="shared"),
            "plan": lambda mlp, X, kept: plan(kept["fit"], samples=ROWS, X=X),
            "query": query,
        }
        warm = made(outputs, SEED + 1)
        for step, work in steps.items():  # imports and caches of the first call are no work of the second
            made_now[step] = work(*warm, made_now)
        model, kept = made(outputs, SEED), dict[str, Any]()
        found[name] = {}
        for step, work in steps.items():
            with Trace(home) as trace:
                kept[step] = work(*model, kept)
            found[name][step] = trace.counts(crossings)
    return found


class Trace:
    """Counts what happens inside a with block."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._modules: set[str] = set()
        self._calls: Counter[str] = Counter()
        self._seen: Counter[str] = Counter()
        self._saved: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Trace:
        self._wrap(np, "isfinite", self._finite)
        for name in _COPIERS:
            self._wrap(np, name, self._copied)
        self._wrap(hashlib, "sha256", self._hashed)
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        for owner, name, value in self._saved:
            setattr(owner, name, value)

    def counts(self, crossings: bool) -> dict[str, Any]:
        """The counts by their keys; with `crossings` the most frequent calls too."""
        found: dict[str, Any] = {key: self._seen[key] for key in COUNTS}
        found |= {"modules": len(self._modules), "crossings": self._calls.total()}
        return found | ({"calls": self._calls.most_common(25)} if crossings else {})

    def _wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        self._saved.append((owner, name, original))
        setattr(owner, name, lambda *args, **kwargs: around(original, *args, **kwargs))

    def _event(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(self._home):
            own = frame.f_code.co_filename
            self._modules.add(own)
            caller = None if frame.f_back is None else frame.f_back.f_code.co_filename
            if caller is not None and caller != own and caller.startswith(self._home):
                self._calls[f"{caller[len(self._home) :]} -> {own[len(self._home) :]}:{frame.f_code.co_name}"] += 1
        elif event == "c_call" and arg.__name__ in _METHODS:
            array = getattr(arg, "__self__", None)
            # A view of the bytes' own type is no copy, but astype copies by default.
            if isinstance(array, np.ndarray) and (kind := _kind(array)):
                self._seen[f"copies_{kind}"] += 1

    def _finite(self, original: Any, array: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(array, np.ndarray) and _kind(array) == "X":
            self._seen["finiteness"] += 1
        return original(array, *args, **kwargs)

    def _copied(self, original: Any, array: Any, *args: Any, **kwargs: Any) -> Any:
        out = original(array, *args, **kwargs)
        if (kind := _kind(out)) and not (isinstance(array, np.ndarray) and np.may_share_memory(array, out)):
            self._seen[f"copies_{kind}"] += 1
        return out

    def _hashed(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        return _Digest(original(*args, **kwargs), self._seen)


class _Digest:
    """A hash object that counts itself once it is fed the first layer."""

    def __init__(self, digest: Any, seen: Counter[str]) -> None:
        self._digest, self._seen, self._counted = digest, seen, False

    def update(self, data: Any) -> None:
        if len(data) == 8 * UNITS * FEATURES and not self._counted:
            self._seen["hashes"] += 1
            self._counted = True
        self._digest.update(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._digest, name)


def _kind(array: Any) -> str | None:
    shape = getattr(array, "shape", None)
    return next((kind for kind, shapes in _SHAPES.items() if shape in shapes), None)


if __name__ == "__main__":
    main()
