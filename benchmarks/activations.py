"""Other activations beside ReLU: regimes and agreements of the same fits, on networks trained alike.

Trains 64-unit networks on digits, Otto and Shuttle with each activation and five seeds, and fits the shared and the
unitwise family to each. ReLU, trained with the same seed on the same rows, is the baseline of every difference. The
training rows are the calibration rows; the agreement is that on test rows. Needs torch. Writes JSON after each network,
so that an interrupted run can be continued:

    python benchmarks/activations.py --out benchmarks/activations.json
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from compact import write
from machine import describe
from quad4fhe import MLP, fit, verify

DATA = Path(os.environ.get("QUAD4FHE_DATA", Path(__file__).parents[2] / "shared" / "data"))
LAYERS = {
    "ReLU": torch.nn.ReLU,
    "LeakyReLU": torch.nn.LeakyReLU,
    "GELU": torch.nn.GELU,
    "SiLU": torch.nn.SiLU,
    "tanh": torch.nn.Tanh,
}
ROWS = {"digits": (1200, 597), "otto": (8000, 6000), "shuttle": (8000, 8000)}  # training and test rows
UNITS, EPOCHS = 64, {"digits": 40, "otto": 20, "shuttle": 20}


def rows(name: str) -> tuple[Any, Any, Any, Any]:
    """Training and test rows, standardised; the same for every activation and seed."""
    with np.load(DATA / f"{name}.npz") as z:
        X, y = z["X"].astype(np.float64), z["y"].astype(np.int64)
    order = np.random.default_rng(0).permutation(len(X))
    train, test = ROWS[name]
    first, last = order[:train], order[train : train + test]
    mean, spread = X[first].mean(axis=0), X[first].std(axis=0)
    X = (X - mean) / np.where(spread > 0, spread, 1.0)
    return X[first], y[first], X[last], y[last]


def trained(name: str, activation: str, seed: int) -> MLP:
    """A network with one hidden layer, trained with Adam."""
    X, y, _, _ = rows(name)
    torch.manual_seed(seed)
    net = torch.nn.Sequential(
        torch.nn.Linear(X.shape[1], UNITS), LAYERS[activation](), torch.nn.Linear(UNITS, int(y.max()) + 1)
    )
    inputs, targets = torch.tensor(X, dtype=torch.float32), torch.tensor(y)
    optimiser = torch.optim.Adam(net.parameters(), 3e-3, weight_decay=1e-4)
    for _ in range(EPOCHS[name]):
        for part in torch.randperm(len(X)).split(128):
            loss = torch.nn.functional.cross_entropy(net(inputs[part]), targets[part])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return MLP.from_torch(net.eval())


def measure(name: str, activation: str, seed: int) -> dict[str, Any]:
    """Both families fitted to one network."""
    X, _, X_test, y_test = rows(name)
    mlp = trained(name, activation, seed)
    found: dict[str, Any] = {"data": name, "activation": activation, "seed": seed}
    found["accuracy"] = float(np.mean(mlp.decide(X_test) == y_test))
    for family in ("shared", "unitwise"):
        made = fit(mlp, X, family=family, seed=seed)
        verified = verify(made, mlp, X)
        found[family] = {
            "regime": str(made.regime),
            "statement": verified.statement,
            "calibration": verified.agreement,
            "test": float(made.agreement(X_test)),
            "accuracy": float(np.mean(made.predict(X_test) == y_test)),
        }
    return found


def main() -> None:
    """Run what is missing from the output, and write it after every network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", nargs="+", choices=list(ROWS), default=list(ROWS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    document = json.loads(options.out.read_text()) if options.out.exists() else {"results": []}
    document["machine"] = describe("torch")
    done = {(each["data"], each["activation"], each["seed"]) for each in document["results"]}
    for seed in range(options.seeds):
        for name in options.data:
            for activation in LAYERS:
                if (name, activation, seed) not in done:
                    document["results"].append(measure(name, activation, seed))
                    write(options.out, document)
                    last = document["results"][-1]
                    print(name, activation, seed, last["shared"]["test"], last["unitwise"]["test"], flush=True)


if __name__ == "__main__":
    main()
