"""Small habits that all drawings share: which dots to draw, how names and numbers are written in a picture.

Decides how a picture stays light (dots that would cover each other are drawn once) and how a stranger's class name is
written as it is. What is drawn is left to `pictures` and `plane`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from quad4fhe._arrays import Array, IntArray

_CELLS = (120, 80)  # of the grid on which dots that would cover each other are drawn once
_LETTERS = 22
MINUS = "\N{MINUS SIGN}"


def apart(x: Array, y: Array) -> IntArray:
    """Indices of one point for each occupied cell of a fine grid over the points, the extremes among them."""
    if x.size == 0:
        return np.zeros(0, dtype=np.int64)
    cells = []
    for values, count in zip((x, y), _CELLS, strict=True):
        low, size = float(values.min()), float(np.ptp(values)) or 1.0
        cells.append(np.minimum(((values - low) / size * count).astype(np.int64), count - 1))
    _, first = np.unique(cells[0] * _CELLS[1] + cells[1], return_index=True)
    ends = [int(np.argmin(x)), int(np.argmax(x)), int(np.argmin(y)), int(np.argmax(y))]
    return np.unique(np.append(first, ends)).astype(np.int64)


def short(name: str) -> str:
    """A class name at a length that fits beside a bar."""
    return name if len(name) <= _LETTERS else name[: _LETTERS - 1] + "…"


def dots(axes: Any, x: Array, y: Array, colour: str, label: str) -> None:
    """Draw samples."""
    size = 4.0 if x.size <= 1000 else 2.8
    axes.plot(x, y, ".", color=colour, markersize=size, alpha=0.7, markeredgewidth=0, label=label)


def crosses(axes: Any, x: Array, y: Array, colour: str) -> None:
    """Draw what is lost; the more there is, the finer."""
    size, weight = (4.2, 1.1) if x.size <= 200 else (2.6, 0.7)
    axes.plot(x, y, "x", color=colour, markersize=size, markeredgewidth=weight, label="lost")


def legend(axes: Any, columns: int = 2) -> None:
    """A legend above the drawing, where it covers nothing, whose names are text, whatever signs they hold."""
    made = axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=columns)
    for text in made.get_texts():
        text.set_parse_math(False)
    for handle in made.legend_handles:
        if hasattr(handle, "set_markersize") and handle.get_marker() in (".", "x"):
            handle.set_markersize({".": 9, "x": 5}[handle.get_marker()])
            handle.set_alpha(1.0)


def asinh_axis(axes: Any, which: str, values: Array) -> Any:
    """Make the x or y axis linear near zero and logarithmic beyond, with plain numbers on it; returns its map."""
    width = float(np.median(np.abs(values))) / 10 or 1.0
    low, high = float(values.min()), float(values.max())
    powers = 10.0 ** np.arange(np.ceil(np.log10(2 * width)), np.ceil(np.log10(max(abs(low), abs(high), width))) + 1)
    ticks = [tick for tick in (*-powers[::-1], 0.0, *powers) if 1.2 * min(low, 0) <= tick <= 1.2 * high]
    step = 2 if len(ticks) > 9 else 1
    keep = [tick for tick in ticks if tick == 0 or round(np.log10(abs(tick) / powers[0])) % step == 0]
    getattr(axes, f"set_{which}scale")("asinh", linear_width=width)
    axis = getattr(axes, f"{which}axis")
    axis.set_ticks(keep, [f"{tick:g}".replace("-", MINUS) for tick in keep])
    axis.set_ticks([], minor=True)
    return lambda v: np.arcsinh(v / width)


def number(value: float) -> str:
    """Six figures, with a true minus sign."""
    return f"{value:.6g}".replace("-", MINUS)
