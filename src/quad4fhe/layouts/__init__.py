"""Layouts: ways to put samples into ciphertexts. Each folder holds one layout, and this module their registry.

A new layout is a folder with a subclass of `layouts.base.Layout`, and one line below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quad4fhe._registry import Registry
from quad4fhe.planning import use_layouts

if TYPE_CHECKING:
    from quad4fhe.layouts.base import Layout
    from quad4fhe.planning.plan import Plan

LAYOUTS: Registry[Layout] = Registry(
    "layout",
    {
        "batch": "quad4fhe.layouts.batch.layout:LAYOUT",
        "packed": "quad4fhe.layouts.packed.layout:LAYOUT",
        "lift": "quad4fhe.layouts.lift.layout:LAYOUT",
    },
)


def layout_of(plan: Plan) -> Layout:
    """The layout of a plan."""
    return LAYOUTS.get(plan.layout)


use_layouts(LAYOUTS.get)
