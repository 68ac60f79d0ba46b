"""The share of decisions that is kept on a data set, as a number that knows what it was counted from."""

from __future__ import annotations


class KeptShare(float):
    """A float between 0 and 1: compare it, format it, calculate with it.

    `mismatches` of `samples` decisions differ. It prints as the number alone.
    """

    __slots__ = ("mismatches", "samples")

    mismatches: int
    samples: int

    def __new__(cls, mismatches: int, samples: int) -> KeptShare:
        """The share for so many mismatches among so many samples."""
        made = super().__new__(cls, (samples - mismatches) / samples)
        made.mismatches, made.samples = mismatches, samples
        return made

    def __getnewargs__(self) -> tuple[int, int]:  # type: ignore[override]  # float's own has one argument
        return self.mismatches, self.samples

    def __repr__(self) -> str:
        return f"KeptShare({float(self)!r}, mismatches={self.mismatches}, samples={self.samples})"

    def __str__(self) -> str:
        return repr(float(self))
