"""Run a trained one-hidden-layer ReLU classifier on encrypted data, keeping its decisions.

A typical program:

    mlp = MLP.load("model.onnx")          # the trained classifier; also from_sklearn, from_torch, MLP(W1, b1, W2, b2)
    X_cal, _ = read_samples("calib.npz", "calibration")
    X_test, y_test = read_samples("test.npz", "test")
    found = fit(mlp, X_cal)               # a polynomial model that keeps its decisions, with a certificate
    verify(found, mlp, X_cal)             # rechecks the certificate, exactly and without the solvers
    found.agreement(X_test)               # the share of decisions that is kept on other samples
    chosen = plan(found, samples=2048)    # every encryption parameter; describe(chosen) explains them
    client = Client(chosen)
    request = client.encrypt(X_test)      # bytes, under a key that is made for this request and never stored
    reply = answer(found, chosen, request)  # what a server does: it sees only ciphertexts
    decisions = client.decide(reply)

`QuadraticReplacement` is a scikit-learn estimator, `Remote` queries a server that `quad4fhe serve` runs, and `score`
answers folders of encrypted requests. Every error that is raised on purpose is a Quad4FHEError. Names are loaded at
their first use, so `import quad4fhe` is quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quad4fhe import layouts as _layouts  # noqa: F401 - registers them, so that plans find their layout

if TYPE_CHECKING:
    from quad4fhe.errors import (
        CertificateError,
        FitError,
        InputError,
        MissingExtraError,
        Quad4FHEError,
        TargetNotReachedError,
    )
    from quad4fhe.fitting.cascade import fit
    from quad4fhe.fitting.result import Fit
    from quad4fhe.folders.run import score
    from quad4fhe.he.session import Client, ReplyError, answer
    from quad4fhe.io.rows import Rows
    from quad4fhe.io.samples import read_samples
    from quad4fhe.layouts.planner import plan
    from quad4fhe.mlp import MLP
    from quad4fhe.planning.describe import describe
    from quad4fhe.planning.plan import Plan
    from quad4fhe.polynomial import PolynomialModel
    from quad4fhe.proof.certificate import Certificate
    from quad4fhe.proof.evidence import Evidence
    from quad4fhe.proof.verification import Verified, verify
    from quad4fhe.serve.client import Remote
    from quad4fhe.sklearn import QuadraticReplacement

__version__ = "0.2.0"

__all__ = [
    "MLP",
    "Certificate",
    "CertificateError",
    "Client",
    "Evidence",
    "Fit",
    "FitError",
    "InputError",
    "MissingExtraError",
    "Plan",
    "PolynomialModel",
    "Quad4FHEError",
    "QuadraticReplacement",
    "Remote",
    "ReplyError",
    "Rows",
    "TargetNotReachedError",
    "Verified",
    "answer",
    "describe",
    "fit",
    "plan",
    "read_samples",
    "score",
    "verify",
]

_HOME = {
    "MLP": "mlp",
    "Certificate": "proof.certificate",
    "CertificateError": "errors",
    "Client": "he.session",
    "Evidence": "proof.evidence",
    "Fit": "fitting.result",
    "FitError": "errors",
    "InputError": "errors",
    "MissingExtraError": "errors",
    "Plan": "planning.plan",
    "Quad4FHEError": "errors",
    "PolynomialModel": "polynomial",
    "QuadraticReplacement": "sklearn",
    "Remote": "serve.client",
    "ReplyError": "he.session",
    "Rows": "io.rows",
    "TargetNotReachedError": "errors",
    "Verified": "proof.verification",
    "answer": "he.session",
    "describe": "planning.describe",
    "fit": "fitting.cascade",
    "plan": "layouts.planner",
    "read_samples": "io.samples",
    "score": "folders.run",
    "verify": "proof.verification",
}
"""Public names and their modules; a test compares it with the imports above, which type checkers read."""

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept any name

    def __getattr__(name: str) -> object:
        """Load a public name when it is first asked for."""
        if name not in _HOME:
            raise AttributeError(f"module 'quad4fhe' has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(f"quad4fhe.{_HOME[name]}"), name)
        return value


def __dir__() -> list[str]:
    """Every name that can be loaded; `help` loads them all, so without scikit-learn its estimator is left out."""
    from importlib.util import find_spec

    absent = set() if find_spec("sklearn") else {"QuadraticReplacement"}
    return sorted((set(globals()) | set(__all__)) - absent)
