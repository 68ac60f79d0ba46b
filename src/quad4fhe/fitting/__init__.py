"""From a trained model and its calibration set to coefficients with evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quad4fhe.fitting.cascade import fit
    from quad4fhe.fitting.diagnostics import Agreement, Diagnostics
    from quad4fhe.fitting.result import Fit

__all__ = ["Agreement", "Diagnostics", "Fit", "fit"]

_HOME = {"Agreement": "diagnostics", "Diagnostics": "diagnostics", "Fit": "result", "fit": "cascade"}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Load a name when it is first asked for, so that the names of the families can be listed without NumPy."""
        if name not in _HOME:
            raise AttributeError(f"module 'quad4fhe.fitting' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"quad4fhe.fitting.{_HOME[name]}"), name)
