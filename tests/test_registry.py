"""A registry gives entries by name, loads them late, and says which names there are."""

from __future__ import annotations

import sys

import pytest

from quad4fhe import InputError
from quad4fhe._registry import Registry


def test_an_entry_is_imported_when_it_is_asked_for() -> None:
    sys.modules.pop("colorsys", None)
    registry: Registry[object] = Registry("constant", {"red": "colorsys:ONE_THIRD"})
    assert registry.names() == ("red",)
    assert "colorsys" not in sys.modules
    assert registry.get("red") == 1 / 3


def test_an_unknown_name_is_answered_with_the_names_that_exist() -> None:
    registry: Registry[float] = Registry("constant", {"pi": "math:pi", "e": "math:e", "tau": "math:tau"})
    with pytest.raises(InputError, match=r"^the constant is 'phi', wanted 'pi', 'e' or 'tau'$"):
        registry.get("phi")


def test_an_entry_can_be_added_for_a_while() -> None:
    registry: Registry[float] = Registry("constant", {"pi": "math:pi"})
    with registry.added("one", 1.0):
        assert registry.get("one") == 1.0
        assert list(registry)[-1] == 1.0
        with pytest.raises(InputError, match="exists already"), registry.added("pi", 3.0):
            pass
    assert "one" not in registry
