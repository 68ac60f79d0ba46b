"""Section "The polynomial": what replaces ReLU, over the range of values that the hidden layer takes.

The family determines the quadratics; the picture shows a band if units have different ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe._progress import Progress
from quad4fhe.fitting import Fit
from quad4fhe.fitting.families import FAMILIES, Family
from quad4fhe.fitting.summary import at_degree, percent
from quad4fhe.proof.families import units_of
from quad4fhe.report.drawing import Palette, Picture, legend, number
from quad4fhe.report.findings import Findings
from quad4fhe.report.markup import from_fit
from quad4fhe.report.preactivations import PreActivations, preactivations
from quad4fhe.report.section import Section

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
    if fit.degree == 2:
        alpha, beta, eta, weight = _per_unit(fit, seen)
        curves = alpha[:, None] * u * u + beta[:, None] * u + eta[:, None]
    else:
        curves, weight = _polynomials(fit, u, seen), np.square(fit.mlp.W2).sum(axis=0)
    middle, band = curves[0], None
    if len(curves) > 1:
        levels = np.array([_quantiles(column, weight, np.array([0.1, 0.5, 0.9])) for column in curves.T]).T
        middle, band = levels[1], levels[[0, 2]]
    covered = float(counts.sum()) / total  # the sum of the shares would be rounded
    return Activation(u, np.maximum(u, 0.0), middle, band, edges, counts / total, covered, seen.lo, seen.hi)


def _per_unit(fit: Fit, seen: PreActivations) -> tuple[Array, Array, Array, Array]:
    """alpha, beta, eta of the units and how much each weighs in the head; one entry for a shared quadratic."""
    if fit.alpha is not None:
        weight = np.ones(1) if np.ndim(fit.alpha) == 0 else np.square(fit.mlp.W2).sum(axis=0)
        alpha, beta, eta = (np.atleast_1d(each) for each in (fit.alpha, fit.beta, fit.eta))
        return alpha, beta, eta, weight
    # Of a free head, the projections of S and T on the columns of W2.
    weight = np.square(fit.mlp.W2).sum(axis=0)
    used = weight > 0
    W2, weight = fit.mlp.W2[:, used], weight[used]
    alpha, beta = ((W2 * each[:, used]).sum(axis=0) / weight for each in (fit.S, fit.T))
    # One constant serves all units, so each curve is shifted to meet ReLU on average.
    u, n = seen.values, seen.counts / seen.counts.sum()
    relu, first, second = float(n @ np.maximum(u, 0.0)), float(n @ u), float(n @ (u * u))
    return alpha, beta, relu - alpha * second - beta * first, weight


def _polynomials(fit: Fit, u: Array, seen: PreActivations) -> Array:
    """The polynomials of a fit of higher degree over u, (units, points); one if all units share it.

    Their variable is u times a power of two, shifted: both follow from the two first layers. A unit of a free head with
    several polynomials is drawn as the one nearest to them under the head. One constant serves all units, so each
    curve is shifted to meet ReLU on average.
    """
    model, mlp = fit.model, fit.mlp
    assert model.a is not None
    assert model.V is not None
    of = units_of(model, mlp)
    W1, b1, W2 = mlp.W1[of], mlp.b1[of], mlp.W2[:, of]
    size = np.maximum(np.square(W1).sum(axis=1), 1e-300)
    scale = np.exp2(np.rint(np.log2(np.maximum((model.W1 * W1).sum(axis=1) / size, 1e-300))))
    shift = model.b1 - scale * b1
    is_free = FAMILIES.get(fit.family).is_free
    used = slice(0, 1) if not is_free and (model.a == model.a[:, :1]).all() else slice(None)
    levels = np.cumsum(seen.counts) / seen.counts.sum()
    points = np.concatenate([u, np.interp(np.linspace(0, 1, 101), levels, seen.values)])
    at = scale[used, None] * points + shift[used, None]
    out = np.zeros_like(at)
    for a in model.a[::-1]:
        out = (out + a[used, None]) * at
    if is_free:
        share = (model.V * W2).sum(axis=0) / np.maximum(np.square(W2).sum(axis=0), 1e-300)
        copies, out = share[:, None] * out, np.zeros((mlp.units, points.size))
        np.add.at(out, of, copies)
    drawn, met = out[:, : u.size], out[:, u.size :]
    relu = float(np.maximum(points[u.size :], 0.0).mean())
    return np.asarray(drawn + (relu - met.mean(axis=1))[:, None])


def _quantiles(values: Array, weights: Array, levels: Array) -> Array:
    order = np.argsort(values)
    mass = np.cumsum(weights[order])
    at = np.searchsorted(mass, levels * mass[-1])
    out: Array = values[order][np.minimum(at, values.size - 1)]
    return out


@dataclass(frozen=True, eq=False)
class Polynomial(Section):
    """The polynomial and its coefficients."""

    title = "The polynomial"
    template = "<p>{{ formula }}</p>{{ figures(pictures, pairs(coefficients)) }}"

    shape: Activation

    @classmethod
    def find(cls, found: Findings, progress: Progress) -> Self | None:
        """Compute all pre-activations of the calibration set."""
        return cls(found, activation(found.fit, preactivations(found.fit.mlp, found.X, progress)))

    @property
    def _family(self) -> Family:
        return FAMILIES.get(self.found.fit.family)

    def values(self) -> dict[str, Any]:
        """What replaces the ReLU."""
        fit = self.found.fit
        values: dict[str, Any] = {"a": fit.model.a, "V": fit.model.V, "c": fit.c}
        formula = (
            f"The ReLU of hidden unit j becomes a_1 u + ... + a_{fit.degree} u^{fit.degree}, with u the pre-activation "
            "over a power of two, shifted to the middle of its range. All weights are rounded to few bits."
        )
        if self._family.is_free:
            formula = (
                f"The logits become V g + c. Each of {fit.model.units} polynomials g = a_1 u + ... + a_{fit.degree} "
                f"u^{fit.degree} belongs to one of the hidden units, with u its pre-activation over a power of two, "
                "shifted to the middle of its range. All weights are rounded to few bits."
            )
        if fit.degree == 2:
            values, formula = self._family.values(fit), self._family.formula(fit.mlp)
        lines = [(name, _said(name, value, fit.mlp.units)) for name, value in values.items()]
        return {"formula": formula, "coefficients": lines}

    @cached_property
    def pictures(self) -> list[Picture]:
        """The polynomial over ReLU, above a histogram of the pre-activations."""
        shape, family = self.shape, self._family
        drawn = at_degree(family.drawn, self.found.fit.degree)
        caption = f"ReLU (dashed) and {drawn}, over the pre-activations of the calibration set (below). "
        caption += at_degree(family.remark, self.found.fit.degree)
        if shape.covered < 1:
            caption += f" The axis holds {percent(shape.covered)} of the pre-activations, which range from "
            caption += f"{shape.lo:.4g} to {shape.hi:.4g}."
        points = np.linspace(float(shape.u[0]), float(shape.u[-1]), 7)
        relu, middle = (np.interp(points, shape.u, curve).tolist() for curve in (shape.relu, shape.middle))
        below = np.interp(points, shape.edges, np.append(0.0, np.cumsum(shape.shares))).tolist()
        rows = [
            (number(u), number(r), number(q), percent(share))
            for u, r, q, share in zip(points.tolist(), relu, middle, below, strict=True)
        ]
        alt = (
            f"ReLU and {drawn}, from u = {shape.u[0]:.3g} to {shape.u[-1]:.3g}, above a histogram of the "
            f"pre-activations, which range from {shape.lo:.4g} to {shape.hi:.4g}."
        )
        head = ("u", "ReLU", "replacement", "pre-activations below u")
        return [Picture("activation", "The polynomial over ReLU", alt, caption, self._draw, head, rows, height=330)]

    def _draw(self, figure: Any, colours: Palette) -> None:
        shape = self.shape
        top, bottom = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": (3, 1)})
        if shape.band is not None:
            top.fill_between(shape.u, *shape.band, color=colours["blue"], alpha=0.18, linewidth=0)
        top.plot(shape.u, shape.relu, "--", color=colours["orange"], linewidth=1.6, label="ReLU")
        top.plot(shape.u, shape.middle, "-", color=colours["blue"], linewidth=1.8, label="replacement")
        top.axhline(0, color=colours["line"], linewidth=0.8, zorder=0)
        top.set_ylabel("activation")
        legend(top)
        bottom.stairs(100 * shape.shares, shape.edges, fill=True, color=colours["muted"], alpha=0.55)
        bottom.set_ylabel("share, %")
        bottom.set_xlabel("pre-activation u")
        bottom.set_xlim(float(shape.u[0]), float(shape.u[-1]))


def _said(name: str, value: float | Array, units: int) -> str:
    """A number as it is, one number for each unit as a range, a matrix or the constants by their size."""
    if isinstance(value, float):
        return from_fit(name, value, number(value))
    if value.shape == (units,):
        low, high, middle = (number(float(of(value))) for of in (np.min, np.max, np.median))
        return f"{low} to {high}, median {middle}"
    return f"{value.size:,} numbers, largest {number(float(np.abs(value).max()))} in size"
