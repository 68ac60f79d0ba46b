"""The colours of page and pictures, in one place, for light and dark.

Decides names and values. The two classes are blue and orange, which colour-blind readers tell apart; what is lost is
always also a cross, never a colour alone.
"""

from __future__ import annotations

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
# Colours that occur nowhere else, to be replaced by CSS variables in a drawing that is to follow the page's theme.
TOKENS = {name: f"#01fe{index:02x}" for index, name in enumerate(LIGHT, start=1)}


def variables(colours: dict[str, str]) -> str:
    """The colours as CSS custom properties."""
    return " ".join(f"--{name}: {value};" for name, value in colours.items())
