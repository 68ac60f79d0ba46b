"""OLA (Lee et al., "Optimized layerwise approximation for efficient private inference"), for a model with one layer.

This is our reading of the paper. The weight is a normal density with the mean and deviation of the layer's own
pre-activations, widened by a bandwidth r: a bare Gaussian ignores the tails, where the polynomial then explodes. The
paper distributes degrees among layers by dynamic programming, with the least loss within a budget of runtime. With one
layer, the degree is the one of least loss within a budget of depth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quad4fhe.errors import InputError
from quad4fhe.report.preactivations import PreActivations
from quad4fhe_reproduce.baselines.least_squares import Projection, Quadrature, panels
from quad4fhe_reproduce.baselines.polynomial import Polynomial, linear
from quad4fhe_reproduce.baselines.problem import Baseline, Problem

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
    return _least_loss("OLA", data, [2**levels - 1 for levels in range(2, depth + 1)])


def _least_loss(name: str, data: PreActivations, degrees: list[int]) -> OLA:
    """The Gaussian weight and the degree whose projection errs least on the pre-activations themselves."""
    exact = linear(name, data.lo, data.hi)
    if exact is not None:
        return OLA(exact, 1.0, exact.degree, 0.0)
    share = data.counts / data.counts.sum()
    target = np.maximum(data.values, 0.0)
    best: tuple[float, int, float, Projection] | None = None
    bandwidth = 1.0
    while True:
        with np.errstate(over="ignore", invalid="ignore"):
            # Far outside a narrow weight the basis may overflow; the loss is then not the smallest.
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
    return OLA(Polynomial(name, (projection.series(degree),), (data.lo, data.hi)), bandwidth, degree, loss)


def ola(data: PreActivations, depth: int = DEPTH) -> Polynomial:
    """The OLA polynomial for these calibration pre-activations."""
    return fit_ola(data, depth).polynomial


def ola_of(degree: int, data: PreActivations) -> Polynomial:
    """OLA at a given degree."""
    return _least_loss(f"OLA-{degree}", data, [degree]).polynomial


def _fit(problem: Problem) -> dict[str, Polynomial]:
    replacements = {"OLA": ola(problem.preactivations)}
    if problem.degree is not None:
        replacements[f"OLA-{problem.degree}"] = ola_of(problem.degree, problem.preactivations)
    return replacements


BASELINE = Baseline("OLA: least squares under the layer's own distribution", ("OLA",), _fit)
