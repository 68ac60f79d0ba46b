"""The families of replacement: which numbers of the polynomial model are free.

A family is one file of this folder that ends in `FAMILY = ...`, and one line here. How `verify` recomputes it is a rule
in `quad4fhe.proof.families`, because checking shares no code with solving. Nothing else compares names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quad4fhe._registry import Registry

if TYPE_CHECKING:
    from quad4fhe.fitting.families.base import Family

AUTO = "auto"
"""Asks `fit` for the smallest family that cross-validates best."""

FAMILIES: Registry[Family] = Registry(
    "family",
    {
        # From the fewest numbers to the most. The first is the paper's, which the others start from.
        "shared": "quad4fhe.fitting.families.shared:FAMILY",
        "unitwise": "quad4fhe.fitting.families.unitwise:FAMILY",
        "head": "quad4fhe.fitting.families.head:FAMILY",
    },
)
SHARED = FAMILIES.names()[0]
