"""From a trained model and its calibration set to coefficients with evidence."""

from quad4fhe.fitting.cascade import fit
from quad4fhe.fitting.diagnostics import Agreement, Diagnostics
from quad4fhe.fitting.result import Fit

__all__ = ["Agreement", "Diagnostics", "Fit", "fit"]
