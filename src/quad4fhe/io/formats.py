"""Find the file format of a path in a registry."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, TypeVar

from quad4fhe._registry import Registry
from quad4fhe.errors import InputError


class FileFormat(Protocol):
    """An entry of a registry of file formats."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The file suffixes of the format, such as (".onnx",)."""


F = TypeVar("F", bound=FileFormat)


def suffixes(formats: Registry[F]) -> list[str]:
    """All suffixes, in the order of the registry."""
    return [suffix for entry in formats for suffix in entry.suffixes]


def format_of(path: str | Path, formats: Registry[F], what: str, fix: str) -> F:
    """The format with the suffix of `path`; the InputError for another suffix says `what` was wanted and the `fix`."""
    suffix = Path(path).suffix.lower()
    for entry in formats:
        if suffix and suffix in entry.suffixes:
            return entry
    came = f"the suffix {suffix!r} is not one of {what}" if suffix else "the file name has no suffix"
    raise InputError(f"{path}: {came}, wanted {', '.join(suffixes(formats))}; {fix}")
