"""Networks with two hidden layers, replaced by one polynomial on their first layer.

Trains 784-128-64-10 on MNIST and 256-128 hidden units on Otto and Shuttle (torch), fits the families, verifies every
certificate, measures agreement and accuracy on test data that no choice has seen, and decides the MNIST test set under
encryption. The baselines are the same network with exact ReLU, and the one-layer model of the data folder fitted with
family auto in `families.json`. Networks and fits are kept in --work, and used again after the certificate of a fit
was checked:

    python benchmarks/deeper.py --work WORK --out benchmarks/deeper.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from compact import write
from machine import describe
from quad4fhe import MLP, Fit, fit, plan, verify
from quad4fhe.he.predict import predict_encrypted

DATA = Path(os.environ.get("QUAD4FHE_DATA", Path(__file__).parents[2] / "shared" / "data"))
HIDDEN = {"mnist": (128, 64), "otto": (256, 128), "shuttle": (256, 128)}
EPOCHS = {"mnist": 20, "otto": 6, "shuttle": 6}
ONE_LAYER = Path(__file__).parent / "families.json"
BATCH, RATE, SEED = 128, 1e-3, 2026


def load(name: str) -> tuple[Any, ...]:
    """X_cal, y_cal, X_test, y_test; the calibration rows are those the network is trained on."""
    if name != "mnist":
        with np.load(DATA / "models" / f"{name}.npz") as z:
            return tuple(z[key] for key in ("X_cal", "y_cal", "X_test", "y_test"))
    with np.load(DATA / "mnist.npz") as z:
        X, y, split = z["X"].reshape(len(z["X"]), -1).astype(np.float32) / 255, z["y"], z["split"]
    return X[split == 0], y[split == 0], X[split == 1], y[split == 1]


def train(name: str, X: Any, y: Any, classes: int) -> dict[str, Any]:
    """The weights of a network trained with Adam and a cosine schedule."""
    import torch
    from torch import nn

    torch.manual_seed(SEED)
    sizes = (X.shape[1], *HIDDEN[name], classes)
    layers = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    net = nn.Sequential(*layers[:-1])
    rows, labels = torch.tensor(X, dtype=torch.float32), torch.tensor(y.astype(np.int64))
    steps = EPOCHS[name] * (len(X) // BATCH)
    adam = torch.optim.Adam(net.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    for _ in range(EPOCHS[name]):
        order = torch.randperm(len(X))
        for start in range(0, len(X) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            adam.zero_grad()
            nn.functional.cross_entropy(net(rows[chosen]), labels[chosen]).backward()
            adam.step()
            schedule.step()
    linear = [layer for layer in net if isinstance(layer, nn.Linear)]
    weights = {f"W{k}": layer.weight.detach().numpy() for k, layer in enumerate(linear, start=1)}
    return weights | {f"b{k}": layer.bias.detach().numpy() for k, layer in enumerate(linear, start=1)}


def measure(name: str, family: str, work: Path) -> dict[str, Any]:
    """One network and one family: agreement and accuracy on the test data."""
    X_cal, y_cal, X_test, y_test = load(name)
    if not (work / f"{name}.npz").exists():
        np.savez(work / f"{name}.npz", **train(name, X_cal, y_cal, int(y_cal.max()) + 1))
    mlp = MLP.load(work / f"{name}.npz")
    kept = work / f"{name}_{family}.safetensors"
    if not kept.exists():
        fit(mlp, X_cal, family=family).save(kept)
    found = Fit.load(kept)
    verified = verify(found, mlp, X_cal)
    agreement = found.agreement(X_test)
    return {
        "model": name,
        "network": repr(mlp),
        "family": family,
        "statement": verified.statement,
        "calibration": 1 - verified.mismatches / verified.samples,
        "test": float(agreement),
        "lost": agreement.mismatches,
        "accuracy": float(np.mean(found.predict(X_test) == y_test)),
        "relu_accuracy": float(np.mean(mlp.decide(X_test) == y_test)),
        "one_layer_test": one_layer(name),
    }


def one_layer(name: str) -> float | None:
    """The test agreement of the one-layer model of this data set with family auto, the mean over its seeds."""
    rows = json.loads(ONE_LAYER.read_text())["results"]
    found = [row["test"] for row in rows if (row["model"], row["family"], row["share"]) == (name, "auto", 1.0)]
    return float(np.mean(found)) if found else None


def encrypted(name: str, family: str, work: Path) -> dict[str, Any]:
    """All test rows under encryption, in the default box."""
    X_cal, _, X_test, _ = load(name)
    found = Fit.load(work / f"{name}_{family}.safetensors")
    made = plan(found, samples=len(X_test), layout="batch", replies="plain", X=X_cal)
    started = time.perf_counter()
    bill = predict_encrypted(found, made, X_test).bill
    assert bill is not None
    return {
        "model": name,
        "samples": len(X_test),
        "changed": bill.changed,
        "clipped": bill.clipped,
        "ring": made.chain.ring,
        "bits": made.chain.bits,
        "kept": made.kept,
        "room_bits": None if made.room is None else made.room.bits,
        "server_ms_per_sample": 1000 * bill.server_seconds / len(X_test),
        "client_ms_per_sample": 1000 * bill.client_seconds / len(X_test),
        "seconds": time.perf_counter() - started,
    }


def main() -> None:
    """Measure everything and write it to --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for networks and fits")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--families", nargs="+", default=["head"])
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {"machine": describe("torch", "seal-python"), "results": [], "encrypted": []}
    for name in HIDDEN:
        for family in options.families:
            document["results"].append(measure(name, family, options.work))
            print(document["results"][-1], flush=True)
    document["encrypted"].append(encrypted("mnist", "head", options.work))
    print(document["encrypted"][-1], flush=True)
    write(options.out, document)


if __name__ == "__main__":
    main()
