"""Section "The lifted plane" of a binary model: all of the plane, and a close-up of the separating line."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe._progress import Progress
from quad4fhe.fitting.design import Design
from quad4fhe.report.drawing import Palette, Picture, apart, crosses, dots, legend, number, short
from quad4fhe.report.findings import Findings
from quad4fhe.report.geometry import PlaneView, plane_view
from quad4fhe.report.section import Section

_NEAR = 0.1  # the share of samples nearest to the line that the close-up is about

Window = tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class LiftedPlane(Section):
    """The plane, for a model with two classes."""

    title = "The lifted plane"
    template = """
<p>A shared quadratic sees a sample through two numbers only, Q and H. So every calibration sample is a point in a
plane, and every shared quadratic a line.</p>
<details><summary>How to read these pictures</summary>{{ diagram("plane") }}</details>
{{ figures(pictures) }}
"""

    view: PlaneView

    @classmethod
    def find(cls, found: Findings, progress: Progress) -> Self | None:
        """Lift the calibration samples; nothing for more than two classes."""
        if found.fit.mlp.classes != 2:
            return None
        progress("lifted plane", 0, 0)
        return cls(found, plane_view(found.fit, Design.of_samples(found.fit.mlp, found.X)))

    @cached_property
    def pictures(self) -> list[Picture]:
        """The whole plane, and a close-up of the line if there is one."""
        found, view = self.found, self.view
        names = [short(name) for name in found.classes]
        lost = found.calibration.agreement.mismatches
        about = (
            f"The lifted plane: each of {len(view.points):,} calibration samples is a point (Q, H), "
            f"coloured by the ReLU model's decision ({names[0]} or {names[1]}), with the convex hull of each class. "
        )
        if view.line is None:
            said = "This family decides by more than a line in this plane, so no line is drawn."
        else:
            said = "A shared quadratic is a line in this plane: the side of the line is the decision."
            said += _pair_words(view)
        said += f" Crosses mark the {lost:,} decisions that are lost." if lost else " No decision is lost."
        scales = " The axes have different scales, so angles are not to scale; points that would cover each other are "
        caption = said + scales + "drawn once."
        head = ("what", "Q", "H")

        def whole(figure: Any, colours: Palette) -> None:
            _draw(figure, colours, found, view, None)

        shown = [
            Picture("plane", "The whole plane", about + said, caption, whole, head, _rows(found, view), height=340)
        ]
        if view.line is None:
            return shown
        window = _window(view)
        close = f"The part of the plane around the line: Q from {window[0]:.4g} to {window[1]:.4g}, "
        close += f"H from {window[2]:.4g} to {window[3]:.4g}."

        def closer(figure: Any, colours: Palette) -> None:
            _draw(figure, colours, found, view, window)

        caption = "The same plane around the line, where decisions are close."
        return [*shown, Picture("plane-close", "Close-up", f"{close} {said}", caption, closer, (), (), height=340)]


def _pair_words(view: PlaneView) -> str:
    if view.pair is None:
        return ""
    of = "reduced hulls (dashed)" if view.reduced is not None else "hulls"
    return f" It lies halfway between the closest points u* and v* of the {of}, {view.distance:.6g} apart."


def _rows(found: Findings, view: PlaneView) -> list[tuple[str, str, str]]:
    rows = []
    if view.pair is not None:
        rows += [(name, number(p[0]), number(p[1])) for name, p in zip(("u*", "v*"), view.pair.tolist(), strict=True)]
    for name, side, outline in (
        (found.classes[1], view.positive, view.hulls[0]),
        (found.classes[0], ~view.positive, view.hulls[1]),
    ):
        middle = view.points[side].mean(axis=0)
        rows.append((f"mean of {name}, {int(side.sum()):,} samples", number(middle[0]), number(middle[1])))
        low, high = view.points[side].min(axis=0), view.points[side].max(axis=0)
        ranges = [f"{number(a)} to {number(b)}" for a, b in zip(low.tolist(), high.tolist(), strict=True)]
        rows.append((f"range of {name}, hull of {len(outline)} vertices", ranges[0], ranges[1]))
    return rows


def _window(view: PlaneView) -> Window:
    """The range of the points nearest to the line and of the closest pair, with a margin."""
    assert view.line is not None
    p, q, r = view.line
    height = np.abs(view.points @ np.array([p, q]) + r)
    count = max(12, int(_NEAR * height.size))
    near = view.points[np.argsort(height, kind="stable")[:count]]
    low, high = np.quantile(near, [0.02, 0.98], axis=0)
    if view.pair is not None:
        low, high = np.minimum(low, view.pair.min(axis=0)), np.maximum(high, view.pair.max(axis=0))
    air = 0.12 * np.maximum(high - low, 1e-9 * np.abs(view.points).max())
    (x0, y0), (x1, y1) = (low - air).tolist(), (high + air).tolist()
    return x0, x1, y0, y1


def _draw(figure: Any, colours: Palette, found: Findings, view: PlaneView, window: Window | None) -> None:
    """Draw the part of the plane inside `window`, or all of it."""
    axes = figure.subplots()
    inside = np.ones(len(view.points), dtype=np.bool_)
    if window is not None:
        x, y = view.points.T
        inside = (x >= window[0]) & (x <= window[1]) & (y >= window[2]) & (y <= window[3])
    lost = found.calibration.lost
    tones = (colours["blue"], colours["orange"])
    for at, (side, tone) in enumerate(zip((view.positive, ~view.positive), tones, strict=True)):
        points = view.points[side & ~lost & inside]
        points = points[apart(*points.T)]
        dots(axes, points[:, 0], points[:, 1], tone, f"decided: {short(found.classes[1 - at])}")
        _outline(axes, view.hulls[at], tone, "-", 0.10)
        if view.reduced is not None:
            _outline(axes, view.reduced[at], tone, "--", 0.0)
    wrong = view.points[lost & inside]
    if len(wrong):
        wrong = wrong[apart(*wrong.T)]
        crosses(axes, wrong[:, 0], wrong[:, 1], colours["lost"])
    if view.pair is not None:
        _pair(axes, view.pair, colours["ink"], named=window is not None)
    if window is None:
        low, high = view.points.min(axis=0), view.points.max(axis=0)
        air = 0.05 * np.maximum(high - low, 1e-300)
        (x0, y0), (x1, y1) = (low - air).tolist(), (high + air).tolist()
        window = (x0, x1, y0, y1)
    if view.line is not None:
        _line(axes, view.line, window, colours["ink"])
    axes.set_xlim(window[0], window[1])
    axes.set_ylim(window[2], window[3])
    axes.set_xlabel("Q  (squares)")
    axes.set_ylabel("H  (linear)")
    legend(axes)


def _pair(axes: Any, pair: Array, tone: str, *, named: bool) -> None:
    """Draw the closest pair, with the names of its points if there is room."""
    axes.plot(*pair.T, "-", color=tone, linewidth=1.2)
    axes.plot(*pair.T, "o", color=tone, markersize=4, label="closest pair")
    if named:
        for name, point, other in zip(("u*", "v*"), pair, pair[::-1], strict=True):
            place = (6, 3 if point[1] >= other[1] else -12)
            axes.annotate(name, point, xytext=place, textcoords="offset points", color=tone)


def _outline(axes: Any, corners: Array, tone: str, style: str, fill: float) -> None:
    if fill:
        axes.fill(corners[:, 0], corners[:, 1], color=tone, alpha=fill, linewidth=0)
    closed = np.vstack([corners, corners[:1]])
    axes.plot(closed[:, 0], closed[:, 1], style, color=tone, linewidth=1.0)


def _line(axes: Any, line: tuple[float, float, float], window: Window, tone: str) -> None:
    """Draw the line across the window, from left to right, or from bottom to top if it is steep."""
    p, q, r = line
    x0, x1, y0, y1 = window
    if abs(q) * (y1 - y0) >= abs(p) * (x1 - x0):
        x = np.array([x0, x1])
        axes.plot(x, -(p * x + r) / q, "-", color=tone, linewidth=1.4, label="separating line")
    elif p:
        y = np.array([y0, y1])
        axes.plot(-(q * y + r) / p, y, "-", color=tone, linewidth=1.4, label="separating line")
