"""The error bound against models chosen by an enemy, with real encryption: python benchmarks/strict.py

Every case of `adversaries` is planned in both layouts, with and without its calibration samples, encrypted, evaluated
and decrypted. Counted: decisions that changed although the plan called them kept, honest replies that were refused,
and the real error over the bound. Prints a table; --json FILE keeps the table.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adversaries import Case, cases
from compact import write
from machine import describe
from quad4fhe import Client, InputError, plan
from quad4fhe.he.session import ReplyError, Server
from quad4fhe.mlp import decide
from quad4fhe.planning.fold import fold
from quad4fhe.planning.plan import Plan


@dataclass(frozen=True)
class Result:
    """One plan and its encrypted run; `changed` are decisions the plan called kept."""

    case: str
    layout: str
    with_samples: bool
    d: int
    m: int
    K: int
    outcome: str
    ring: int = 0
    bits: int = 0
    changed: int = 0
    close: int = 0
    decisions: int = 0
    worst: float = 0.0
    seconds: float = 0.0


def attack(case: Case, layout: str, with_samples: bool) -> Result:
    """Plan a case and run it under encryption."""
    model = case.model
    facts = (case.name, layout, with_samples, model.features, model.units, model.outputs)
    begin = time.process_time()
    try:
        made = plan(case, samples=case.samples, layout=layout, X=case.X if with_samples else None, box=case.box)
    except InputError as error:
        return Result(*facts, outcome=f"no plan: {str(error)[:60]}")
    client, server = Client(made), Server(case, made)
    sent = case.X[: made.per_request * (64 if layout == "batch" else 6)]
    one_by_one = case.samples == 1
    try:
        count = 6 if model.features < 500 else 2
        groups = [sent[i : i + 1] for i in range(min(len(sent), count))] if one_by_one else [sent]
        sent_requests = (request for group in groups for request in client.requests(group))
        found = np.concatenate([client.read(server.answer(request)) for request in sent_requests])
    except ReplyError:
        return Result(*facts, outcome="an honest reply was refused")
    sent = sent[: len(found)]
    worst, changed = compare(case, made, sent, found)
    return Result(
        *facts,
        outcome="run",
        ring=made.chain.ring,
        bits=made.chain.bits,
        changed=changed,
        close=len(made.error.close),
        decisions=len(found),
        worst=worst,
        seconds=time.process_time() - begin,
    )


def compare(case: Case, made: Plan, X: np.ndarray, found: np.ndarray) -> tuple[float, int]:
    """The largest error of a deciding difference over the plan's bound, and decisions changed though called kept.

    Errors are taken from the folded model: far from zero, the plaintext model's own rounding is larger than they are.
    """
    exact = fold(case.model, made.domain.box, "skip").logits(X)
    rows = np.arange(len(X))
    if exact.shape[1] == 1:
        errors = np.abs(found - exact)[:, 0]
    else:
        order = np.argsort(-exact, axis=1)
        first, second = order[:, 0], order[:, 1]
        errors = np.abs((found[rows, first] - found[rows, second]) - (exact[rows, first] - exact[rows, second]))
    kept = np.ones(len(X), dtype=bool)
    kept[[i for i in made.error.close if i < len(X)]] = False
    changed = (decide(found) != case.model.decide(X)) & kept
    return float((errors / made.error.bound).max()), int(changed.sum())


def main() -> None:
    """Run the attacks and print what they found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = []
    models = 0
    for case in cases(options.rounds):
        models += 1
        for layout in ("batch", "lift"):
            for with_samples in (True, False):
                results.append(attack(case, layout, with_samples))
                last = results[-1]
                if last.changed or last.worst >= 1 or last.outcome.startswith("an honest"):
                    print("BROKEN", last, flush=True)
    ran = [r for r in results if r.outcome == "run"]
    decisions = sum(r.decisions for r in ran)
    print(f"{models} models, {len(results)} plans, {len(ran)} run under encryption, {decisions} decisions")
    print(f"changed though called kept: {sum(r.changed for r in ran)}")
    print(f"honest replies refused: {sum(r.outcome.startswith('an honest') for r in results)}")
    cells = []
    for layout in ("batch", "lift"):
        for with_samples in (True, False):
            chosen = [r for r in ran if r.layout == layout and r.with_samples == with_samples]
            part = np.array([r.worst for r in chosen])
            cells.append(
                {
                    "layout": layout,
                    "with_samples": with_samples,
                    "plans": models,
                    "runs": len(chosen),
                    "decisions": sum(r.decisions for r in chosen),
                    "changed": sum(r.changed for r in chosen),
                    "median": float(np.median(part)),
                    "worst": float(part.max()),
                }
            )
            quantiles = np.quantile(part, [0.05, 0.5, 0.95, 1.0])
            words = "with X" if with_samples else "without"
            print(f"error over bound, {layout:6} {words:8}: 5% {quantiles[0]:.3f}  median {quantiles[1]:.3f}  "
                  f"95% {quantiles[2]:.3f}  worst {quantiles[3]:.3f}")  # fmt: skip
    every = np.array([r.worst for r in ran])
    print(f"error over bound, all: median {np.median(every):.3f}, worst {every.max():.3f}")
    if options.json is not None:
        document = {"machine": describe("seal-python", "numba"), "models": models, "results": cells}
        write(options.json, document)


if __name__ == "__main__":
    main()
