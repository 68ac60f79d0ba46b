"""Pictures: colours, the conversion of a drawing function to SVG and PNG, and small helpers for drawing functions.

The only module that imports matplotlib, and only when something is drawn.
"""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quad4fhe._arrays import Array, IntArray

Palette = dict[str, str]
Draw = Callable[[Any, Palette], None]

# Blue and orange are the two classes: colour-blind readers can tell them apart. A lost decision is a cross as well.
LIGHT = {
    "paper": "#fcfcfa",
    "panel": "#f2f3f1",
    "ink": "#1c2126",
    "muted": "#59636d",
    "line": "#d5d9dc",
    "blue": "#0a6aa8",
    "orange": "#c77400",
    "lost": "#a3123f",
    "good": "#1d6f4a",
}
DARK = {
    "paper": "#14181b",
    "panel": "#1d2327",
    "ink": "#e6e9eb",
    "muted": "#a3adb5",
    "line": "#353d43",
    "blue": "#62b6f0",
    "orange": "#f0ab45",
    "lost": "#ff94ad",
    "good": "#74cfa3",
}
# Placeholder colours that occur nowhere else: `Picture.inline` replaces them with CSS variables of the page's theme.
TOKENS = {name: f"#01fe{index:02x}" for index, name in enumerate(LIGHT, start=1)}

WIDTH = 400
"""Units of a drawing's width: on a phone a unit is a little less than a pixel, so its letters stay readable."""
_PNG_DPI = 216
_CELLS = (120, 80)  # of the grid that `apart` thins dots on
_LETTERS = 22  # of a class name beside a bar
MINUS = "\N{MINUS SIGN}"
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "quad4fhe",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same measures everywhere
    "font.size": 12,
    "axes.facecolor": "none",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "xtick.major.width": 0.8,
    "ytick.major.width": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 11.5,
    "legend.handletextpad": 0.5,
    "legend.borderaxespad": 0.2,
    "path.simplify": True,
}


@dataclass(frozen=True, eq=False)
class Picture:
    """One figure: what it shows in words (`alt`), a caption, and its numbers as a small table.

    `style` has settings of matplotlib that differ from those of the report.
    """

    name: str
    title: str
    alt: str
    caption: str
    draw: Draw
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    height: int = 290
    width: int = WIDTH
    style: Mapping[str, Any] = field(default_factory=dict)

    def inline(self) -> str:
        """The picture as an <svg> element that takes its colours from the page."""
        svg = _body(_saved(self, TOKENS, "svg").decode())
        for name, token in TOKENS.items():
            svg = svg.replace(token, f"var(--{name})")
        svg = svg.replace(f"font-family: {_FONT}; ", "")  # the page has one
        svg = re.sub(r'\bid="', f'id="{self.name}-', svg)
        svg = re.sub(r'(xlink:)?href="#', f'href="#{self.name}-', svg).replace("url(#", f"url(#{self.name}-")
        # The page's own style says how lines join; matplotlib's rule would apply to the whole page.
        svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
        label = f'role="img" aria-label="{html.escape(self.alt)}"'
        head = f'<svg viewBox="0 0 {self.width} {self.height}" {label}>'
        return head + svg[svg.index(">") + 1 :]

    def svg(self) -> bytes:
        """The picture as a file of its own, in the light colours."""
        text = _body(_saved(self, LIGHT, "svg").decode())
        first = text.index(">")
        return f'{text[:first]} role="img" aria-label="{html.escape(self.alt)}"{text[first:]}'.encode()

    def png(self) -> bytes:
        """The picture in pixels, in the light colours."""
        return _saved(self, LIGHT, "png")


def _saved(picture: Picture, palette: Palette, kind: str) -> bytes:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    ink = dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "axes.labelcolor"), palette["muted"])
    style: dict[Any, Any] = {**_STYLE, **ink, "text.color": palette["ink"], **picture.style}
    with rc_context(style), warnings.catch_warnings():
        # Figures of their own, without pyplot: nothing global, nothing to close, any thread.
        figure = Figure(figsize=(picture.width / 72, picture.height / 72), layout="constrained", facecolor="none")
        picture.draw(figure, palette)
        buffer = io.BytesIO()
        # A class name in another script: the SVG holds its letters even if the font that measures them lacks them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        if kind == "png":
            figure.savefig(buffer, format="png", dpi=_PNG_DPI, facecolor=palette["paper"])
        else:
            figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _body(svg: str) -> str:
    """The <svg> element without prolog and metadata, with short numbers and a font that every system has."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    # Coordinates only: a number in a label is text between elements and stays as it is.
    svg = re.sub(r'\b(?:d|x|y|transform)="[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), svg)
    svg = re.sub(r"<g clip-path=[^>]*>\s*(?:<use [^>]*/>\s*)+</g>", _once, svg)
    svg = re.sub(r"font-family: [^;]*; ?", f"font-family: {_FONT}; ", svg)
    return re.sub(r"\n\s*", "\n", svg)


def _once(group: re.Match[str]) -> str:
    """Move the style of all marks of a group to the group; matplotlib repeats it for each of thousands of dots."""
    styles = set(re.findall(r' style="([^"]*)"', group[0]))
    if len(styles) != 1:
        return group[0]
    style = styles.pop()
    return group[0].replace(f' style="{style}"', "").replace(">", f' style="{style}">', 1)


# --- helpers for drawing functions ------------------------------------------------------------------------------


def apart(x: Array, y: Array) -> IntArray:
    """Indices of one point for each occupied cell of a fine grid over the points, and of the extreme points."""
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
    """Draw lost decisions, with finer crosses if there are many."""
    size, weight = (4.2, 1.1) if x.size <= 200 else (2.6, 0.7)
    axes.plot(x, y, "x", color=colour, markersize=size, markeredgewidth=weight, label="lost")


def legend(axes: Any, columns: int = 2) -> None:
    """Add a legend above the drawing, where it covers nothing; names are shown as text, never parsed as formulas."""
    made = axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=columns)
    for text in made.get_texts():
        text.set_parse_math(False)
    for handle in made.legend_handles:
        if hasattr(handle, "set_markersize") and handle.get_marker() in (".", "x"):
            handle.set_markersize({".": 9, "x": 5}[handle.get_marker()])
            handle.set_alpha(1.0)


def asinh_axis(axes: Any, which: str, values: Array) -> Any:
    """Make the x or y axis linear near zero and logarithmic beyond, with plain numbers on it; return the map."""
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
