"""The polynomial that stands in ReLU's place, as curves over the range that the hidden layer really uses.

Decides what is drawn for each family: the quadratic itself, or a band of them where every unit has its own. A free
head has no quadratic per unit; the nearest one to it, in least squares over the classes, is drawn instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.fitting import Fit
from quad4fhe.polynomials.preactivations import PreActivations

_SHOWN = (0.0005, 0.9995)  # the share of pre-activations left out at each end of the axis
_POINTS, _BINS = 161, 64


@dataclass(frozen=True, eq=False)
class Activation:
    """Curves over `u`: ReLU, the `middle` replacement and the `band` (2, points) of the middle 80%, None if all agree.

    `edges` and `shares` are the histogram of the pre-activations over the range shown, which holds `covered` of them.
    """

    u: Array
    relu: Array
    middle: Array
    band: Array | None
    edges: Array
    shares: Array
    covered: float
    lo: float
    hi: float


def activation(fit: Fit, seen: PreActivations) -> Activation:
    """The curves of `fit` where its calibration pre-activations are."""
    low, high = _quantiles(seen.values, seen.counts, np.array(_SHOWN))
    low, high = min(low, 0.0), max(high, 0.0)
    pad = 0.03 * (high - low) or 1.0
    u = np.linspace(low - pad, high + pad, _POINTS)
    edges = np.linspace(low - pad, high + pad, _BINS + 1)
    counts, _ = np.histogram(seen.values, bins=edges, weights=seen.counts)
    total = float(seen.counts.sum())
    alpha, beta, eta, weight = _per_unit(fit, seen)
    curves = alpha[:, None] * u * u + beta[:, None] * u + eta[:, None]
    middle, band = curves[0], None
    if len(curves) > 1:
        levels = np.array([_quantiles(column, weight, np.array([0.1, 0.5, 0.9])) for column in curves.T]).T
        middle, band = levels[1], levels[[0, 2]]
    shares = counts / total
    return Activation(u, np.maximum(u, 0.0), middle, band, edges, shares, float(shares.sum()), seen.lo, seen.hi)


def _per_unit(fit: Fit, seen: PreActivations) -> tuple[Array, Array, Array, Array]:
    """alpha, beta, eta of the units and how much each weighs in the head; one entry for a shared quadratic."""
    if fit.family == "shared":
        one = np.array([[fit.alpha], [fit.beta], [fit.eta]], dtype=np.float64)
        return one[0], one[1], one[2], np.ones(1)
    size = np.square(fit.mlp.W2).sum(axis=0)
    if fit.family == "unitwise":
        return fit.alpha, fit.beta, fit.eta, size
    used = size > 0
    W2, size = fit.mlp.W2[:, used], size[used]
    alpha = (W2 * fit.S[:, used]).sum(axis=0) / size
    beta = (W2 * fit.T[:, used]).sum(axis=0) / size
    # The head has one constant for all units; each curve is shifted so that it meets ReLU on average.
    u, n = seen.values, seen.counts / seen.counts.sum()
    relu, first, second = float(n @ np.maximum(u, 0.0)), float(n @ u), float(n @ (u * u))
    return alpha, beta, relu - alpha * second - beta * first, size


def _quantiles(values: Array, weights: Array, levels: Array) -> Array:
    order = np.argsort(values)
    mass = np.cumsum(weights[order])
    at = np.searchsorted(mass, levels * mass[-1])
    out: Array = values[order][np.minimum(at, values.size - 1)]
    return out
