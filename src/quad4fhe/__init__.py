"""quad4fhe: run a trained one-hidden-layer ReLU classifier on encrypted data, keeping its decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quad4fhe._rows import Rows
from quad4fhe.certificate import Certificate, Verified, verify
from quad4fhe.circuit.describe import describe
from quad4fhe.circuit.plan import Plan, plan
from quad4fhe.errors import (
    CertificateError,
    FitError,
    InputError,
    MissingExtraError,
    Quad4FHEError,
    TargetNotReachedError,
)
from quad4fhe.evidence import Evidence
from quad4fhe.fitting import Fit, fit
from quad4fhe.he.session import Client, ReplyError, Server
from quad4fhe.mlp import MLP
from quad4fhe.polynomials import Comparison
from quad4fhe.polynomials.compare import compare
from quad4fhe.quadratic import QuadraticModel

if TYPE_CHECKING:
    from quad4fhe.estimator import QuadraticReplacement

__version__ = "0.1.0"

__all__ = [
    "MLP",
    "Certificate",
    "CertificateError",
    "Client",
    "Comparison",
    "Evidence",
    "Fit",
    "FitError",
    "InputError",
    "MissingExtraError",
    "Plan",
    "Quad4FHEError",
    "QuadraticModel",
    "QuadraticReplacement",
    "ReplyError",
    "Rows",
    "Server",
    "TargetNotReachedError",
    "Verified",
    "compare",
    "describe",
    "fit",
    "plan",
    "verify",
]


def __getattr__(name: str) -> Any:
    """QuadraticReplacement, loaded when it is asked for, as it needs scikit-learn."""
    if name == "QuadraticReplacement":
        from quad4fhe.estimator import QuadraticReplacement

        return QuadraticReplacement
    raise AttributeError(f"module 'quad4fhe' has no attribute {name!r}")
