"""The names of features and classes, which travel from the model or the data into fits and plans.

Names of a plan may come from a server, so they are checked before they are shown: printable, short, different.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from quad4fhe._arrays import IntArray
from quad4fhe.errors import InputError

_LONGEST = 200
_LISTED = 4


class Names(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The names of the features, in the order of the columns, and of the classes; None where they are not known."""

    features: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for what, names in (("feature", self.features), ("class", self.classes)):
            _check(what, names)

    def __bool__(self) -> bool:
        return self.features is not None or self.classes is not None

    def check(self, features: int, classes: int) -> None:
        """Raise InputError unless there is one name for each feature and each class."""
        for what, names, wanted in (("feature", self.features, features), ("class", self.classes, classes)):
            if names is not None and len(names) != wanted:
                raise InputError(f"{len(names)} {what} names were given, and the model has {wanted}; give one for each")

    def or_else(self, other: Names) -> Names:
        """These names, and where they are not known the `other` ones."""
        return Names(self.features or other.features, self.classes or other.classes)

    def decided(self, label: int) -> str:
        """A class in words: its name, or its number."""
        return f"class {label}" if self.classes is None else self.classes[label]


def names_of(features: Sequence[Any] | None = None, classes: Sequence[Any] | None = None) -> Names:
    """Names from a model or a table; those that can't be shown or told apart, or are plain numbers, are left out."""
    found = []
    for what, given in (("feature", features), ("class", classes)):
        names = None if given is None else tuple(_text(each) for each in given)
        try:
            _check(what, names)
        except InputError:
            names = None
        if names == tuple(map(str, range(len(names or ())))):
            names = None  # the numbers of the columns or classes say nothing
        found.append(names)
    return Names(*found)


def class_ids(labels: ArrayLike, names: Names, classes: int) -> IntArray | None:
    """Labels as class ids (n,): by the names of the classes, else whole numbers as they are; None if neither fits."""
    given = np.asarray(labels)
    place = {name: index for index, name in enumerate(names.classes or ())}
    values, back = np.unique(given, return_inverse=True)
    by_name = [place.get(_text(value)) for value in values.tolist()]
    if place and None not in by_name:
        return np.array(by_name, dtype=np.int64)[back.reshape(-1)]
    if given.dtype.kind in "biu" and (not given.size or (given.min() >= 0 and given.max() < classes)):
        return given.astype(np.int64)
    return None


def strange_label(labels: ArrayLike, names: Names) -> str:
    """What is wrong with labels that `class_ids` can't read, in words."""
    known = set(names.classes or ())
    found = [text for value in np.unique(np.asarray(labels)).tolist() if (text := _text(value)) not in known]
    listed = ", ".join(map(repr, found[:_LISTED])) + (", ..." if len(found) > _LISTED else "")
    wanted = (
        "class ids"
        if names.classes is None
        else f"{', '.join(map(repr, names.classes[:_LISTED]))}" + (", ..." if len(names.classes) > _LISTED else "")
    )
    return f"the labels {listed} are not classes of the model ({wanted})"


def _text(value: Any) -> str:
    """A name as text; 3.0 and 3 are the same class."""
    if isinstance(value, bytes):
        return value.decode(errors="replace").strip()
    return str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()


def _check(what: str, names: Sequence[str] | None) -> None:
    if names is None:
        return
    for name in names:
        if not name or not name.isprintable() or len(name) > _LONGEST:
            raise InputError(f"the {what} name {name[:60]!a} is empty, too long, or not printable; rename it")
    if len(set(names)) != len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise InputError(f"two {what} names are {twice!r}; names must differ")


NONE = Names()
