"""HTML by a few small functions, so that nothing reaches the page without being escaped.

Decides how text, numbers, tables and figures become markup. A number that stands in the fit file carries its place
there and its full value (`data-fit`, `value`), so that the page can be checked against the file.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from quad4fhe.report.drawing import Picture

NOTHING = "\N{EN DASH}"


class Markup(str):
    """Text that is HTML already; everything else is escaped."""


def safe(content: str) -> Markup:
    """Text as HTML."""
    return content if isinstance(content, Markup) else Markup(html.escape(content))


def join(parts: Iterable[str], between: str = "") -> Markup:
    """Several pieces, each escaped unless it is HTML."""
    return Markup(between.join(safe(part) for part in parts))


def element(name: str, *content: str, **attributes: str) -> Markup:
    """<name attributes>content</name>; a trailing or inner _ in an attribute's name stands for nothing or a hyphen."""
    said = "".join(f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{said}>{join(content)}</{name}>")


def from_fit(path: str, value: float | int | str, shown: str) -> Markup:
    """A value of the fit file as it is shown, with its place there and the value in full."""
    return element("data", shown, value=repr(value) if isinstance(value, float) else str(value), data_fit=path)


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], text: int = 1) -> Markup:
    """A table whose first `text` columns are words and the others numbers; too wide, it scrolls by itself."""

    def cell(kind: str, at: int, content: str) -> Markup:
        column = {"class": "n" if at >= text else "w"}
        scope = {"scope": "col"} if kind == "th" else {}
        return element(kind, content, **column, **scope)

    top = element("thead", element("tr", *(cell("th", at, content) for at, content in enumerate(head))))
    body = element("tbody", *(element("tr", *(cell("td", at, c) for at, c in enumerate(row))) for row in rows))
    inner = element("table", element("caption", caption), top, body)
    return element("div", inner, **{"class": "scroll", "tabindex": "0", "role": "region", "aria-label": caption})


def pairs(rows: Iterable[tuple[str, str]]) -> Markup:
    """Names and values as a list of definitions."""
    return element("dl", *(element("div", element("dt", name), element("dd", value)) for name, value in rows))


def figure(picture: Picture) -> Markup:
    """A picture with its caption and its numbers."""
    parts = [Markup(picture.inline()), element("figcaption", element("b", picture.title + ". "), picture.caption)]
    if picture.rows:
        parts.append(details("The numbers", table(picture.title, picture.head, picture.rows)))
    return element("figure", *parts, id=f"picture-{picture.name}")


def details(summary: str, *content: str) -> Markup:
    """Something to be opened by those who want it."""
    return element("details", element("summary", summary), *content)


def command(*lines: str) -> Markup:
    """Shell commands to copy."""
    return element("pre", element("code", "\n".join(lines)))
