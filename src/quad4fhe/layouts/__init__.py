"""Layouts: ways to put samples into ciphertexts. Each folder holds one layout, and this module their registry.

A new layout is a folder with a subclass of `layouts.base.Layout`, and one line below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quad4fhe._forecast import use_forecast
from quad4fhe._registry import Registry
from quad4fhe.planning import use_layouts

if TYPE_CHECKING:
    from quad4fhe._arrays import Array
    from quad4fhe.layouts.base import Layout
    from quad4fhe.planning.plan import Plan
    from quad4fhe.polynomial import PolynomialModel

LAYOUTS: Registry[Layout] = Registry(
    "layout",
    {
        "batch": "quad4fhe.layouts.batch.layout:LAYOUT",
        "lift": "quad4fhe.layouts.lift.layout:LAYOUT",
    },
)


def layout_of(plan: Plan) -> Layout:
    """The layout of a plan."""
    return LAYOUTS.get(plan.layout)


def _server_seconds(model: PolynomialModel, box: Array, X: Any, margins: Array) -> float:
    from quad4fhe.layouts.forecast import server_seconds  # here: it needs NumPy, and most commands start without it

    return server_seconds(model, box, X, margins)


use_layouts(LAYOUTS.get)
use_forecast(_server_seconds)
