"""Degrees above two: bases, rounding, hulls in R^p, and how a degree is fitted and chosen."""

from __future__ import annotations

DEGREES = (2, 3, 4, 6, 8)
"""The degrees that a fit may have."""
