"""The pictures of RESULTS.md: lifted planes, calibration size, encrypted cost, precision.

Every point comes from a finished run. The library's report draws them: the same runs give the same bytes with the same
matplotlib.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from scipy.spatial import ConvexHull

from quad4fhe._arrays import Array
from quad4fhe.io.files import write_atomically
from quad4fhe.report import drawing
from quad4fhe.report.drawing import Palette
from quad4fhe_reproduce import missing
from quad4fhe_reproduce.data.sets import data_set
from quad4fhe_reproduce.records import Fitted, LiftedPlane, Record
from quad4fhe_reproduce.schedule import ALL_SETS, BINARY_SETS, CKKS_SETS
from quad4fhe_reproduce.tables.pools import by_size
from quad4fhe_reproduce.tables.shape import Runs, fit_named

_FITS = (("paper", "the paper's fit", "muted"), ("polished", "polished", "blue"), ("auto", "auto", "orange"))
_STYLE = {
    "font.size": 9,
    "legend.fontsize": 9,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "savefig.facecolor": "white",
}


@dataclass(frozen=True)
class Picture:
    """A picture's file name, what it shows, and its size in units of 1/72 inch."""

    file: str
    caption: str
    width: int
    height: int

    def svg(self, draw: drawing.Draw) -> bytes:
        """The picture that `draw` draws."""
        picture = drawing.Picture(
            self.file, self.file, self.caption, self.caption, draw, (), (), self.height, self.width, _STYLE
        )
        return picture.svg()


PLANES = Picture(
    "planes.svg",
    "The binary lift of the calibration set at width 256: each point is a sample, its colour the ReLU decision. "
    "The solid line is the paper's fit, the dashed one the polished fit, crosses are decisions the paper's fit loses. "
    "Above everything with both hulls, below the samples nearest to the line. A sample of the points is shown, with "
    "all corners of the hulls and all lost decisions.",
    684,
    533,
)
POOLS = Picture(
    "pools.svg",
    "Decisions lost on the test set against rows of the fitting pool (small-pool experiment, 1, 5, 10 and 20%).",
    792,
    446,
)
COST = Picture(
    "cost.svg",
    "Test agreement under real encryption against the server's time for a sample (layout batch, precision strict, "
    "forecast for the reference core). Each line joins the fits of one set.",
    590,
    346,
)
SWEEP = Picture(
    "sweep.svg",
    "Precision sweep of the paper's circuit, real CKKS at N = 2^14 on 64 test samples: largest logit error against the "
    "bits of the scale; a filled mark means that no decision changed, an empty one that some did.",
    756,
    274,
)


def draw(runs: Runs, folder: Path) -> list[Path]:
    """Draw every picture into the folder."""
    require_matplotlib()
    folder.mkdir(parents=True, exist_ok=True)
    drawers: dict[Picture, Callable[[Runs, Any, Palette], None]] = {
        PLANES: _planes, POOLS: _pools, COST: _cost, SWEEP: _sweep
    }  # fmt: skip
    for picture, drawer in drawers.items():
        write_atomically(folder / picture.file, picture.svg(partial(drawer, runs)))
    return [folder / picture.file for picture in drawers]


def require_matplotlib() -> None:
    """Raise MissingExtraError, before hours of work, where pictures can't be drawn after it."""
    if find_spec("matplotlib") is None:
        raise missing("matplotlib", "drawing pictures")


def _planes(runs: Runs, figure: Any, palette: Palette) -> None:
    axes = figure.subplots(2, len(BINARY_SETS))
    for column, name in zip(axes.T, BINARY_SETS, strict=True):
        record = runs.get("plain", name, runs.width(name))
        column[0].set_title(data_set(name).title)
        if record is None or record.plane is None:
            column[0].text(0.5, 0.5, "not run yet", ha="center", transform=column[0].transAxes)
            continue
        for axis, near in zip(column, (False, True), strict=True):
            _plane(axis, palette, record, record.plane, near=near)
    if axes[0][0].get_legend_handles_labels()[0]:
        axes[0][0].legend(loc="best", markerscale=1.5)


