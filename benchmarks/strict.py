"""The error bound against models chosen by an enemy, with real encryption: python benchmarks/strict.py

Every case of `adversaries` is planned in both layouts, with and without its calibration samples, encrypted, evaluated
and decrypted. Counted: decisions that changed although the plan called them kept, honest replies that were refused,
and the real error over the bound. Prints a table; --json FILE keeps the table.
With --terms DATA it says instead what each term of the bound costs for the trained models in DATA/models.
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
from quad4fhe import MLP, InputError, fit, plan
from quad4fhe.he.session import ReplyError, connect
from quad4fhe.layouts.batch.search import noise_of
from quad4fhe.layouts.packed.layout import packing_of
from quad4fhe.layouts.packed.search import noises_of
from quad4fhe.mlp import decide
from quad4fhe.planning.fold import fold
from quad4fhe.planning.integers import quantise
from quad4fhe.planning.noise import BINOMIAL, DITHER, evaluation_error, transform_error
from quad4fhe.planning.plan import Plan
from quad4fhe.planning.simulate import run
from quad4fhe.planning.target import Question


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
    client, server = connect(case, made)
    sent = case.X[: made.per_request * (64 if layout == "batch" else 6)]
    one_by_one = case.samples == 1
    try:
        count = 6 if model.features < 500 else 2
        groups = [sent[i : i + 1] for i in range(min(len(sent), count))] if one_by_one else [sent]
        found = np.concatenate([run(client, server, group) for group in groups])
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


def terms(data: Path) -> None:
    """Print ring, modulus and the median share of each term in the bound, over the calibration samples."""
    for file in sorted((data / "models").glob("*.npz")):
        arrays = np.load(file)
        X = arrays["X_cal"].astype(np.float64)
        fitted = fit(MLP(arrays["W1"], arrays["b1"], arrays["W2"], arrays["b2"]), X, family="shared")
        for layout, samples in (("batch", 2048), ("packed", 1)):
            made = plan(fitted, samples=samples, layout=layout, X=X, box=fitted.box)
            question = Question(fitted.model, made.domain.box, fitted.margins, X, "strict", samples)
            parts = _batch_terms(question, made) if layout == "batch" else _packed_terms(question, made)
            total = sum(parts.values())
            shares = ", ".join(f"{name} {np.median(part / total):.1%}" for name, part in parts.items())
            primes = "+".join(str(q.bit_length()) for q in made.chain.primes)
            print(f"{file.stem:14} {layout:6} N = {made.chain.ring}, {primes}, close {len(made.error.close)}: {shares}")


def _batch_terms(question: Question, made: Plan) -> dict[str, np.ndarray]:
    circuit = fold(question.model, question.box, made.settings["form"])
    running = quantise(circuit, made.scales).dequantised()
    noise = noise_of(question, running, made.chain, made.scales)
    X, pair = question.points, question.deciding
    deviation, bend, drift = noise._at(X, pair)
    tail = noise.confidence.deviations
    decode = question.sides * transform_error(made.chain.ring) * made.domain.bound
    own = question.sides * evaluation_error(running, np.abs(X - running.shift)).max(axis=1)
    moved = differences_at(running.logits(X), pair) - differences_at(question.logits, pair)
    return {
        "noise and dither": tail * deviation,
        "their squares": tail**2 * bend,
        "float64": drift + decode + own,
        "rounded weights (known, not a bound)": np.abs(moved),
    }


def _packed_terms(question: Question, made: Plan) -> dict[str, np.ndarray]:
    noise = noises_of(question, made.chain, packing_of(made), [made.scales])[0]
    X, pair = question.points, question.deciding
    tail = noise.confidence.deviations
    zero = np.zeros(len(X))
    whole = noise.bound(X, pair)
    parts = list(noise._parts(X, pair))
    size, ring = 2.0**-made.scales.x, made.chain.ring
    fresh = tail * size * np.sqrt((BINOMIAL + DITHER) * ring / 2 * np.concatenate([p.fresh for p in parts]))
    encoded = tail * np.concatenate([np.sqrt(noise._encoded(p)) for p in parts])
    late = tail * np.concatenate([noise._late(p.V, p.T) + zero[: len(p.y)] for p in parts])
    drift = np.concatenate([noise._drift(p) for p in parts])
    decode = question.sides * transform_error(ring) * made.domain.bound
    return {
        "noise and dither": fresh,
        "encoded weights": encoded,
        "later key switches, worst case": late,
        "float64": drift + decode,
        "first rotations, rescale, squares": np.maximum(whole - fresh - encoded - late - drift, 0.0),
    }


def differences_at(logits: np.ndarray, pair: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Gaps between two classes at each point; the one logit for K = 1."""
    rows = np.arange(len(logits))
    return logits[:, 0] if logits.shape[1] == 1 else logits[rows, pair[0]] - logits[rows, pair[1]]


def main() -> None:
    """Run the attacks and print what they found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--terms", type=Path)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.terms is not None:
        terms(options.terms)
        return
    results = []
    models = 0
    for case in cases(options.rounds):
        models += 1
        for layout in ("batch", "packed"):
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
    for layout in ("batch", "packed"):
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
