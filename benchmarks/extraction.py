"""How many questions a copy of a model takes: by labels alone, and by the answers of private replies.

    python benchmarks/extraction.py DATA [-o FILE]

A thief asks a random quadratic model of five features (21 monomials). Random questions: the separating surface of
largest margin, by linear programming. Bisection: points on the boundary, then the null space of their monomials.
Copies: a thief who gets logits for rows of the calibration set takes the smallest quadratic that agrees with them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

import quad4fhe
from compact import write
from machine import describe
from quad4fhe import MLP
from quad4fhe.mlp import decide

Floats = NDArray[np.float64]
FEATURES, FRESH = 5, 100_000


def monomials(X: Floats) -> Floats:
    """(1, x_i, x_i x_j), (n, D)."""
    first, second = np.triu_indices(X.shape[1])
    return np.concatenate([np.ones((len(X), 1)), X, X[:, first] * X[:, second]], axis=1)


class Model:
    """A random quadratic form over the box [-1, 1]^5, and the number of questions it was asked."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        size = monomials(np.zeros((1, FEATURES))).shape[1]
        self.row = self.rng.normal(size=size)
        X = self.rng.uniform(-1, 1, (2000, FEATURES))
        self.row[0] -= np.median(monomials(X) @ self.row)  # both classes are as common
        self.asked = 0

    def sign(self, X: Floats) -> Floats:
        """The answers."""
        self.asked += len(X)
        return np.sign(monomials(X) @ self.row)

    def wrong(self, row: Floats) -> float:
        """The share of fresh points that a copy decides otherwise."""
        Z = monomials(self.rng.uniform(-1, 1, (FRESH, FEATURES)))
        return float(np.mean(np.sign(Z @ row) != np.sign(Z @ self.row)))


def by_random_questions(model: Model, count: int) -> float:
    """The disagreement of a copy learned from so many random questions."""
    X = model.rng.uniform(-1, 1, (count, FEATURES))
    Z = monomials(X) * model.sign(X)[:, None]
    size = Z.shape[1]
    # Largest t with Z row >= t and |row| <= 1.
    found = linprog(
        np.append(np.zeros(size), -1.0),
        A_ub=np.concatenate([-Z, np.ones((count, 1))], axis=1),
        b_ub=np.zeros(count),
        bounds=[(-1, 1)] * size + [(0, None)],
    )
    return model.wrong(found.x[:-1])


def by_bisection(model: Model, steps: int) -> tuple[int, float]:
    """Questions asked, and the disagreement of a copy from D - 1 points on the boundary after so many halvings each."""
    size, points = model.row.size, []
    side, before = 1.0, model.asked
    while len(points) < size - 1:
        ends = model.rng.uniform(-1, 1, (2, FEATURES))
        signs = model.sign(ends)
        if signs[0] == signs[1]:
            continue
        low, high = ends if signs[0] < 0 else ends[::-1]
        for _ in range(steps):
            middle = (low + high) / 2
            if model.sign(middle[None])[0] < 0:
                low = middle
            else:
                high = middle
        points.append((low + high) / 2)
        inside = high
    _, _, axes = np.linalg.svd(monomials(np.array(points)))
    row = axes[-1]
    side = float(np.sign(monomials(inside[None]) @ row)[0])
    return model.asked - before, model.wrong(side * row)


def copies(fit: quad4fhe.Fit, pool: Floats, test: Floats, count: int) -> float:
    """The share of test decisions that a copy learned from answers about `count` rows of the pool has; mean of 20."""
    shares = []
    for draw in range(20):
        asked = pool[np.random.default_rng(draw).choice(len(pool), count, replace=False)]
        scale = asked.shape[1]
        kernel = (1 + asked @ asked.T / scale) ** 2
        ridge = 1e-13 * np.trace(kernel) / count * np.eye(count)
        weights = np.linalg.solve(kernel + ridge, fit.model.logits(asked))
        shares.append(np.mean(decide((1 + test @ asked.T / scale) ** 2 @ weights) == fit.model.decide(test)))
    return float(np.mean(shares))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--out", type=Path)
    given = parser.parse_args()
    out: dict[str, Any] = {"machine": describe("scipy"), "features": FEATURES, "monomials": Model(0).row.size}
    out["random"] = {
        n: float(np.median([by_random_questions(Model(s), n) for s in range(3)])) for n in (300, 1000, 10_000)
    }
    out["bisection"] = []
    for steps in (12, 25, 38):
        runs = [by_bisection(Model(s), steps) for s in range(5)]
        out["bisection"].append(
            {
                "steps": steps,
                "questions": float(np.median([r[0] for r in runs])),
                "disagreement": float(np.median([r[1] for r in runs])),
            }
        )
    out["copies"] = {}
    for name in ("breast_cancer", "diabetes", "shuttle", "otto"):
        z = np.load(given.data / "models" / f"{name}.npz")
        fit = quad4fhe.fit(MLP(z["W1"], z["b1"], z["W2"], z["b2"]), z["X_cal"].astype(np.float64), family="shared")
        X, test = z["X_cal"].astype(np.float64), z["X_test"].astype(np.float64)
        out["copies"][name] = {n: copies(fit, X, test, n) for n in (50, 100, 200, 400)}
    print(json.dumps(out, indent=1))
    if given.out is not None:
        write(given.out, out)


if __name__ == "__main__":
    main()
