"""From a drawing function to an SVG inside the page, and to SVG and PNG files.

Decides size, fonts and how a drawing follows the page's theme (its colours become CSS variables). What is drawn is
left to `pictures`. The only module that imports matplotlib, and only when something is drawn.
"""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from quad4fhe.errors import MissingExtraError
from quad4fhe.report.palette import LIGHT, TOKENS

Palette = dict[str, str]
Draw = Callable[[Any, Palette], None]

WIDTH = 400
"""Units of a drawing's width: on a phone a unit is a little less than a pixel, so its letters stay readable."""
_PNG_DPI = 216
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
    """One figure: what it shows in words (`alt`), a caption, and its numbers as a small table."""

    name: str
    title: str
    alt: str
    caption: str
    draw: Draw
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    height: int = 290

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
        head = f'<svg viewBox="0 0 {WIDTH} {self.height}" {label}>'
        return head + svg[svg.index(">") + 1 :]

    def svg(self) -> bytes:
        """The picture as a file of its own, in the light colours."""
        text = _body(_saved(self, LIGHT, "svg").decode())
        first = text.index(">")
        return f'{text[:first]} role="img" aria-label="{html.escape(self.alt)}"{text[first:]}'.encode()

    def png(self) -> bytes:
        """The picture in pixels, in the light colours."""
        return _saved(self, LIGHT, "png")


def require_matplotlib() -> None:
    """Say at once, not after the work, that pictures can't be drawn."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise MissingExtraError("matplotlib", "report", "a report") from None


def _saved(picture: Picture, palette: Palette, kind: str) -> bytes:
    require_matplotlib()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    ink = dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "axes.labelcolor"), palette["muted"])
    style: dict[Any, Any] = {**_STYLE, **ink, "text.color": palette["ink"]}
    with rc_context(style), warnings.catch_warnings():
        # Figures of their own, without pyplot: nothing global, nothing to close, any thread.
        figure = Figure(figsize=(WIDTH / 72, picture.height / 72), layout="constrained", facecolor="none")
        picture.draw(figure, palette)
        buffer = io.BytesIO()
        # A name in another script: the SVG holds its letters, whatever the font of the measures has.
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
    """A group of equal marks with its style said once; thousands of dots say it thousands of times."""
    styles = set(re.findall(r' style="([^"]*)"', group[0]))
    if len(styles) != 1:
        return group[0]
    style = styles.pop()
    return group[0].replace(f' style="{style}"', "").replace(">", f' style="{style}">', 1)
