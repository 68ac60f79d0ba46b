"""One small fit for each statement a certificate can make, with the calibration data it was made on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quad4fhe import MLP, Fit, fit


def _fitted(classes: int, n: int) -> tuple[Fit, NDArray[np.float64]]:
    rng = np.random.default_rng(7)
    K = 1 if classes == 2 else classes
    W1, b1, W2 = rng.normal(size=(6, 3)), rng.normal(size=6), rng.normal(size=(K, 6))
    X = rng.normal(size=(n, 3))
    centre = np.median(np.maximum(X @ W1.T + b1, 0) @ W2.T, axis=0)  # so that every class wins somewhere
    return fit(MLP(W1, b1, W2, -centre), X, family="shared"), X


LOSSLESS, LOSSLESS_X = _fitted(2, 4)
PLANE, PLANE_X = _fitted(2, 80)
PAIRS, PAIRS_X = _fitted(4, 80)
CASES = [(LOSSLESS, LOSSLESS_X), (PLANE, PLANE_X), (PAIRS, PAIRS_X)]
