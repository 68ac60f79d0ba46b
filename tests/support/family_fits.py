"""Fits of the larger families to the small cases, made once for all tests that want them."""

from __future__ import annotations

from functools import cache
from typing import Any

from quad4fhe import Fit, fit
from support.cases import PAIRS, PAIRS_X, PLANE, PLANE_X


@cache
def pairs(family: Any) -> Fit:
    """Four classes."""
    return fit(PAIRS.mlp, PAIRS_X, family=family)


@cache
def plane(family: Any) -> Fit:
    """Two classes."""
    return fit(PLANE.mlp, PLANE_X, family=family)
