"""From a trained model and its calibration set to coefficients with evidence."""

from quad4fhe.fit.cascade import fit
from quad4fhe.fit.diagnostics import Agreement, Diagnostics
from quad4fhe.fit.result import Fit

__all__ = ["Agreement", "Diagnostics", "Fit", "fit"]
