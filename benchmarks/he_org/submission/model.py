"""Make the model of the submission: train the ReLU network, replace it with a polynomial, plan each size.

The network leaves out pixels that are blank in more than 98% of the training images: they say little, and every pixel
costs the client a ciphertext. The list of pixels is public.

    python model.py FOLDER [--network 784-128-10] [--data ROOT]

Writes fit.safetensors, pixels.npy and one plan per size to FOLDER. This happens once, before any client asks; plans are
public.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from sizes import COUNTS, NETWORKS
from training import logits, mnist, train

from quad4fhe import MLP, Client, Fit, fit, plan
from quad4fhe.deep import DeepMLP

EPOCHS = 15
SEED = 2026
CALIBRATION = 20_000  # training images
FEW = 100  # images: for fewer, layout lift is cheaper
RARE = 0.02  # of the training images: pixels that are not blank in fewer are left out


def pixels_of(X: Any) -> Any:
    """The pixels that the network sees, of training images X (n, 784)."""
    return np.flatnonzero((X > 0).mean(axis=0) > RARE)


def replaced(layers: list[Any], X: Any) -> Fit:
    """The polynomial model of a network, fitted to the decisions of the whole network on the images X."""
    (W1, b1), *others = layers
    network = MLP(W1, b1, *others[0]) if len(others) == 1 else DeepMLP(W1, b1, others)
    return fit(network, X, family="head", seed=SEED)


def main() -> None:
    """Train, fit, plan and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--network", choices=NETWORKS, default=NETWORKS[0])
    parser.add_argument("--data", type=Path, default=Path.cwd(), help="root of the harness")
    options = parser.parse_args()
    X, y, X_test, y_test = mnist(options.data)
    widths = tuple(int(width) for width in options.network.split("-")[1:-1])
    pixels = pixels_of(X)
    layers = train(X, y, pixels, widths, EPOCHS, SEED)
    shown = X[:CALIBRATION, pixels].astype(np.float64)
    found = replaced(layers, shown)
    options.folder.mkdir(parents=True, exist_ok=True)
    found.save(options.folder / "fit.safetensors")
    np.save(options.folder / "pixels.npy", pixels)
    box = np.stack([np.zeros(pixels.size), np.ones(pixels.size)])  # every image that a client may send
    for name, count in COUNTS.items():
        made = plan(found, samples=count, layout="lift" if count <= FEW else "batch", X=shown, box=box)
        made.save(options.folder / f"{name}.json")
        Client(made).encrypt(shown[:1])  # compiles the client's kernels, which stay in a cache
        print(f"{name}: layout {made.layout}, ring {made.chain.ring}, {made.precision}", flush=True)
    X_test = X_test[:, pixels]
    relu, kept = logits(layers, X_test).argmax(axis=1), found.predict(X_test.astype(np.float64))
    figures = {
        "network": options.network,
        "pixels": int(pixels.size),
        "accuracy_relu": float((relu == y_test).mean()),
        "accuracy_polynomial": float((kept == y_test).mean()),
        "agreement": float((kept == relu).mean()),
    }
    (options.folder / "figures.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
