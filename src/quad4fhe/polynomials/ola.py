"""OLA (Lee et al., "Optimized layerwise approximation for efficient private inference"), for the one layer there is.

Decides the Gaussian weight and the degree. Our reading of its paper: the weight is a normal density with the mean and
deviation of the layer's own pre-activations, widened by a bandwidth r (a bare Gaussian ignores the tails, where the
polynomial then explodes); degrees are shared out among layers by dynamic programming, least loss within a budget of
runtime. One layer leaves nothing to share out: the degree is the one of least loss within a budget of depth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quad4fhe.errors import InputError
from quad4fhe.polynomials.least_squares import Projection, Quadrature, panels
from quad4fhe.polynomials.polynomial import Polynomial, linear
from quad4fhe.polynomials.preactivations import PreActivations

DEPTH = 5
_REACH = 16  # deviations of the weight that panels resolve; degree 31 still matters at 11 of them


@dataclass(frozen=True)
class OLA:
    """The chosen polynomial with the bandwidth r, degree and loss (mean squared error on calibration) behind it."""

    polynomial: Polynomial
    bandwidth: float
    degree: int
    loss: float


def gaussian(data: PreActivations, bandwidth: float) -> Quadrature:
    """The inner product under the normal density N(mean, (bandwidth * deviation)^2), cut off at [lo, hi]."""
    width = bandwidth * data.deviation
    breaks = data.mean + width * np.arange(-_REACH, _REACH + 1, dtype=np.float64)
    even = panels(data.lo, data.hi, breaks)
    z = (even.x - data.mean) / width
    density = np.exp(-0.5 * z * z)
    return Quadrature(data.lo, data.hi, even.x, even.weights * density / width)


def fit_ola(data: PreActivations, depth: int = DEPTH) -> OLA:
    """Choose bandwidth and degree by the mean squared error on the calibration pre-activations themselves.

    At a given depth the highest degree costs no further level, so the candidates are 3, 7, 15, ... 2^depth - 1; the
    bandwidths double every other step, from the data's own deviation to the whole interval, where the weight is even.
    """
    if not 2 <= depth <= DEPTH:
        raise InputError(f"OLA takes a depth from 2 to {DEPTH}, not {depth}")
    exact = linear("OLA", data.lo, data.hi)
    if exact is not None:
        return OLA(exact, 1.0, exact.degree, 0.0)
    degrees = [2**levels - 1 for levels in range(2, depth + 1)]
    share = data.counts / data.counts.sum()
    target = np.maximum(data.values, 0.0)
    best: tuple[float, int, float, Projection] | None = None
    bandwidth = 1.0
    while True:
        with np.errstate(over="ignore", invalid="ignore"):
            # Far outside a narrow weight the basis may overflow; such a loss is never the smallest.
            projection = Projection(gaussian(data, bandwidth), degrees[-1])
            losses = ((projection.sums(data.values)[degrees] - target) ** 2) @ share
        for degree, loss in zip(degrees, losses.tolist(), strict=True):
            if np.isfinite(loss) and (best is None or loss < best[0]):
                best = (loss, degree, bandwidth, projection)
        if bandwidth * data.deviation >= data.hi - data.lo:
            break
        bandwidth *= 2.0**0.5
    assert best is not None, "the widest weight is nearly even, and its projection is bounded"
    loss, degree, bandwidth, projection = best
    return OLA(Polynomial("OLA", (projection.series(degree),), (data.lo, data.hi)), bandwidth, degree, loss)


def ola(data: PreActivations, depth: int = DEPTH) -> Polynomial:
    """The OLA polynomial for these calibration pre-activations."""
    return fit_ola(data, depth).polynomial
