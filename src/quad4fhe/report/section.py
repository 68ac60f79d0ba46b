"""What a section of a report is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

from quad4fhe._progress import Progress
from quad4fhe.report.drawing import Picture
from quad4fhe.report.findings import Findings


class Tile(NamedTuple):
    """A figure for the first screen of the page."""

    name: str
    value: str
    note: str


@dataclass(frozen=True, eq=False)
class Section:
    """A section: what it finds out, its pictures, its data for JSON, and the template of its text.

    The template is Jinja2 with the macros of `templates/macros.html`. It sees the findings as `found`, the section's
    `pictures` and its `values`.
    """

    title: ClassVar[str]
    template: ClassVar[str]

    found: Findings

    @classmethod
    def find(cls, found: Findings, progress: Progress) -> Self | None:
        """Compute what the section shows; None if it has nothing to show about this fit."""
        return cls(found)

    @cached_property
    def pictures(self) -> list[Picture]:
        """The pictures, in the order of the page."""
        return []

    def values(self) -> dict[str, Any]:
        """Further variables of the template."""
        return {}

    @property
    def tiles(self) -> list[Tile]:
        """Figures that belong on the first screen."""
        return []

    def to_dict(self) -> dict[str, Any]:
        """What the section adds to the JSON document."""
        return {}
