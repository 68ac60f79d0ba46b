"""The self-checks of `doctor`: test in about a second that this machine computes correctly.

They check SEAL's byte layout, products of residues against Python's integers, decisions against fractions, a valid
certificate and two invalid ones, and an encrypted prediction in every layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial
from typing import Any

import msgspec
import numpy as np

from quad4fhe.errors import CertificateError
from quad4fhe.fitting import Fit, fit
from quad4fhe.he import seal
from quad4fhe.he.predict import predict_encrypted
from quad4fhe.layouts import LAYOUTS
from quad4fhe.layouts.batch.evaluation import multiply
from quad4fhe.layouts.planner import plan
from quad4fhe.mlp import MLP
from quad4fhe.planning.chains import largest_primes
from quad4fhe.planning.exactness import exact_matrix
from quad4fhe.polynomial import PolynomialModel
from quad4fhe.proof.exact import decisions
from quad4fhe.proof.verification import verify

_REPORT = "report it with the output of: quad4fhe doctor --json"


Check = tuple[str, Callable[[], str], str]
"""A name, a function that returns what it found or raises what is wrong, and the step that fixes it."""


def checks() -> Iterator[Check]:
    """Every self-check."""
    yield "SEAL", _layout, "pip install --force-reinstall 'seal-python>=4.4,<4.5'"
    yield "residues", _residues, _REPORT
    yield "decisions", _decisions, _REPORT
    yield "certificate", _certificate, _REPORT
    for name in LAYOUTS.names():
        yield f"encryption, {name}", partial(_round_trip, name), _REPORT


@cache
def _tiny() -> tuple[Fit, Any]:
    """A lossless fit of a model with three features and five units, and its eight calibration samples."""
    rng = np.random.default_rng(0)
    W1, b1, W2 = rng.normal(size=(5, 3)), rng.normal(size=5), rng.normal(size=(1, 5))
    X = rng.normal(size=(40, 3))
    b2 = -np.median(np.maximum(X @ W1.T + b1, 0) @ W2.T, axis=0)
    return fit(MLP(W1, b1, W2, b2), X[:8], family="shared"), X[:8]


def _layout() -> str:
    seal.check_layout()
    return f"SEAL {seal.found_version()}: its byte layout is the expected one, and arithmetic on it decrypts"


def _residues() -> str:
    """Products of matrices of residues equal those of Python's integers, at the edge of what float64 holds."""
    rng = np.random.default_rng(0)
    for bits in (20, 31):
        q = largest_primes(4096, bits, 1)[0]
        weights = rng.integers(-(2**40), 2**40, size=(4, 64))
        operand = np.where(rng.random((64, 8)) < 0.5, -(q // 2), q // 2).astype(np.float64)
        wanted = weights.astype(object) @ operand.astype(np.int64).astype(object)
        out = np.empty((4, 8))
        multiply(exact_matrix(weights, q), operand, out)
        if ((out.astype(np.int64).astype(object) - wanted) % q != 0).any():
            raise ArithmeticError(f"a product mod {q} is not that of Python's integers")
    return "products of residues equal those of Python's integers"


def _decisions() -> str:
    """Decisions of the polynomial model equal those in fractions, also on an exact tie."""
    fitted, X = _tiny()
    model = fitted.model
    found = decisions(model, X)
    for row, label in zip(X, found.label.tolist(), strict=True):
        x = [Fraction(float(value)) for value in row]
        y = [
            sum((Fraction(float(w)) * v for w, v in zip(weights, x, strict=True)), Fraction(float(bias)))
            for weights, bias in zip(model.W1, model.b1, strict=True)
        ]
        score = Fraction(float(model.c[0])) + sum(
            Fraction(float(s)) * u * u + Fraction(float(t)) * u
            for s, t, u in zip(fitted.S[0], fitted.T[0], y, strict=True)
        )
        if int(score > 0) != label:
            raise ArithmeticError("a decision differs from the one computed in fractions")
    tie = MLP([[1.0]], [0.0], [[1.0], [1.0]], [0.0, 0.0])
    if decisions(tie, np.array([[0.1]])).strict.any():
        raise ArithmeticError("an exact tie is reported as a decision")
    return f"{len(X)} decisions and a tie are those of exact fractions"


def _certificate() -> str:
    """The certificate of the tiny fit holds, but not for other data or a better claim."""
    fitted, X = _tiny()
    verified = verify(fitted, fitted.mlp, X)
    if verified.statement != "lossless":
        raise ArithmeticError(f"the tiny fit is {verified.statement}, wanted lossless")
    own = fitted.model
    biased = PolynomialModel.quadratic(own.W1, own.b1, fitted.S, fitted.T, own.c + 1e9)  # always decides class 1
    claim = msgspec.structs.replace(fitted.certificate, replacement_sha256=biased.sha256)
    for false, data in ((fitted, X + 1.0), (replace(fitted, model=biased, certificate=claim), X)):
        try:
            verify(false, None, data)
        except CertificateError:
            continue
        raise ArithmeticError("a certificate that does not hold was accepted")
    return "one that holds is accepted, two that do not are rejected"


def _round_trip(layout: str) -> str:
    """Encrypt, evaluate, decrypt: no decision changes, and the error stays below the smallest margin."""
    fitted, X = _tiny()
    made = plan(fitted, samples=len(X), layout=layout)
    found = predict_encrypted(fitted, made, X)
    error = float(np.abs(found.logits - fitted.model.logits(X)).max())
    if found.decisions.tolist() != fitted.predict(X).tolist() or not error < float(fitted.margins.min()):
        raise ArithmeticError(f"the decrypted scores are off by {error:.2g}")
    ring = f"ring N = {made.chain.ring}"
    return f"{len(X)} samples encrypted, decided and decrypted ({ring}); every decision is kept"
