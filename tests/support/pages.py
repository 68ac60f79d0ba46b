"""An HTML page taken apart with the standard library: its elements, their attributes and the text inside them."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "input", "hr"}


@dataclass
class Node:
    """One element; `text` is that of everything inside it."""

    name: str
    attributes: dict[str, str]
    text: str = ""
    inside: list[Node] = field(default_factory=list)

    def find(self, name: str, **attributes: str) -> list[Node]:
        """Every element of this name below this one that has these attributes."""
        wanted = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
        return [
            node
            for node in self.walk()
            if node.name == name and all(node.attributes.get(key) == value for key, value in wanted.items())
        ]

    def walk(self) -> list[Node]:
        """Every element below this one."""
        return [found for child in self.inside for found in (child, *child.walk())]


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open = [Node("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {key: value or "" for key, value in attrs})
        self.open[-1].inside.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].inside.append(Node(tag, {key: value or "" for key, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].name == tag, f"</{tag}> closes <{self.open[-1].name}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        for node in self.open:
            node.text += data


def parse(page: str) -> Node:
    """The page as a tree; every element must be closed in its order."""
    parser = _Parser()
    parser.feed(page)
    parser.close()
    assert len(parser.open) == 1, f"<{parser.open[-1].name}> is never closed"
    return parser.open[0]
