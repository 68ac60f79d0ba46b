"""A registry: entries of one kind (families, layouts, workers, ...) by name, imported at their first use.

Each entry is one file and one line in its registry. No other module compares the names of entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Generic, TypeVar

from quad4fhe.errors import InputError

T = TypeVar("T")


class Registry(Generic[T]):
    """The entries of one kind by name, in the order in which users see them.

    Parameters
    ----------
    kind : str
        What an entry is, for messages: "family".
    entries : mapping of str to str
        Name to place, "package.module:attribute". The module is imported at the first `get`.
    group : str, optional
        An entry-point group in which other packages may offer further entries. It is searched only for names that are
        not among `entries`.
    """

    def __init__(self, kind: str, entries: Mapping[str, str], *, group: str | None = None) -> None:
        self.kind = kind
        self._places = dict(entries)
        self._loaded: dict[str, T] = {}
        self._group = group

    def names(self) -> tuple[str, ...]:
        """The names of the entries, in order. Nothing is imported."""
        return tuple(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[T]:
        return (self.get(name) for name in self.names())

    def get(self, name: str) -> T:
        """The entry of this name; an InputError lists the names that exist."""
        if name not in self._places:
            self.discover()
        if name not in self._places:
            *others, last = map(repr, self._places)
            wanted = f"{', '.join(others)} or {last}" if others else last
            raise InputError(f"the {self.kind} is {name!r}, wanted {wanted}")
        if name not in self._loaded:
            module, _, attribute = self._places[name].partition(":")
            self._loaded[name] = getattr(import_module(module), attribute)
        return self._loaded[name]

    @contextmanager
    def added(self, name: str, entry: T) -> Iterator[None]:
        """Add an entry while the block runs, for tests and notebooks."""
        if name in self._places:
            raise InputError(f"the {self.kind} {name!r} exists already")
        self._places[name], self._loaded[name] = "", entry
        try:
            yield
        finally:
            del self._places[name], self._loaded[name]

    def discover(self) -> None:
        """Add the entries of other packages, if this registry has an entry-point group."""
        if self._group is None:
            return
        from importlib.metadata import entry_points  # here: it loads the e-mail package

        for found in entry_points(group=self._group):
            self._places.setdefault(found.name, found.value)
