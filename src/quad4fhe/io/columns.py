"""Which columns of a table hold the features and the labels, by their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quad4fhe.errors import InputError

LABEL_NAMES = ("y", "label", "target", "outcome")
_LISTED = 6


@dataclass(frozen=True)
class Columns:
    """The columns to read: `features`, in this order, and `label`.

    Without `features`, every column but the labels is a feature. Without a `label`, the labels are in the column named
    y, label, target or outcome, unless it is one of the features. All other columns are ignored.
    """

    features: tuple[str, ...] | None = None
    label: str | None = None

    def pick(self, header: Sequence[str]) -> tuple[list[int], int | None]:
        """The indices of the features and of the labels in a table with this header, which is not empty."""
        label = self._label(header)
        if self.features is None:
            return [index for index in range(len(header)) if index != label], label
        place = {name: index for index, name in enumerate(header)}
        missing = [name for name in self.features if name not in place]
        if missing:
            raise InputError(
                f"has no column {listed(missing)}, wanted all {len(self.features)} features of the model by name; its "
                f"columns are {listed(header)}"
            )
        twice = [name for name in self.features if list(header).count(name) > 1]
        if twice:
            raise InputError(f"has two columns {twice[0]!r}; rename or drop one of them")
        return [place[name] for name in self.features], label

    def _label(self, header: Sequence[str]) -> int | None:
        if self.label is not None:
            if self.label not in header:
                raise InputError(f"has no column {self.label!r} for --label-column; its columns are {listed(header)}")
            return list(header).index(self.label)
        own = set(self.features or ())
        found = [index for index, name in enumerate(header) if name.lower() in LABEL_NAMES and name not in own]
        if len(found) > 1:
            both = " and ".join(repr(header[index]) for index in found)
            raise InputError(f"the columns {both} may all hold the labels; name one with --label-column, or keep one")
        return found[0] if found else None

    def check_no_header(self) -> None:
        """Raise InputError if these columns need a header; features can go by their order, labels can't."""
        if self.label is not None:
            raise InputError(f"has no header with the name --label-column {self.label}; write the table with one")


ALL = Columns()


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - _LISTED
    return ", ".join(map(repr, names[:_LISTED])) + (f" and {more} more" if more > 0 else "")