def _plane(axis: Any, palette: Palette, record: Record, plane: LiftedPlane, *, near: bool) -> None:
    q, h = np.array(plane.q), np.array(plane.h)
    positive, lost = np.array(plane.positive), np.array(plane.lost)
    paper = fit_named(record, "paper")
    assert paper is not None
    for side, colour, label in ((positive, palette["orange"], "class 1"), (~positive, palette["blue"], "class 0")):
        axis.plot(q[side], h[side], "o", ms=2.6, mew=0, alpha=0.6, color=colour, label=label)
        if not near and side.sum() > 2:
            corners = ConvexHull(np.column_stack([q[side], h[side]])).vertices
            axis.fill(q[side][corners], h[side][corners], fc=colour, ec=colour, alpha=0.12)
    if lost.any():
        axis.plot(q[lost], h[lost], "x", ms=4.5, color="black", mew=0.8, label="lost")
    closest = np.argsort(np.abs(h - _level(paper, plane, q)), kind="stable")[: max(20, q.size // 4)]
    shown = closest if near else np.arange(q.size)
    cut = 0.02 if near else 0.0  # far outliers are in the upper picture
    limits = [_padded(np.quantile(values[shown], [cut, 1 - cut])) for values in (q, h)]
    across = np.array(limits[0])
    for name, style in (("paper", "-"), ("polished", "--")):
        fit = fit_named(record, name)
        if fit is not None and fit.alpha is not None:
            axis.plot(across, _level(fit, plane, across), style, color="black", lw=1, label=f"{name} line")
    axis.set_xlim(*limits[0])
    axis.set_ylim(*limits[1])
    axis.set_xlabel("Q (weighted squares)")
    axis.set_ylabel("H (weighted pre-activations, bias)")


def _level(fit: Fitted, plane: LiftedPlane, q: Array) -> Array:
    """H on the decision line: the score alpha Q + beta (H - b) + eta B + b vanishes there."""
    assert fit.alpha is not None
    assert fit.beta is not None
    assert fit.eta is not None
    return plane.bias - (fit.alpha * q + fit.eta * plane.offset + plane.bias) / fit.beta


def _padded(values: Array) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


def _pools(runs: Runs, figure: Any, palette: Palette) -> None:
    axes = figure.subplots(3, 5)
    for axis, name in zip(axes.flat, ALL_SETS, strict=True):
        axis.set_title(data_set(name).title, fontsize=8.5)
        record = runs.get("pool", name, runs.width(name))
        if record is None:
            axis.text(0.5, 0.5, "not run yet", ha="center", transform=axis.transAxes)
            continue
        for fit, label, colour in _FITS:
            points = by_size(record, fit)
            if points:
                rows, agreed = zip(*points, strict=True)
                axis.plot(
                    rows, [100 * (1 - each) for each in agreed], "o-", ms=3, lw=1, color=palette[colour], label=label
                )
        sizes = [pool.rows for pool in record.pools]
        axis.set_xscale("log")
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=7)
        axis.minorticks_off()
        top = axis.get_ylim()[1]
        axis.set_ylim(0, 1.05 * top if top > 0 else 1)
    figure.supxlabel("rows of the fitting pool")
    figure.supylabel("test decisions lost, %")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper center", ncols=3)


def _cost(runs: Runs, figure: Any, _: Palette) -> None:
    axis = figure.subplots()
    marks = {"paper": "o", "polished": "s", "unitwise": "^", "head": "D"}
    colours = _colours("tab20")
    for at, name in enumerate(ALL_SETS):
        record = runs.get("families", name, runs.width(name))
        rows = [] if record is None else [e for e in record.encrypted if (e.layout, e.precision) == ("batch", "strict")]
        shown = [
            (1e6 * e.server_seconds / e.samples, 100 * e.agreement, e.fit) for e in rows if e.agreement is not None
        ]
        if not shown:
            continue
        times, agreed, fits = zip(*shown, strict=True)
        axis.plot(times, agreed, "-", lw=0.8, color=colours(at), label=data_set(name).title)
        for time, each, fit in zip(times, agreed, fits, strict=True):
            axis.plot(time, each, marks[fit], ms=5, color=colours(at))
    axis.set_xscale("log")
    axis.set_xlabel("server time for a sample, microseconds")
    axis.set_ylabel("test agreement with ReLU, %")
    if axis.lines:
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
    text = "○ paper's   □ polished   △ unitwise   ◇ head"
    axis.set_title(text, fontsize=8.5)


def _sweep(runs: Runs, figure: Any, _: Palette) -> None:
    axes = figure.subplots(1, len(CKKS_SETS), sharey=True)
    colours = _colours("tab10")
    for axis, name in zip(axes, CKKS_SETS, strict=True):
        record = runs.get("ckks", name)
        axis.set_title(data_set(name).title)
        if record is None:
            axis.text(0.5, 0.5, "not run yet", ha="center", transform=axis.transAxes)
            continue
        for at, scheme in enumerate(dict.fromkeys(each.scheme for each in record.sweep)):
            rows = [e for e in record.sweep if e.scheme == scheme and e.max_error is not None]
            if not rows:
                continue
            axis.plot(
                [e.log2_scale for e in rows], [e.max_error for e in rows], "-", lw=1, color=colours(at), label=scheme
            )
            for e in rows:
                face = colours(at) if e.mismatches == 0 else "white"
                axis.plot(e.log2_scale, e.max_error, "o", ms=4.5, color=colours(at), mfc=face)
        axis.set_yscale("log")
        axis.set_xlabel("bits of the scale")
    axes[0].set_ylabel("largest logit error")
    if axes[0].get_legend_handles_labels()[0]:
        axes[0].legend(fontsize=8)


def _colours(name: str) -> Any:
    from matplotlib import colormaps

    return colormaps[name]
