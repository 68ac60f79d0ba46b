"""The paper's experiments: recipes, training, measured runs, and the tables and pictures made of them."""

from __future__ import annotations

from quad4fhe.errors import MissingExtraError


def missing(package: str, purpose: str, extra: str = "train") -> MissingExtraError:
    """The error for a package that is not installed, with the command that adds it."""
    return MissingExtraError(package, extra, purpose, "./reproduce")  # in a clone: the package is nowhere else
