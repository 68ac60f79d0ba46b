"""How often promises about deployments are broken: boxes, clipping, inputs outside, and the noise of encryption.

Each deployment draws a network's inputs, a box, whether clients refuse or move what lies outside, an error of
encryption and a hold-out; the truth is the share over 20,000 other inputs that are treated in the same way, with random
errors of that size. At confidence 0.9, at most 10% of the promises may be broken, plus three standard errors.

    python benchmarks/deployments.py [--draws 1000] [--stretch 1]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quad4fhe import MLP, Fit, fit, plan
from quad4fhe.io.rows import ArrayRows
from quad4fhe.proof.guarantee import Guarantee, is_above
from quad4fhe.proof.holdout import hold_out

CONFIDENCE = 0.9
SHARES = (0.0, 0.02, 0.1, 0.4)  # of inputs outside the box, about
STRETCHED = (1.0, 1.0, 1e3, 1e6)  # times what a plan bounds the error by
_TRUTH = 20_000


@dataclass(frozen=True)
class Setting:
    """A network with its fit, calibration rows, a pool of inputs, and the errors of plain and private replies."""

    found: Fit
    seen: Any
    pool: Any
    errors: dict[str, float]


def settings(count: int, seed: int = 0) -> Iterator[Setting]:
    """Random networks of 2 to 5 classes; every second one has inputs with heavy tails."""
    for at in range(count):
        rng = np.random.default_rng((seed, at))
        classes, features, units = int(rng.integers(2, 6)), int(rng.integers(2, 5)), 8
        heavy = at % 2 == 1

        def inputs(n: int, rng: Any = rng, heavy: bool = heavy, features: int = features) -> Any:
            return rng.standard_t(4, size=(n, features)) if heavy else rng.normal(size=(n, features))

        outputs = 1 if classes == 2 else classes
        W1, b1, W2 = rng.normal(size=(units, features)), rng.normal(size=units), rng.normal(size=(outputs, units))
        seen = inputs(300)
        mlp = MLP(W1, b1, W2, -np.median(np.maximum(seen @ W1.T + b1, 0) @ W2.T, axis=0))
        found = fit(mlp, seen, family="shared", holdout=inputs(50), fresh=True)
        errors = {}
        for replies in ("plain", "private"):
            promise = plan(found, samples=1, layout="lift", replies=replies).promise
            assert promise is not None, "the fit's own box has a promise"
            errors[replies] = promise.error
        yield Setting(found, seen, inputs(60_000), errors)


def noisy(found: Fit, X: Any, error: float, rng: Any) -> Any:
    """Logits (n, K) of which no difference is off by more than the error; often it is off by as much as that."""
    logits = found.model.logits(X)
    if logits.shape[1] == 1:
        return logits + error * np.clip(2 * rng.uniform(-1, 1, size=logits.shape), -1, 1)
    return logits + error / 2 * np.clip(2 * rng.uniform(-1, 1, size=logits.shape), -1, 1)


def truth(found: Fit, X: Any, made: Guarantee, box: Any, rng: Any) -> tuple[float, float | None]:
    """The share of these inputs whose decision is kept, and of those that a client flags as reliable."""
    target = found.mlp.decide(X)
    if made.inputs == "inside":
        inside = ((box[0] <= X) & (box[1] >= X)).all(axis=1)
        X, target = X[inside], target[inside]
    logits = noisy(found, np.clip(X, *box) if made.inputs == "moved" else X, made.error, rng)
    decided = (logits[:, 0] > 0).astype(int) if logits.shape[1] == 1 else logits.argmax(axis=1)
    kept = decided == target
    flags = None if made.reliable is None else is_above(logits, made.reliable)
    share = float(kept.mean()) if kept.size else 1.0
    return share, float(kept[flags].mean()) if flags is not None and flags.any() else None


def deployments(each: Setting, draws: int, rng: Any, stretched: Sequence[float]) -> Iterator[dict[str, Any]]:
    """What was promised, and what is true, in `draws` deployments of one network."""
    found, pool = each.found, each.pool
    for draw in range(draws):
        outside = SHARES[draw % len(SHARES)]
        width = 1 - (1 - outside) ** (1 / pool.shape[1])
        box = np.quantile(pool, [width / 2, 1 - width / 2], axis=0)
        inputs = ("inside", "moved")[int(rng.integers(2))]
        replies = ("plain", "private")[int(rng.integers(2))]
        error = each.errors[replies] * stretched[int(rng.integers(len(stretched)))]
        order = rng.permutation(len(pool))
        held, rest = np.split(order[: _TRUTH + int(rng.integers(100, 1500))], [-_TRUTH])
        level = (0.8, 0.9, 0.95)[int(rng.integers(3))]
        rows, seen = ArrayRows(pool[held]), ArrayRows(each.seen)
        judged = hold_out(found.mlp, found.model, rows, box, CONFIDENCE, level=level, seen=seen)
        made = judged.guarantee(found.mlp.classes, inputs, error)  # type: ignore[arg-type]
        share, flagged = truth(found, pool[rest], made, box, rng)
        plain = judged.guarantee(found.mlp.classes)
        assert made.reliable is not None, "a margin was asked for"
        yield {
            "inputs": inputs, "replies": replies, "outside": outside, "broken": made.agreement > share,
            "unconditioned": plain.agreement > share, "gap": share - made.agreement,
            "flags broken": flagged is not None and flagged < made.reliable.level,
            "named": made.reliable.threshold is not None,
        }  # fmt: skip


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Shares of broken promises, overall and by kind of deployment, and what they may be."""
    delta = 1 - CONFIDENCE

    def allowed(count: int) -> float:
        return delta + 3 * (delta * (1 - delta) / max(count, 1)) ** 0.5

    def told(part: list[dict[str, Any]]) -> dict[str, Any]:
        names = ("broken", "flags broken", "named", "unconditioned")
        shares = {name: round(float(np.mean([one[name] for one in part])), 4) for name in names}
        return {"deployments": len(part), "allowed": round(allowed(len(part)), 4), **shares}

    out: dict[str, Any] = {"all": told(found)}
    for key in ("inputs", "replies", "outside"):
        for value in dict.fromkeys(one[key] for one in found):
            out[f"{key} {value}"] = told([one for one in found if one[key] == value])
    out["median of truth minus promise"] = round(float(np.median([one["gap"] for one in found])), 4)
    return out


def run(draws: int, networks: int, seed: int = 0, stretched: Sequence[float] = STRETCHED) -> dict[str, Any]:
    """Simulate this many deployments, shared among networks."""
    rng = np.random.default_rng((seed, 1))
    found = [
        one for each in settings(networks, seed) for one in deployments(each, -(-draws // networks), rng, stretched)
    ]
    return summary(found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--networks", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stretch", type=float, nargs="+", default=STRETCHED)
    options = parser.parse_args()
    print(json.dumps(run(options.draws, options.networks, options.seed, options.stretch), indent=1))
