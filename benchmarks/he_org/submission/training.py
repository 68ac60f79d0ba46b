"""Train a ReLU network on MNIST in NumPy: Adam on the cross-entropy, with images moved by up to two pixels.

Pixels are in 0..1. Networks are lists of (W, b), with W (outputs, inputs). The seed fixes the result on one machine;
another BLAS may round differently.
"""

from __future__ import annotations

import gzip
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Single = NDArray[np.float32]
Integers = NDArray[np.int64]
Layers = list[tuple[Single, Single]]

EDGE = 28
PIXELS = EDGE * EDGE
_BATCH = 128
_RATE = 2e-3
_MOVED = 2  # pixels


def mnist(root: Path) -> tuple[Single, Integers, Single, Integers]:
    """Training and test images (n, 784) in 0..1 with their labels.

    Reads `mnist.npz` from the folder QUAD4FHE_DATA, else the four files that the harness downloads.
    """
    archive = Path(os.environ.get("QUAD4FHE_DATA", root)) / "mnist.npz"
    if archive.exists():
        with np.load(archive) as z:
            X, y, test = z["X"], z["y"].astype(np.int64), z["split"] > 0
        images = (X.reshape(len(X), -1) / 255.0).astype(np.float32)
        return images[~test], y[~test], images[test], y[test]
    raw = root / "harness" / "mnist" / "data" / "MNIST" / "raw"
    parts = [_idx(raw, f"{part}-{kind}") for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    X, y, X_test, y_test = parts
    shown = [(part.reshape(len(part), -1) / 255.0).astype(np.float32) for part in (X, X_test)]
    return shown[0], y.astype(np.int64), shown[1], y_test.astype(np.int64)


def _idx(folder: Path, stem: str) -> NDArray[np.uint8]:
    """The array of an idx file, as published or unpacked."""
    plain, packed = folder / f"{stem}-ubyte", folder / f"{stem}-ubyte.gz"
    if plain.exists():
        data = plain.read_bytes()
    elif packed.exists():
        data = gzip.decompress(packed.read_bytes())
    else:
        raise SystemExit(
            f"no MNIST: neither mnist.npz in the folder QUAD4FHE_DATA nor {plain}; set QUAD4FHE_DATA to the folder "
            "that holds mnist.npz, or let the harness download MNIST first"
        )
    dimensions = data[3]
    shape = np.frombuffer(data, ">i4", dimensions, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(tuple(shape))


def train(X: Single, y: Integers, pixels: Integers, widths: tuple[int, ...], epochs: int, seed: int) -> Layers:
    """A network of these hidden widths on some of the pixels; the learning rate falls to zero along a cosine."""
    rng = np.random.default_rng(seed)
    sizes = (pixels.size, *widths, int(y.max()) + 1)
    layers: Layers = [
        ((rng.normal(size=(b, a)) * np.sqrt(2 / a)).astype(np.float32), np.zeros(b, np.float32))
        for a, b in pairwise(sizes)
    ]
    moments = [[np.zeros_like(part) for _ in range(2)] for layer in layers for part in layer]
    steps, step = epochs * (len(X) // _BATCH), 0
    for _ in range(epochs):
        order = rng.permutation(len(X))
        for start in range(0, len(X) - _BATCH + 1, _BATCH):
            rows = order[start : start + _BATCH]
            slopes = _gradient(layers, _moved(X[rows], rng)[:, pixels], y[rows])
            step += 1
            rate = _RATE * 0.5 * (1 + np.cos(np.pi * step / steps))
            for part, slope, moment in zip([p for layer in layers for p in layer], slopes, moments, strict=True):
                _adam(part, slope, moment, rate, step)
    return layers


def logits(layers: Layers, X: Single) -> Single:
    """The network's logits (n, classes)."""
    for W, b in layers[:-1]:
        X = np.maximum(X @ W.T + b, 0)
    W, b = layers[-1]
    out: Single = X @ W.T + b
    return out


def _moved(X: Single, rng: np.random.Generator) -> Single:
    """Each image moved by up to two pixels in each direction; what leaves on one side is lost."""
    padded = np.pad(X.reshape(-1, EDGE, EDGE), ((0, 0), (_MOVED, _MOVED), (_MOVED, _MOVED)))
    down, right = rng.integers(0, 2 * _MOVED + 1, size=(2, len(X)))
    rows = down[:, None, None] + np.arange(EDGE)[:, None]
    columns = right[:, None, None] + np.arange(EDGE)
    out: Single = padded[np.arange(len(X))[:, None, None], rows, columns].reshape(len(X), -1)
    return out


def _gradient(layers: Layers, X: Single, y: Integers) -> list[Single]:
    """The slopes of the mean cross-entropy, in the order W, b of the first layer, W, b of the second, ..."""
    inputs = [X]
    for W, b in layers[:-1]:
        inputs.append(np.maximum(inputs[-1] @ W.T + b, 0))
    W, b = layers[-1]
    scores = inputs[-1] @ W.T + b
    share = np.exp(scores - scores.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    share[np.arange(len(y)), y] -= 1
    back = share / np.float32(len(y))
    slopes: list[Single] = []
    for k in range(len(layers) - 1, -1, -1):
        slopes[:0] = [back.T @ inputs[k], back.sum(axis=0)]
        if k:
            back = (back @ layers[k][0]) * (inputs[k] > 0)
    return slopes


def _adam(part: Single, slope: Single, moment: list[Single], rate: float, step: int) -> None:
    first, second = moment
    first += np.float32(0.1) * (slope - first)
    second += np.float32(0.001) * (slope * slope - second)
    size = np.sqrt(second / np.float32(1 - 0.999**step)) + np.float32(1e-8)
    part -= np.float32(rate / (1 - 0.9**step)) * first / size
