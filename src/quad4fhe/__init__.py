"""quad4fhe: run a trained one-hidden-layer ReLU classifier on encrypted data, keeping its decisions."""

from __future__ import annotations

from quad4fhe.circuit.describe import describe
from quad4fhe.circuit.plan import Plan, plan
from quad4fhe.errors import (
    CertificateError,
    InputError,
    MissingExtraError,
    Quad4FHEError,
    TargetNotReachedError,
)
from quad4fhe.he.session import Client, ReplyError, Server
from quad4fhe.mlp import MLP
from quad4fhe.quadratic import QuadraticModel

__version__ = "0.1.0"

__all__ = [
    "MLP",
    "CertificateError",
    "Client",
    "InputError",
    "MissingExtraError",
    "Plan",
    "Quad4FHEError",
    "QuadraticModel",
    "ReplyError",
    "Server",
    "TargetNotReachedError",
    "describe",
    "plan",
]
