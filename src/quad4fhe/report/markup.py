"""Small pieces of HTML that sections put into tables and lists."""

from __future__ import annotations

from markupsafe import Markup

NOTHING = "\N{EN DASH}"


def from_fit(path: str, value: float | int | str, shown: str) -> Markup:
    """A value of the fit file as it is shown, with its place in the file and its full value.

    Anyone can check a page against its file by these attributes; the tests do.
    """
    full = repr(value) if isinstance(value, float) else str(value)
    return Markup('<data value="{}" data-fit="{}">{}</data>').format(full, path, shown)


def marked(text: str, mark: str) -> Markup:
    """Text followed by a mark such as "this fit"."""
    return Markup('{} <span class="mark">{}</span>').format(text, mark)


def lost(text: str) -> Markup:
    """Text about a lost decision."""
    return Markup('<span class="lost">{}</span>').format(text)
